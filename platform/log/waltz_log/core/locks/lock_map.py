"""A map from locks to the ids of their last writers, in two flat arrays: the locks of a frame are found and written together.

A dict needs a hundred bytes for each lock, and its lookups wait for memory one after another. Here a lock needs 32 to 64 bytes, and numpy's lookups
wait together. Open addressing: a lock is at the place that its hash names, or at the next one that is free. At least half of the places are free.
Locks are never removed: `LockTable` forgets a whole map at a time.

Locks come from clients, which could choose many that share a place. So the hash multiplies by a number that they do not know.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["ABSENT", "MULTIPLIER", "LockMap"]

ABSENT: Final = -1
"""The writer of a lock that is not in the map. Ids are not negative."""

MULTIPLIER: Final = 0x9E37_79B9_7F4A_7C15
"""The default, for tests; a server draws one. This one, of the golden ratio, spreads consecutive numbers."""

PLACES_MIN_BITS: Final = 6
_64_BITS: Final = (1 << 64) - 1

FEW_ASTRAY: Final = 24
"""If no more locks of a frame are not at their first place, they are found one by one."""

Int64s = NDArray[np.int64]


class LockMap:
    """Locks are signed 64-bit numbers. `multiplier`: odd, 64 bits. Places, as `places` returns them, are valid until a lock is written that was not
    in the map. A free place may hold any lock: only its writer says that it is free."""

    def __init__(self, multiplier: int = MULTIPLIER) -> None:
        self._multiplier = multiplier
        self._count = 0
        self._make_places(PLACES_MIN_BITS)

    def _make_places(self, bits: int) -> None:
        self._shift = 64 - bits
        self._multiplier_u8, self._shift_u8 = np.uint64(self._multiplier), np.uint64(self._shift)
        self._mask = (1 << bits) - 1
        self._locks: Int64s = np.zeros(1 << bits, dtype=np.int64)
        self._writers: Int64s = np.full(1 << bits, ABSENT, dtype=np.int64)
        # Views of the same memory: numpy needs several times as long for one element.
        self._lock_at, self._writer_at = self._locks.data, self._writers.data

    def __len__(self) -> int:
        return self._count

    def _reserve(self, more: int) -> bool:
        """Makes room for this number of new locks. Returns whether all places changed."""
        if (needed := 2 * (self._count + more)) <= self._mask + 1:
            return False
        locks, writers = self._items()
        self._make_places((needed - 1).bit_length())
        self._enter(locks, writers, self.places(locks), np.arange(len(locks)))
        return True

    def as_dict(self) -> dict[int, int]:
        """By lock: its last writer."""
        locks, writers = self._items()
        return dict(zip(locks.tolist(), writers.tolist(), strict=True))

    def _items(self) -> tuple[Int64s, Int64s]:
        """All locks and their last writers."""
        used = np.flatnonzero(self._writers != ABSENT)
        return self._locks[used], self._writers[used]

    # ---- one lock --------------------------------------------------------------------------------------------------------------------------------

    def _place(self, lock: int) -> int:
        """Where the lock is, or the free place where it would be."""
        place = (lock * self._multiplier & _64_BITS) >> self._shift
        lock_at, writer_at = self._lock_at, self._writer_at
        while lock_at[place] != lock and writer_at[place] != ABSENT:
            place = (place + 1) & self._mask
        return place

    def get(self, lock: int) -> int:
        """Its last writer, or `ABSENT`."""
        return self._writer_at[self._place(lock)]

    def put(self, lock: int, writer: int) -> None:
        place = self._place(lock)
        if self._writer_at[place] == ABSENT:
            if self._reserve(1):
                place = self._place(lock)
            self._lock_at[place] = lock
            self._count += 1
        self._writer_at[place] = writer

    # ---- the locks of a frame --------------------------------------------------------------------------------------------------------------------

    def places(self, locks: Int64s) -> Int64s:
        """int64[n]: as `_place`."""
        places = (locks.view(np.uint64) * self._multiplier_u8 >> self._shift_u8).view(np.int64)
        (astray,) = (self._locks.take(places) != locks).nonzero()
        while len(astray) > FEW_ASTRAY:
            at, mine = places[astray], locks[astray]
            astray = astray[(self._locks.take(at) != mine) & (self._writers.take(at) != ABSENT)]
            places[astray] = (places[astray] + 1) & self._mask
        if len(astray):
            places[astray] = [self._place(lock) for lock in locks[astray].tolist()]
        return places

    def writers_at(self, places: Int64s) -> Int64s:
        """int64[n]: the last writers of the locks whose places these are, or `ABSENT`."""
        return self._writers.take(places)

    def put_all(self, locks: Int64s, places: Int64s, before: Int64s, writers: Int64s) -> bool:
        """`before`: the result of `writers_at(places)`. Returns False and leaves the content unchanged if a lock is there twice, with different
        writers. May change `places`."""
        (new,) = (before == ABSENT).nonzero()
        if len(new):
            if self._reserve(len(new)):
                places = self.places(locks)
            self._enter(locks, writers, places, new)
        self._writers[places] = writers
        if (self._writers.take(places) != writers).any():
            self._writers[places] = before
            return False
        self._count += len(new)
        return True

    def _enter(self, locks: Int64s, writers: Int64s, places: Int64s, new: NDArray[np.intp]) -> None:
        """Gives each new lock a place of its own: of several that found the same one free, one keeps it, and the others search again."""
        while len(new):
            at, mine = places[new], locks[new]
            self._locks[at] = mine
            kept = self._locks[at] == mine
            self._writers[at[kept]] = writers[new[kept]]
            new = new[~kept]
            if len(new):
                places[new] = self.places(locks[new])
