"""Finds positions in the log of one partition: by append time, and by size in bytes. Reads only times and index, and the last header of a segment.

Decides nothing about what is committed: the caller limits the answer by a mark. Blocks. Any thread.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from waltz_log.errors import CorruptData
from waltz_log.storage.segments.reader import SegmentReader
from waltz_log.storage.segments.segment_log import SegmentLog

__all__ = ["Located", "locate"]


class Located(NamedTuple):
    """`positions`: for each time the first id appended then or later, the id after the last if there is none. `bytes`: of the range's records;
    `last_within`: the last id up to which they fit the requested size, the id before the range if its first record alone is larger."""

    positions: tuple[int, ...]
    bytes: int
    last_within: int
    first: int
    last: int


def locate(log: SegmentLog, times_ms: Sequence[int], first: int, last: int, max_bytes: int) -> Located:
    """The range `first` to `last` may be empty; the part above the log is ignored. Raises `OutOfRange` if it begins below the log."""
    tail = log.tail
    positions = tuple(log.position_at(time_ms) for time_ms in times_ms)
    ends = dict(log.closed())
    last = min(last, tail.last_id)
    at, total, within = first, 0, first - 1
    while at <= last:
        reader = log.reader(at)
        end = min(last, ends.get(reader.first, tail.last_id))
        begins, size = reader.start_of(at), reader.end_of(end)
        size -= begins
        if size <= 0:
            raise CorruptData(
                where=f"index of segment {reader.first}", offset=begins, transaction_id=at, reason=f"the range has no bytes: bytes={size}"
            )
        if within == at - 1:
            within = end if size <= max_bytes - total else _within(reader, at, end, begins + max_bytes - total)
        total += size
        at = end + 1
    return Located(positions, total, within, log.first_id, tail.last_id)


def _within(reader: SegmentReader, first: int, last: int, end: int) -> int:
    """The last of the ids whose record ends at `end` or before; it is not `last`."""
    return first - 1 + bisect_right(range(first, last), end, key=lambda transaction_id: reader.start_of(transaction_id + 1))
