"""The stream reader as Spark drives it, without Spark: offsets, limits, ends and tasks over a log of stubs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows, ReadMinRows

from pyspark_waltz.offsets import Offset
from pyspark_waltz.schema import METADATA_SCHEMA, SCHEMA, SCHEMA_WITH_METADATA
from pyspark_waltz.testing import StubCluster, StubSource
from waltz_log.errors import InvalidSetting, OutOfRange

T0 = 1_700_000_000_000


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[StubCluster]:
    made = StubCluster(tmp_path, replicas=1)
    yield made
    made.close()


@pytest.fixture
def reader(cluster: StubCluster) -> Iterator[Callable[..., Any]]:
    made: list[Any] = []

    def make(**options: str) -> Any:
        made.append(StubSource({"cluster": cluster.address, **options}).streamReader(SCHEMA))
        return made[-1]

    yield make
    for each in made:
        each.stop()


def fill(cluster: StubCluster, partition: int, rows: int, time_ms: int = T0) -> None:
    cluster.append(partition, [b"." * 60] * rows, append_time_ms=time_ms)


def through_text(offset: dict[str, Any]) -> dict[str, Any]:
    """As Spark keeps it."""
    found: dict[str, Any] = json.loads(json.dumps(offset))
    return found


def ends(offset: dict[str, Any]) -> dict[str, int]:
    return {name: at for name, at in offset.items() if name.isdecimal()}


def test_the_limit_that_spark_is_reported_is_one_that_it_knows(reader: Callable[..., Any]) -> None:
    assert reader().getDefaultReadLimit() == ReadAllAvailable()
    assert reader(maxTransactionsPerTrigger="5", maxBytesPerTrigger="7", minTransactionsPerTrigger="2").getDefaultReadLimit() == ReadMaxRows(5)
    assert reader(maxBytesPerTrigger="7", minTransactionsPerTrigger="2").getDefaultReadLimit() == ReadMaxBytes(7)
    assert reader(minTransactionsPerTrigger="2").getDefaultReadLimit() == ReadMinRows(2)


def test_limits_are_ignored_where_spark_asks_for_all_there_is(reader: Callable[..., Any], cluster: StubCluster) -> None:
    fill(cluster, 0, 20)
    stream = reader(maxTransactionsPerTrigger="5", minTransactionsPerTrigger="5")
    start = stream.initialOffset()
    assert ends(stream.latestOffset(start, ReadMaxRows(5))) == {"0": 5, "1": 0}
    assert ends(stream.latestOffset(start, ReadAllAvailable())) == {"0": 20, "1": 0}


def test_bytes_limit_a_batch(reader: Callable[..., Any], cluster: StubCluster) -> None:
    fill(cluster, 0, 20)
    fill(cluster, 1, 10)
    stream = reader(maxBytesPerTrigger="900")
    start = through_text(stream.initialOffset())
    end = stream.latestOffset(start, ReadMaxBytes(900))
    assert ends(end) == {"0": 6, "1": 3}
    assert [(task.partition, task.first, task.last) for task in stream.partitions(start, end)] == [(0, 0, 5), (1, 0, 2)]


def test_a_least_is_waited_for_from_the_last_batch_on(reader: Callable[..., Any], cluster: StubCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("pyspark_waltz.source.time.monotonic", lambda: now)
    stream = reader(minTransactionsPerTrigger="10", maxTriggerDelay="60s")
    fill(cluster, 0, 4)
    first = stream.latestOffset(stream.initialOffset(), ReadMinRows(10))
    assert ends(first) == {"0": 0, "1": 0}, "the first batch keeps where the query began, and nothing more"
    now += 59
    assert stream.latestOffset(first, ReadMinRows(10)) is first
    now += 1
    second = stream.latestOffset(first, ReadMinRows(10))
    assert ends(second) == {"0": 4, "1": 0}
    fill(cluster, 1, 9)
    now += 59
    assert stream.latestOffset(second, ReadMinRows(10)) is second
    fill(cluster, 1, 1)
    third = stream.latestOffset(second, ReadMinRows(10))
    assert ends(third) == {"0": 4, "1": 10}
    fill(cluster, 1, 1)
    stream.prepareForTriggerAvailableNow()
    assert ends(stream.latestOffset(third, ReadMinRows(10))) == {"0": 4, "1": 11}, "nothing more will come, so nothing is waited for"


def test_ends_by_id_and_time_hold_and_those_in_the_future_are_found_when_they_are_there(reader: Callable[..., Any], cluster: StubCluster) -> None:
    fill(cluster, 0, 5)
    fill(cluster, 1, 5)
    stream = reader(endingTransactionIds='{"1": 3}', endingTimestamp=str(T0 + 1000))
    end = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    assert ends(end) == {"0": 5, "1": 3}
    fill(cluster, 0, 5, T0 + 999)
    fill(cluster, 0, 5, T0 + 1000)
    end = stream.latestOffset(through_text(end), ReadAllAvailable())
    assert ends(end) == {"0": 10, "1": 3}
    fill(cluster, 0, 5, T0 + 2000)
    assert stream.latestOffset(end, ReadAllAvailable()) is end
    assert ends(stream.reportLatestOffset()) == {"0": 20, "1": 5}, "what is told of the log is not what is read of it"


def test_available_now_reads_its_target_and_a_restart_with_new_partitions_ends(reader: Callable[..., Any], cluster: StubCluster) -> None:
    fill(cluster, 0, 10)
    stream = reader(maxTransactionsPerTrigger="4")
    stream.prepareForTriggerAvailableNow()
    fill(cluster, 0, 10)
    offset, sizes = stream.initialOffset(), []
    for _ in range(10):
        end = stream.latestOffset(offset, ReadMaxRows(4))
        if end is offset:
            break
        sizes.append(sum(task.last - task.first + 1 for task in stream.partitions(offset, end)))
        assert stream.partitions(offset, end) == stream.partitions(through_text(offset), through_text(end))
        offset = through_text(end)
    assert sizes == [4, 4, 2]
    cluster.partitions = 3
    fill(cluster, 2, 3)
    again = reader()
    again.prepareForTriggerAvailableNow()
    end = again.latestOffset(offset, ReadAllAvailable())
    assert ends(end) == {"0": 20, "1": 0, "2": 3}
    assert again.latestOffset(end, ReadAllAvailable()) is end
    assert again.partitions(end, end) == []


def test_an_offset_of_another_cluster_is_refused_by_every_method(reader: Callable[..., Any], cluster: StubCluster) -> None:
    stream = reader()
    foreign = {"0": 5, "1": 0, "cluster": "00000000-0000-0000-0000-000000000001"}
    assert stream.initialOffset()["cluster"] == str(cluster.key)
    with pytest.raises(InvalidSetting, match="is of another cluster"):
        stream.latestOffset(foreign, ReadAllAvailable())
    with pytest.raises(InvalidSetting, match="is of another cluster"):
        stream.partitions({"0": 5, "1": 0}, foreign)


def test_a_log_that_ends_before_what_was_read_is_refused_and_an_old_bound_waited_out(
    reader: Callable[..., Any], cluster: StubCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(cluster, 0, 5)
    for once in (False, True):
        stream = reader(fetchTimeoutMs="50")
        if once:
            stream.prepareForTriggerAvailableNow()
        with pytest.raises(OutOfRange, match="partition=0 asked=8 first=0 last=4"):
            stream.latestOffset({"0": 9, "1": 0, "cluster": str(cluster.key)}, ReadAllAvailable())
    capped = reader(endingTransactionIds='{"0": 3, "1": 0}')
    passed = {"0": 5, "1": 0, "cluster": str(cluster.key)}
    assert capped.latestOffset(passed, ReadAllAvailable()) is passed, "an end that was changed moves nothing back"
    monkeypatch.setattr("pyspark_waltz.log_view.time.sleep", lambda _: fill(cluster, 0, 5))
    waiting = reader()
    assert ends(waiting.latestOffset({"0": 9, "1": 0}, ReadAllAvailable())) == {"0": 9, "1": 0}
    assert ends(waiting.latestOffset({"0": 9, "1": 0}, ReadAllAvailable())) == {"0": 10, "1": 0}


def test_columns_are_those_that_the_options_ask_for(cluster: StubCluster) -> None:
    options = {"cluster": cluster.address}
    assert StubSource(options).schema() == SCHEMA
    assert StubSource({**options, "includeMetadata": "true"}).schema() == SCHEMA_WITH_METADATA
    assert StubSource({**options, "mode": "metadata"}).schema() == METADATA_SCHEMA


def test_an_end_that_turns_out_to_lie_before_the_start_is_refused(cluster: StubCluster) -> None:
    fill(cluster, 0, 10, T0)
    fill(cluster, 0, 10, T0 + 1000)

    def tasks(**options: str) -> list[tuple[int, int]]:
        found = StubSource({"cluster": cluster.address, **options}).reader(SCHEMA).partitions()
        return [(each.first, each.last) for each in found]  # type: ignore[attr-defined]

    given = {"startingTransactionIdsByTimestamp": f'{{"0": {T0 + 1000}}}'}
    assert tasks(**given, endingTransactionIds='{"0": 12, "1": 0}') == [(10, 11)]
    assert tasks(**given, endingTransactionIds='{"0": 10}') == []
    with pytest.raises(InvalidSetting, match="the end lies before the start: partition=0 start=10 end=4"):
        tasks(**given, endingTransactionIds='{"0": 4}')
    assert tasks(startingTransactionIds="latest", endingTimestamp=str(T0 + 500)) == [], "the latest moves, so it is no start that was chosen"


def test_the_latest_offset_has_the_lag_of_each_partition(reader: Callable[..., Any], cluster: StubCluster) -> None:
    fill(cluster, 0, 20)
    fill(cluster, 1, 3)
    stream = reader(maxTransactionsPerTrigger="8")
    assert stream.reportLatestOffset() is None
    start = through_text(stream.initialOffset())
    assert stream.reportLatestOffset()["transactionsBehindLatest"] == {"0": 20, "1": 3}
    end = through_text(stream.latestOffset(start, ReadMaxRows(8)))
    latest = through_text(stream.reportLatestOffset())
    assert ends(latest) == {"0": 20, "1": 3}
    assert latest["transactionsBehindLatest"] == {"0": 20 - end["0"], "1": 3 - end["1"]}
    assert Offset.from_json(latest).next == {0: 20, 1: 3}
    end = through_text(stream.latestOffset(end, ReadAllAvailable()))
    assert stream.reportLatestOffset()["transactionsBehindLatest"] == {"0": 0, "1": 0}
    fill(cluster, 1, 12)
    stream.latestOffset(end, ReadMaxRows(8))
    assert stream.reportLatestOffset()["transactionsBehindLatest"] == {"0": 0, "1": 4}
