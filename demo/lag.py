"""How far a table is behind the log: in transactions, and in seconds since the oldest missing transaction was first seen in the log.

The owners report the log's marks, and the table itself holds its own (Delta transaction identifiers, one per partition). No other part of the
pipeline is asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from waltz_delta import NotADeltaTable, high_water_marks
from waltz_delta.pipelines.lag_clock import LagClock

__all__ = ["LagClock", "committed", "table_marks"]


def table_marks(path: Path, cluster_key: str, partitions: int) -> dict[int, int]:
    """The last transaction id of each partition that the table holds; -1: none, or no table yet."""
    try:
        found = high_water_marks(str(path), cluster_key)
    except NotADeltaTable:
        found = {}
    return {partition: found.get(partition, -1) for partition in range(partitions)}


def committed(marks: Mapping[int, int]) -> int:
    """The number of transactions up to the marks: ids start at zero."""
    return sum(mark + 1 for mark in marks.values())
