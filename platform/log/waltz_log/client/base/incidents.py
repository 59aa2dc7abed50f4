"""Log lines about what goes wrong in a client, one for each incident: lost connections and storms of lock conflicts.

A partition that moves back and forth, or a lock that everyone wants, would fill the log. So an event of a partition is logged at most once in
`PAUSE_S`, and the next line has the number of those that were left out.
"""

from __future__ import annotations

from typing import Any

import structlog

__all__ = ["PAUSE_S", "STORM_MIN", "STORM_S", "ConflictStorm", "Incidents"]

log = structlog.get_logger(__name__)

PAUSE_S = 10.0

STORM_S = 10.0
"""Over this time the share of conflicts is judged."""

STORM_MIN = 100
"""Conflicts in that time. Below, even a share of all costs little."""

STORM_SHARE = 0.5


class Incidents:
    """Of one partition. `now_s` increases: the time of the event loop."""

    def __init__(self, partition: int) -> None:
        self._partition = partition
        self._logged_s: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def lost(self, now_s: float, error: str, pending: int) -> None:
        if self._due("lost", now_s):
            log.warning("connection to the owner lost", error=error, pending=pending, **self._facts("lost"))

    def mounted(self, now_s: float, without_s: float, pending: int) -> None:
        """`without_s`: how long there was no connection."""
        if self._due("mounted", now_s):
            log.info("connection to the owner restored", without_s=round(without_s, 3), pending=pending, **self._facts("mounted"))

    def storm(self, now_s: float, rejected: int, decided: int) -> None:
        if self._due("storm", now_s):
            log.warning("most appends conflict", rejected=rejected, decided=decided, period_s=STORM_S, **self._facts("storm"))

    def _due(self, event: str, now_s: float) -> bool:
        if now_s - self._logged_s.get(event, -PAUSE_S) < PAUSE_S:
            self._left_out[event] = self._left_out.get(event, 0) + 1
            return False
        self._logged_s[event] = now_s
        return True

    def _facts(self, event: str) -> dict[str, Any]:
        return {"partition": self._partition, "left_out": self._left_out.pop(event, 0)}


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
