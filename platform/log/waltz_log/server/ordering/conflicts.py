"""The last appends that a partition rejected, for people who ask which transaction won over which client, on which lock.

Bounded and in memory: a new owner begins with none. Knows no time but what it is given.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Protocol

__all__ = ["CONFLICTS_KEPT", "Conflict", "RecentConflicts"]

CONFLICTS_KEPT = 32
"""For one partition, in each answer to a status call: some 3 KB where appends conflict, nothing elsewhere."""


class Sender(Protocol):
    @property
    def client_id(self) -> int: ...


class Conflict(NamedTuple):
    """`lock`: its hash, signed; `winner`: the id under which it was last written, or the floor of the lock table, then `remembered` is False."""

    lock: int
    winner: int
    client_id: int
    sequence: int
    time_ms: int
    remembered: bool


class RecentConflicts:
    def __init__(self) -> None:
        self._kept: deque[Conflict] = deque(maxlen=CONFLICTS_KEPT)

    def add(self, rejected: Sequence[tuple[Sender, int, int]], holders: Sequence[int], time_ms: int, floor: int) -> None:
        """`rejected`: sender, sequence and winner of each; `holders`: for each of them the lock. Costs no more for a large block than for the
        number that is kept."""
        for (sender, sequence, winner), lock in zip(rejected[-CONFLICTS_KEPT:], holders[-CONFLICTS_KEPT:], strict=True):
            self._kept.append(Conflict(lock, winner, sender.client_id, sequence, time_ms, winner > floor))

    @property
    def newest(self) -> tuple[Conflict, ...]:
        """Oldest first."""
        return tuple(self._kept)
