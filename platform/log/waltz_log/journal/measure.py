"""Measures how fast a disk syncs, and suggests the bounds of a group commit on it.

Writes blocks of growing size into one preallocated file, each followed by a sync, as a journal does, and computes the median duration. Up to some
size the sync dominates the duration, beyond it the bytes do. The two bounds follow from that (`suggest`). The file is removed at the end; nothing
else in the directory is changed. `budget_s` bounds the time, except for one write that the disk does not complete.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from waltz_log.core.ports import Disk, DiskFile

__all__ = ["MEASURED_FILE", "BlockTiming", "Bounds", "measure", "suggest"]

MEASURED_FILE = "waltz-measure.tmp"

BLOCK_BYTES = (512, 4096, 16 << 10, 64 << 10, 256 << 10, 1 << 20)
"""The smallest is what a single record costs: a disk writes at least a sector. The largest is more than any group should hold."""

FILE_BYTES = 16 << 20
"""Written round and round: large enough that no disk answers from a sector it has just written, small enough to be filled at once."""

ROUNDS_MIN = 5
"""The minimum for each size, however long they are: a median of fewer is meaningless."""

ROUNDS_MAX = 2000
"""For each size: more would only say the same again."""

QUICK_SYNC_S = 0.0005
"""Below it waiting saves nothing: while one sync runs the next group gathers by itself, and a thread does not sleep that short."""

LINGER_S_MAX = 0.02
"""A longer wait is noticeable for a caller, however slow the disk is."""


@dataclass(frozen=True, slots=True)
class BlockTiming:
    """The timing of one block size: how often it was written and synced, and the median and the 99th percentile of the duration."""

    block_bytes: int
    rounds: int
    median_s: float
    slow_s: float
    """99 of 100 were faster."""

    @property
    def syncs_per_s(self) -> float:
        return 1 / self.median_s

    @property
    def bytes_per_s(self) -> float:
        return self.block_bytes / self.median_s


@dataclass(frozen=True, slots=True)
class Bounds:
    """What suits `GroupCommitSettings` on the disk."""

    linger_s: float
    group_bytes: int


def suggest(timings: tuple[BlockTiming, ...]) -> Bounds:
    """On a slow disk a sync every other sync's time halves the syncs under load and at most doubles what a record waits for; a quick one needs no
    waiting. The group is the largest that costs no more than two small syncs, because a larger one does better as two."""
    small = min(timings, key=lambda each: each.block_bytes)
    linger_s = 0.0 if small.median_s < QUICK_SYNC_S else min(float(f"{2 * small.median_s:.2g}"), LINGER_S_MAX)
    return Bounds(linger_s, max(each.block_bytes for each in timings if each.median_s <= 2 * small.median_s))


def measure(
    disk: Disk, *, now: Callable[[], float], budget_s: float = 3.0, progress: Callable[[BlockTiming], None] = lambda timing: None
) -> tuple[BlockTiming, ...]:
    """One timing for each size, smallest first; each is passed to `progress` as soon as it is known. `now`: a monotonic clock in seconds. A file of
    an interrupted measurement is replaced. Raises `OSError` if the disk is full or fails."""
    with suppress(FileNotFoundError):
        disk.remove(MEASURED_FILE)
    file = disk.open(MEASURED_FILE, "create")
    try:
        file.allocate(FILE_BYTES)
        for offset in range(0, FILE_BYTES, 1 << 20):
            file.write(offset, b"J" * (1 << 20))
        file.sync()
        disk.sync_directory("")
        timings = []
        for block_bytes in BLOCK_BYTES:
            timings.append(_time_block(file, block_bytes, now, budget_s / len(BLOCK_BYTES)))
            progress(timings[-1])
        return tuple(timings)
    finally:
        file.close()
        disk.remove(MEASURED_FILE)


def _time_block(file: DiskFile, block_bytes: int, now: Callable[[], float], budget_s: float) -> BlockTiming:
    block, offset = b"J" * block_bytes, 0
    durations_s: list[float] = []
    deadline = now() + budget_s
    while len(durations_s) < ROUNDS_MIN or (len(durations_s) < ROUNDS_MAX and now() < deadline):
        begun = now()
        file.write(offset, block)
        file.sync()
        durations_s.append(max(now() - begun, 1e-9))
        offset = (offset + block_bytes) % FILE_BYTES
    durations_s.sort()
    return BlockTiming(
        block_bytes, len(durations_s), durations_s[len(durations_s) // 2], durations_s[min(len(durations_s) - 1, len(durations_s) * 99 // 100)]
    )
