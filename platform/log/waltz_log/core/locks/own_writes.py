"""Who wrote a lock lately, so that a client need not conflict with what it sent itself.

Keeps of each judged frame with locks whose it was and what it locked, by reference, a bounded number of locks back. Asked only for a transaction that
would be rejected, and that counts its own client's writes as known (docs/internals/protocol.md, Appending): then what was noted since is entered,
once, into a
table that answers at once, however many are asked for. Where nobody asks, nothing is done for a lock. Exact within its memory: what it forgot counts
as written by others. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["OwnWrites"]

LOCKS_KEPT = 131_072
"""1 MiB of hashes a partition, and up to 25 MiB of the table where it is asked for; what some clients have in flight. More in flight than this, and a
client may conflict with its own."""

CLIENT_BITS = 31
CLIENT_MASK = (1 << CLIENT_BITS) - 1
"""A client id within a number that holds a transaction id above it."""


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


class OwnWrites:
    """`forgotten`: the last id of which nothing is known."""

    def __init__(self, forgotten: int) -> None:
        self._forgotten = forgotten
        self._frames: deque[_Judged] = deque()
        self._locks = 0
        self._entered = forgotten
        self._last: dict[int, int] = {}
        """By lock: its last write up to `_entered`, with its client."""
        self._others: dict[int, int] = {}
        """By lock: the last write before that of any other client, where one is remembered."""

    def note(self, client_id: int, first_id: int, accepted: list[int], counts: bytes, locks: Sequence[int]) -> None:
        """A frame was judged, and these positions of it accepted."""
        if not accepted:
            return
        self._frames.append(_Judged(client_id, first_id, accepted, counts, locks))
        self._locks += len(locks)
        while self._locks > LOCKS_KEPT:
            oldest = self._frames.popleft()
            self._locks -= len(oldest.locks)
            self._forgotten = oldest.last_id

    def by_others(self, lock: int, client_id: int, mark: int, writer: int) -> int:
        """The last id above the mark under which another client wrote the lock, -1 where none did. `writer`: its last writer. Up to what is forgotten
        anybody may have written it; above that, what is in no frame noted is of the frame being judged, which is the client's own."""
        self._enter()
        last = self._last.get(lock, client_id)
        found = self._others.get(lock, -1) if last & CLIENT_MASK == client_id else last >> CLIENT_BITS
        found = max(found, min(writer, self._forgotten))
        return found if found > mark else -1

    def _enter(self) -> None:
        """What was noted since the last time. Each frame once, so that a lock costs the same however often it is asked for."""
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
