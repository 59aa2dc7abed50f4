"""The part of `delta` that runs inside a Spark driver: `spark-submit benchmarks/delta_session.py --cluster …`.

Delta's own streaming sink and ours write the log into a table, twice each and in turn (own, ours, ours, own), in one session that was warmed up, so
that other load on the machine affects both. The figure is the time of the triggers, as Spark reports it. Then two tables of the same keys are filled,
and two streams merge what follows in the log, in turn: random keys of the whole table, all of them updates. One is merged by our sink, the other as a
user would write it with Delta alone: the newest row of each key, then MERGE with an update and an insert. The figure is the time of the functions
that get the batches: reading and merging.

The last line of output is the answer as JSON. Stands alone: spark-submit does not put the project's root on the path.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from waltz_delta import DeltaAppend, DeltaUpsert
from waltz_log.client.inspection.inspect import ClusterInspector

WARM_UP_ROWS = 50_000
"""Of each partition."""

MERGED = ("partition", "transaction_id", "key", "data")

Sink = Callable[[DataStreamWriter, Path], DataStreamWriter]


def run_query(spark: SparkSession, options: dict[str, str], folder: Path, sink: Sink) -> tuple[int, float]:
    """Rows landed, and seconds of the triggers."""
    rows = spark.readStream.format("waltz").options(**options).load()
    writer = rows.writeStream.trigger(availableNow=True).option("checkpointLocation", str(folder / "checkpoint"))
    return timed(sink(writer, folder / "table").start())


def timed(query: StreamingQuery) -> tuple[int, float]:
    """Rows and seconds of the triggers of a query, when it has ended."""
    query.awaitTermination()
    progress = query.recentProgress
    return sum(each.numInputRows for each in progress), sum(each.durationMs["triggerExecution"] for each in progress) / 1000


def appends(spark: SparkSession, cluster: str, key: str, latest: str, folder: Path, batch: int) -> dict[str, Any]:
    def own(writer: DataStreamWriter, table: Path) -> DataStreamWriter:
        return writer.format("delta").option("path", str(table))

    def ours(writer: DataStreamWriter, table: Path) -> DataStreamWriter:
        return writer.foreachBatch(DeltaAppend(str(table), key))

    for name, sink in (("own", own), ("ours", ours)):
        run_query(spark, {"cluster": cluster, "startingTransactionIds": latest}, folder / f"warm-up-{name}", sink)
    options = {"cluster": cluster, "maxTransactionsPerTrigger": str(batch)}
    took_s, rows = {"own": 0.0, "ours": 0.0}, {"own": 0, "ours": 0}
    for number, (name, sink) in enumerate((("own", own), ("ours", ours), ("ours", ours), ("own", own))):
        count, seconds = run_query(spark, options, folder / f"{number}-{name}", sink)
        took_s[name] += seconds
        rows[name] += count
    return {"took_s": took_s, "rows": rows}


def own_merge(table: Path, key: str) -> Callable[[DataFrame], None]:
    """As a user writes it with Delta alone, without protection against repeated batches."""

    def merge(rows: DataFrame) -> None:
        newest = rows.groupBy(key).agg(f.max_by(f.struct(*rows.columns), "transaction_id").alias("newest")).select("newest.*")
        known = DeltaTable.forPath(rows.sparkSession, str(table)).alias("t")
        matched = known.merge(newest.alias("s"), f"t.{key} = s.{key}").whenMatchedUpdateAll("s.transaction_id > t.transaction_id")
        matched.whenNotMatchedInsertAll().execute()

    return merge


class Turns:
    """Batches of several queries, one at a time and in a fixed order. Only the work on a batch is timed, not the wait for its turn."""

    def __init__(self, order: Sequence[str]) -> None:
        self._order = list(order)
        self._changed = threading.Condition()
        self._failed = False
        self.times_s: dict[str, list[float]] = {name: [] for name in order}

    def of(self, name: str, way: Callable[[DataFrame, int], None]) -> Callable[[DataFrame, int], None]:
        """`way` as a function for `foreachBatch`. `RuntimeError` where another query failed, or the order has no further turn."""

        def run(batch: DataFrame, batch_id: int) -> None:
            with self._changed:
                self._changed.wait_for(lambda: self._failed or self._order[:1] in ([], [name]))
                if self._failed or not self._order:
                    raise RuntimeError("another query failed, or there are more batches than turns")
            try:
                start_s = time.perf_counter()
                way(batch, batch_id)
                self.times_s[name].append(time.perf_counter() - start_s)
            except BaseException:
                self._failed = True
                raise
            finally:
                with self._changed:
                    del self._order[0]
                    self._changed.notify_all()

        return run


def merges(spark: SparkSession, cluster: str, key: str, folder: Path, partitions: int, keys: int, batch: int, count: int) -> dict[str, Any]:
    """Each key keeps its partition. Two streams with the same batches run at once and merge in turn. The first batch of each is not counted: it
    compiles."""
    each = keys // partitions

    def bounds(**at: int) -> dict[str, str]:
        """Options for a range of every partition: transaction ids of `starting` and `ending`."""
        return {f"{name}TransactionIds": json.dumps({str(p): place for p in range(partitions)}) for name, place in at.items()}

    def keyed(rows: DataFrame, number: str) -> DataFrame:
        return rows.selectExpr("partition", "transaction_id", f"{number} * {partitions} + partition AS key", "data")

    first = spark.read.format("waltz").options(cluster=cluster, **bounds(starting=0, ending=each)).load()
    sink, own = DeltaUpsert(str(folder / "ours"), key, ["key"]), own_merge(folder / "own", "key")
    sink.write(keyed(first, "transaction_id"))
    keyed(first, "transaction_id").write.format("delta").save(str(folder / "own"))
    pairs = [("own", "ours") if number % 2 else ("ours", "own") for number in range(count + 1)]
    turns = Turns([name for pair in pairs for name in pair])
    ways: dict[str, Callable[[DataFrame, int], None]] = {"own": lambda rows, batch_id: own(rows), "ours": sink}
    options = {"cluster": cluster, "maxTransactionsPerTrigger": str(batch), **bounds(starting=each, ending=each + (count + 1) * batch // partitions)}
    queries = []
    for name, way in ways.items():
        rows = keyed(spark.readStream.format("waltz").options(**options).load(), f"cast(pmod(xxhash64(transaction_id), {each}) AS BIGINT)")
        writer = rows.writeStream.trigger(availableNow=True).option("checkpointLocation", str(folder / f"checkpoint-{name}"))
        queries.append(writer.foreachBatch(turns.of(name, way)).start())
    for query in queries:
        query.awaitTermination()
    times_s = turns.times_s
    if any(len(times) != count + 1 for times in times_s.values()):
        raise RuntimeError(f"a stream had another number of batches: {times_s} wanted={count + 1}")
    held = {name: spark.read.format("delta").load(str(folder / name)) for name in ways}
    differing = held["own"].select(*MERGED).exceptAll(held["ours"].select(*MERGED)).count()
    counts = {"rows": batch * count, "rows_per_batch": batch, "keys": each * partitions, "table_rows": held["ours"].count(), "differing": differing}
    return {"took_s": {name: sum(times[1:]) for name, times in times_s.items()}, "first_s": times_s["ours"][0], **counts}


def main() -> None:
    parser = argparse.ArgumentParser(prog="delta_session.py")
    parser.add_argument("what", choices=("delta",))
    parser.add_argument("--cluster", required=True)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--batch", type=int, required=True, help="rows of one Delta commit")
    arguments = parser.parse_args()
    with ClusterInspector(arguments.cluster) as inspector:
        key = str(inspector.parameters.key)
        marks = {partition: bound.high_water_mark for partition, bound in inspector.bounds().items()}
    latest = json.dumps({str(partition): max(0, mark + 1 - WARM_UP_ROWS) for partition, mark in marks.items()})
    log_rows = sum(mark + 1 for mark in marks.values())
    spark = SparkSession.builder.appName("benchmark delta").getOrCreate()
    folder: Path = arguments.directory
    found = {
        "append": appends(spark, arguments.cluster, key, latest, folder, arguments.batch),
        "merge": merges(spark, arguments.cluster, key, folder / "merge", len(marks), log_rows // 2, log_rows // 8, 3),
        "log_rows": log_rows,
        "spark": spark.version,
    }
    spark.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
