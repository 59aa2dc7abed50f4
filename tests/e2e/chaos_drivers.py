"""Spark drivers as users start them, and how one ends with all that it started."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pyspark

from waltz_log.processes import launch

ROOT = Path(__file__).resolve().parents[2]
INGEST, KILLED, AUDIT = "jobs/ingest.py", "tests/e2e/killed_driver.py", "jobs/audit.py"
ANYWHERE = "anywhere"
PATIENCE_S = 900.0
"""A life lasts seven seconds of an idle machine, minutes of a busy one."""


WHERE = "--where=transaction_id >= 0"
"""A condition that every row satisfies. SQL makes the rows depend on the session's time zone, as far as the sink knows."""

CHOICES = ("auto", "spark")
"""The engine of a driver: the Arrow engine where the table allows it, or Spark's. Both write one table in turn, and in a race at once."""

ENDS_BORNE = 6
"""Drivers in a row that end by themselves: Spark gives a Python process ten seconds to start, too few on a busy machine. More are no bad luck."""

ENDED_BY_ITSELF = (1, 3, 137, 143)
"""Exit codes of such a driver: no answer, a process of it was killed, or it ran out of time."""

SHORT_LIVED = (
    "--driver-java-options=-Dlog4j2.configurationFile=conf/log4j2.properties -XX:SharedArchiveFile=.cache/spark.jsa "
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    *("--conf", "spark.sql.codegen.wholeStage=false", "--conf", "spark.sql.codegen.factoryMode=NO_CODEGEN"),
)
"""A driver that lives for a batch or two need not compile what it runs: a third of the processor time of a life."""

FAILURES_BORNE = "--master=local[2,8]"
"""A task whose Python worker was killed is tried again, as on a cluster; `local[2]` would end the query."""


def spark_environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("SPARK_HOME", "PYTHONPATH", "PYSPARK_SUBMIT_ARGS", "SPARK_CONF_DIR")}
    return {**kept, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable, **more}


def submit(script: str, *arguments: str, log: Path, environment: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
    """A driver as users start one, but that it ends with this process; what it says is added to `log`. Call it in the main thread."""
    command = [sys.executable, "-I", "-S", launch.__file__, str(os.getpid()), str(Path(pyspark.__file__).parent / "bin" / "spark-submit")]
    command += ["--properties-file", str(ROOT / "conf" / "spark-defaults.conf")]
    with log.open("ab") as reported:
        return subprocess.Popen(
            [*command, FAILURES_BORNE, *SHORT_LIVED, str(ROOT / script), *arguments],
            cwd=ROOT,
            env=environment or spark_environment(),
            stdin=subprocess.DEVNULL,
            stdout=reported,
            stderr=reported,
        )


def children(pid: int) -> list[psutil.Process]:
    try:
        found: list[psutil.Process] = psutil.Process(pid).children(recursive=True)
        return found
    except psutil.NoSuchProcess:
        return []


def python_processes(pid: int) -> list[psutil.Process]:
    """What a driver started beside its own Python: the daemon with the workers that read, and the source's planner."""
    found = []
    for child in children(pid):
        with suppress(psutil.Error):  # gone meanwhile
            if {"pyspark.daemon", "pyspark.sql.streaming.python_streaming_source_runner"} & set(child.cmdline()):
                found.append(child)
    return found


def end_driver(driver: subprocess.Popen[bytes]) -> None:
    """Nothing of it runs on."""
    left = children(driver.pid)
    driver.kill()
    driver.wait()
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=30)
