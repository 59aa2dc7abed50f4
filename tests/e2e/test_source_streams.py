"""Streams with limits, ends and new partitions in a real Spark, and what Spark's own progress says of them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pyspark_waltz.testing import StubCluster

pytestmark = pytest.mark.timeout(600)

Stub = Callable[..., StubCluster]
Rows = list[tuple[int, int]]

T0 = 1_700_000_000_000
RECORD = 40 + 60


def fill(cluster: StubCluster, partition: int, rows: int, *, time_ms: int = T0) -> None:
    cluster.append(partition, [b"." * 60] * rows, append_time_ms=time_ms)


def ids(partition: int, first: int, end: int) -> Rows:
    return [(partition, at) for at in range(first, end)]


class Stream:
    """A query over a stub cluster; what each of its batches held."""

    def __init__(self, spark: Any, cluster: StubCluster, checkpoint: Path) -> None:
        self.spark, self.cluster, self.checkpoint = spark, cluster, checkpoint
        self.batches: list[Rows] = []
        self._kept: dict[int, Rows] = {}
        self.queries: list[Any] = []

    def start(self, trigger: dict[str, Any], **options: str) -> Any:
        stream = self.spark.readStream.format("waltz_stub").options(cluster=self.cluster.address, **options).load()
        writer = stream.writeStream.foreachBatch(self._keep).option("checkpointLocation", str(self.checkpoint))
        self.queries.append(writer.trigger(**trigger).start())
        return self.queries[-1]

    def available_now(self, **options: str) -> Any:
        query = self.start({"availableNow": True}, **options)
        assert query.awaitTermination(240)
        return query

    def _keep(self, batch: Any, batch_id: int) -> None:
        rows = sorted((row[0], row[1]) for row in batch.select("partition", "transaction_id").collect())
        # A query that is stopped before its batch is committed begins with that batch again: the same rows, which a sink counts once.
        new = batch_id not in self._kept
        assert self._kept.setdefault(batch_id, rows) == rows, f"batch {batch_id} came again with other rows"
        if rows and new:
            self.batches.append(rows)

    def rows(self) -> Rows:
        return sorted(row for batch in self.batches for row in batch)


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 180
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(0.05)


@pytest.fixture
def stream(spark: Any, stub: Stub, tmp_path: Path) -> Iterator[Stream]:
    made = Stream(spark, stub(), tmp_path / "checkpoint")
    yield made
    for query in made.queries:
        query.stop()


def test_a_stream_with_an_end_replays_up_to_it_and_without_it_goes_on_from_there(stream: Stream) -> None:
    fill(stream.cluster, 0, 30)
    fill(stream.cluster, 0, 30, time_ms=T0 + 1000)
    fill(stream.cluster, 1, 20)
    stream.available_now(endingTimestamp=str(T0 + 1000), endingTransactionIds='{"1": 5}', maxTransactionsPerTrigger="16")
    assert stream.rows() == ids(0, 0, 30) + ids(1, 0, 5)
    assert max(map(len, stream.batches)) == 16
    stream.available_now(endingTimestamp=str(T0 + 1000), endingTransactionIds='{"1": 5}')
    assert stream.rows() == ids(0, 0, 30) + ids(1, 0, 5)
    stream.available_now()
    assert stream.rows() == ids(0, 0, 60) + ids(1, 0, 20)


def test_a_stream_starts_at_a_time_once(stream: Stream) -> None:
    fill(stream.cluster, 0, 10)
    fill(stream.cluster, 0, 10, time_ms=T0 + 1000)
    options = {"startingTimestamp": str(T0 + 1), "startingTransactionIdsByTimestampStrategy": "latest"}
    stream.available_now(**options)
    fill(stream.cluster, 0, 5)
    fill(stream.cluster, 1, 5)
    stream.available_now(**options)
    assert stream.rows() == ids(0, 10, 25) + ids(1, 0, 5)


def test_batches_are_within_their_bytes_and_each_partition_gets_on(stream: Stream) -> None:
    fill(stream.cluster, 0, 60)
    fill(stream.cluster, 1, 20)
    stream.available_now(maxBytesPerTrigger=str(21 * RECORD))
    assert stream.rows() == ids(0, 0, 60) + ids(1, 0, 20)
    assert max(map(len, stream.batches)) <= 21
    assert {partition for partition, _ in stream.batches[0]} == {0, 1}
    stream.batches.clear()
    fill(stream.cluster, 0, 30)
    stream.available_now(maxBytesPerTrigger=str(10 * RECORD), maxTransactionsPerTrigger="4")
    assert [len(batch) for batch in stream.batches] == [4] * 7 + [2]


def test_a_least_is_waited_for_while_progress_shows_the_lag_and_not_beyond_the_delay(stream: Stream) -> None:
    spark = stream.spark
    spark.conf.set("spark.sql.streaming.noDataProgressEventInterval", "100ms")
    try:
        limits = {"minTransactionsPerTrigger": "10", "maxTransactionsPerTrigger": "12"}
        query = stream.start({"processingTime": "0 seconds"}, maxTriggerDelay="1h", startingTransactionIds="latest", **limits)
        until(lambda: query.lastProgress is not None and query.lastProgress.sources[0].endOffset is not None, "the first batch")
        fill(stream.cluster, 0, 6)

        def lag() -> int:
            source = query.lastProgress.sources[0]
            if source.latestOffset is None or source.endOffset is None:
                return -1
            return int(json.loads(source.latestOffset)["0"]) - int(json.loads(source.endOffset)["0"])

        until(lambda: lag() == 6, "a lag of six in the progress")
        assert stream.batches == []
        fill(stream.cluster, 0, 8)
        until(lambda: len(stream.batches) == 1, "the batch")
        assert stream.batches == [ids(0, 0, 12)]
        until(lambda: lag() == 2, "a lag of two in the progress")
        assert len(stream.batches) == 1
        query.stop()
        # What waits when the delay is over comes by itself, and at once where nothing more will come.
        query = stream.start({"processingTime": "0 seconds"}, maxTriggerDelay="1s", **limits)
        until(lambda: len(stream.batches) == 2, "the batch after the delay")
        assert stream.batches[1] == ids(0, 12, 14)
        query.stop()
        fill(stream.cluster, 1, 3)
        stream.available_now(**limits)
        assert stream.batches[2] == ids(1, 0, 3)
    finally:
        spark.conf.unset("spark.sql.streaming.noDataProgressEventInterval")


def test_a_partition_found_while_running_is_read_from_its_earliest(stream: Stream) -> None:
    fill(stream.cluster, 0, 5)
    query = stream.start({"processingTime": "0 seconds"}, startingTransactionIds="latest")
    until(lambda: query.lastProgress is not None and query.lastProgress.sources[0].endOffset is not None, "the first batch")
    stream.cluster.partitions = 3
    fill(stream.cluster, 2, 7)
    until(lambda: bool(stream.batches), "rows of the new partition")
    query.stop()
    assert stream.rows() == ids(2, 0, 7)
    stream.available_now()
    assert stream.rows() == ids(2, 0, 7)


def test_a_checkpoint_is_not_used_with_another_cluster(stream: Stream, stub: Stub) -> None:
    fill(stream.cluster, 0, 5)
    stream.available_now()
    old, stream.cluster = stream.cluster, stub()
    fill(stream.cluster, 0, 50)
    with pytest.raises(Exception, match=rf"checkpoint is of another cluster: checkpoint={old.key} cluster={stream.cluster.key}"):
        stream.available_now()
    assert stream.rows() == ids(0, 0, 5)


def test_segments_trimmed_under_a_running_stream_end_it_with_the_range_that_was_lost(stream: Stream) -> None:
    for _ in range(40):
        fill(stream.cluster, 0, 25)
    asked = 0

    def trim(partition: int, block: Any) -> Any:
        nonlocal asked
        asked += 1
        if asked == 4:
            stream.cluster.trim(0, 800)
        return block

    for node in stream.cluster.nodes:
        node.hook = trim
    with pytest.raises(Exception, match="transactions lost to this query: trimmed while it was read: partition=0 first=100 last=199"):
        stream.available_now(maxTransactionsPerTrigger="100", maxRecordsPerPartition="100")
    assert stream.rows() == ids(0, 0, 100)
    stream.available_now(failOnDataLoss="false")
    assert stream.rows() == ids(0, 0, 100) + ids(0, 800, 1000)
