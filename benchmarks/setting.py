"""How much each benchmark does, and the conditions that every figure carries."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from waltz_log.core.formats.record_layout import RECORD_OVERHEAD_BYTES

__all__ = ["FULL", "QUICK", "Workload", "machine_conditions", "origin"]

PROJECT = Path(__file__).resolve().parents[1]
DATA_BYTES = 200
RECORD_BYTES = DATA_BYTES + RECORD_OVERHEAD_BYTES
LOCK_NAME = "account"
LOCKS = 10_000


@dataclass(frozen=True)
class Workload:
    """Numbers of transactions, each enough for some seconds of steady work."""

    single: int
    pipelined: int
    log: int
    """The number of transactions that feed, Spark and Delta read."""
    batch: int
    """Rows of one Delta commit."""
    storage_blocks: int
    """The number of blocks of 64 KiB that one partition's store writes."""


FULL = Workload(single=2_000, pipelined=500_000, log=2_000_000, batch=500_000, storage_blocks=3_200)
QUICK = Workload(single=100, pipelined=20_000, log=40_000, batch=20_000, storage_blocks=160)


def origin() -> dict[str, str]:
    """What makes a figure traceable: the commit that was measured, with `+` if files differ from it, the day, and the processor."""
    return {"commit": _commit(), "date": datetime.now(UTC).date().isoformat(), "processor": _processor()}


def _commit() -> str:
    def git(*arguments: str) -> str:
        return subprocess.run(["git", "-C", str(PROJECT), *arguments], capture_output=True, text=True, check=True, timeout=30).stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return "unknown"  # measured from an archive


def _processor(path: Path = Path("/proc/cpuinfo")) -> str:
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", path.read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or platform.machine()


def machine_conditions(*, quick: bool) -> Mapping[str, Any]:
    conditions: dict[str, Any] = {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "python": platform.python_version(),
        "replicas": 3,
        "fsync": "yes",
        "bytes": DATA_BYTES,
        "load_at_start": round(os.getloadavg()[0], 1),
        **origin(),
    }
    return conditions | {"quick": "yes"} if quick else conditions
