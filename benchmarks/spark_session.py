"""The part of `spark` and `delta` that runs inside a Spark driver: `spark-submit benchmarks/spark_session.py noop|delta|trigger --cluster …`.

A query over the last transactions first, so that compiling, loading classes and starting workers are not measured: a streaming query does that once
in weeks. Then the whole log with `Trigger.AvailableNow`. The figure is the time of its triggers, as Spark itself reports it: planning, reading,
committing. The time that a query needs once, to start its planner process and to stop, is reported separately. `trigger`: one query that finds one
new transaction at a time, and the duration of each of its triggers. The last line of output is the answer as JSON.

Stands alone: spark-submit does not put the project's root on the path.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from waltz_delta import DeltaAppend
from waltz_log.client import SyncWaltzClient
from waltz_log.client.inspection.inspect import ClusterInspector

WARM_UP_ROWS = {"noop": 100_000, "delta": 2_000}
"""Transactions of each partition. The JVM optimizes code that runs for every row only after some hundred thousand rows."""

TRIGGERS = 60
TRIGGERS_UNMEASURED = 20
TRIGGER_TIMEOUT_S = 30.0


def run_query(
    spark: SparkSession, options: dict[str, str], checkpoint: Path, sink: Callable[[DataStreamWriter], DataStreamWriter]
) -> tuple[int, float, float]:
    """Rows read, seconds of the triggers, and seconds from start to end."""
    rows = spark.readStream.format("waltz").options(**options).load()
    start_s = time.perf_counter()
    query = sink(rows.writeStream.trigger(availableNow=True).option("checkpointLocation", str(checkpoint))).start()
    query.awaitTermination()
    whole_s = time.perf_counter() - start_s
    progress = query.recentProgress
    return sum(each.numInputRows for each in progress), sum(each.durationMs["triggerExecution"] for each in progress) / 1000, whole_s


def small_triggers(spark: SparkSession, cluster: str, checkpoint: Path) -> dict[str, Any]:
    """Milliseconds of each trigger that found a transaction."""
    rows = spark.readStream.format("waltz").options(cluster=cluster, startingTransactionIds="latest").load()
    query = rows.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).start()
    found: dict[int, Any] = {}
    try:
        with SyncWaltzClient(cluster) as client:
            for number in range(TRIGGERS):
                deadline = time.monotonic() + TRIGGER_TIMEOUT_S
                # The first one waits for the query to know where it begins.
                while number == 0 and query.lastProgress is None and time.monotonic() < deadline:
                    time.sleep(0.05)
                client.append(0, b"one")
                while len(found) <= number and time.monotonic() < deadline:
                    time.sleep(0.002)
                    found |= {each.batchId: each.durationMs for each in query.recentProgress if each.numInputRows}
    finally:
        query.stop()
    measured = [found[batch] for batch in sorted(found)][TRIGGERS_UNMEASURED:]
    parts = sorted({name for each in measured for name in each})
    return {"triggers_ms": [each["triggerExecution"] for each in measured], "parts_ms": {n: median(e.get(n, 0) for e in measured) for n in parts}}


def main() -> None:
    parser = argparse.ArgumentParser(prog="spark_session.py")
    parser.add_argument("what", choices=("noop", "delta", "trigger"))
    parser.add_argument("--cluster", required=True)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--batch", type=int, required=True, help="rows of one Delta commit")
    arguments = parser.parse_args()
    if arguments.what == "trigger":
        spark = SparkSession.builder.appName("benchmark trigger").getOrCreate()
        answer = small_triggers(spark, arguments.cluster, arguments.directory / "checkpoint")
        spark.stop()
        print(json.dumps(answer))
        return
    with ClusterInspector(arguments.cluster) as inspector:
        key = str(inspector.parameters.key)
        marks = {partition: bound.high_water_mark for partition, bound in inspector.bounds().items()}
    latest = json.dumps({str(partition): max(0, mark + 1 - WARM_UP_ROWS[arguments.what]) for partition, mark in marks.items()})

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
