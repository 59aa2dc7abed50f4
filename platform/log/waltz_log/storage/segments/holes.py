"""Skips the holes of sparse files, so that a scan is bounded by the space that a file occupies and not by the size that it states.

A node fills what it allocates, but a copy of a directory may have holes where the original had zeros, and a crafted file may state any size. Blocks.
"""

from __future__ import annotations

from waltz_log.core.ports import DiskFile
from waltz_log.errors import CorruptData
from waltz_log.storage.segments.scan import RECORD_BYTES_MAX

__all__ = ["end_of_data", "refuse_hole", "skip_hole"]


def refuse_hole(file: DiskFile, place: int, where: str) -> None:
    """Raises `CorruptData` for a hole at `place` that no record spans: only a record's data may be zeros between the first and the last byte."""
    length = file.next_data(place) - place
    if length > RECORD_BYTES_MAX:
        raise CorruptData(where=where, offset=place, transaction_id=-1, reason=f"a hole of {length} bytes, more than a record has")


def skip_hole(file: DiskFile, place: int, unit: int) -> int:
    """The place of the first `unit` bytes from `place` that are not all within a hole; at or after the end of the file if there are none."""
    return place + max(0, file.next_data(place) - place) // unit * unit


def end_of_data(file: DiskFile, unit: int, end: int | None = None) -> int:
    """Where the hole before `end`, by default the end of the file, begins, rounded up to a whole `unit` of bytes; `end` if there is none. The number
    of calls grows with the logarithm of the size."""
    size = file.size() if end is None else min(end, file.size())
    low, high = 0, -(-size // unit)
    while low < high:
        middle = (low + high) // 2
        if file.next_data(middle * unit) >= size:
            high = middle
        else:
            low = middle + 1
    return min(size, low * unit)
