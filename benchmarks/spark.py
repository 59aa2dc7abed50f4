"""The Spark source with a sink that drops rows, and the cost of a trigger that finds almost nothing; each in its own driver."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.log import PARTITIONS
from benchmarks.measurement import Measurement, percentile
from benchmarks.setting import Workload
from waltz_log.processes import launch

__all__ = ["run_noop", "run_trigger", "submit"]

TIMEOUT_S = 600.0
"""Ends a driver that hangs. One runs for about 60 s on an idle machine, and for up to 150 s on a slow one."""
_HERE = Path(__file__).resolve().parent


def run_noop(cluster: str, directory: Path, workload: Workload, conditions: Mapping[str, Any]) -> list[Measurement]:
    """The median of several passes over the log, after one that is reported as `first_pass`."""
    answer = submit("noop", cluster, directory)
    passes = answer["passes"]
    for each in passes:
        if each["rows"] != workload.log:
            raise RuntimeError(f"Spark saw another number of rows than were appended: got={each['rows']} appended={workload.log}")
    first, *rates = [each["rows"] / each["took_s"] for each in passes]
    own: dict[str, Any] = {
        **conditions,
        "spark": answer["spark"],
        "partitions": PARTITIONS,
        "rows": workload.log,
        "passes": f"{len(rates)} of {min(rates):.0f} to {max(rates):.0f}",
        "first_pass": round(first),
        "log": "warm",
        "whole_query_s": round(percentile([each["whole_s"] for each in passes[1:]], 0.5), 1),
    }
    return [Measurement("spark.noop", percentile(rates, 0.5), "rows/s", own)]


def run_trigger(cluster: str, directory: Path, workload: Workload, conditions: Mapping[str, Any]) -> list[Measurement]:
    """The duration of a trigger that finds one transaction: the cost of a query that has almost nothing to do."""
    answer = submit("trigger", cluster, directory)
    times = answer["triggers_ms"]
    parts = {f"{name}_ms": value for name, value in answer["parts_ms"].items() if name != "triggerExecution"}
    own = {**conditions, "partitions": PARTITIONS, "triggers": len(times), "p95_ms": percentile(times, 0.95), "max_ms": max(times), **parts}
    return [Measurement("spark.small_trigger_ms", percentile(times, 0.5), "ms", own)]


def submit(what: str, cluster: str, directory: Path, *options: str, script: str = "spark_session.py") -> Mapping[str, Any]:
    """Runs the script beside this one in a driver. The last line of its output is the result."""
    command = [
        *(sys.executable, "-I", "-S", launch.__file__, str(os.getpid())),  # the driver ends when this process ends, for any reason
        str(Path(sys.executable).parent / "spark-submit"),
        f"--properties-file={_HERE.parent / 'conf' / 'spark-defaults.conf'}",
        "--master=local[2]",
        "--driver-memory=2g",
        str(_HERE / script),
        what,
        f"--cluster={cluster}",
        f"--directory={directory / what}",
        *options,
    ]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    try:
        done = subprocess.run(command, cwd=_HERE.parent, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"the Spark driver did not end in time: benchmark={what} timeout_s={TIMEOUT_S:.0f}") from None
    if done.returncode != 0:
        raise RuntimeError(f"the Spark driver failed: code={done.returncode}\n" + "\n".join(done.stderr.splitlines()[-30:]))
    answer: Mapping[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer
