"""How far the demo's tables are behind its log while three dispatchers append, at the 95th percentile: that of the table that is further behind."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.measurement import Measurement
from benchmarks.running import PROJECT

__all__ = ["run"]

FLIGHTS_QUICK = 2_000
"""Of each airport."""
TIMEOUT_S = 900.0
"""Ends a demo that hangs. One runs for about three minutes on an idle machine."""


def run(directory: Path, conditions: Mapping[str, Any], *, quick: bool) -> list[Measurement]:
    folder = directory / "demo"
    command = [sys.executable, "-m", "demo", f"--directory={folder}", *([f"--limit={FLIGHTS_QUICK}"] if quick else [])]
    try:
        done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"the demo did not end in time: timeout_s={TIMEOUT_S:.0f}") from None
    if done.returncode:
        raise RuntimeError(f"the demo failed: code={done.returncode}\n" + "\n".join([*done.stdout.splitlines(), *done.stderr.splitlines()][-30:]))
    found: dict[str, Any] = json.loads((folder / "behind.json").read_text())
    told = {**conditions, **{f"{table}_s": behind_s for table, behind_s in found["behind_p95_s"].items()}, "flights": found["flights"]}
    return [Measurement("demo.lag_p95_s", max(found["behind_p95_s"].values()), "s", told)]
