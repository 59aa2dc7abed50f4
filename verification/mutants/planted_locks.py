"""Bugs to plant in lock tables, where they end and begin, and in what losers learn (as in `planted.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from verification.mutants.planting import bug, change
from waltz_log.core.locks.lock_columns import TURN_MARK
from waltz_log.core.locks.lock_map import LockMap
from waltz_log.core.locks.locks import LockTable, Verdict
from waltz_log.core.locks.own_writes import CLIENT_MASK, OwnWrites
from waltz_log.server.ordering.lock_queues import LockQueues
from waltz_log.server.ordering.sequencer import MARK_MAX

__all__: list[str] = []


@bug
def floor_raised_too_high() -> None:
    """A lock table that is half full forgets everything, the newest locks too. No conflict is missed; many are needless."""

    def forget(self: LockTable) -> None:
        self._floor, self._young, self._old = self._newest, LockMap(), LockMap()

    change(LockTable, "_forget", forget)


@bug
def forgotten_locks_are_free() -> None:
    """A lock table forgets and does not raise its floor."""

    def forget(self: LockTable) -> None:
        self._old, self._young = self._young, LockMap()

    change(LockTable, "_forget", forget)


@bug
def frames_judged_together_without_their_marks() -> None:
    """If each transaction of a frame has one write lock, all of them are free."""

    def judge(self: LockTable, marks: Sequence[int], locks: Sequence[int], first: int) -> Any:
        return original(self, [MARK_MAX] * len(marks), locks, first)

    original: Any = change(LockTable, "_judge_together", judge)


@bug
def handed_locks_not_entered() -> None:
    """A table begins at the floor of the locks that were handed over, without the locks."""

    def know(self: LockTable, floor: int, writers: dict[int, int]) -> None:
        original(self, floor, {})

    original: Any = change(LockTable, "know", know)


@bug
def previous_winner_reported() -> None:
    """A client learns that the transaction before the winner won."""

    def due(self: Any, *given: Any) -> Any:
        return [(who, sequence, max(0, winner - 1)) for who, sequence, winner in original(self, *given)]

    original: Any = change(LockQueues, "due", due)


@bug
def own_writes_hide_foreign_ones() -> None:
    """A client that wrote a lock last does not conflict with another client that wrote it in between."""

    def by_others(self: OwnWrites, lock: int, client_id: int, mark: int, writer: int) -> int:
        found: int = original(self, lock, client_id, mark, writer)
        return -1 if self._last.get(lock, client_id) & CLIENT_MASK == client_id and found > self._forgotten else found

    original: Any = change(OwnWrites, "by_others", by_others)


@bug
def turn_requests_appended() -> None:
    """A transaction that only asks for its turn is judged as one that knows everything, and is appended."""

    def judge(self: LockTable, marks: Sequence[int], *rest: Any) -> Verdict:
        found: Verdict = original(self, [MARK_MAX if mark == TURN_MARK else mark for mark in marks], *rest)
        return found

    original: Any = change(LockTable, "judge", judge)
