"""Runs cases of hostile files in the process of `readers`, and judges how they ended."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

__all__ = ["Runner", "check"]

ADDED_BYTES_MAX = 400 * 1024 * 1024
"""Of memory that a case adds: a control file of 64 MiB is the largest that is read as a whole."""

CPU_S_MAX = 15.0


class Runner:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, case: dict[str, Any], cwd: Path) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps({"cwd": str(cwd), "timeout_s": 60} | case), file=self._process.stdin, flush=True)
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer


def check(answer: dict[str, Any], ends: tuple[int, ...]) -> None:
    said = answer["out"] + answer["err"]
    assert not answer["hung"], answer
    assert "Traceback" not in said, said
    assert answer["code"] in ends, answer
    assert "\x1b" not in said
    assert "\x07" not in said
    assert answer["cpu_s"] < CPU_S_MAX, answer
    assert answer["added_bytes"] < ADDED_BYTES_MAX, answer
    assert all(len(line) < 2000 for line in said.splitlines()), said
