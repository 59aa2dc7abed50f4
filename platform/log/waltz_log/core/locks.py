"""Optimistic locks of one partition: which transaction last wrote what, and whether a new one may still be appended.

A lock is a 64-bit hash of its name. write: checked and set; read: checked; append: set only. A transaction conflicts where a lock it checks was last
written by a transaction above its client high-water mark (seeds/client_server_communication.txt, Lock Failure; docs/architecture.md).

Exact within its memory. What is forgotten raises the floor: an unknown lock counts as written at the floor, which may cause a conflict and never
misses one. At open the floor is the partition's high-water mark; a client that mounted has been fed up to it. A mark never moves down.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["LockTable", "Verdict"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """`accepted`: positions in the frame, rising; their ids are consecutive from the id that was given. `rejected`: position and the id that holds
    the lock."""

    accepted: list[int]
    rejected: list[tuple[int, int]]


class LockTable:
    """Two generations of a dict: when the young one is full, the old one is forgotten and the floor rises to what it could have held."""

    def __init__(self, floor: int, entries_max: int) -> None:
        self._floor = floor
        self._entries_max = max(2, entries_max)
        self._young: dict[int, int] = {}
        self._old: dict[int, int] = {}
        self._old_newest = floor
        self._newest = floor

    @property
    def floor(self) -> int:
        return self._floor

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def last_writer(self, lock: int) -> int:
        """An id at or above the true last writer of the lock."""
        found = self._young.get(lock)
        if found is None:
            found = self._old.get(lock)
        return self._floor if found is None or found < self._floor else found

    def judge(self, marks: Sequence[int], counts: bytes, locks: Sequence[int], first_transaction_id: int) -> Verdict:
        """Decides the transactions of a frame in order. `marks`: client high-water marks; `counts`: write, read and append locks of each, a byte
        each, or empty where nobody locks; `locks`: the hashes in that order. Sets the locks of what it accepts."""
        total = len(marks)
        if not counts:
            self._newest = max(self._newest, first_transaction_id + total - 1)
            return Verdict(list(range(total)), [])
        accepted: list[int] = []
        rejected: list[tuple[int, int]] = []
        young, old, floor = self._young, self._old, self._floor
        at = 0
        next_id = first_transaction_id
        for position in range(total):
            writes, reads, appends = counts[3 * position : 3 * position + 3]
            checked = at + writes + reads
            winner = -1
            for lock in locks[at:checked]:
                found = young.get(lock)
                if found is None:
                    found = old.get(lock, floor)
                    if found < floor:
                        found = floor
                if found > winner:
                    winner = found
            end = checked + appends
            if winner > marks[position]:
                rejected.append((position, winner))
            else:
                accepted.append(position)
                for lock in locks[at : at + writes]:
                    young[lock] = next_id
                for lock in locks[checked:end]:
                    young[lock] = next_id
                next_id += 1
            at = end
        self._newest = max(self._newest, next_id - 1)
        if len(young) * 2 >= self._entries_max:
            self._forget()
        return Verdict(accepted, rejected)

    def _forget(self) -> None:
        self._floor = max(self._floor, self._old_newest) if self._old else self._floor
        self._old, self._young = self._young, {}
        self._old_newest = self._newest


def unpack_i8(packed: bytes) -> array[int]:
    """A packed column of signed 64-bit big-endian integers. Raises `ValueError` where its length is not a multiple of 8."""
    values: array[int] = array("q")
    values.frombytes(packed)
    values.byteswap()
    return values
