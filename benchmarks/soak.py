"""`python -m benchmarks.soak --batches 10000 --minutes 90`: checks that a driver's memory does not grow over many micro-batches, one commit each.
Appends continue, so that every trigger finds something. The criterion is the heap in use right after full collections, because only this shows which
objects a JVM still holds: its growth from the end of the warm-up to the end, as medians of a fifth of the readings each. Resident memory of JVM and
Python is only reported, because it depends on the garbage collector. `make soak-spark` runs this; it ends with 1 if memory grew.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.measurement import Measurement, table, write
from benchmarks.setting import machine_conditions
from waltz_log.client import SyncWaltzClient
from waltz_log.processes import launch
from waltz_log.processes.local_cluster import LocalCluster

__all__ = ["growth", "is_flat", "soak"]

PARTITIONS = 1
APPENDS_PER_S = 20
"""Enough for every trigger to find something. What could leak grows with the number of batches, not with the rows or tasks of a batch."""
WARM_UP_SHARE = 0.2
"""Caches of plans, of file listings and of table states fill up first; they are bounded, and full within hundreds of batches."""

GROWTH_MAX = 0.10
GROWTH_BYTES_MAX = 24_000_000
"""The tolerated growth is a tenth, or this many bytes if that is more. A driver that leaked 10 kB in each of 10,000 batches would hold 100 MB."""

_HERE = Path(__file__).resolve().parent


def growth(readings: Sequence[Mapping[str, Any]], name: str) -> tuple[float, float]:
    """Bytes after the warm-up and at the end: medians of a fifth of the readings each. At least five readings."""
    if len(readings) < 5:
        raise ValueError(f"too few readings: {len(readings)}")
    settled = readings[int(len(readings) * WARM_UP_SHARE) :]
    part = max(1, len(settled) // 5)
    return statistics.median(each[name] for each in settled[:part]), statistics.median(each[name] for each in settled[-part:])


def is_flat(first: float, last: float) -> bool:
    return last - first <= max(GROWTH_MAX * first, GROWTH_BYTES_MAX)


def soak(directory: Path, *, batches: int, seconds: float, every: int) -> list[dict[str, Any]]:
    """Readings of the driver's memory, in order."""
    with LocalCluster(directory / "log", partitions=PARTITIONS, storages=3, servers=2) as cluster:
        done = threading.Event()
        failed: list[BaseException] = []

        def append() -> None:
            try:
                with SyncWaltzClient(cluster.cluster) as client:
                    number = 0
                    while not done.wait(0.05):
                        futures = [client.append_nowait((number + n) % PARTITIONS, bytes(200)) for n in range(APPENDS_PER_S // 20)]
                        number += len(futures)
                        for future in futures:
                            future.result(60)
            except BaseException as error:
                failed.append(error)

        appender = threading.Thread(target=append)
        appender.start()
        try:
            _drive(cluster.cluster, directory, batches=batches, seconds=seconds, every=every)
        finally:
            done.set()
            appender.join()
        if failed:
            raise failed[0]
    return [json.loads(line) for line in (directory / "memory.jsonl").read_text().splitlines()]


def _drive(cluster: str, directory: Path, *, batches: int, seconds: float, every: int) -> None:
    command = [
        *(sys.executable, "-I", "-S", launch.__file__, str(os.getpid())),  # the driver ends when this process ends, for any reason
        *(
            str(Path(sys.executable).parent / "spark-submit"),
            f"--properties-file={_HERE.parent / 'conf' / 'spark-defaults.conf'}",
            "--master=local[2]",
        ),
        *(str(_HERE / "soak_session.py"), f"--cluster={cluster}", f"--directory={directory}"),
        *(f"--batches={batches}", f"--seconds={seconds}", f"--every={every}"),
    ]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    with (directory / "driver.log").open("wb") as told:
        done = subprocess.run(
            command, cwd=_HERE.parent, env=environment, stdin=subprocess.DEVNULL, stdout=told, stderr=told, timeout=seconds + 300, check=False
        )
    if done.returncode != 0:
        raise RuntimeError(f"the Spark driver failed: code={done.returncode}\n{(directory / 'driver.log').read_text()[-3000:]}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description="A driver's memory over many micro-batches.")
    parser.add_argument("--batches", type=int, default=10_000, help="micro-batches, one commit each (10000)")
    parser.add_argument("--minutes", type=float, default=120, help="at most so long, however few batches that were (120)")
    parser.add_argument("--output", type=Path, default=_HERE / "latest.json", help="where the figures are written")
    arguments = parser.parse_args()
    console = Console(width=200)
    directory = _HERE.parent / "var" / "soak"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    began_s = time.monotonic()
    try:
        readings = soak(directory, batches=arguments.batches, seconds=arguments.minutes * 60, every=max(1, arguments.batches // 100))
        found = measurements(readings, machine_conditions(quick=False))
    except (RuntimeError, ValueError) as error:
        console.print(f"the soak failed: {error}", style="red", markup=False, highlight=False)
        return 1
    write(arguments.output, found)
    console.print(table(found))
    console.print(f"{time.monotonic() - began_s:.0f} s; readings in {directory / 'memory.jsonl'}", highlight=False)
    return 0 if is_flat(*growth(readings, "heap_bytes")) else 1


def measurements(readings: Sequence[Mapping[str, Any]], conditions: Mapping[str, Any]) -> list[Measurement]:
    own = {**conditions, "batches": readings[-1]["batches"], "seconds": round(readings[-1]["at_s"] - readings[0]["at_s"]), "trigger": "0 s"}
    found = []
    for name, bytes_of in (
        ("spark.soak_heap_mb", "heap_bytes"),
        ("spark.soak_jvm_rss_mb", "jvm_bytes"),
        ("spark.soak_python_rss_mb", "python_bytes"),
    ):
        first, last = growth(readings, bytes_of)
        measured = Measurement(name, last / 1e6, "MB", {**own, "after": "full collection"} if bytes_of == "heap_bytes" else own)
        found.append(measured.compared_with(first / 1e6, f"after the warm-up, {first / 1e6:.0f} MB"))
    return found


if __name__ == "__main__":
    sys.exit(main())
