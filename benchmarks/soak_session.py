"""The driver of the soak: `spark-submit benchmarks/soak_session.py --cluster … --directory … --batches N --seconds S`.

Streaming queries from the log into Delta tables, one after the other, with the shortest trigger, until the given number of batches or seconds. Each
query begins where the table before it ends. Every `--every` batches the heap that is in use right after a full collection, and the resident memory of
the JVM and of this process, are added to `memory.jsonl`.

Stands alone: spark-submit does not put the project's root on the path.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from waltz_delta import DeltaAppend, starting_transaction_ids
from waltz_log.client.inspection.inspect import ClusterInspector


def resident_bytes(pid: int) -> int:
    """Private memory of the process; 0 if the system does not report it."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


TABLE_BATCHES = 250
"""The number of batches of one table. Then the next table begins with its own query, because a table without marks does not accept a continued query.
Delta lists the log's folder for each commit, and a local file system reads every file in it: with three thousand commits of one day that is a third
of a batch's time. (Expired logs are removed by whole days.)"""


class Weighed:
    """A sink that reads the driver's memory once in a given number of batches."""

    def __init__(self, spark: SparkSession, out: Path, every: int) -> None:
        jvm: Any = spark._jvm
        self._out, self._every = out, every
        self._system, self._runtime = jvm.System, jvm.Runtime.getRuntime()
        self._jvm = int(jvm.java.lang.ProcessHandle.current().pid())
        self.sink: DeltaAppend | None = None
        self.batches = 0

    def __call__(self, batch: Any, batch_id: int) -> None:
        assert self.sink is not None
        self.sink(batch, batch_id)
        self.batches += 1
        if self.batches % self._every == 0:
            self.weigh()

    def weigh(self) -> None:
        gc.collect()
        for _ in range(2):  # the cleaner thread frees for the second collection what the first one finds
            self._system.gc()
        found = {
            "batches": self.batches,
            "at_s": round(time.monotonic(), 1),
            "heap_bytes": int(self._runtime.totalMemory()) - int(self._runtime.freeMemory()),
            "jvm_bytes": resident_bytes(self._jvm),
            "python_bytes": resident_bytes(os.getpid()),
        }
        with self._out.open("a") as file:
            file.write(json.dumps(found) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(prog="soak_session.py")
    parser.add_argument("--cluster", required=True)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--batches", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--every", type=int, required=True)
    arguments = parser.parse_args()
    with ClusterInspector(arguments.cluster) as inspector:
        key = str(inspector.parameters.key)
    folder: Path = arguments.directory
    spark = SparkSession.builder.appName("soak").getOrCreate()
    sink = Weighed(spark, folder / "memory.jsonl", arguments.every)
    deadline = time.monotonic() + arguments.seconds
    start = "earliest"
    for end in [*range(TABLE_BATCHES, arguments.batches, TABLE_BATCHES), arguments.batches]:
        table = folder / "tables" / str(end)
        sink.sink = DeltaAppend(str(table), key)
        rows = spark.readStream.format("waltz").option("cluster", arguments.cluster).option("startingTransactionIds", start).load()
        writer = rows.writeStream.foreachBatch(sink).option("checkpointLocation", str(folder / "checkpoints" / str(end)))
        query = writer.trigger(processingTime="0 seconds").start()
        while sink.batches < end and time.monotonic() < deadline and not query.awaitTermination(1):
            pass
        query.stop()
        start = starting_transaction_ids(spark, str(table), key)
    spark.stop()


if __name__ == "__main__":
    main()
