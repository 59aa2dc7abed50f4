"""Queues of rejections for contended locks: transactions that were rejected for a lock that others want too are answered one at a time. Clients that
know which locks they will need ask for their turn before they execute (`TURN_MARK`), and wait in the same queues.

A rejection is final when it is decided; only its answer waits. If all were answered at once, all clients would read up to the same winner and decide
again at the same time, and all but one would be rejected again: with 64 locks and a thousand clients, the original ran each transaction 28 times. If
one is answered whenever the lock's newest writer is committed, each commit of a lock causes at most one rejection: two executions of each
transaction, however many wait, and little more than one if clients ask for their turns.

An answered client has a turn. The next one is answered when the lock was written again, or when the turn ends without a write. After an unused turn
twice as many are answered at once, so that clients that do not return delay the others by a few turns, not by one turn each. A turn reserves nothing:
any transaction with a new enough mark is accepted. Times decide only when to answer. Pure except for its arguments. The number of locks and of
waiting rejections is bounded; a rejection without a place is answered as soon as its winner is committed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from waltz_log.core.status.latency import Latency

__all__ = ["TURN_S", "LockQueues"]

A = TypeVar("A")

TURN_S = 0.2
"""How long an answered client may need before the next one is answered: reading the feed up to the winner and one append, under load."""

QUEUES_MAX = 1024
"""Locks with a queue. All queues are scanned once for each block. A partition with more contended locks has no hot ones."""

QUEUE_LENGTH_MAX = 512
"""Rejections in one queue, some seconds of turns: a rejection must be answered long before its client gives up and reports an unknown outcome."""

WAITING_MAX = 65_536
"""Rejections in all queues: about what two clients may have in flight."""


@dataclass(slots=True)
class _LockQueue(Generic[A]):
    waiting: deque[tuple[A, int, float]] = field(default_factory=deque)
    """Who, its sequence, and since when."""
    answered: int = -1
    """The winner in the last answer."""
    until_s: float = 0.0
    """When the last turn ends."""
    at_once: int = 1
    """How many are answered next."""


class LockQueues(Generic[A]):
    """`A`: who is answered. Each sequence is answered once. `waits`: counts how long those that had a turn waited for it."""

    def __init__(self, waits: Latency | None = None) -> None:
        self._waits = Latency() if waits is None else waits
        self._queues: dict[int, _LockQueue[A]] = {}
        self.waiting = 0

    def __bool__(self) -> bool:
        return bool(self._queues)

    def enqueue(self, lock: int, who: A, sequence: int, now_s: float = 0.0) -> bool:
        """False if the queues are full."""
        queue = self._queues.get(lock)
        if self.waiting >= WAITING_MAX or (len(self._queues) >= QUEUES_MAX if queue is None else len(queue.waiting) >= QUEUE_LENGTH_MAX):
            return False
        if queue is None:
            queue = self._queues[lock] = _LockQueue()
        queue.waiting.append((who, sequence, now_s))
        self.waiting += 1
        return True

    def due(self, committed: int, last_writer: Callable[[int], int], now_s: float) -> list[tuple[A, int, int]]:
        """The rejections to answer now: (who, sequence, winner). The winner is the lock's newest writer and committed."""
        answered: list[tuple[A, int, int]] = []
        for lock, queue in list(self._queues.items()):
            writer = last_writer(lock)
            if writer > committed:
                continue  # its fate is not known
            taken, over = writer > queue.answered, now_s >= queue.until_s
            if not taken and not over:
                continue
            if not queue.waiting:
                del self._queues[lock]
                continue
            queue.at_once = 1 if taken else 2 * queue.at_once
            queue.answered, queue.until_s = writer, now_s + TURN_S
            for _ in range(min(queue.at_once, len(queue.waiting))):
                who, sequence, since_s = queue.waiting.popleft()
                self._waits.observe(now_s - since_s)
                answered.append((who, sequence, writer))
        self.waiting -= len(answered)
        return answered

    def remove(self, who: A | None, last_writer: Callable[[int], int]) -> list[tuple[A, int, int]]:
        """Removes all rejections of `who`, or of all clients, to answer them before the mount ends. Call it when everything is decided."""
        answered: list[tuple[A, int, int]] = []
        for lock, queue in self._queues.items():
            leaving = [entry for entry in queue.waiting if who is None or entry[0] == who]
            if leaving:
                queue.waiting = deque(entry for entry in queue.waiting if not (who is None or entry[0] == who))
                answered.extend((waiter, sequence, last_writer(lock)) for waiter, sequence, _ in leaving)
        self.waiting -= len(answered)
        return answered
