"""Converts a lag in transactions into seconds, by samples of the log's size over time. Pure: the caller passes the time."""

from __future__ import annotations

from collections import deque

__all__ = ["LagClock"]

SAMPLES_MAX = 4_000
"""More than an hour at one sample per second. Of a longer lag only a lower bound is known."""


class LagClock:
    """Records how many transactions the log had at which time. Counts never fall. One clock serves several tables."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque(maxlen=SAMPLES_MAX)

    def log_at(self, now_s: float, count: int) -> None:
        if not self._samples or count > self._samples[-1][1]:
            self._samples.append((now_s, count))

    def behind_s(self, now_s: float, table_count: int) -> float:
        """The age of the oldest transaction that the table lacks, as exact as the samples are frequent; 0 if it lacks none."""
        for at, count in self._samples:
            if count > table_count:
                return now_s - at
        return 0.0
