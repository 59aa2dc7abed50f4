"""The part of `spark` and `delta` that runs inside a Spark driver: `spark-submit benchmarks/spark_session.py noop|delta --cluster …`.

A query over the last transactions first, so that compiling, loading classes and starting workers are not measured; then the whole log with
`Trigger.AvailableNow`. Counted is the time of its triggers, as Spark itself reports it: planning, reading, committing. What a query takes once, to
start its planner process and to stop, is told beside it. The last line of output is the answer as JSON.

Stands alone: spark-submit does not put the project's root on the path.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from waltz_delta import DeltaAppend
from waltz_log.client.inspect import ClusterInspector

WARM_UP_ROWS = 2_000
"""Of each partition."""


def run_query(
    spark: SparkSession, options: dict[str, str], checkpoint: Path, sink: Callable[[DataStreamWriter], DataStreamWriter]
) -> tuple[int, float, float]:
    """Rows read, seconds that triggers took, and seconds from start to end."""
    rows = spark.readStream.format("waltz").options(**options).load()
    start_s = time.perf_counter()
    query = sink(rows.writeStream.trigger(availableNow=True).option("checkpointLocation", str(checkpoint))).start()
    query.awaitTermination()
    whole_s = time.perf_counter() - start_s
    progress = query.recentProgress
    return sum(each.numInputRows for each in progress), sum(each.durationMs["triggerExecution"] for each in progress) / 1000, whole_s


def main() -> None:
    parser = argparse.ArgumentParser(prog="spark_session.py")
    parser.add_argument("what", choices=("noop", "delta"))
    parser.add_argument("--cluster", required=True)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--batch", type=int, required=True, help="rows of one Delta commit")
    arguments = parser.parse_args()
    with ClusterInspector(arguments.cluster) as inspector:
        key = str(inspector.parameters.key)
        marks = {partition: bound.high_water_mark for partition, bound in inspector.bounds().items()}
    latest = json.dumps({str(partition): max(0, mark + 1 - WARM_UP_ROWS) for partition, mark in marks.items()})

    def sink(table: Path) -> Callable[[DataStreamWriter], DataStreamWriter]:
        if arguments.what == "noop":
            return lambda writer: writer.format("noop")
        return lambda writer: writer.foreachBatch(DeltaAppend(str(table), key))

    spark = SparkSession.builder.appName(f"benchmark {arguments.what}").getOrCreate()
    options = {"cluster": arguments.cluster}
    folder: Path = arguments.directory
    run_query(spark, {**options, "startingTransactionIds": latest}, folder / "warm-up-checkpoint", sink(folder / "warm-up"))
    if arguments.what == "delta":
        options["maxTransactionsPerTrigger"] = str(arguments.batch)
    rows, took_s, whole_s = run_query(spark, options, folder / "checkpoint", sink(folder / "table"))
    version = spark.version
    spark.stop()
    print(json.dumps({"rows": rows, "took_s": took_s, "whole_s": whole_s, "spark": version}))


if __name__ == "__main__":
    main()
