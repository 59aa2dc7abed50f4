"""Rows to append, kept as columns: data with their offsets, headers, locks. `bulk_columns` has checked them. A frame gets any range of rows from the
columns, without a permanent object for each row.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from hashlib import blake2b
from itertools import accumulate
from typing import NamedTuple, Protocol

from waltz_log.client.append.pending_append import FRAME_OVERHEAD_BYTES
from waltz_log.client.transactions.transaction import lock_prefix

__all__ = ["LOCK_BYTES", "Bodies", "ListedBodies", "RowLocks", "Rows"]

LOCK_BYTES = 8
"""Size of one lock in a frame."""


class Bodies(Protocol):
    """A column of bytes: those of row `i` are at `offsets[i]` to `offsets[i + 1]` of a buffer."""

    @property
    def offsets(self) -> Sequence[int]: ...
    def cut(self, start: int, stop: int) -> Sequence[bytes | memoryview]: ...


class ListedBodies:
    """A column of Python's bytes."""

    __slots__ = ("_bodies", "offsets")

    def __init__(self, bodies: Sequence[bytes | memoryview]) -> None:
        self._bodies = bodies
        self.offsets: Sequence[int] = array("q", accumulate(map(len, bodies), initial=0))

    def cut(self, start: int, stop: int) -> Sequence[bytes | memoryview]:
        return self._bodies[start:stop]


class RowLocks(NamedTuple):
    """`counts`: three bytes for each row (the numbers of write, read and append locks). `keys`: those of all rows, in that order. `offsets[i]`: how
    many locks are before row `i`. `name`: the same for all locks."""

    counts: bytes
    keys: Bodies
    offsets: Sequence[int]
    name: str


class Rows:
    """`headers`: one for all rows, or one for each. `locks`: None if no row has one. `mark`: the high-water mark that the caller gave for all
    rows."""

    __slots__ = ("_bodies", "_headers", "count", "locks", "mark")

    def __init__(self, bodies: Bodies, headers: int | Sequence[int] = 0, locks: RowLocks | None = None, mark: int | None = None) -> None:
        self._bodies = bodies
        self._headers = headers
        self.count = len(bodies.offsets) - 1
        self.locks = locks
        self.mark = mark

    def size(self, start: int, stop: int) -> int:
        """Bytes of these rows in a frame."""
        return self._before(stop) - self._before(start)

    def _before(self, row: int) -> int:
        locks = 0 if self.locks is None else self.locks.offsets[row]
        return self._bodies.offsets[row] + row * FRAME_OVERHEAD_BYTES + locks * LOCK_BYTES

    def fitting(self, start: int, stop: int, size: int) -> int:
        """How many rows from `start` need together at most `size` bytes in a frame."""
        limit = self._before(start) + size
        if self._before(stop) <= limit:
            return stop - start
        return max(0, bisect_right(range(start, stop), limit, key=self._before) - 1)

    def bodies(self, start: int, stop: int) -> Sequence[bytes | memoryview]:
        return self._bodies.cut(start, stop)

    def headers(self, start: int, stop: int) -> int | Sequence[int]:
        return self._headers if isinstance(self._headers, int) else self._headers[start:stop]

    def part(self, start: int, stop: int) -> Rows:
        """Only these rows."""
        if (start, stop) == (0, self.count):
            return self
        locks = None
        if self.locks is not None:
            counts, keys, offsets, name = self.locks
            of_rows = ListedBodies(keys.cut(offsets[start], offsets[stop]))
            locks = RowLocks(counts[3 * start : 3 * stop], of_rows, array("q", (end - offsets[start] for end in offsets[start : stop + 1])), name)
        return Rows(ListedBodies(self.bodies(start, stop)), self.headers(start, stop), locks, self.mark)

    def lock_columns(self, start: int, stop: int) -> tuple[bytes, bytes]:
        """Lock counts and hashes, as in a frame; both are empty if no row of the batch has a lock."""
        if self.locks is None:
            return b"", b""
        counts, keys, offsets, name = self.locks
        start_hash = blake2b(lock_prefix(name), digest_size=LOCK_BYTES).copy
        hashes = []
        for key in keys.cut(offsets[start], offsets[stop]):
            found = start_hash()
            found.update(key)
            hashes.append(found.digest())
        return counts[3 * start : 3 * stop], b"".join(hashes)
