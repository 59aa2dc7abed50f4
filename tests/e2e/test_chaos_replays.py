"""Replays by the hundred: after each run the last entry of the checkpoint's commit log is deleted, which is what a driver leaves that dies between
the table's commit and the checkpoint. And what else befalls a reader in a living session: its Python worker killed, its partition trimmed.

Source and sink are the real ones; the log is made of storage stubs, so that a restart costs a second."""

from __future__ import annotations

import os
import random
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StructType

from pyspark_waltz import SCHEMA
from pyspark_waltz.testing import StubCluster, StubSource
from tests.e2e.chaos_checker import Row, differences, marks_of, table_rows
from tests.e2e.chaos_drivers import python_processes
from tests.e2e.committing import replace_commits
from waltz_delta import DeltaAppend
from waltz_log.errors import OutOfRange

pytestmark = pytest.mark.timeout(900)

Stub = Callable[..., StubCluster]
SHORT, REPLAYS = 5, 100
"""With every `make test`, and in the test marked slow."""


class Landing:
    """A log and the table it is landed in, run by run; how often each batch came to the sink is kept."""

    def __init__(self, spark: Any, cluster: StubCluster, directory: Path, seed: int) -> None:
        self.spark, self.cluster, self.rng = spark, cluster, random.Random(seed)
        self.table, self.checkpoint = directory / "table", directory / "checkpoint"
        self.source = "waltz_stub"
        self.sink: Callable[[Any, int], None] = DeltaAppend(str(self.table), str(cluster.key))
        self.batches: list[int] = []
        self._frames: dict[tuple[tuple[str, str], ...], Any] = {}
        self.expected: list[Row] = []

    def append(self, partition: int, count: int) -> None:
        first = self.cluster.marks().get(partition, -1) + 1
        data = [self.rng.randbytes(self.rng.randrange(60)) for _ in range(count)]
        self.cluster.append(partition, data, headers=lambda at: at % 9)
        self.expected += [Row(partition, first + n, zlib.crc32(each, (first + n) % 9)) for n, each in enumerate(data)]

    def run(self, **options: str) -> None:
        """To the end of the log. A source is loaded once for the same options: that needs processes of its own, as starting a query does."""
        key = tuple(sorted(options.items()))
        if key not in self._frames:
            self._frames[key] = self.spark.readStream.format(self.source).options(cluster=self.cluster.address, **options).load()
        writer = self._frames[key].writeStream.foreachBatch(self._land).option("checkpointLocation", str(self.checkpoint))
        query = writer.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(300)
        finally:
            query.stop()

    def _land(self, batch: Any, batch_id: int) -> None:
        self.batches.append(batch_id)
        self.sink(batch, batch_id)

    def forget_commit(self) -> int:
        last = max(int(path.name) for path in (self.checkpoint / "commits").iterdir() if path.name.isdecimal())
        for name in (str(last), f".{last}.crc"):
            (self.checkpoint / "commits" / name).unlink(missing_ok=True)
        return last

    def replay(self, replays: int) -> int:
        """So many runs, each of which begins with the batch that the one before had ended with, under another limit. How many came again."""
        self.append(0, 20)
        self.run()
        again = 0
        for _ in range(replays):
            forgotten = self.forget_commit()
            if self.rng.random() < 0.7:
                self.append(self.rng.randrange(2), self.rng.randrange(1, 40))
            self.batches.clear()
            self.run(maxTransactionsPerTrigger=str(self.rng.choice((25, 50, 1000))))
            assert self.batches[0] == forgotten
            again += 1
        return again

    def wrong(self) -> list[str]:
        return differences(self.expected, table_rows(self.table), marks_of(self.table, str(self.cluster.key)))


@pytest.fixture
def landing(spark: Any, stub: Stub, tmp_path: Path) -> Landing:
    return Landing(spark, stub(), tmp_path, seed=5)


@pytest.mark.parametrize("replays", [SHORT, pytest.param(REPLAYS, marks=pytest.mark.slow)])
def test_replays_under_changing_limits_leave_each_row_once(landing: Landing, replays: int) -> None:
    assert landing.replay(replays) == replays
    assert landing.wrong() == []


def test_the_checker_sees_a_sink_that_ignores_replays(landing: Landing) -> None:
    landing.sink = lambda batch, _: batch.write.format("delta").mode("append").save(str(landing.table))
    landing.append(0, 5)
    landing.run()
    assert landing.wrong() == ["mark: partition=0 table=None log=4"], "nothing came twice yet"
    landing.forget_commit()
    landing.run()
    assert landing.wrong()[:2] == ["2 times: partition=0 transaction_id=0", "2 times: partition=0 transaction_id=1"]


def test_the_checker_sees_a_source_that_reads_again(landing: Landing) -> None:
    class ReadsAgain(StubSource):
        @classmethod
        def name(cls) -> str:
            return "waltz_reads_again"

        def streamReader(self, schema: StructType) -> Any:
            reader: Any = super().streamReader(schema)
            plan = reader.partitions

            def partitions(start: dict[str, Any], end: dict[str, Any]) -> Any:
                return plan({key: max(0, value - 3) if key.isdecimal() else value for key, value in start.items()}, end)

            reader.partitions = partitions
            return reader

    landing.spark.dataSource.register(ReadsAgain)
    landing.source = "waltz_reads_again"
    landing.append(0, 20)
    landing.run()
    assert landing.wrong() == []
    landing.append(0, 20)
    landing.run()
    assert landing.wrong() == [f"2 times: partition=0 transaction_id={at}" for at in (17, 18, 19)]


def test_a_first_batch_that_died_before_its_commit_does_not_bar_the_next(landing: Landing, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*_: Any, **__: Any) -> int:
        raise RuntimeError("died before the commit")

    landing.append(0, 10)
    with monkeypatch.context() as patched:
        replace_commits(patched, lambda _: die)
        with pytest.raises(Exception, match="died before the commit"):
            landing.run()
    assert list(landing.table.glob("part-*.parquet")), "files that no commit names"
    sink = DeltaAppend(str(landing.table), str(landing.cluster.key))
    sink.prepare(landing.spark, SCHEMA)
    landing.sink = sink
    landing.run()
    assert landing.wrong() == []


def test_a_killed_python_worker_ends_the_query_at_most_and_costs_no_row(landing: Landing) -> None:
    killed: list[int] = []
    once = threading.Lock()

    def kill(partition: int, block: Any) -> Any:
        with once:
            if not killed:
                daemons = [each for each in python_processes(os.getpid()) if "pyspark.daemon" in each.cmdline()]
                workers = [each for each in daemons if each.ppid() in {daemon.pid for daemon in daemons}]
                for worker in workers:
                    worker.kill()
                    killed.append(worker.pid)
        return block

    for node in landing.cluster.nodes:
        node.hook = kill
    for _ in range(5):
        landing.append(0, 100)
        landing.append(1, 100)
    with pytest.raises(Exception, match="Python worker exited unexpectedly"):
        landing.run()
    assert killed
    landing.run()
    assert landing.wrong() == []


def test_a_partition_trimmed_under_the_reader_ends_the_query_with_the_range_and_leaves_no_silent_gap(landing: Landing) -> None:
    landing.append(1, 10)
    for _ in range(3):
        landing.append(0, 100)

    def trim(partition: int, block: Any) -> Any:
        if partition == 0 and block.first_transaction_id < 200:
            landing.cluster.trim(0, 200)
            raise OutOfRange(partition=0, asked=block.first_transaction_id, first=200, last=299)  # as a node whose segment is gone
        return block

    for node in landing.cluster.nodes:
        node.hook = trim
    with pytest.raises(Exception, match=r"transactions lost to this query: trimmed while it was read: partition=0 first=0 last=199"):
        landing.run()
    assert marks_of(landing.table, str(landing.cluster.key)) == {}, "all of a batch or nothing of it"
    landing.run(failOnDataLoss="false")
    landing.expected = [row for row in landing.expected if row.partition == 1 or row.transaction_id >= 200]
    assert landing.wrong() == []
