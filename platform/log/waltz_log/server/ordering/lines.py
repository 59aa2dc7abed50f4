"""Who waits for which lock: transactions that were rejected for a lock that others want too, told one at a time.

A rejection is final when it is made; only the telling waits. Told at once, all who want a lock read up to the same winner, decide again at the same
time, and all but one are rejected again: the original ran each transaction 28 times where 64 locks were wanted by a thousand. Told one at a time,
whenever the lock's newest writer is committed, each commit of a lock has one rejection at most: two executions a transaction, however many wait.

Whoever is told has a turn: the next is told when the lock was written again, or when the turn is over without that. A turn that nobody took makes the
next telling twice as large, so that those who do not come back hold up the others for a few turns and not for one each. A turn reserves nothing: a
transaction that comes with a mark that is new enough goes in. Times decide only when to tell. Pure but for what it is given; bounded in locks and
in what waits, and what finds no place is told as soon as its winner is committed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

__all__ = ["TURN_S", "Lines"]

A = TypeVar("A")

TURN_S = 0.2
"""How long the one who was told may take to come back before the next is told: reading the feed up to the winner and one append, under load."""

LINES_MAX = 1024
"""Locks with a line. All lines are looked at once a block; a partition with more locks that are wanted at once has no hot ones."""

LINE_MAX = 512
"""Waiting for one lock. Some seconds of turns: a rejection must be told long before its client gives up and calls the outcome unknown."""

WAITING_MAX = 65_536
"""Transactions in all lines: about what two clients may have in flight."""


@dataclass(slots=True)
class _Line(Generic[A]):
    waiting: deque[tuple[A, int]] = field(default_factory=deque)
    told: int = -1
    """The winner that the last one was told of."""
    until_s: float = 0.0
    """When the last one's turn is over."""
    at_once: int = 1
    """How many are told next."""


class Lines(Generic[A]):
    """`A`: who is told. A sequence is told once."""

    def __init__(self) -> None:
        self._lines: dict[int, _Line[A]] = {}
        self.waiting = 0

    def __bool__(self) -> bool:
        return bool(self._lines)

    def join(self, lock: int, who: A, sequence: int) -> bool:
        """False where there is no place."""
        line = self._lines.get(lock)
        if self.waiting >= WAITING_MAX or (len(self._lines) >= LINES_MAX if line is None else len(line.waiting) >= LINE_MAX):
            return False
        if line is None:
            line = self._lines[lock] = _Line()
        line.waiting.append((who, sequence))
        self.waiting += 1
        return True

    def due(self, committed: int, last_writer: Callable[[int], int], now_s: float) -> list[tuple[A, int, int]]:
        """Who is to be told now: (who, sequence, winner). The winner is the lock's newest writer and committed."""
        told: list[tuple[A, int, int]] = []
        for lock, line in list(self._lines.items()):
            writer = last_writer(lock)
            if writer > committed:
                continue  # its fate is not known
            taken, over = writer > line.told, now_s >= line.until_s
            if not taken and not over:
                continue
            if not line.waiting:
                del self._lines[lock]
                continue
            line.at_once = 1 if taken else 2 * line.at_once
            line.told, line.until_s = writer, now_s + TURN_S
            for _ in range(min(line.at_once, len(line.waiting))):
                who, sequence = line.waiting.popleft()
                told.append((who, sequence, writer))
        self.waiting -= len(told)
        return told

    def leave(self, who: A | None, last_writer: Callable[[int], int]) -> list[tuple[A, int, int]]:
        """Everything that waits of `who`, or of all: to be told because nobody listens any more after that. Call it where all is decided."""
        told: list[tuple[A, int, int]] = []
        for lock, line in self._lines.items():
            leaving = [entry for entry in line.waiting if who is None or entry[0] == who]
            if leaving:
                line.waiting = deque(entry for entry in line.waiting if not (who is None or entry[0] == who))
                told.extend((waiter, sequence, last_writer(lock)) for waiter, sequence in leaving)
        self.waiting -= len(told)
        return told
