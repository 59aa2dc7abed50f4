"""JSON into columns: by one core, and from a log through Spark beside `from_json`, in a driver of its own (`benchmarks.json_decoding`)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from benchmarks.measurement import Measurement
from benchmarks.running import PROJECT

__all__ = ["run"]

ROWS, ROWS_QUICK = 600_000, 10_000
TURNS, TURNS_QUICK = 5, 1
TIMEOUT_S = 900.0
"""Ends a driver that hangs. A run needs about two minutes on an idle machine."""


def run(conditions: Mapping[str, Any], *, quick: bool) -> list[Measurement]:
    rows, turns = (ROWS_QUICK, TURNS_QUICK) if quick else (ROWS, TURNS)
    command = [sys.executable, "-m", "benchmarks.json_decoding", f"--rows={rows}", f"--turns={turns}"]
    try:
        done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"the Spark driver did not end in time: benchmark=decode timeout_s={TIMEOUT_S:.0f}") from None
    if done.returncode:
        raise RuntimeError(f"the Spark driver failed: code={done.returncode}\n" + "\n".join(done.stderr.splitlines()[-30:]))
    answer: dict[str, dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    found = [
        Measurement("decode.json", answer["decode.json"]["alone"], "rows/s", {**conditions, "columns": 14, "processes": 1, "of": "processor time"})
    ]
    for name, columns in (("decode.json_spark", 14), ("decode.json_100", 100)):
        rates = answer[name]
        others = {way: round(rates[way]) for way in ("source", "filtered", "in_workers")}
        measured = Measurement(name, rates["tasks"], "rows/s", {**conditions, "columns": columns, "turns": turns, **others})
        found.append(measured.compared_with(rates["from_json"], f"from_json over the same log, {rates['from_json']:,.0f} rows/s"))
    return found
