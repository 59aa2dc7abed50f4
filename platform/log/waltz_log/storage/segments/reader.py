"""Reads ranges of one segment as raw slices of the stored bytes, verified at once, then split where the append time changes.

Reads only what the caller says is durable; preallocated space is never read. Any number of readers run concurrently with the appends and with each
other. Blocks; one thread at a time per reader.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from waltz_log.core.formats.block import Block
from waltz_log.core.formats.columns import verify_records
from waltz_log.core.formats.record_layout import HEADER_BYTES, RECORD_OVERHEAD_BYTES, length_of
from waltz_log.core.formats.segment_format import DATA, FILE_HEADER_BYTES, INDEX, TIMES
from waltz_log.errors import CorruptData
from waltz_log.storage.segments.open_files import OpenFiles
from waltz_log.storage.segments.scan import RECORD_BYTES_MAX
from waltz_log.storage.segments.segment import read_header, segment_path
from waltz_log.storage.segments.times import SegmentTimes

__all__ = ["SegmentReader", "open_times"]

INDEX_ENTRIES: Final = 16 * 1024
"""Read at once, 128 KiB: more than a block of small records has, and little compared with a block of large records."""


def open_times(files: OpenFiles, directory: str, first: int, creation_time_ms: int) -> SegmentTimes:
    path = segment_path(directory, first, TIMES)
    return SegmentTimes(files.reading(path) if files.disk.exists(path) else None, creation_time_ms)


class SegmentReader:
    def __init__(self, files: OpenFiles, directory: str, key: UUID, partition: int, first: int) -> None:
        self.first = first
        self._partition = partition
        self._where = segment_path(directory, first, DATA)
        self._data = files.reading(self._where)
        self._index = files.reading(segment_path(directory, first, INDEX))
        self.header = read_header(self._data, key, partition, first, self._where)
        self.times = open_times(files, directory, first, self.header.creation_time_ms)

    def read(self, first: int, last: int, max_bytes: int, end: int | None) -> list[Block]:
        """Transactions from `first` up to `last` or earlier, at least one; if there are more, of at most `max_bytes` together.

        `end`: where the record of `last` ends if it is not in the index; None: read its header. Raises `CorruptData` if anything does not match."""
        count = min(last - first + 1, INDEX_ENTRIES, max_bytes // RECORD_OVERHEAD_BYTES + 1)
        raw = self._index.read(FILE_HEADER_BYTES + 8 * (first - self.first), 8 * (count + 1))
        offsets = np.frombuffer(raw[: len(raw) // 8 * 8], dtype=">i8").astype(np.int64)
        if len(offsets) <= count:
            # The last record of the segment has no entry after it.
            offsets = np.append(offsets[:count], self._end_of_last(offsets) if end is None else end)
        sizes = np.diff(offsets)
        if len(sizes) != count or int(sizes.min()) < RECORD_OVERHEAD_BYTES or int(sizes.max()) > RECORD_BYTES_MAX:
            where = int(offsets[0]) if len(offsets) else -1
            raise CorruptData(where=self._where, offset=where, transaction_id=first, reason=f"index is damaged: entries={len(offsets)}")
        count = max(1, int(np.searchsorted(offsets, offsets[0] + max_bytes, side="right")) - 1)
        start, stop = int(offsets[0]), int(offsets[count])
        records = self._data.read(start, stop - start)
        lengths = sizes[:count].astype(">i4").tobytes()
        try:
            verify_records(records, lengths, first_transaction_id=first, partition=self._partition, where=self._where)
        except CorruptData as error:
            raise CorruptData(where=self._where, offset=start + error.offset, transaction_id=error.transaction_id, reason=error.reason) from None
        return self._cut(first, lengths, records, offsets[: count + 1] - start)

    def start_of(self, transaction_id: int) -> int:
        """Offset of the record in the data, from the index."""
        raw = self._index.read(FILE_HEADER_BYTES + 8 * (transaction_id - self.first), 8)
        if len(raw) < 8:
            raise CorruptData(where=self._where, offset=-1, transaction_id=transaction_id, reason="index is cut off")
        return int.from_bytes(raw, "big", signed=True)

    def end_of(self, transaction_id: int) -> int:
        """Offset of the record's end in the data, from its header."""
        return self._end_of_last(np.array([self.start_of(transaction_id)]))

    def _end_of_last(self, offsets: NDArray[np.int64]) -> int:
        """From the header of the record itself, whatever follows the records in the file. The checksums prove whether it is right."""
        if not len(offsets):
            return -1
        start = int(offsets[-1])
        header = self._data.read(start, HEADER_BYTES) if start >= 0 else b""
        return start + (length_of(header) if len(header) == HEADER_BYTES else RECORD_OVERHEAD_BYTES)

    def _cut(self, first: int, lengths: bytes, records: bytes, offsets: NDArray[np.int64]) -> list[Block]:
        count = len(lengths) // 4
        times = self.times.between(first, first + count - 1)
        if len(times) == 1:
            return [Block(first, lengths, records, times[0][1])]
        starts = [begins - first for begins, _ in times]
        return [
            Block(first + start, lengths[4 * start : 4 * stop], records[offsets[start] : offsets[stop]], time_ms)
            for start, stop, (_, time_ms) in zip(starts, [*starts[1:], count], times, strict=True)
        ]
