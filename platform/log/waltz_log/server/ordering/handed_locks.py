"""The newest locks of a partition, left by an owner that closed in order for the one that follows.

With them its table begins as the other ended: a transaction that was on its way at the hand-over, and comes again with the mark it was decided from,
is judged as it would have been, and not by a floor that is above its mark. They count only for the session and the mark they name, and those only
where that session is the last there was and closed at that mark: whatever else is found, the table begins at its floor, which is always right and at
most costs a conflict. Bounded, for they stand in the coordinator; what finds no room raises the floor that is handed over.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from waltz_log.core.locks.locks import LockTable
from waltz_log.core.metadata import handed_locks_path
from waltz_log.core.ports import Coordinator

__all__ = ["HANDED_MAX", "HandedLocks", "give", "take"]

HANDED_MAX = 8192
"""16 bytes each: 128 KiB, far below what a node of the coordinator may hold. What is on its way at a hand-over was decided a moment ago."""

_HEAD = struct.Struct(">qqq")
_ROW = struct.Struct(">qq")


@dataclass(frozen=True, slots=True)
class HandedLocks:
    """Every lock that was written above `floor` is in `writers`."""

    session: int
    high_water_mark: int
    floor: int
    writers: dict[int, int]

    def to_bytes(self) -> bytes:
        return _HEAD.pack(self.session, self.high_water_mark, self.floor) + b"".join(_ROW.pack(*row) for row in self.writers.items())

    @classmethod
    def from_bytes(cls, data: bytes) -> HandedLocks:
        """Raises `struct.error` where it is cut off."""
        session, high_water_mark, floor = _HEAD.unpack_from(data)
        return cls(session, high_water_mark, floor, dict(_ROW.iter_unpack(data[_HEAD.size :])))


async def give(coordinator: Coordinator, partition: int, session: int, high_water_mark: int, table: LockTable) -> None:
    """Before the session records that it closed at the mark. Nothing is in flight."""
    floor, writers = table.newest(HANDED_MAX)
    left = HandedLocks(session, high_water_mark, floor, writers).to_bytes()
    path = handed_locks_path(partition)
    if not await coordinator.create(path, left):
        await coordinator.set(path, left, -1)


async def take(coordinator: Coordinator, partition: int, session: int, high_water_mark: int) -> HandedLocks | None:
    """What the session left that closed at the mark; None where that is not there."""
    node = await coordinator.get(handed_locks_path(partition))
    if node is None:
        return None
    try:
        found = HandedLocks.from_bytes(node.data)
    except struct.error:
        return None
    return found if (found.session, found.high_water_mark) == (session, high_water_mark) else None
