"""The part of `spark` that runs inside a Spark driver: `spark-submit benchmarks/spark_session.py noop|trigger --cluster …`.

`noop`: queries that each read the whole log with `Trigger.AvailableNow`, in one driver. The first one also loads classes, compiles and starts
workers, as a streaming query does once in weeks, so it is reported separately. Of each query, the time of its triggers counts, as Spark itself
reports it: planning, reading, committing. The whole time includes starting and stopping the query. `trigger`: a query that finds one new transaction
at a time, and the duration of each of its triggers but the first ones. The last line of output is the answer as JSON.

Stands alone: spark-submit does not put the project's root on the path.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql import SparkSession

from waltz_log.client import SyncWaltzClient

PASSES = 5
"""Each over the whole log, after the first one. The JVM optimizes the code that runs for every row during its first million rows or so:
the first pass needs two to three times as long as the last."""

TRIGGERS = 60
TRIGGERS_UNMEASURED = 20
TRIGGER_TIMEOUT_S = 30.0


def read_whole_log(spark: SparkSession, cluster: str, checkpoint: Path) -> dict[str, float]:
    """Rows read, seconds of the triggers, and seconds from start to end."""
    rows = spark.readStream.format("waltz").options(cluster=cluster).load()
    start_s = time.perf_counter()
    query = rows.writeStream.format("noop").trigger(availableNow=True).option("checkpointLocation", str(checkpoint)).start()
    query.awaitTermination()
    whole_s = time.perf_counter() - start_s
    progress = query.recentProgress
    took_s = sum(each.durationMs["triggerExecution"] for each in progress) / 1000
    return {"rows": sum(each.numInputRows for each in progress), "took_s": took_s, "whole_s": whole_s}


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
    parser.add_argument("what", choices=("noop", "trigger"))
    parser.add_argument("--cluster", required=True)
    parser.add_argument("--directory", type=Path, required=True)
    arguments = parser.parse_args()
    spark = SparkSession.builder.appName(f"benchmark {arguments.what}").getOrCreate()
    answer: dict[str, Any]
    if arguments.what == "trigger":
        answer = small_triggers(spark, arguments.cluster, arguments.directory / "checkpoint")
    else:
        checkpoints = [arguments.directory / f"checkpoint-{number}" for number in range(1 + PASSES)]
        answer = {"passes": [read_whole_log(spark, arguments.cluster, each) for each in checkpoints], "spark": spark.version}
    spark.stop()
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
