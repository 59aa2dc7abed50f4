"""Optimistic locks of one partition: which transaction last wrote what, and whether a new one may still be appended.

A lock is a 64-bit hash of its name. write: checked and set; read: checked; append: set only. A transaction conflicts if a lock that it checks was
last written by a transaction above its client high-water mark (Client-Server Communication, Lock Failure; docs/concepts/architecture.md).

Exact for the locks that it remembers. Forgetting a lock raises the floor: an unknown lock counts as written at the floor, which may cause a conflict
and never misses one. When the partition opens, the floor is its high-water mark; a mounted client has received everything up to it. A mark never
moves down.

A transaction that counts its own client's writes as known conflicts only if another client wrote above its mark (`own_writes`).

A transaction with `TURN_MARK` only asks for its turn at the locks that it checks: it is never accepted, and its rejection is no conflict.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from waltz_log.core.locks.hot_keys import HotKey, HotKeys
from waltz_log.core.locks.own_writes import OwnWrites
from waltz_log.statistics import Highest, Newest, Summed, snapshot

__all__ = ["TURN_MARK", "LockStatistics", "LockTable", "Verdict"]

TURN_MARK = -2
"""A mark below every transaction id and every floor. A transaction that has it checks at least one lock."""

HOT_LOCKS_KEPT = 256
"""Counted at a time, up to twice as many: a partition with more locks that are all hot has no hot locks."""

HOT_LOCKS_TOLD = 16


@snapshot
@dataclass(frozen=True, slots=True)
class LockStatistics:
    """Since the table was made. `conflicts`: transactions rejected; `floor_conflicts`: those of them whose lock was not remembered, so that they may
    have been needless; `hottest`: the locks that most transactions were rejected for, highest first (see `HotKeys` for how exact). Transactions that
    only asked for their turn do not count."""

    entries: Summed[int]
    floor: Highest[int]
    conflicts: Summed[int]
    floor_conflicts: Summed[int]
    hottest: Newest[tuple[HotKey, ...]]


@dataclass(frozen=True, slots=True)
class Verdict:
    """`accepted`: positions in the frame, rising; their ids are consecutive from the id that was given. `rejected`: position and the id that holds
    the lock; `holders`: for each of them that lock; `turns`: which places in `rejected` only asked for their turn."""

    accepted: list[int]
    rejected: list[tuple[int, int]]
    holders: list[int]
    turns: list[int]


ONE_WRITE = b"\1\0\0"
"""The counts of a transaction with one write lock and no other."""


class LockTable:
    """Two generations of a dict: when the young one is full, the old one is forgotten and the floor rises to what it could have held."""

    def __init__(self, floor: int, entries_max: int) -> None:
        self._floor = floor
        self._entries_max = max(2, entries_max)
        self._young: dict[int, int] = {}
        self._old: dict[int, int] = {}
        self._old_newest = floor
        self._newest = floor
        self._conflicts = 0
        self._floor_conflicts = 0
        self._hot = HotKeys(HOT_LOCKS_KEPT)
        self._own_writes = OwnWrites(floor)

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

    def newest(self, entries_max: int) -> tuple[int, dict[int, int]]:
        """A floor, and every lock that was written above it with its last writer: the newest of them, at most this many."""
        found = [(writer, lock) for lock, writer in (self._old | self._young).items() if writer > self._floor]
        found.sort(reverse=True)
        floor = self._floor
        if len(found) > entries_max:
            floor = found[entries_max][0]
            found = [(writer, lock) for writer, lock in found[:entries_max] if writer > floor]
        return floor, {lock: writer for writer, lock in found}

    def know(self, floor: int, writers: dict[int, int]) -> None:
        """Of a table that was just made: begins as one ended that gave these as its `newest`, at the id that this one began at."""
        assert len(self) == 0, "a table that is in use knows better"
        assert floor <= self._floor, "a table ended above where this one begins"
        self._floor, self._young = floor, dict(writers)

    def judge(
        self, marks: Sequence[int], counts: bytes, locks: Sequence[int], first_transaction_id: int, client_id: int = 0, own: bytes = b""
    ) -> Verdict:
        """Decides the transactions of a frame in order and sets the locks of the accepted ones. `marks`: client high-water marks; `counts`: the
        number of write, read and append locks of each transaction, one byte each, or empty if no transaction has locks; `locks`: the hashes in that
        order; `client_id`: the sender; `own`: 1 for each transaction that counts this client's own writes as known, or empty."""
        total = len(marks)
        if not counts:
            self._newest = max(self._newest, first_transaction_id + total - 1)
            return Verdict(list(range(total)), [], [], [])
        if len(locks) == total and counts == ONE_WRITE * total:
            verdict = self._judge_one_write(marks, locks, first_transaction_id, client_id, own)
        else:
            verdict = self._judge_any(marks, counts, locks, first_transaction_id, client_id, own)
        self._own_writes.note(client_id, first_transaction_id, verdict.accepted, counts, locks)
        self._newest = max(self._newest, first_transaction_id + len(verdict.accepted) - 1)
        if len(self._young) * 2 >= self._entries_max:
            self._forget()
        return verdict

    def _judge_any(self, marks: Sequence[int], counts: bytes, locks: Sequence[int], first_transaction_id: int, client_id: int, own: bytes) -> Verdict:
        accepted: list[int] = []
        rejected: list[tuple[int, int]] = []
        holders: list[int] = []
        turns: list[int] = []
        young, old, floor = self._young, self._old, self._floor
        at = 0
        next_id = first_transaction_id
        for position in range(len(marks)):
            writes, reads, appends = counts[3 * position : 3 * position + 3]
            checked = at + writes + reads
            winner, holder = -1, locks[at] if checked > at else 0
            for lock in locks[at:checked]:
                found = young.get(lock)
                if found is None:
                    found = old.get(lock, floor)
                    if found < floor:
                        found = floor
                if found > winner:
                    winner, holder = found, lock
            end = checked + appends
            if winner > marks[position] and own and own[position]:
                winner, holder = self._by_others(locks[at:checked], client_id, marks[position])
            if winner > marks[position]:
                if marks[position] == TURN_MARK:
                    turns.append(len(rejected))
                else:
                    self._count(holder)
                rejected.append((position, winner))
                holders.append(holder)
            else:
                accepted.append(position)
                for lock in locks[at : at + writes]:
                    young[lock] = next_id
                for lock in locks[checked:end]:
                    young[lock] = next_id
                next_id += 1
            at = end
        return Verdict(accepted, rejected, holders, turns)

    def _by_others(self, checked: Sequence[int], client_id: int, mark: int) -> tuple[int, int]:
        """The last id above the mark under which another client wrote one of the locks, and that lock; -1: none did."""
        found = [(self._own_writes.by_others(lock, client_id, mark, writer), lock) for lock in checked if (writer := self.last_writer(lock)) > mark]
        return max(found, default=(-1, 0))

    def _judge_one_write(self, marks: Sequence[int], locks: Sequence[int], first_transaction_id: int, client_id: int, own: bytes) -> Verdict:
        """The same where each transaction has one write lock, as most have, in a quarter of the time."""
        accepted: list[int] = []
        rejected: list[tuple[int, int]] = []
        holders: list[int] = []
        turns: list[int] = []
        accept = accepted.append
        young, old, floor = self._young, self._old, self._floor
        next_id = first_transaction_id
        for position, (mark, lock) in enumerate(zip(marks, locks, strict=True)):
            winner = young.get(lock)
            if winner is None:
                winner = old.get(lock, floor)
                if winner < floor:
                    winner = floor
            if winner > mark:
                if own and own[position]:
                    winner = self._by_others((lock,), client_id, mark)[0]
                if winner > mark:
                    if mark == TURN_MARK:
                        turns.append(len(rejected))
                    else:
                        self._count(lock)
                    rejected.append((position, winner))
                    holders.append(lock)
                    continue
            accept(position)
            young[lock] = next_id
            next_id += 1
        return Verdict(accepted, rejected, holders, turns)

    def _count(self, holder: int) -> None:
        """A transaction was rejected for this lock."""
        self._conflicts += 1
        self._hot.add(holder)
        if max(self._young.get(holder, -1), self._old.get(holder, -1)) < self._floor:
            self._floor_conflicts += 1

    def statistics(self) -> LockStatistics:
        return LockStatistics(len(self), self._floor, self._conflicts, self._floor_conflicts, tuple(self._hot.hottest(HOT_LOCKS_TOLD)))

    def _forget(self) -> None:
        self._floor = max(self._floor, self._old_newest) if self._old else self._floor
        self._old, self._young = self._young, {}
        self._old_newest = self._newest


def unpack_i8(packed: bytes) -> array[int]:
    """A packed column of signed 64-bit big-endian integers. Raises `ValueError` if its length is not a multiple of 8."""
    values: array[int] = array("q")
    values.frombytes(packed)
    values.byteswap()
    return values
