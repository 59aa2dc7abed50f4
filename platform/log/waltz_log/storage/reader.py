"""Reads ranges of one segment as raw slices of the stored bytes, verified at once, then cut where the append time changes.

Has files of its own, so any number of readers run beside the appends and beside each other. Blocks; one thread at a time per reader.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from waltz_log.core.append_times import AppendTimes
from waltz_log.core.block import RECORD_OVERHEAD_BYTES, Block
from waltz_log.core.columns import verify_records
from waltz_log.core.ports import Disk
from waltz_log.core.segment_format import DATA, FILE_HEADER_BYTES, INDEX, TIMES
from waltz_log.errors import CorruptData
from waltz_log.storage.scan import RECORD_BYTES_MAX
from waltz_log.storage.segment import read_header, read_times, segment_path

__all__ = ["SegmentReader"]

INDEX_ENTRIES: Final = 16 * 1024
"""Looked up at once, 128 KiB: more than a block of small records has, little for one of large records."""


class SegmentReader:
    """`last`: the last transaction of a closed segment; None for the one that is appended to, whose `times` are then given."""

    def __init__(
        self, disk: Disk, directory: str, key: UUID, partition: int, first: int, *, last: int | None = None, times: AppendTimes | None = None
    ) -> None:
        self.first = first
        self.last = last
        self._partition = partition
        self._where = segment_path(directory, first, DATA)
        self._data = disk.open(self._where, "read")
        try:
            header = read_header(self._data, key, partition, first, self._where)
            self._index = disk.open(segment_path(directory, first, INDEX), "read")
        except BaseException:
            self._data.close()
            raise
        if times is None:
            path = segment_path(directory, first, TIMES)
            times_file = disk.open(path, "read") if disk.exists(path) else None
            times, _ = read_times(times_file, header)
            if times_file is not None:
                times_file.close()
        self._times = times

    def read(self, first: int, last: int, max_bytes: int, end: int | None) -> list[Block]:
        """Transactions from `first` up to `last` or earlier, at least one, of `max_bytes` together where they are more than one. `end`: where the
        segment's synced data ends, None for a closed segment. Raises `CorruptData` where anything does not match."""
        count = min(last - first + 1, INDEX_ENTRIES)
        place = FILE_HEADER_BYTES + 8 * (first - self.first)
        raw = self._index.read(place, 8 * (count + 1))
        offsets = np.frombuffer(raw[: len(raw) // 8 * 8], dtype=">i8").astype(np.int64)
        if len(offsets) <= count:
            # The last record of the segment has no entry after it: it ends where the data ends.
            offsets = np.append(offsets[:count], self._data.size() if end is None else end)
        sizes = np.diff(offsets)
        if len(sizes) != count or int(sizes.min()) < RECORD_OVERHEAD_BYTES or int(sizes.max()) > RECORD_BYTES_MAX:
            raise CorruptData(where=self._where, offset=int(offsets[0]), transaction_id=first, reason=f"index is damaged: entries={len(offsets)}")
        count = max(1, int(np.searchsorted(offsets, offsets[0] + max_bytes, side="right")) - 1)
        start, stop = int(offsets[0]), int(offsets[count])
        records = self._data.read(start, stop - start)
        lengths = sizes[:count].astype(">i4").tobytes()
        try:
            verify_records(records, lengths, first_transaction_id=first, partition=self._partition, where=self._where)
        except CorruptData as error:
            raise CorruptData(where=self._where, offset=start + error.offset, transaction_id=error.transaction_id, reason=error.reason) from None
        return self._cut(first, lengths, records, offsets[: count + 1] - start)

    def _cut(self, first: int, lengths: bytes, records: bytes, offsets: NDArray[np.int64]) -> list[Block]:
        blocks = []
        count = len(lengths) // 4
        done = 0
        while done < count:
            append_time_ms, following = self._times.at(first + done)
            stop = count if following is None else min(count, following - first)
            if done == 0 and stop == count:
                return [Block(first, lengths, records, append_time_ms)]
            part = records[offsets[done] : offsets[stop]]
            blocks.append(Block(first + done, lengths[4 * done : 4 * stop], part, append_time_ms))
            done = stop
        return blocks

    def close(self) -> None:
        self._data.close()
        self._index.close()
