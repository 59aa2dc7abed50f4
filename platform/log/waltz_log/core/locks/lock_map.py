"""A map from locks to the ids of their last writers, in two flat arrays: the locks of a frame are found and written together.

A dict needs a hundred bytes for each lock, and waits for memory once for each lookup. Here a lock needs 32 to 96 bytes, and numpy has many reads in
flight at the same time. Open addressing: a lock is at the place that its hash names, or at the next one that is free. At least a quarter of the
places is free, and at least half in a map that still grows. Locks are never removed: `LockTable` forgets a whole map at a time.

A map that is full gets twice the places. Its locks move there piece by piece: some with each new lock, and each lock that is looked up, immediately.
Moving a million at once takes 90 ms, during which a server does nothing else.

Locks come from clients, which could choose many that share a place. So the hash multiplies by a number that they do not know.
"""

from __future__ import annotations

import mmap
from contextlib import suppress
from typing import Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["ABSENT", "MULTIPLIER", "LockMap"]

ABSENT: Final = -1
"""The writer of a lock that is not in the map. Ids are not negative."""

MULTIPLIER: Final = 0x9E37_79B9_7F4A_7C15
"""The default, for tests; a server draws one. This one, of the golden ratio, spreads consecutive numbers."""

COUNT_MAX: Final = 1 << 62

PLACES_MIN_BITS: Final = 6
_PAGE: Final = 512
"""Numbers in a page of memory."""

_64_BITS: Final = (1 << 64) - 1

PREPARED_PART: Final = 4
"""The next table is prepared while the last quarter of the present one fills."""

FREE: Final = 0
MOVED: Final = 1
"""`stored` is one of these, or the complement of a writer, which is negative. Fresh memory is zero, so all places are free. `MOVED` marks a place of
the former table whose lock has moved. It is not free: a search must go past it."""

MOVED_AT_ONCE: Final = 1 << 12
"""A map of at most this many places moves all its locks in one step."""

MOVED_EACH: Final = 4
"""Former places that are emptied for each new lock. With 2, the last lock would move just before the map is full again."""

MOVED_MIN: Final = 4096
"""Former places that are emptied at a time, at least: a call of numpy costs as much for one."""

FEW_ASTRAY: Final = 24
"""Up to this many locks that are not at their first place are found one by one."""

LARGE_BYTES: Final = 1 << 20

Int64s = NDArray[np.int64]


def _zeros(count: int) -> Int64s:
    """int64[count]. Of a large array the system provides each page of 4 KiB when it is touched. numpy would ask for huge pages of 2 MiB, and each of
    them takes 10 ms in a virtual machine."""
    if 8 * count < LARGE_BYTES or not hasattr(mmap, "MADV_NOHUGEPAGE"):
        return np.zeros(count, dtype=np.int64)
    memory = mmap.mmap(-1, 8 * count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without huge pages
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, dtype=np.int64)


class _Places:
    """2 to the power of `bits` places. `stored`: what is at each of them. The lock at a free place means nothing."""

    def __init__(self, bits: int, multiplier: int) -> None:
        self._multiplier, self._shift = multiplier, 64 - bits
        self._multiplier_u64, self._shift_u64 = np.uint64(multiplier), np.uint64(self._shift)
        self._mask = (1 << bits) - 1
        self._touched = 0
        self.locks = _zeros(1 << bits)
        self.stored = _zeros(1 << bits)
        # Views of the same memory: numpy needs several times as long for one element.
        self.lock_at, self.stored_at = self.locks.data, self.stored.data

    def __len__(self) -> int:
        return self._mask + 1

    def touch(self, places: int) -> None:
        """Makes the system provide the memory of this number of further places, before a lock is there."""
        begin, self._touched = self._touched, self._touched + places
        for column in (self.locks, self.stored):
            column[begin : self._touched : _PAGE] = 0

    def find(self, lock: int) -> int:
        """Where the lock is, or the free place where it would be."""
        place = (lock * self._multiplier & _64_BITS) >> self._shift
        lock_at, stored_at = self.lock_at, self.stored_at
        while lock_at[place] != lock and stored_at[place] != FREE:
            place = (place + 1) & self._mask
        return place

    def find_all(self, locks: Int64s) -> Int64s:
        """int64[n]: as `find`."""
        places = (locks.view(np.uint64) * self._multiplier_u64 >> self._shift_u64).view(np.int64)
        (astray,) = (self.locks.take(places) != locks).nonzero()
        while len(astray) > FEW_ASTRAY:
            at, mine = places[astray], locks[astray]
            astray = astray[(self.locks.take(at) != mine) & (self.stored.take(at) != FREE)]
            places[astray] = (places[astray] + 1) & self._mask
        if len(astray):
            places[astray] = [self.find(lock) for lock in locks[astray].tolist()]
        return places

    def enter(self, locks: Int64s, stored: Int64s) -> None:
        """Locks that are not there yet, each once."""
        self.enter_at(locks, stored, self.find_all(locks), np.arange(len(locks)))

    def enter_at(self, locks: Int64s, stored: Int64s, places: Int64s, new: NDArray[np.intp]) -> None:
        """Gives each of the new locks a place of its own: of several that found the same one free, one keeps it, and the others search again. Changes
        `places`."""
        while len(new):
            at, mine = places[new], locks[new]
            self.locks[at] = mine
            kept = self.locks[at] == mine
            self.stored[at[kept]] = stored[new[kept]]
            new = new[~kept]
            if len(new):
                places[new] = self.find_all(locks[new])

    def items(self) -> tuple[Int64s, Int64s]:
        """All locks, and what is stored with them."""
        (used,) = (self.stored < FREE).nonzero()
        return self.locks[used], self.stored[used]


class _Former:
    """The places that a map had before it grew. Those below `emptied` have been emptied."""

    def __init__(self, places: _Places) -> None:
        self.places = places
        self.emptied = 0

    def empty(self, places: Int64s) -> tuple[Int64s, Int64s]:
        """The locks that are still at these places, of which several may be the same, and what is stored with them. Removes them."""
        left = np.unique(places[self.places.stored.take(places) < FREE])
        found = self.places.locks.take(left), self.places.stored.take(left)
        self.places.stored[left] = MOVED
        return found

    def empty_next(self, count: int) -> tuple[Int64s, Int64s]:
        """As `empty`, of the next places from the first that may not be empty yet."""
        begin, self.emptied = self.emptied, min(self.emptied + count, len(self.places.locks))
        return self.empty(np.arange(begin, self.emptied))

    @property
    def is_empty(self) -> bool:
        return self.emptied == len(self.places.locks)


class LockMap:
    """Locks are signed 64-bit numbers. `multiplier`: odd, 64 bits. `count_max`: the owner drops the map at about this many locks. Near that, it fills
    up further instead of growing. Places, as `places` returns them, are valid until another lock is looked up or written."""

    def __init__(self, multiplier: int = MULTIPLIER, count_max: int = COUNT_MAX) -> None:
        self._multiplier = multiplier
        self._count_max = count_max
        self._count = 0
        self._now = _Places(PLACES_MIN_BITS, multiplier)
        self._former: _Former | None = None
        self._next: _Places | None = None
        self._owed = 0
        """Former places that should have been emptied by now, and were not yet."""

    def __len__(self) -> int:
        return self._count

    @property
    def _is_dropped_next(self) -> bool:
        """Whether the owner drops the map before it has to grow again."""
        return len(self._now) >= 2 * self._count_max

    def _reserve(self, more: int) -> bool:
        """Makes room for this number of new locks. Returns whether all places changed."""
        places, needed = len(self._now), 2 * (self._count + more)
        if needed <= places or (self._is_dropped_next and 2 * needed <= 3 * places):
            return False
        self._move(len(self._now))  # finishes the move before; almost nothing is left
        bits = (needed - 1).bit_length()
        self._former = _Former(self._now)
        self._now = self._next if self._next is not None and len(self._next) == 1 << bits else _Places(bits, self._multiplier)
        self._next = None
        if len(self._former.places) <= MOVED_AT_ONCE:
            self._move(MOVED_AT_ONCE)
        return True

    def _move(self, places: int) -> None:
        """Moves the locks of this number of the former places."""
        if self._former is not None:
            self._now.enter(*self._former.empty_next(places))
            if self._former.is_empty:
                self._former = None

    def _move_with(self, new: int) -> None:
        """This number of locks is new."""
        if self._former is None:
            self._prepare(new)
        else:
            self._owed += MOVED_EACH * new
            if self._owed >= MOVED_MIN:
                self._move(self._owed)
                self._owed = 0

    def _prepare(self, new: int) -> None:
        """When the map is nearly full, gets the memory of the next places in small steps: tens of MiB at once take tens of milliseconds."""
        places = len(self._now)
        if self._next is None and not self._is_dropped_next and places >= MOVED_AT_ONCE and 2 * self._count >= places - places // PREPARED_PART:
            self._next = _Places(places.bit_length(), self._multiplier)
        if self._next is not None:
            self._next.touch(4 * PREPARED_PART * new)  # the last part fills with places / 2 / PREPARED_PART locks, and the next table has 2 * places

    def items(self) -> tuple[Int64s, Int64s]:
        """All locks and their last writers."""
        parts = [self._now.items(), *([] if self._former is None else [self._former.places.items()])]
        return np.concatenate([locks for locks, _ in parts]), ~np.concatenate([stored for _, stored in parts])

    # ---- one lock --------------------------------------------------------------------------------------------------------------------------------

    def _place(self, lock: int) -> int:
        place = self._now.find(lock)
        if self._former is not None and self._now.stored_at[place] == FREE:
            former = self._former.places
            at = former.find(lock)
            if former.stored_at[at] < FREE:
                self._now.lock_at[place], self._now.stored_at[place] = lock, former.stored_at[at]
                former.stored_at[at] = MOVED
        return place

    def get(self, lock: int) -> int:
        """Its last writer, or `ABSENT`."""
        return ~self._now.stored_at[self._place(lock)]

    def put(self, lock: int, writer: int) -> None:
        place = self._place(lock)
        is_new = self._now.stored_at[place] == FREE
        if is_new and self._reserve(1):
            place = self._place(lock)
        self._now.lock_at[place], self._now.stored_at[place] = lock, ~writer
        if is_new:
            self._count += 1
            self._move_with(1)

    # ---- the locks of a frame --------------------------------------------------------------------------------------------------------------------

    def places(self, locks: Int64s) -> Int64s:
        """int64[n]: where each lock is, or the free place where it would be."""
        places = self._now.find_all(locks)
        if self._former is not None:
            (absent,) = (self._now.stored.take(places) == FREE).nonzero()
            if len(absent):
                moved = self._former.empty(self._former.places.find_all(locks[absent]))
                if len(moved[0]):
                    self._now.enter(*moved)
                    places[absent] = self._now.find_all(locks[absent])
        return places

    def writers_at(self, places: Int64s) -> Int64s:
        """int64[n]: the last writers of the locks whose places these are, or `ABSENT`."""
        return ~self._now.stored.take(places)

    def put_all(self, locks: Int64s, places: Int64s, before: Int64s, writers: Int64s) -> bool:
        """`before`: the result of `writers_at(places)`. No two locks of one call have the same writer. Returns False and leaves the content unchanged
        if a lock is there twice. May change `places`."""
        (new,) = (before == ABSENT).nonzero()
        stored = ~writers
        if len(new):
            if self._reserve(len(new)):
                places = self.places(locks)
            self._now.enter_at(locks, stored, places, new)
        self._now.stored[places] = stored
        if (self._now.stored.take(places) != stored).any():
            self._now.stored[places] = ~before
            return False
        self._count += len(new)
        self._move_with(len(new))
        return True
