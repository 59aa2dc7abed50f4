"""Optimistic locks of one partition: which transaction last wrote what, and whether a new one may still be appended.

A lock is a 64-bit hash of its name. write: checked and set; read: checked; append: set only. A transaction conflicts if a lock that it checks was
last written by a transaction above its client high-water mark (Client-Server Communication, Lock Failure; docs/concepts/architecture.md).

Exact for the locks that it remembers. Forgetting a lock raises the floor: an unknown lock counts as written at the floor, which may cause a conflict
and never misses one. When the partition opens, the floor is its high-water mark; a mounted client has received everything up to it. A mark never
moves down.

A transaction may count its own client's writes as known. It then conflicts only if another client wrote above its mark (`own_writes`).

A transaction with `TURN_MARK` only asks for its turn at the locks that it checks: it is never accepted, and its rejection is no conflict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from waltz_log.core.locks.hot_keys import HotKey, HotKeys
from waltz_log.core.locks.lock_columns import ONE_WRITE, TURN_MARK
from waltz_log.core.locks.lock_map import ABSENT, MULTIPLIER, Int64s, LockMap
from waltz_log.core.locks.own_writes import OwnWrites
from waltz_log.statistics import Highest, Newest, Summed, snapshot

__all__ = ["FEW_LOCKS", "LockStatistics", "LockTable", "Verdict"]

HOT_LOCKS_KEPT = 256
"""Counted at a time, up to twice as many. With more locks that are equally hot, none is reported."""

HOT_LOCKS_REPORTED = 16

FEW_LOCKS = 24
"""Fewer are found and written one by one, which is faster than the thirty numpy calls for all of them together."""


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
    """`accepted`: positions in the frame, ascending; their ids are consecutive from the id that was given. `rejected`: position and the id that holds
    the lock; `holders`: for each of them that lock; `turns`: which places in `rejected` only asked for their turn."""

    accepted: Sequence[int]
    rejected: list[tuple[int, int]]
    holders: list[int]
    turns: list[int]


@dataclass(frozen=True, slots=True)
class _Frame:
    """As `judge` receives it."""

    marks: Sequence[int]
    counts: bytes
    locks: Sequence[int]
    client_id: int
    own: bytes


class LockTable:
    """Two generations of a map. When the young one holds half of `entries_max`, the old one is forgotten, and the floor rises to what it could have
    held. `multiplier`: of `LockMap`."""

    def __init__(self, floor: int, entries_max: int, multiplier: int = MULTIPLIER) -> None:
        self.few_locks = FEW_LOCKS
        self.judged_singly = 0
        """Locks that were judged by themselves, and not with the others of their frame, in all."""
        self._floor = floor
        self._entries_max = max(2, entries_max)
        self._multiplier = multiplier
        self._young = self._new_map()
        self._old = self._new_map()
        self._old_newest = floor
        self._newest = floor
        self._conflicts = 0
        self._floor_conflicts = 0
        self._hot = HotKeys(HOT_LOCKS_KEPT)
        self._own_writes = OwnWrites(floor)

    def _new_map(self) -> LockMap:
        return LockMap(self._multiplier, self._entries_max // 2)

    @property
    def floor(self) -> int:
        return self._floor

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def last_writer(self, lock: int) -> int:
        """An id at or above the true last writer of the lock."""
        found = self._young.get(lock)
        if found == ABSENT and len(self._old):
            found = self._old.get(lock)
        return max(found, self._floor)

    def _find(self, locks: Int64s) -> tuple[Int64s, Int64s]:
        """int64[n] each: the places of the locks in the young map, and their last writers there."""
        places = self._young.places(locks)
        return places, self._young.writers_at(places)

    def _with_old(self, locks: Int64s, young: Int64s) -> Int64s:
        """int64[n]: the last writers, including those that only the old map knows. `young`: those that the young map knows."""
        if not len(self._old):
            return young
        (absent,) = (young == ABSENT).nonzero()
        writers = young.copy()
        writers[absent] = self._old.writers_at(self._old.places(locks[absent]))
        return writers

    def newest(self, entries_max: int) -> tuple[int, dict[int, int]]:
        """A floor, and every lock that was written above it with its last writer: the newest of them, at most this many."""
        parts = [found.items() for found in (self._old, self._young)]
        locks, writers = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        looked_at = 2 * entries_max + 2  # a lock may be in both maps
        if len(writers) > looked_at:
            latest = np.argpartition(writers, -looked_at)[-looked_at:]
            locks, writers = locks[latest], writers[latest]
        last: dict[int, int] = {}
        for at in np.argsort(writers, kind="stable")[::-1].tolist():
            last.setdefault(int(locks[at]), int(writers[at]))
        found = [(lock, writer) for lock, writer in last.items() if writer > self._floor]
        floor = found[entries_max][1] if len(found) > entries_max else self._floor
        return floor, {lock: writer for lock, writer in found[:entries_max] if writer > floor}

    def know(self, floor: int, writers: Mapping[int, int]) -> None:
        """Restores what `newest` of an earlier table returned. That table must have ended at the id where this one, which is unused, begins."""
        assert len(self) == 0, "a table that is in use knows better"
        assert floor <= self._floor, "a table ended above where this one begins"
        self._floor = floor
        self._write(writers)

    def judge(
        self, marks: Sequence[int], counts: bytes, locks: Sequence[int], first_transaction_id: int, client_id: int = 0, own: bytes = b""
    ) -> Verdict:
        """Decides the transactions of a frame in order and sets the locks of the accepted ones. `marks`: client high-water marks; `counts`: the
        number of write, read and append locks of each transaction, one byte each, or empty if no transaction has locks; `locks`: the hashes in that
        order; `client_id`: the sender; `own`: 1 for each transaction that counts this client's own writes as known, or empty."""
        total = len(marks)
        if not counts:
            self._newest = max(self._newest, first_transaction_id + total - 1)
            return Verdict(range(total), [], [], [])
        one_write = len(locks) == total and counts == ONE_WRITE * total
        verdict = self._judge_together(marks, locks, first_transaction_id) if one_write and total >= self.few_locks else None
        if verdict is None:
            self.judged_singly += len(locks)
            judge = self._judge_one_write if one_write else self._judge_any
            verdict = judge(_Frame(marks, counts, locks, client_id, own), self._writers_of(locks), first_transaction_id)
        self._own_writes.note(client_id, first_transaction_id, verdict.accepted, counts, locks)
        self._newest = max(self._newest, first_transaction_id + len(verdict.accepted) - 1)
        if len(self._young) * 2 >= self._entries_max:
            self._forget()
        return verdict

    def _judge_together(self, marks: Sequence[int], locks: Sequence[int], first_transaction_id: int) -> Verdict | None:
        """The usual frame: each transaction has one write lock, none conflicts, and no two have the same. None, and nothing is written, if it is not
        one of these."""
        asked, known = np.asarray(locks, dtype=np.int64), np.asarray(marks, dtype=np.int64)
        places, young = self._find(asked)
        if (self._with_old(asked, young) > known).any() or self._floor > known.min():
            return None
        ids = np.arange(first_transaction_id, first_transaction_id + len(locks))
        return Verdict(range(len(locks)), [], [], []) if self._young.put_all(asked, places, young, ids) else None

    def _writers_of(self, locks: Sequence[int]) -> dict[int, int]:
        """The last writer of each of the locks."""
        if len(locks) < self.few_locks:
            return {lock: self.last_writer(lock) for lock in locks}
        asked = np.asarray(locks, dtype=np.int64)
        _, young = self._find(asked)
        return dict(zip(locks, np.maximum(self._with_old(asked, young), self._floor).tolist(), strict=True))

    def _write(self, writers: Mapping[int, int]) -> None:
        if len(writers) < self.few_locks:
            for lock, writer in writers.items():
                self._young.put(lock, writer)
        else:
            locks = np.array(list(writers), dtype=np.int64)
            places, young = self._find(locks)
            self._young.put_all(locks, places, young, np.array(list(writers.values()), dtype=np.int64))

    def _judge_any(self, frame: _Frame, known: dict[int, int], first_transaction_id: int) -> Verdict:
        """`known`: the last writer of each lock of the frame; changed by what the frame writes."""
        marks, counts, locks, own = frame.marks, frame.counts, frame.locks, frame.own
        accepted: list[int] = []
        rejected: list[tuple[int, int]] = []
        holders: list[int] = []
        turns: list[int] = []
        written: dict[int, int] = {}
        at = 0
        next_id = first_transaction_id
        for position in range(len(marks)):
            writes, reads, appends = counts[3 * position : 3 * position + 3]
            checked = at + writes + reads
            winner, holder = -1, locks[at] if checked > at else 0
            for lock in locks[at:checked]:
                found = known[lock]
                if found > winner:
                    winner, holder = found, lock
            end = checked + appends
            if winner > marks[position] and own and own[position]:
                winner, holder = self._by_others(locks[at:checked], known, frame.client_id, marks[position])
            if winner > marks[position]:
                if marks[position] == TURN_MARK:
                    turns.append(len(rejected))
                else:
                    self._count(holder, written)
                rejected.append((position, winner))
                holders.append(holder)
            else:
                accepted.append(position)
                for lock in (*locks[at : at + writes], *locks[checked:end]):
                    known[lock] = written[lock] = next_id
                next_id += 1
            at = end
        self._write(written)
        return Verdict(accepted, rejected, holders, turns)

    def _by_others(self, checked: Sequence[int], known: Mapping[int, int], client_id: int, mark: int) -> tuple[int, int]:
        """The last id above the mark under which another client wrote one of the locks, and that lock; -1: none did."""
        found = [(self._own_writes.by_others(lock, client_id, mark, writer), lock) for lock in checked if (writer := known[lock]) > mark]
        return max(found, default=(-1, 0))

    def _judge_one_write(self, frame: _Frame, known: dict[int, int], first_transaction_id: int) -> Verdict:
        """As `_judge_any`, where each transaction has one write lock, as most have: four times as fast."""
        own = frame.own
        accepted: list[int] = []
        rejected: list[tuple[int, int]] = []
        holders: list[int] = []
        turns: list[int] = []
        written: dict[int, int] = {}
        next_id = first_transaction_id
        for position, (mark, lock) in enumerate(zip(frame.marks, frame.locks, strict=True)):
            winner = known[lock]
            if winner > mark:
                if own and own[position]:
                    winner = self._by_others((lock,), known, frame.client_id, mark)[0]
                if winner > mark:
                    if mark == TURN_MARK:
                        turns.append(len(rejected))
                    else:
                        self._count(lock, written)
                    rejected.append((position, winner))
                    holders.append(lock)
                    continue
            accepted.append(position)
            known[lock] = written[lock] = next_id
            next_id += 1
        self._write(written)
        return Verdict(accepted, rejected, holders, turns)

    def _count(self, holder: int, written: Mapping[int, int]) -> None:
        """A transaction was rejected for this lock. `written`: what its frame has written so far."""
        self._conflicts += 1
        self._hot.add(holder)
        if holder not in written and max(self._young.get(holder), self._old.get(holder)) < self._floor:
            self._floor_conflicts += 1

    def statistics(self) -> LockStatistics:
        return LockStatistics(len(self), self._floor, self._conflicts, self._floor_conflicts, tuple(self._hot.hottest(HOT_LOCKS_REPORTED)))

    def _forget(self) -> None:
        self._floor = max(self._floor, self._old_newest) if len(self._old) else self._floor
        self._old, self._young = self._young, self._new_map()
        self._old_newest = self._newest
