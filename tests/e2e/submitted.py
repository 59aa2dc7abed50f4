"""Jobs that tests submit as users do, and the log that they read."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from waltz_log.client import SyncWaltzClient
from waltz_log.processes.local_cluster import LocalCluster

__all__ = ["PATIENCE_S", "ROOT", "SUBMIT", "Submit", "append_legs", "finished"]

ROOT = Path(__file__).resolve().parents[2]
SUBMIT = [str(Path(sys.executable).with_name("spark-submit")), "--properties-file", str(ROOT / "conf" / "spark-defaults.conf")]
Submit = Callable[..., "subprocess.Popen[str]"]
"""The fixture `submit`: a script, and its arguments."""

PATIENCE_S = 180
"""A submission takes ten seconds alone, a minute on a machine that does other things."""


def finished(process: subprocess.Popen[str]) -> tuple[int, str]:
    """The exit code of a job, and what it printed."""
    out, _ = process.communicate(timeout=PATIENCE_S)
    return process.returncode, out


def append_legs(cluster: LocalCluster, legs: range, *, aircraft: int = 10) -> None:
    """Each aircraft's legs, counted up, all in the partition of that aircraft."""
    with SyncWaltzClient(cluster.cluster) as client:
        for leg in legs:
            for tail in range(aircraft):
                client.append(tail % 2, json.dumps({"tail": f"N{tail}", "leg": leg}).encode())
