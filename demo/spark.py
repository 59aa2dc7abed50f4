"""The two Spark jobs of the demo, as anybody would submit them: `flight_legs` gets a row per transaction, `aircraft` a row per tail number."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from demo.legs import SCHEMA
from demo.processes import ROOT

__all__ = ["AIRCRAFT", "FLIGHT_LEGS", "READY", "submit_command", "submit_environment"]

FLIGHT_LEGS = "flight_legs"
AIRCRAFT = "aircraft"

DRIVER_MEMORY = "1g"
TRANSACTIONS_PER_TRIGGER = 100_000
"""Bounds a batch after a pause: one gigabyte of heap holds it easily."""

JAVA_OPTIONS = "-Dlog4j2.configurationFile=conf/log4j2.properties -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a job of three minutes on two cores that it shares with everything else: the second compiler and a parallel collector take more time than they
save (measured: 47 in place of 76 processor seconds for the whole of `aircraft`). A job that runs for days leaves both on."""

READY = "ready "
"""How a job's first line begins, once its query runs."""


def submit_command(table: str, *, cluster: str, directory: Path, partitions: int) -> list[str]:
    """The spark-submit command that fills `table` (`FLIGHT_LEGS` or `AIRCRAFT`) under `directory`."""
    shared = [
        f"--cluster={cluster}",
        f"--table={directory / 'tables' / table}",
        f"--checkpoint={directory / 'checkpoints' / table}",
        f"--partitions={','.join(str(partition) for partition in range(partitions))}",
        "--starting=earliest",
        f"--max-transactions-per-trigger={TRANSACTIONS_PER_TRIGGER}",
        f"--schema={SCHEMA}",
    ]
    if table == FLIGHT_LEGS:
        job = ["ingest.py", *shared, "--trigger=2 seconds"]
    else:
        job = [
            "upsert.py",
            *shared,
            "--trigger=5 seconds",
            "--keys=tail",
            "--where=tail IS NOT NULL",
            "--select=tail, leg AS legs, total_distance AS distance, total_minutes AS minutes",
        ]
    return [
        _spark_submit(),
        f"--properties-file={ROOT / 'conf' / 'spark-defaults.conf'}",
        f"--name={table}",
        "--master=local[2]",
        f"--driver-memory={DRIVER_MEMORY}",
        f"--driver-java-options={JAVA_OPTIONS}",
        str(ROOT / "jobs" / job[0]),
        *job[1:],
    ]


def submit_environment() -> dict[str, str]:
    return {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}


def _spark_submit() -> str:
    """The one of this environment; another one on the path would bring another Spark."""
    here = Path(sys.executable).parent / "spark-submit"
    found = str(here) if os.access(here, os.X_OK) else shutil.which("spark-submit")
    if found is None:
        raise RuntimeError("spark-submit is not installed: pip install 'waltz-platform[spark]'")
    return found
