"""From a lag in transactions to one in seconds: by remembering when the log was seen to hold how many. Pure; the caller brings the time."""

from __future__ import annotations

from collections import deque

__all__ = ["LagClock"]

SAMPLES_MAX = 4_000
"""More than an hour at a sample a second; of a longer lag it is known that it is at least so old."""


class LagClock:
    """Remembers when the log had how many transactions. Counts never fall. Several tables may be asked for by one clock."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque(maxlen=SAMPLES_MAX)

    def log_at(self, now_s: float, count: int) -> None:
        if not self._samples or count > self._samples[-1][1]:
            self._samples.append((now_s, count))

    def behind_s(self, now_s: float, table_count: int) -> float:
        """The age of the oldest transaction that the table lacks, as exact as the samples are frequent; 0 where it lacks none."""
        for at, count in self._samples:
            if count > table_count:
                return now_s - at
        return 0.0
