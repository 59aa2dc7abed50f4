"""Durations as a histogram of fixed buckets: what is counted while a process runs, and the frozen snapshot of it. Pure.

The buckets are the same for all histograms, so those of several workers can be added. Their bounds double, from a sync on a
fast disk to the patience of a client.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from itertools import zip_longest
from typing import Annotated, Final

from waltz_log.statistics import Rule, Summed, snapshot

__all__ = ["BOUNDS_S", "Latency", "LatencyStatistics"]

BOUNDS_S: Final = (0.00025, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192)
"""The upper bound of each bucket but the last, which has none."""


def _added(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(map(sum, zip_longest(one, other, fillvalue=0)))


_BUCKETS: Final = Rule("sum by bucket", _added, commutative=True)


@snapshot
@dataclass(frozen=True, slots=True)
class LatencyStatistics:
    """`counts`: for each bucket how many durations were at most its bound and above the one before; the last is for those above all bounds."""

    counts: Annotated[tuple[int, ...], _BUCKETS]
    sum_s: Summed[float]


class Latency:
    """Counts one duration in less than a microsecond, without allocating."""

    __slots__ = ("_counts", "_sum_s")

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self._sum_s = 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(BOUNDS_S, seconds)] += 1
        self._sum_s += seconds

    def statistics(self) -> LatencyStatistics:
        return LatencyStatistics(tuple(self._counts), self._sum_s)
