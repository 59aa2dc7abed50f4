"""What the C library does with memory that is freed: kept for the next frame or block, instead of given back to the system and asked for again.

A frame, a block and an answer are some copies of up to a few MiB that live for milliseconds. Left to itself glibc returns such memory when it is
freed, so that each copy begins with page faults, one for 4 KiB: a fifth of an append's processor time where many are in flight (docs/performance.md).
"""

from __future__ import annotations

import ctypes
import os
from typing import Final

__all__ = ["KEPT_BYTES", "keep_freed_memory"]

KEPT_BYTES: Final = 32 << 20
"""Free memory at the end of a heap beyond which it is given back: more than one partition's blocks take at once, little for a machine."""

OWN_MAPPING_BYTES: Final = 4 << 20
"""From this size on a piece has a mapping of its own, which is given back with it: above what a frame or a block is, so that what is larger, and rare,
leaves no hole behind."""

M_TRIM_THRESHOLD: Final = -1
M_MMAP_THRESHOLD: Final = -3
"""malloc.h."""

CHOSEN_BY_OPERATOR: Final = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def keep_freed_memory() -> bool:
    """For the whole process, from now on; whether it was done. It is not where the environment chooses, nor where the C library is not glibc. Serving
    processes call it; an application that appends much may, at its start."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or any(name in os.environ for name in CHOSEN_BY_OPERATOR):
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, OWN_MAPPING_BYTES)) and bool(mallopt(M_TRIM_THRESHOLD, KEPT_BYTES))
