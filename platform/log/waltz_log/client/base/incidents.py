"""Log lines about what goes wrong in a client, one for each incident: lost connections and storms of lock conflicts.

A server that is killed ends the connections of many partitions at once, and a lock that every client wants causes conflicts without end. So a client
writes at most `LINES_MAX` lines of each event in `PERIOD_S`, and the next line has the number of those that were left out.
"""

from __future__ import annotations

from waltz_log.loggers import get_logger

__all__ = ["LINES_MAX", "PERIOD_S", "STORM_MIN", "STORM_S", "ConflictStorm", "Incidents"]

log = get_logger(__name__)

PERIOD_S = 10.0

LINES_MAX = 5
"""For one event in a period: enough to see which partitions it is about."""

STORM_S = 10.0
"""Over this time the share of conflicts is judged."""

STORM_MIN = 100
"""Conflicts in that time. Below, even a share of all costs little."""

STORM_SHARE = 0.5


class Incidents:
    """The incidents of one client. `now_s` increases: the time of the event loop."""

    def __init__(self) -> None:
        self._periods: dict[str, tuple[float, int]] = {}
        """By event: when its period began, and how many lines it had since then, those left out included."""

    def lost(self, partition: int, now_s: float, error: str, pending: int) -> None:
        left_out = self._left_out("lost", now_s)
        if left_out is not None:
            log.warning("connection to the owner lost", partition=partition, error=error, pending=pending, left_out=left_out)

    def restored(self, partition: int, now_s: float, without_s: float, pending: int) -> None:
        """`without_s`: how long there was no connection."""
        left_out = self._left_out("restored", now_s)
        if left_out is not None:
            log.info("connection to the owner restored", partition=partition, without_s=round(without_s, 3), pending=pending, left_out=left_out)

    def storm(self, partition: int, now_s: float, rejected: int, decided: int) -> None:
        left_out = self._left_out("storm", now_s)
        if left_out is not None:
            log.warning("most appends conflict", partition=partition, rejected=rejected, decided=decided, period_s=STORM_S, left_out=left_out)

    def _left_out(self, event: str, now_s: float) -> int | None:
        """How many lines of the event were left out in the period before; None: this one is left out."""
        began_s, lines = self._periods.get(event, (now_s, 0))
        left_out = 0
        if now_s - began_s >= PERIOD_S:
            left_out = max(0, lines - LINES_MAX)
            began_s, lines = now_s, 0
        self._periods[event] = began_s, lines + 1
        return left_out if lines < LINES_MAX else None


class ConflictStorm:
    """Judges, from counts that only increase, whether most appends of a period were rejected."""

    def __init__(self, now_s: float) -> None:
        self._since_s = now_s
        self._rejected = self._appended = 0

    def judge(self, now_s: float, rejected: int, appended: int) -> tuple[int, int] | None:
        """The conflicts and the decided appends of a period that has ended as a storm. Called with each answer, so it is cheap within a period."""
        if now_s - self._since_s < STORM_S:
            return None
        conflicts, decided = rejected - self._rejected, rejected - self._rejected + appended - self._appended
        self._since_s, self._rejected, self._appended = now_s, rejected, appended
        return (conflicts, decided) if conflicts >= STORM_MIN and conflicts >= STORM_SHARE * decided else None
