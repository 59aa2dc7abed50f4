"""Each option of the source, and each of its errors, in a real Spark: what comes out is compared row by row with what was appended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Row
from pyspark.sql.types import StructType
from pyspark.testing import assertDataFrameEqual

from pyspark_waltz import METADATA_SCHEMA, SCHEMA, SCHEMA_WITH_METADATA
from pyspark_waltz.testing import StubCluster

T0 = 1_700_000_000_000
BLOCK = 10

METADATA_OWNER = StructType([METADATA_SCHEMA["partition"], METADATA_SCHEMA["owner"]])

Read = Callable[..., Any]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StubCluster]:
    """Three partitions of 60, 30 and no transactions, in blocks of ten a second apart."""
    cluster = StubCluster(tmp_path_factory.mktemp("log"), partitions=3)
    for partition, blocks in ((0, 6), (1, 3)):
        for n in range(blocks):
            rows = [b"%d/%d" % (partition, BLOCK * n + k) + b"." * k for k in range(BLOCK)]
            cluster.append(partition, rows, append_time_ms=T0 + 1000 * n, headers=lambda at: at % 4)
    yield cluster
    cluster.close()


def rows(*ranges: tuple[int, int, int], metadata: bool = False, where: Callable[[int, int], bool] = lambda _p, _at: True) -> list[tuple[Any, ...]]:
    """What the log holds in (partition, first id, end)."""
    from datetime import UTC, datetime, timedelta

    found: list[tuple[Any, ...]] = []
    for partition, first, end in ranges:
        for at in range(first, end):
            if not where(partition, at):
                continue
            data = bytearray(b"%d/%d" % (partition, at) + b"." * (at % BLOCK))
            moment = (datetime.fromtimestamp(T0 / 1000, UTC) + timedelta(seconds=at // BLOCK)).replace(tzinfo=None)
            row: tuple[Any, ...] = (partition, at, moment, at % 4, data)
            found.append((*row, 1, 1, at, crc32(data)) if metadata else row)
    return found


@pytest.fixture
def read(spark: Any, log: StubCluster) -> Read:
    def load(**options: str) -> Any:
        return spark.read.format("waltz_stub").options(cluster=log.address, **options).load()

    return load


def expect(found: Any, expected: list[tuple[Any, ...]], schema: Any = SCHEMA) -> None:
    assert found.schema == schema
    assertDataFrameEqual(found, [Row(*row) for row in expected])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, rows((0, 0, 60), (1, 0, 30))),
        ({"partitions": "1-2"}, rows((1, 0, 30))),
        ({"startingTransactionIds": "latest"}, []),
        ({"startingTransactionIds": '{"0": 55, "1": -1}'}, rows((0, 55, 60))),
        ({"endingTransactionIds": '{"0": 3, "1": 0}'}, rows((0, 0, 3))),
        ({"startingTimestamp": str(T0 + 2000), "partitions": "0,1"}, rows((0, 20, 60), (1, 20, 30))),
        ({"startingTimestamp": "2023-11-14T22:13:21.001Z", "partitions": "0,1"}, rows((0, 20, 60), (1, 20, 30))),
        (
            {"startingTransactionIdsByTimestamp": f'{{"0": {T0 + 4000}}}', "startingTransactionIds": '{"1": 28}'},
            rows((0, 40, 60), (1, 28, 30)),
        ),
        (
            {"startingTimestamp": str(T0 + 4000), "startingTransactionIdsByTimestampStrategy": "latest"},
            rows((0, 40, 60)),
        ),
        ({"endingTimestamp": str(T0 + 1000)}, rows((0, 0, 10), (1, 0, 10))),
        ({"endingTransactionIdsByTimestamp": '{"0": "2023-11-14T22:13:22Z", "1": 0}'}, rows((0, 0, 20))),
        ({"minPartitions": "7", "fetchTimeoutMs": "5000"}, rows((0, 0, 60), (1, 0, 30))),
        ({"maxRecordsPerPartition": "9"}, rows((0, 0, 60), (1, 0, 30))),
    ],
    ids=lambda value: ",".join(value) or "nothing" if isinstance(value, dict) else "",
)
def test_an_option_of_a_batch_read_gives_exactly_its_rows(spark: Any, read: Read, options: dict[str, str], expected: list[Any]) -> None:
    expect(read(**options), expected)


def test_more_columns_report_who_appended_and_the_checksum_is_the_one_of_sql(spark: Any, read: Read) -> None:
    found = read(includeMetadata="true", partitions="1")
    expect(found, rows((1, 0, 30), metadata=True), SCHEMA_WITH_METADATA)
    assert found.where("crc32(data) <> checksum").count() == 0


def test_the_partitions_of_the_log_are_rows(spark: Any, read: Read, log: StubCluster) -> None:
    addresses = [node.address for node in log.nodes]
    log.unowned = {2}
    log.publish()
    try:
        expected = [
            (0, 0, 59, "server-0:1", 1, 1, addresses),
            (1, 0, 29, "server-1:1", 1, 1, addresses),
            (2, None, None, None, None, None, addresses),
        ]
        expect(read(mode="metadata"), expected, METADATA_SCHEMA)
        expect(read(mode="metadata", partitions="1").select("partition", "owner"), [(1, "server-1:1")], METADATA_OWNER)
    finally:
        log.unowned = set()
        log.publish()


@pytest.mark.parametrize(
    ("where", "keeps", "asked"),
    [
        ("partition = 1", lambda p, at: p == 1, {(1, 0, 29)}),
        ("transaction_id BETWEEN 12 AND 15", lambda p, at: 12 <= at <= 15, {(0, 12, 15), (1, 12, 15)}),
        ("transaction_id IN (3, 44)", lambda p, at: at in (3, 44), {(0, 3, 3), (0, 44, 44), (1, 3, 3)}),
        ("header = 2", lambda p, at: at % 4 == 2, {(0, 0, 59), (1, 0, 29)}),
        ("header IN (0, 3) AND partition <> 1", lambda p, at: at % 4 in (0, 3) and p != 1, {(0, 0, 59)}),
        ("timestamp >= '2023-11-14 22:13:24'", lambda p, at: at >= 40, {(0, 40, 59)}),
        ("timestamp < '2023-11-14 22:13:21.5' AND data LIKE '1/%'", lambda p, at: p == 1 and at < 20, {(0, 0, 19), (1, 0, 19)}),
        ("timestamp = '2023-11-14 22:13:21'", lambda p, at: 10 <= at < 20, {(0, 10, 19), (1, 10, 19)}),
        ("partition = 7 OR header = 1", lambda p, at: at % 4 == 1, {(0, 0, 59), (1, 0, 29)}),
        ("header = 2 AND partition = 5", lambda p, at: False, set()),
    ],
)
def test_a_filter_gives_the_same_rows_pushed_or_not_and_pushed_reads_less(
    read: Read,
    log: StubCluster,
    offer_filters: Callable[[bool], None],
    where: str,
    keeps: Callable[[int, int], bool],
    asked: set[tuple[int, int, int]],
) -> None:
    offer_filters(True)
    for node in log.nodes:
        node.reads.clear()
    expect(read(filterPushdown="true").where(where), rows((0, 0, 60), (1, 0, 30), where=keeps))
    assert {each for node in log.nodes for each in node.reads} == asked


def test_without_sparks_setting_filters_are_sparks_own_business(read: Read, log: StubCluster, offer_filters: Callable[[bool], None]) -> None:
    offer_filters(False)
    for node in log.nodes:
        node.reads.clear()
    expect(read(filterPushdown="true").where("header = 2 AND partition = 1"), rows((1, 0, 30), where=lambda _, at: at % 4 == 2))
    assert {each for node in log.nodes for each in node.reads} == {(0, 0, 59), (1, 0, 29)}


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        ({"startingTimestmp": "5"}, r"startingtimestmp: no such option of the source .did you mean startingTimestamp"),
        ({"startingTimestamp": "soon"}, r"must be milliseconds since 1970, or ISO 8601 with an offset"),
        ({"startingTimestamp": str(T0 + 60_000)}, r"nothing of partition 0 was appended at 2023-11-14T22:14:20.000Z or later"),
        ({"startingTransactionIds": '{"0": 61}'}, r"out of range: .*: partition=0 asked=61 first=0 last=59"),
        ({"endingTransactionIds": '{"9": 5}'}, r"names partition 9, the log has 0,1,2"),
        ({"partitions": "0-7"}, r"names partition 7, the cluster has 0 to 2"),
        ({"maxBytesPerTrigger": "5k"}, r"maxBytesPerTrigger is for stream reads only"),
        ({"mode": "metadata", "includeMetadata": "true"}, r"includeMetadata does nothing with mode=metadata"),
        ({"tls.enabled": "true"}, r"TLS is set by the environment variables"),
        ({"bootstrap": "h:1"}, r"is not an option: give the addresses of log servers, host:port\[,host:port\] .did you mean cluster"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_an_option_that_cannot_be_is_reported_by_name(read: Read, options: dict[str, str], reported: str) -> None:
    with pytest.raises(PySparkException, match=reported):
        read(**options).collect()


def test_errors_of_reading_reach_the_user_with_what_was_lost_or_said(spark: Any, stub: Callable[..., StubCluster], tmp_path: Path) -> None:
    cluster = stub()
    cluster.append(0, [b"x"] * 100)
    cluster.trim(0, 40)

    def load(**options: str) -> Any:
        return spark.read.format("waltz_stub").options(cluster=cluster.address, fetchTimeoutMs="700", **options).load()

    with pytest.raises(PySparkException, match=r"transactions lost to this query: trimmed.*: partition=0 first=30 last=39"):
        load(startingTransactionIds='{"0": 30}').count()
    assert load(startingTransactionIds='{"0": 30}', failOnDataLoss="false").count() == 60
    for node in cluster.nodes:
        node.session = 0
    with pytest.raises(PySparkException, match=r"no replica could serve the range: partition=0 first=40 last=99 .*replica of an older session"):
        load().count()
