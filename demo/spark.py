"""The Spark job of the demo, submitted as a user would. It runs the two pipelines of `demo/pipelines`: `flight_legs` gets a row per transaction,
`aircraft` a row per tail number."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from demo.processes import ROOT

__all__ = ["AIRCRAFT", "FLIGHT_LEGS", "PIPELINES", "READY", "metrics_file", "submit_command", "submit_environment"]

FLIGHT_LEGS = "flight_legs"
AIRCRAFT = "aircraft"
PIPELINES = ROOT / "demo" / "pipelines"

DRIVER_MEMORY = "1g"
JAVA_OPTIONS = "-Dlog4j2.configurationFile=conf/log4j2.properties -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a job of three minutes on two shared cores: the second compiler and a parallel collector need more time than they save (measured: 47 instead of
76 processor seconds for the whole of `aircraft`). A job that runs for days should leave both on."""

READY = "ready "
"""Prefix of the line that the job prints for each pipeline when its query runs."""


def metrics_file(directory: Path) -> Path:
    """Where the job writes its metrics."""
    return directory / "logs" / "spark.prom"


def submit_command(metrics: Path | None = None) -> list[str]:
    """The spark-submit command that fills both tables, in the environment of `submit_environment`. `metrics`: the file to write metrics to."""
    return [
        _spark_submit(),
        f"--properties-file={ROOT / 'conf' / 'spark-defaults.conf'}",
        "--name=airline",
        "--master=local[2]",
        f"--driver-memory={DRIVER_MEMORY}",
        f"--driver-java-options={JAVA_OPTIONS}",
        str(ROOT / "jobs" / "ingest.py"),
        f"--pipeline={PIPELINES}",
        *([] if metrics is None else [f"--metrics-file={metrics}"]),
    ]


def submit_environment(*, cluster: str, directory: Path) -> dict[str, str]:
    """The variables that the pipeline files use: the cluster, and the directories of tables and checkpoints."""
    return {"WALTZ_CLUSTER": cluster, "DEMO_DIRECTORY": str(directory)}


def _spark_submit() -> str:
    """The one of this environment; another one on the path would start another Spark."""
    here = Path(sys.executable).parent / "spark-submit"
    found = str(here) if os.access(here, os.X_OK) else shutil.which("spark-submit")
    if found is None:
        raise RuntimeError("spark-submit is not installed: run make setup")
    return found
