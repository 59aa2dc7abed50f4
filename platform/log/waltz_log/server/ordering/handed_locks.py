"""The newest locks of a partition, stored by an owner that closes in order for the next owner.

With them the next lock table begins as the previous one ended. A transaction that was in flight at the hand-over, and is sent again with its old
mark, is judged by the real locks and not by a floor above its mark. They count only for the session and the mark that they name, and only if that
session is the last one and closed at that mark. In all other cases the table begins at its floor, which is always safe and costs at most a conflict.
Their size is bounded, because the coordinator stores them. Locks that do not fit raise the floor that is handed over.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from waltz_log.core.locks.locks import LockTable
from waltz_log.core.metadata import handed_locks_path
from waltz_log.core.ports import Coordinator

__all__ = ["HANDED_MAX", "HandedLocks", "read_handed_locks", "write_handed_locks"]

HANDED_MAX = 8192
"""16 bytes each: 128 KiB, far below what a node of the coordinator may hold. Transactions in flight at a hand-over were decided a moment ago."""

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


async def write_handed_locks(coordinator: Coordinator, partition: int, session: int, high_water_mark: int, table: LockTable) -> None:
    """Before the session records that it closed at the mark. Nothing is in flight."""
    floor, writers = table.newest(HANDED_MAX)
    left = HandedLocks(session, high_water_mark, floor, writers).to_bytes()
    path = handed_locks_path(partition)
    if not await coordinator.create(path, left):
        await coordinator.set(path, left, -1)


async def read_handed_locks(coordinator: Coordinator, partition: int, session: int, high_water_mark: int) -> HandedLocks | None:
    """The locks that the session stored which closed at the mark; None if there are none."""
    node = await coordinator.get(handed_locks_path(partition))
    if node is None:
        return None
    try:
        found = HandedLocks.from_bytes(node.data)
    except struct.error:
        return None
    return found if (found.session, found.high_water_mark) == (session, high_water_mark) else None
