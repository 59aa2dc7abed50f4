"""The part of `delta` that runs inside a Spark driver: `spark-submit benchmarks/delta_session.py --cluster …`.

The log goes into a table by Delta's own streaming sink and by ours, twice each and in turn (own, ours, ours, own), in one session that was warmed up,
so that what the machine does meanwhile falls on both. Counted is the time of the triggers, as Spark reports it. Then two tables of the same keys are
filled, and what follows in the log is merged into both, in turn: keys at random over the whole table, all of them updates. One is merged by our sink,
the other as a user would write it with Delta alone: the newest row of each key, then MERGE with an update and an insert.

The last line of output is the answer as JSON. Stands alone: spark-submit does not put the project's root on the path.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
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
    query = sink(writer, folder / "table").start()
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


def own_merge(table: Path) -> Callable[[DataFrame], None]:
    """As a user writes it with Delta alone, without a guard against repetition."""

    def merge(rows: DataFrame) -> None:
        newest = rows.groupBy("key").agg(f.max_by(f.struct(*rows.columns), "transaction_id").alias("newest")).select("newest.*")
        known = DeltaTable.forPath(rows.sparkSession, str(table)).alias("t")
        matched = known.merge(newest.alias("s"), "t.key = s.key").whenMatchedUpdateAll("s.transaction_id > t.transaction_id")
        matched.whenNotMatchedInsertAll().execute()

    return merge


def merges(spark: SparkSession, cluster: str, key: str, folder: Path, partitions: int, keys: int, batch: int, count: int) -> dict[str, Any]:
    """Each key keeps its partition. The first merge of each way is not counted: it compiles."""

    def rows(first: int, end: int, keyed: str) -> DataFrame:
        """So many transactions of every partition."""
        bounds = {name: json.dumps({str(p): at for p in range(partitions)}) for name, at in (("starting", first), ("ending", end))}
        options = {f"{name}TransactionIds": text for name, text in bounds.items()}
        read = spark.read.format("waltz").option("cluster", cluster).options(**options).load()
        return read.selectExpr("partition", "transaction_id", f"{keyed} * {partitions} + partition AS key", "data")

    each = keys // partitions
    sink = DeltaUpsert(str(folder / "ours"), key, ["key"])
    ways = {"own": own_merge(folder / "own"), "ours": sink.write}
    sink.write(rows(0, each, "transaction_id"))
    rows(0, each, "transaction_id").write.format("delta").save(str(folder / "own"))
    took_s: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(count + 1):
        first = each + number * batch // partitions
        found = rows(first, first + batch // partitions, f"cast(pmod(xxhash64(transaction_id), {each}) AS BIGINT)")
        for name in ways if number % 2 else reversed(ways):
            start_s = time.perf_counter()
            ways[name](found)
            took_s[name].append(time.perf_counter() - start_s)
    held = {name: spark.read.format("delta").load(str(folder / name)) for name in ways}
    differing = held["own"].select(*MERGED).exceptAll(held["ours"].select(*MERGED)).count()
    counts = {"rows": batch * count, "rows_per_batch": batch, "keys": each * partitions, "table_rows": held["ours"].count(), "differing": differing}
    return {"took_s": {name: sum(times[1:]) for name, times in took_s.items()}, "first_s": took_s["ours"][0], **counts}


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
