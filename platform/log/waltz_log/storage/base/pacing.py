"""Decides how long background work pauses so that, over time, it moves no more bytes per second than a setting allows."""

from __future__ import annotations

__all__ = ["Pace"]


class Pace:
    """The duration of the work itself counts; time in which nothing was charged earns no credit, so a burst never follows a quiet period. Times are
    seconds of any one monotonic clock."""

    def __init__(self, bytes_per_s: int, now_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._due_s = now_s

    def charge(self, size_bytes: int, now_s: float) -> float:
        """Charges work that ended now. Returns the pause, in seconds and at least 0, after which the next piece may begin."""
        self._due_s += size_bytes / self._bytes_per_s
        pause_s = max(0.0, self._due_s - now_s)
        self._due_s = max(self._due_s, now_s)
        return pause_s
