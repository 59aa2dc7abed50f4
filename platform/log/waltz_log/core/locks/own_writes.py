"""Remembers which client wrote a lock recently, to keep a client from conflicting with its own writes.

Keeps the sender and the locks of each judged frame, by reference, up to a bounded number of locks. It is queried only for a transaction that would be
rejected and that counts its own client's writes as known (docs/internals/protocol.md, Appending). A query enters the frames noted since the last one
into a table, once, so that each lookup has a constant cost. Without queries there is no work per lock. The answer is exact within this memory: a
forgotten write counts as written by another client. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["OwnWrites"]

LOCKS_KEPT = 131_072
"""1 MiB of hashes for each partition, and up to 25 MiB for the table once it is queried. Enough for what several clients have in flight. With more in
flight, a client may conflict with its own writes."""

CLIENT_BITS = 31
CLIENT_MASK = (1 << CLIENT_BITS) - 1
"""A client id in the low bits of a number whose high bits hold a transaction id."""


class _Judged(NamedTuple):
    """A judged frame. `accepted`: positions in the frame; their ids are consecutive from `first_id`."""

    client_id: int
    first_id: int
    accepted: Sequence[int]
    counts: bytes
    locks: Sequence[int]

    @property
    def last_id(self) -> int:
        return self.first_id + len(self.accepted) - 1


class OwnWrites:
    """`forgotten`: the last id about which nothing is known."""

    def __init__(self, forgotten: int) -> None:
        self._forgotten = forgotten
        self._frames: deque[_Judged] = deque()
        self._locks = 0
        self._entered = forgotten
        self._last: dict[int, int] = {}
        """By lock: its last write up to `_entered`, and the client that wrote it."""
        self._others: dict[int, int] = {}
        """By lock: the last earlier write of any other client, if one is remembered."""

    def note(self, client_id: int, first_id: int, accepted: Sequence[int], counts: bytes, locks: Sequence[int]) -> None:
        """Records a judged frame and its accepted positions."""
        if not accepted:
            return
        self._frames.append(_Judged(client_id, first_id, accepted, counts, locks))
        self._locks += len(locks)
        while self._locks > LOCKS_KEPT:
            oldest = self._frames.popleft()
            self._locks -= len(oldest.locks)
            self._forgotten = oldest.last_id

    def by_others(self, lock: int, client_id: int, mark: int, writer: int) -> int:
        """The last id above the mark under which another client wrote the lock; -1 if none did. `writer`: its last writer. Up to the forgotten id,
        any client may have written it. Above it, a write in no noted frame is in the frame that is being judged, which is the client's own."""
        self._enter()
        last = self._last.get(lock, client_id)
        found = self._others.get(lock, -1) if last & CLIENT_MASK == client_id else last >> CLIENT_BITS
        found = max(found, min(writer, self._forgotten))
        return found if found > mark else -1

    def _enter(self) -> None:
        """Enters the frames that were noted since the last query. Each frame is entered once, however often its locks are queried."""
        fresh = []
        for frame in reversed(self._frames):
            if frame.first_id <= self._entered:
                break
            fresh.append(frame)
        for frame in reversed(fresh):
            self._enter_frame(frame)
            self._entered = frame.last_id
        if len(self._last) > LOCKS_KEPT + LOCKS_KEPT // 2:
            self._last = {lock: last for lock, last in self._last.items() if last >> CLIENT_BITS > self._forgotten}
            self._others = {lock: found for lock, found in self._others.items() if found > self._forgotten}

    def _enter_frame(self, frame: _Judged) -> None:
        client_id, counts, locks, known, others = frame.client_id, frame.counts, frame.locks, self._last, self._others
        position = at = 0
        for transaction_id, accepted in enumerate(frame.accepted, frame.first_id):
            at += sum(counts[3 * position : 3 * accepted])
            writes, reads, appends = counts[3 * accepted : 3 * accepted + 3]
            checked = at + writes + reads
            for lock in (*locks[at : at + writes], *locks[checked : checked + appends]):
                last = known.get(lock)
                if last is not None and last & CLIENT_MASK != client_id:
                    others[lock] = last >> CLIENT_BITS
                known[lock] = transaction_id << CLIENT_BITS | client_id
            position, at = accepted + 1, checked + appends
