"""How far a table is behind the log: in transactions, and in seconds since the oldest missing transaction was first seen in the log.

The log's marks come from its owners, a table's marks from the table itself (Delta transaction identifiers, one per partition): the table says how
far it is, nobody else needs to be asked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from pathlib import Path

from waltz_delta import NotADeltaTable, high_water_marks

__all__ = ["LagClock", "committed", "table_marks"]

SAMPLES_MAX = 4_000
"""Half an hour at two samples a second."""


def table_marks(path: Path, cluster_key: str, partitions: int) -> dict[int, int]:
    """The last transaction id of each partition that the table holds; -1: none, or no table yet."""
    try:
        found = high_water_marks(str(path), cluster_key)
    except NotADeltaTable:
        found = {}
    return {partition: found.get(partition, -1) for partition in range(partitions)}


def committed(marks: Mapping[int, int]) -> int:
    """How many transactions the marks stand for: ids start at zero."""
    return sum(mark + 1 for mark in marks.values())


class LagClock:
    """Remembers when the log had how many transactions. Counts never fall."""

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
