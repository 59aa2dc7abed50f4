"""An audit of tables on S3 without a jar of Delta or of the store: equal tables are equal, and each difference is named."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake

from pyspark_waltz.testing import StubCluster
from tests.e2e.delta_calls import refuse_delta
from tests.e2e.edge_values import EDGES
from verification.lake.races import s3_place
from verification.lake.store_faults import PERMANENT, faulty_store
from waltz_delta import DeltaAppend
from waltz_delta.errors import StoreUnavailable
from waltz_delta.jobs.audit import audit_pipeline
from waltz_delta.jobs.audit_report import Audited
from waltz_delta.jobs.audited_tables import AuditedTable
from waltz_delta.landing.landing import Landing
from waltz_delta.pipelines.pipeline import PipelineSettings

pytestmark = pytest.mark.timeout(600)

KEY = "a9f9d1de-5f7c-4a4e-9d39-50d9bd5c4c11"
DDL = "partition INT, transaction_id BIGINT, " + ", ".join(f"{name} {kind}" for name, (kind, _) in EDGES.items())
Storage = dict[str, str]


@pytest.fixture(scope="module")
def storage() -> Iterator[Storage]:
    with s3_place() as place:
        yield dict(place.storage)


def pipeline(cluster: StubCluster, storage: Storage) -> PipelineSettings:
    decode = {"format": "json", "columns": "tail STRING, n BIGINT, held MAP<STRING, DOUBLE>"}
    target = {"engine": "arrow", "storage": storage}
    outputs = [
        {"decode": decode, "target": {**target, "table": "s3a://lake/audited/all"}, "projection": {"where": "n % 7 != 0"}},
        {"decode": decode, "target": {**target, "table": "s3a://lake/audited/newest", "mode": "upsert", "keys": ["tail"]}},
        {"decode": decode, "target": {**target, "table": "s3a://lake/audited/versions", "mode": "history", "keys": ["tail"]}},
    ]
    letters = {"table": "s3a://lake/audited/dead", "storage": storage}
    given = {"source": {"cluster": cluster.address}, "checkpoint": "/none", "outputs": outputs, "dead_letters": letters}
    return PipelineSettings.model_validate(given)


def audited(spark: Any, cluster: StubCluster, settings: PipelineSettings) -> list[Audited]:
    extents = {partition: (0, mark) for partition, mark in cluster.marks().items()}
    return list(audit_pipeline(spark, settings, str(cluster.key), lambda: extents, source="waltz_stub"))


def table(name: str, storage: Storage) -> DeltaTable:
    return DeltaTable(f"s3://lake/audited/{name}", storage_options=storage)


def test_an_audit_of_tables_on_s3_finds_nothing_or_what_was_planted_and_asks_no_delta_in_spark(
    spark: Any, stub: Callable[..., StubCluster], storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_delta(spark, monkeypatch)
    cluster = stub()
    for partition in (0, 1):
        rows = [{"tail": f"{partition}-{at % 5}", "n": "bad" if at == 11 else at, "held": {"x": at / 3}} for at in range(30)]
        cluster.append(partition, [json.dumps(row).encode() for row in rows])
    settings = pipeline(cluster, storage)
    nothing = audited(spark, cluster, settings)
    assert [str(each.differences[0]) for each in nothing] == ["table: there is no table"] * 3
    log = spark.read.format("waltz_stub").options(cluster=cluster.address).load()
    for end in (13, 30):
        Landing(settings, str(cluster.key)).write(log.where(f"transaction_id < {end}"))
    clean = audited(spark, cluster, settings)
    assert [each.differences for each in clean] == [[], [], []]
    assert {p: (found.transactions, found.expected, found.found) for p, found in clean[0].partitions.items()} == {0: (30, 24, 24), 1: (30, 24, 24)}
    kept, newest, versions = (table(name, storage) for name in ("all", "newest", "versions"))
    doubled = kept.to_pyarrow_table(filters=[("partition", "=", 1), ("transaction_id", "=", 5)])
    kept.delete("partition = 0 AND transaction_id BETWEEN 8 AND 10")
    kept.update(updates={"n": "0"}, predicate="partition = 1 AND transaction_id = 9")
    write_deltalake("s3://lake/audited/all", doubled, mode="append", storage_options=storage)
    newest.update(updates={"n": "0"}, predicate="tail = '0-1'")
    newest.delete("tail = '0-2'")
    versions.update(updates={"tail": "'stranger'"}, predicate="tail = '1-3' AND is_current")
    found = audited(spark, cluster, settings)
    assert [sorted(map(str, each.differences)) for each in found] == [
        ["changed: partition=1 transaction_id=9", "missing: partition=0 transaction_id=8-10", "repeated: partition=1 transaction_id=5"],
        ['changed: key={"tail":"0-1"}', 'missing: key={"tail":"0-2"}'],
        ['extra: key={"tail":"stranger"}', 'missing: key={"tail":"1-3"}'],
    ]


@pytest.mark.parametrize("partition_by", [[], ["p"]])
def test_the_engine_reads_each_version_as_spark_does(spark: Any, tmp_path: Path, partition_by: list[str]) -> None:
    path = str(tmp_path / "t")
    for number, engine in enumerate(("spark", "arrow")):
        rows = [(0, 3 * number + at, *(values[at] for _, values in EDGES.values())) for at in range(3)]
        DeltaAppend(path, KEY, engine=engine, partition_by=partition_by).write(spark.createDataFrame(rows, DDL))  # type: ignore[arg-type]
    by_engine, by_spark = AuditedTable(spark, path, "arrow", {}), AuditedTable(spark, path, "auto", {})
    assert by_engine.version() == by_spark.version() == 1
    for version in (0, 1):
        ours, theirs = by_engine.rows(version), by_spark.rows(version)
        assert ours.schema.simpleString() == theirs.schema.simpleString()
        assert sorted(map(repr, ours.collect())) == sorted(map(repr, theirs.collect()))
    assert [row["s"] for row in by_engine.rows(0, ["S"]).withColumnRenamed("S", "s").collect()] == EDGES["s"][1]
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    spark.sql(f"DELETE FROM delta.`{path}` WHERE transaction_id = 1")
    left_to_spark = AuditedTable(spark, path, "arrow", {})
    assert left_to_spark.rows(left_to_spark.version()).count() == 5


@pytest.mark.parametrize("name", PERMANENT)
def test_an_audit_whose_store_fails_says_so_and_finds_no_empty_table(spark: Any, name: str) -> None:
    with faulty_store() as store:
        path = "s3a://lake/audited/failing"
        DeltaAppend(path, KEY, storage=store.storage).write(spark.sql("SELECT 0 AS partition, 0L AS transaction_id"))
        opened = AuditedTable(spark, path, "arrow", store.hasty)
        store.fail(name)
        for read in (lambda: AuditedTable(spark, path, "arrow", store.hasty), opened.log, opened.transaction, opened.version, lambda: opened.rows(0)):
            with pytest.raises(StoreUnavailable, match=PERMANENT[name][1]):
                read()
