"""How much each benchmark does, and the conditions that every figure carries."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from waltz_log.core.formats.record_layout import RECORD_OVERHEAD_BYTES

__all__ = ["FULL", "QUICK", "Workload", "machine_conditions"]

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


def machine_conditions(*, quick: bool) -> Mapping[str, Any]:
    conditions: dict[str, Any] = {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "python": platform.python_version(),
        "replicas": 3,
        "fsync": "yes",
        "bytes": DATA_BYTES,
        "load_at_start": round(os.getloadavg()[0], 1),
    }
    return conditions | {"quick": "yes"} if quick else conditions
