"""The part of `delta` that runs inside a Spark driver: `spark-submit benchmarks/delta_session.py --cluster …`.

The log goes into a table by Delta's own streaming sink and by ours, twice each and in turn (own, ours, ours, own), in one session that was warmed up,
so that what the machine does meanwhile falls on both. Counted is the time of the triggers, as Spark reports it. Then a table of a million keys is
filled, and what follows in the log is merged into it: keys at random over the whole table, all of them updates.

The last line of output is the answer as JSON. Stands alone: spark-submit does not put the project's root on the path.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from waltz_delta import DeltaAppend, DeltaUpsert
from waltz_log.client.inspection.inspect import ClusterInspector

WARM_UP_ROWS = 50_000
"""Of each partition."""

Sink = Callable[[DataStreamWriter, Path], DataStreamWriter]


def run_query(spark: SparkSession, options: dict[str, str], folder: Path, sink: Sink) -> tuple[int, float]:
    """Rows landed, and seconds that the triggers took."""
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


def merges(spark: SparkSession, cluster: str, key: str, folder: Path, partitions: int, keys: int, batch: int, count: int) -> dict[str, Any]:
    """Each key keeps its partition. The first merge is not counted: it compiles."""

    def rows(first: int, end: int, keyed: str) -> DataFrame:
        """So many transactions of every partition."""
        bounds = {name: json.dumps({str(p): at for p in range(partitions)}) for name, at in (("starting", first), ("ending", end))}
        options = {f"{name}TransactionIds": text for name, text in bounds.items()}
        read = spark.read.format("waltz").option("cluster", cluster).options(**options).load()
        return read.selectExpr("partition", "transaction_id", f"{keyed} * {partitions} + partition AS key", "data")

    each = keys // partitions
    sink = DeltaUpsert(str(folder / "table"), key, ["key"])
    sink.write(rows(0, each, "transaction_id"))
    times = []
    for number in range(count + 1):
        first = each + number * batch // partitions
        found = rows(first, first + batch // partitions, f"cast(pmod(xxhash64(transaction_id), {each}) AS BIGINT)")
        start_s = time.perf_counter()
        sink.write(found)
        times.append(time.perf_counter() - start_s)
    held = spark.read.format("delta").load(str(folder / "table")).count()
    counts = {"rows": batch * count, "rows_per_batch": batch, "keys": each * partitions, "table_rows": held}
    return {"took_s": sum(times[1:]), "first_s": times[0], **counts}


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
        "merge": merges(spark, arguments.cluster, key, folder / "merge", len(marks), log_rows // 2, log_rows // 8, 2),
        "log_rows": log_rows,
        "spark": spark.version,
    }
    spark.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
