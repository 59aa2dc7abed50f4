"""Converts how far a table has one partition of the log into an age, by samples of the partition's end over time. Pure: the caller passes the time.

One clock for each partition: the transactions of another partition say nothing about how long this one waits.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["LagClock"]

SAMPLES_MAX = 4_000
"""More than an hour at one sample per second. Above it every second sample is dropped, so that a long lag is less exact and never shorter."""


class LagClock:
    """Records which end the partition had at which time. Ends never fall."""

    def __init__(self) -> None:
        self._samples: list[tuple[float, int]] = []

    def log_at(self, now_s: float, end: int) -> None:
        """At `now_s` the partition's next transaction would have had the id `end`."""
        if not self._samples or end > self._samples[-1][1]:
            self._samples.append((now_s, end))
            if len(self._samples) > SAMPLES_MAX:
                del self._samples[1::2]

    def log_was(self, past: Iterable[tuple[float, int]]) -> None:
        """Adds ends from before the first sample, as the log itself dates them, for transactions that were there already when the clock started."""
        kept = self._samples
        self._samples = []
        for at_s, end in sorted(past):
            if not kept or at_s < kept[0][0]:
                self.log_at(at_s, end)
        for at_s, end in kept:
            self.log_at(at_s, end)

    def behind_s(self, now_s: float, landed: int) -> float:
        """The age of the transaction with the id `landed`, as exact as the samples are frequent; 0 if the log does not have it."""
        return next((max(0.0, now_s - at_s) for at_s, end in self._samples if end > landed), 0.0)
