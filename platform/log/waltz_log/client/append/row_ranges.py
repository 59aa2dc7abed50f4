"""A set of rows as ranges: the rows of a frame that have no answer yet. Its size grows with the number of separate answers."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

__all__ = ["RowRanges"]


class RowRanges:
    """Begins with all rows from `start` to `stop`. `count`: how many are left."""

    __slots__ = ("_ranges", "count")

    def __init__(self, start: int, stop: int) -> None:
        self._ranges = [(start, stop)]
        self.count = stop - start

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Start and stop of each range, in order. Later changes do not affect the iterator."""
        return iter(tuple(self._ranges))

    def __contains__(self, row: int) -> bool:
        at = bisect_right(self._ranges, row, key=_start) - 1
        return at >= 0 and row < self._ranges[at][1]

    def remove(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Removes the rows from `start` to `stop` that are in the set, and returns them as ranges."""
        ranges = self._ranges
        low = high = bisect_right(ranges, start, key=_stop)
        while high < len(ranges) and ranges[high][0] < stop:
            high += 1
        found = ranges[low:high]
        if not found:
            return found
        kept = []
        if found[0][0] < start:
            kept.append((found[0][0], start))
            found[0] = start, found[0][1]
        if found[-1][1] > stop:
            kept.append((stop, found[-1][1]))
            found[-1] = found[-1][0], stop
        ranges[low:high] = kept
        self.count -= sum(end - begin for begin, end in found)
        return found


def _start(each: tuple[int, int]) -> int:
    return each[0]


def _stop(each: tuple[int, int]) -> int:
    return each[1]
