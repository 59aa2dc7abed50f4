"""The source in a real Spark: streams and batch reads over a log of storage stubs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyspark_waltz import SCHEMA
from pyspark_waltz.testing import StubCluster

Stub = Callable[..., StubCluster]
Rows = list[tuple[int, int]]


def fill(cluster: StubCluster, partition: int, rows: int) -> None:
    start = cluster.marks().get(partition, -1) + 1
    cluster.append(partition, [b'{"n": %d}' % (start + n) for n in range(rows)], headers=lambda at: at % 5)


class Run:
    """A streaming query over a stub cluster, started and stopped as often as a test wants; what each batch held is kept."""

    def __init__(self, spark: Any, cluster: StubCluster, checkpoint: Path) -> None:
        self.spark, self.cluster, self.checkpoint = spark, cluster, checkpoint
        self.batches: dict[int, list[Rows]] = {}

    def available_now(self, **options: str) -> Any:
        stream = self.spark.readStream.format("waltz_stub").option("cluster", self.cluster.address).options(**options).load()
        query = stream.writeStream.foreachBatch(self._keep).option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(60)
        finally:
            query.stop()
        return query

    def _keep(self, batch: Any, batch_id: int) -> None:
        self.batches.setdefault(batch_id, []).append(sorted((row[0], row[1]) for row in batch.collect()))

    def rows(self) -> Rows:
        return sorted(row for runs in self.batches.values() for row in runs[-1])

    def forget_commit(self) -> int:
        """As if the driver had died before the checkpoint of the last batch: that batch runs again."""
        last = max(int(path.name) for path in (self.checkpoint / "commits").iterdir() if path.name.isdecimal())
        for name in (str(last), f".{last}.crc"):
            (self.checkpoint / "commits" / name).unlink(missing_ok=True)
        return last


def ids(partition: int, first: int, end: int) -> Rows:
    return [(partition, at) for at in range(first, end)]


@pytest.fixture
def run(spark: Any, stub: Stub, tmp_path: Path) -> Run:
    return Run(spark, stub(), tmp_path / "checkpoint")


def test_a_batch_read_has_the_schema_and_the_rows_within_its_positions(spark: Any, stub: Stub) -> None:
    cluster = stub()
    fill(cluster, 0, 30)
    fill(cluster, 1, 20)

    def read(**options: str) -> Any:
        return spark.read.format("waltz_stub").option("cluster", cluster.address).options(**options).load()

    whole = read()
    assert whole.schema == SCHEMA
    row = whole.where("partition = 1 AND transaction_id = 7").collect()[0]
    assert (row.header, bytes(row.data), row.timestamp.year) == (2, b'{"n": 7}', 2023)
    assert whole.count() == 50
    part = read(startingTransactionIds='{"0": 10, "1": -1}', endingTransactionIds='{"0": 15}')
    assert sorted((r[0], r[1]) for r in part.collect()) == ids(0, 10, 15)
    assert sorted((r[0], r[1]) for r in read(partitions="1").collect()) == ids(1, 0, 20)
    assert read(startingTransactionIds="latest").count() == 0
    split = read(minPartitions="4")
    assert split.rdd.getNumPartitions() >= 4
    assert split.count() == 50


def test_one_frame_gives_each_of_its_queries_all_of_its_rows(spark: Any, stub: Stub, offer_filters: Callable[[bool], None]) -> None:
    cluster = stub()
    fill(cluster, 0, 30)
    fill(cluster, 1, 20)
    offer_filters(True)
    frame = spark.read.format("waltz_stub").option("cluster", cluster.address).load()
    first, second = frame.where("partition = 0"), frame.where("partition = 1")
    assert (first.count(), second.count(), frame.count()) == (30, 20, 50)
    assert first.union(second).count() == 50
    assert first.join(second, "transaction_id").count() == 20
    fill(cluster, 1, 5)
    assert frame.count() == 50, "a frame's bounds are those of its first query"
    assert spark.read.format("waltz_stub").option("cluster", cluster.address).load().count() == 55


def test_spark_still_gives_tasks_planned_with_filters_to_the_next_query_of_a_frame(
    spark: Any, stub: Stub, offer_filters: Callable[[bool], None]
) -> None:
    """Why `filterPushdown` is off unless asked for (decision 12). If this fails, Spark was fixed and the default can change."""
    cluster = stub()
    fill(cluster, 0, 30)
    fill(cluster, 1, 20)

    offer_filters(True)

    def frame() -> Any:
        return spark.read.format("waltz_stub").option("cluster", cluster.address).option("filterPushdown", "true").load()

    one = frame()
    assert one.where("partition = 1 AND transaction_id = 7").count() == 1
    assert one.count() == 1
    two = frame()
    assert two.where("partition = 0").union(two.where("partition = 1")).count() != 50


def test_the_source_is_found_by_its_name_without_registration(spark: Any, tmp_path: Path) -> None:
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException, match=r"is required: the addresses of log servers, host:port\[,host:port\]"):
        spark.read.format("waltz").load()


def test_unknown_options_are_refused_at_load_with_the_nearest(spark: Any) -> None:
    from pyspark.errors import PySparkException

    for reader in (spark.read, spark.readStream):
        with pytest.raises(PySparkException, match=r"maxtransactionpertrigger: .*did you mean maxTransactionsPerTrigger"):
            reader.format("waltz").option("cluster", "x").option("maxTransactionPerTrigger", "5").load()


def test_a_missing_cluster_is_named(spark: Any, tmp_path: Path) -> None:
    from pyspark.errors import PySparkException

    nowhere = str(tmp_path / "nowhere.json")
    with pytest.raises(PySparkException, match="cluster unavailable"):
        spark.read.format("waltz_stub").option("cluster", nowhere).load().count()


def test_available_now_reads_exactly_its_target_in_batches_of_the_limit(run: Run) -> None:
    fill(run.cluster, 0, 70)
    fill(run.cluster, 1, 31)
    grown = False

    def grow_meanwhile(batch: Any, batch_id: int) -> None:
        nonlocal grown
        if not grown:
            grown = True
            fill(run.cluster, 0, 500)
        Run._keep(run, batch, batch_id)

    run._keep = grow_meanwhile  # type: ignore[method-assign]
    query = run.available_now(maxTransactionsPerTrigger="40")
    sizes = [len(runs[-1]) for _, runs in sorted(run.batches.items())]
    assert sizes == [40, 40, 21]
    assert run.rows() == ids(0, 0, 70) + ids(1, 0, 31)
    progress = [p for p in query.recentProgress if p.numInputRows]
    assert sum(p.numInputRows for p in progress) == 101
    assert json.loads(progress[-1].sources[0].latestOffset)["0"] == 70


def test_restarts_read_nothing_again_also_after_an_empty_last_batch(run: Run) -> None:
    fill(run.cluster, 0, 10)
    run.available_now()
    run.available_now()
    run.available_now()
    fill(run.cluster, 0, 5)
    fill(run.cluster, 1, 3)
    run.available_now()
    run.available_now()
    assert run.rows() == ids(0, 0, 15) + ids(1, 0, 3)
    assert all(len(runs) == 1 for runs in run.batches.values())


def test_a_first_batch_is_replayed_as_it_was_though_latest_moved_on(run: Run) -> None:
    fill(run.cluster, 0, 10)
    run.available_now(startingTransactionIds="latest")
    fill(run.cluster, 0, 10)
    assert run.rows() == []
    assert run.forget_commit() == 0
    run.available_now(startingTransactionIds="latest")
    assert run.rows() == ids(0, 10, 20)


def test_a_replayed_batch_holds_the_same_rows_whatever_the_limit_is_now(run: Run) -> None:
    fill(run.cluster, 0, 50)
    fill(run.cluster, 1, 50)
    run.available_now(maxTransactionsPerTrigger="60", startingTransactionIds='{"0": 5}')
    last = run.forget_commit()
    fill(run.cluster, 0, 100)
    run.cluster.session += 1
    for node in run.cluster.nodes[1:]:
        node.session += 1
    run.cluster.publish()
    run.available_now(maxTransactionsPerTrigger="7")
    assert len(run.batches[last]) == 2
    assert run.batches[last][0] == run.batches[last][1]
    assert run.rows() == ids(0, 5, 150) + ids(1, 0, 50)


def test_trimmed_transactions_end_the_query_with_the_range_that_was_lost(run: Run) -> None:
    fill(run.cluster, 0, 10)
    run.available_now()
    fill(run.cluster, 0, 30)
    run.cluster.trim(0, 25)
    with pytest.raises(Exception, match=r"transactions lost to this query: trimmed[^:]*: partition=0 first=10 last=24"):
        run.available_now()
    run.available_now(failOnDataLoss="false")
    assert run.rows() == ids(0, 0, 10) + ids(0, 25, 40)


def test_a_node_that_dies_in_the_middle_of_a_stream_costs_nothing(run: Run) -> None:
    for _ in range(20):
        fill(run.cluster, 0, 100)
    victim = run.cluster.nodes[0]
    seen = 0

    def die(partition: int, block: Any) -> Any:
        nonlocal seen
        seen += 1
        if seen == 5:
            victim.stop()
        return block

    victim.hook = die
    run.available_now(minPartitions="3")
    assert seen >= 5
    assert run.rows() == ids(0, 0, 2000)


def test_executors_decode_what_they_read(spark: Any, stub: Stub, tmp_path: Path) -> None:
    cluster = stub()
    cluster.append(0, [b'{"k": "a", "n": 1}', b"no JSON", b'{"n": 2}', b'{"k": "b", "n": 2.5}', b'{"k": "c", "at": "2026-01-02"}'])
    options = {"cluster": cluster.address, "columns": "k STRING NOT NULL, n INT, at TIMESTAMP", "timeZone": "Asia/Tokyo"}
    rows = spark.read.format("waltz_stub").options(**options).load()
    assert rows.schema.simpleString().endswith("header:int,k:string,n:int,at:timestamp,data:binary,problem:string>")
    found = [(row.transaction_id, row.k, row.n, row.data and bytes(row.data), row.problem) for row in rows.orderBy("transaction_id").collect()]
    assert [row for row in found if row[4] is None] == [(0, "a", 1, None, None), (4, "c", None, None, None)]
    assert [(row[0], row[3], row[4]) for row in found if row[4] is not None] == [
        (1, b"no JSON", "is not one JSON object: Expecting value at character 1"),
        (2, b'{"n": 2}', "k is missing or null"),
        (3, b'{"k": "b", "n": 2.5}', "n is not INT: 2.5"),
    ]
    assert rows.selectExpr("unix_seconds(at)").where("k = 'c'").collect()[0][0] == 1767279600
    stream = spark.readStream.format("waltz_stub").options(**options).load()
    query = stream.where("problem IS NULL").writeStream.format("parquet").option("path", str(tmp_path / "out"))
    ended = query.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    assert ended.awaitTermination(60)
    assert sorted(row.k for row in spark.read.parquet(str(tmp_path / "out")).collect()) == ["a", "c"]
    failing = spark.read.format("waltz_stub").options(**options, undecodable="fail", endingTransactionIds='{"0": 1}').load()
    assert [(row.transaction_id, row.k, row.n) for row in failing.collect()] == [(0, "a", 1)]
    assert failing.columns == ["partition", "transaction_id", "timestamp", "header", "k", "n", "at"]
    with pytest.raises(Exception, match=r"the transaction does not decode: is not one JSON object: .*: partition=0 transaction_id=1 "):
        spark.read.format("waltz_stub").options(**options, undecodable="fail").load().collect()
