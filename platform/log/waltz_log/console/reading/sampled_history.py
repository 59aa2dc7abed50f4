"""What the console has seen so far: figures over time for the charts, and conflicts. Bounded, in memory. Pure."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from waltz_log.coordination.survey import Survey
from waltz_log.core.status.server_statistics import OpenPartitionStatistics

__all__ = ["CONFLICTS_KEPT", "Conflict", "History", "Point"]

POINTS_KEPT = 450
"""A quarter of an hour at one survey every two seconds."""

CONFLICTS_KEPT = 5000
"""About 1 MB. A server remembers only the last few conflicts of each partition; the console keeps those that it has seen."""

SPARKLINE_POINTS_KEPT = 60
"""Points of the small chart of each partition."""


class Conflict(NamedTuple):
    """The append `sequence` of `client_id` was rejected, because the transaction `winner` wrote the lock. `lock`: its hash in hexadecimal digits;
    `remembered`: False if the owner had forgotten the lock; then `winner` is only an upper bound."""

    partition: int
    lock: str
    winner: int
    client_id: int
    sequence: int
    time_ms: int
    remembered: bool


@dataclass(frozen=True, slots=True)
class Point:
    """Per second since the point before: transactions `appended` and appends that were `rejected`. None if it is not known."""

    time_ms: int
    appended: float | None
    rejected: float | None


class History:
    def __init__(self) -> None:
        self.points: deque[Point] = deque(maxlen=POINTS_KEPT)
        self._sparklines: dict[int, deque[float | None]] = {}
        self._marks: dict[int, int] = {}
        self._sessions: dict[int, int] = {}
        self._rejected: dict[int, tuple[int, int]] = {}
        self._conflicts: OrderedDict[tuple[int, int, int, int], Conflict] = OrderedDict()
        self._time_ms: int | None = None

    def add(self, found: Survey, time_ms: int) -> None:
        """Adds a survey. `time_ms`: its time, since 1970."""
        elapsed_s = None if self._time_ms is None else max(0.001, (time_ms - self._time_ms) / 1000)
        marks = {each.partition: each.high_water_mark for each in found.partitions if each.high_water_mark is not None}
        opened = partitions_of(found)
        rejected = {number: (each.session, each.rejected) for number, each in opened.items()}
        if elapsed_s is not None:
            grown = {number: max(0, mark - self._marks[number]) for number, mark in marks.items() if number in self._marks}
            lost = [max(0, count - self._rejected_before(number, session)) for number, (session, count) in rejected.items()]
            known = bool(opened)
            self.points.append(Point(time_ms, sum(grown.values()) / elapsed_s if known else None, sum(lost) / elapsed_s if known else None))
            for each in found.partitions:
                rate = grown[each.partition] / elapsed_s if each.partition in grown else None
                self._sparklines.setdefault(each.partition, deque(maxlen=SPARKLINE_POINTS_KEPT)).append(rate)
        self._time_ms = time_ms
        self._marks.update(marks)
        self._sessions.update({number: opened[number].session for number in marks if number in opened})
        self._rejected = rejected
        self._remember(opened)

    def gap(self, time_ms: int) -> None:
        """Nothing is known of this time, and of the time until the next survey."""
        if self._time_ms is None:
            return
        self._time_ms = None
        self.points.append(Point(time_ms, None, None))
        for sparkline in self._sparklines.values():
            sparkline.append(None)

    def _rejected_before(self, number: int, session: int) -> int:
        """How many appends the same session had rejected at the last survey; a new session counts from zero."""
        kept = self._rejected.get(number)
        return 0 if kept is None or kept[0] != session else kept[1]

    def _remember(self, opened: Mapping[int, OpenPartitionStatistics]) -> None:
        for number, each in opened.items():
            for seen in each.locks.recent:
                key = (number, seen.client_id, seen.sequence, seen.winner)
                if key not in self._conflicts:
                    self._conflicts[key] = Conflict(number, seen.lock, seen.winner, seen.client_id, seen.sequence, seen.time_ms, seen.remembered)
        while len(self._conflicts) > CONFLICTS_KEPT:
            self._conflicts.popitem(last=False)

    def session(self, partition: int) -> int | None:
        """The store session in which the owner reported the mark. A replica that is clean in it, or in a later one, has no other transactions below
        the mark; one of an older session may."""
        return self._sessions.get(partition)

    @property
    def conflicts(self) -> list[Conflict]:
        """Newest first."""
        return sorted(self._conflicts.values(), key=lambda each: (-each.time_ms, -each.sequence))

    def sparkline(self, partition: int) -> tuple[float | None, ...]:
        """Transactions per second over time, oldest first. None where it is not known."""
        return tuple(self._sparklines.get(partition, ()))

    def rate(self, partitions: Iterable[int]) -> float | None:
        """Transactions per second of the partitions between the last two surveys, of those that it is known of; None if of none."""
        newest = [line[-1] for partition in partitions if (line := self._sparklines.get(partition))]
        known = [each for each in newest if each is not None]
        return sum(known) if known else None

    def mark(self, partition: int) -> int | None:
        """The highest committed transaction that any survey saw. It stays committed, also while no owner answers."""
        return self._marks.get(partition)


def partitions_of(found: Survey) -> dict[int, OpenPartitionStatistics]:
    """What the owners report of their open partitions. If two report the same partition, the newer generation counts."""
    opened: dict[int, OpenPartitionStatistics] = {}
    for server in found.servers:
        for number, each in server.statistics.partitions.items():
            if isinstance(each, OpenPartitionStatistics) and (number not in opened or opened[number].generation < each.generation):
                opened[number] = each
    return opened
