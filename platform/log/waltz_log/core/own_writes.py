"""Who wrote a lock lately, so that a client need not conflict with what it sent itself.

Keeps of each judged frame with locks whose it was and what it locked, by reference, a bounded number of locks back. Asked only for a transaction that
would be rejected, and that counts its own client's writes as known (docs/protocol.md, Appending). Exact within its memory: what it forgot counts as
written by others. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["OwnWrites"]

LOCKS_KEPT = 131_072
"""1 MiB of hashes a partition; what some clients have in flight. More in flight than this, and a client may conflict with its own."""

LOOKED_AT_MAX = 8192
"""Locks of which it is remembered how far they were looked for; forgotten all at once."""


class _Judged(NamedTuple):
    """A frame: accepted are the positions, whose ids are consecutive from `first_id`."""

    client_id: int
    first_id: int
    accepted: list[int]
    counts: bytes
    locks: Sequence[int]

    @property
    def last_id(self) -> int:
        return self.first_id + len(self.accepted) - 1

    def last_write(self, lock: int) -> int:
        """The last id under which it wrote the lock, -1: none."""
        if lock not in self.locks:
            return -1
        found, at = -1, 0
        starts = []
        for position in range(len(self.counts) // 3):
            starts.append(at)
            at += sum(self.counts[3 * position : 3 * position + 3])
        for number, position in enumerate(self.accepted):
            writes, reads, appends = self.counts[3 * position : 3 * position + 3]
            start = starts[position]
            appended = start + writes + reads
            if lock in self.locks[start : start + writes] or lock in self.locks[appended : appended + appends]:
                found = self.first_id + number
        return found


class _LookedAt(NamedTuple):
    """Nobody but the client wrote the lock in (mark, upto]."""

    client_id: int
    mark: int
    upto: int


class OwnWrites:
    """`forgotten`: the last id of which nothing is known."""

    def __init__(self, forgotten: int) -> None:
        self._forgotten = forgotten
        self._newest = forgotten
        self._frames: deque[_Judged] = deque()
        self._locks = 0
        self._looked_at: dict[int, _LookedAt] = {}

    def note(self, client_id: int, first_id: int, accepted: list[int], counts: bytes, locks: Sequence[int]) -> None:
        """A frame was judged, and these positions of it accepted."""
        if not accepted:
            return
        self._frames.append(_Judged(client_id, first_id, accepted, counts, locks))
        self._newest = first_id + len(accepted) - 1
        self._locks += len(locks)
        while self._locks > LOCKS_KEPT:
            oldest = self._frames.popleft()
            self._locks -= len(oldest.locks)
            self._forgotten = oldest.last_id

    def by_others(self, lock: int, client_id: int, mark: int, writer: int) -> int:
        """The last id above the mark under which another client wrote the lock, -1 where none did. `writer`: its last writer, which is the answer
        where not all above the mark is remembered."""
        looked_at = self._looked_at.get(lock)
        upto = mark
        if looked_at is not None and looked_at.client_id == client_id and looked_at.mark <= mark:
            upto = max(mark, looked_at.upto)
        if upto < self._forgotten:
            return writer
        for frame in reversed(self._frames):
            if frame.last_id <= upto:
                break
            if frame.client_id != client_id:
                found = frame.last_write(lock)
                if found > mark:
                    return found
        if len(self._looked_at) >= LOOKED_AT_MAX:
            self._looked_at.clear()
        self._looked_at[lock] = _LookedAt(client_id, mark if looked_at is None or upto == mark else looked_at.mark, self._newest)
        return -1
