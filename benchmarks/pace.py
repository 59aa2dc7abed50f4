"""The current speed of the processor: the time of one step of a fixed piece of Python. The speed of a shared machine changes by half within minutes,
and differs more between machines. Figures that depend on the processor are reported with it, so that figures of two runs can be compared.
"""

from __future__ import annotations

import time
from statistics import median
from struct import Struct
from zlib import crc32

__all__ = ["pace_ns"]

STEPS = 4_000
RUNS = 9
"""Runs of some milliseconds each. The median leaves out runs in which another process had the processor."""

DATA = bytes(range(200))
_HEAD = Struct(">qiiI")


def pace_ns() -> int:
    """Nanoseconds of one step: a lookup, a checksum of 200 bytes, a packed header, an object kept for a while. Runs for a twentieth of a second."""
    return round(median(_run_ns() for _ in range(RUNS)))


def _run_ns() -> float:
    known: dict[int, int] = {}
    kept: list[tuple[bytes, int]] = []
    began_ns = time.perf_counter_ns()
    for number in range(STEPS):
        before = known.get(number % 512, -1)
        known[number % 512] = number
        kept.append((_HEAD.pack(number, before, len(DATA), crc32(DATA)), number))
    return (time.perf_counter_ns() - began_ns) / STEPS
