"""One segment that is written to: data, index and times of a run of transactions (core/segment_format.py has the bytes).

Invariants: an entry of the index is written only after its record is on the medium, so what the index tells was acknowledged and must be there;
when records are cut away their index goes first. The index is synced at checkpoints, before the record that follows one; the times about once a
second of append time, so that little is told wrong after a crash of the machine and nothing has to be synced twice for an acknowledgement.

Blocks; called by one thread at a time. `OSError` passes through: the log above decides what it means.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from uuid import UUID

import numpy as np

from waltz_log.core.append_times import AppendTimes
from waltz_log.core.block import Block
from waltz_log.core.columns import offsets_array
from waltz_log.core.ports import Disk, DiskFile
from waltz_log.core.segment_format import (
    CHECKPOINT_TRANSACTIONS,
    DATA,
    FILE_HEADER_BYTES,
    INDEX,
    TIME_ENTRY_BYTES,
    TIMES,
    SegmentHeader,
    decode_times,
    encode_time,
    file_name,
)
from waltz_log.errors import CorruptData

__all__ = ["ActiveSegment", "create_files", "read_times", "segment_path"]

TIMES_SYNC_MS: Final = 1000


def segment_path(directory: str, first_transaction_id: int, kind: str) -> str:
    return f"{directory}/{file_name(first_transaction_id, kind)}"


def create_files(disk: Disk, directory: str, header: SegmentHeader, kinds: Sequence[str] = (INDEX, TIMES, DATA)) -> None:
    """Makes the files of a segment with their headers, so that after a crash at any point there is either no data file or a whole one. The data
    file's name is what makes the segment, so it comes last; an index or times without it are removed when the directory is opened."""
    for kind in kinds:
        temporary = segment_path(directory, header.first_transaction_id, f"{kind}.new")
        if disk.exists(temporary):
            disk.remove(temporary)
        file = disk.open(temporary, "create")
        try:
            file.write(0, header.to_bytes())
            file.sync()
        finally:
            file.close()
    for kind in kinds:
        path = segment_path(directory, header.first_transaction_id, kind)
        disk.rename(f"{path}.new", path)
    disk.sync_directory(directory)


def read_header(file: DiskFile, key: UUID, partition: int, first_transaction_id: int, where: str) -> SegmentHeader:
    header = SegmentHeader.from_bytes(file.read(0, FILE_HEADER_BYTES), where)
    header.expect(key, partition, first_transaction_id, where)
    return header


def read_times(file: DiskFile | None, header: SegmentHeader, last_transaction_id: int | None = None) -> tuple[AppendTimes, int]:
    """The times a file tells, up to an id, and where the entries that count end. No file, or one that is not whole: what it does not tell falls back
    to the time before, at last to the segment's creation."""
    if file is None or file.size() < FILE_HEADER_BYTES:
        return AppendTimes(header.creation_time_ms), FILE_HEADER_BYTES
    firsts, times, end = decode_times(file.read(FILE_HEADER_BYTES, file.size() - FILE_HEADER_BYTES))
    if last_transaction_id is not None:
        kept = int(np.searchsorted(firsts, last_transaction_id, side="right"))
        if kept < len(firsts):
            # Entries for what was cut away. Those kept may have torn ones between them, so their end is looked up, not computed.
            firsts, times = firsts[:kept], times[:kept]
            end = _end_of(file, int(firsts[-1])) if kept else 0
    return AppendTimes(header.creation_time_ms, firsts.tolist(), times.tolist()), FILE_HEADER_BYTES + end


def _end_of(file: DiskFile, first_transaction_id: int) -> int:
    data = file.read(FILE_HEADER_BYTES, file.size() - FILE_HEADER_BYTES)
    ids = np.frombuffer(data[: len(data) // TIME_ENTRY_BYTES * TIME_ENTRY_BYTES], dtype=np.dtype([("first", ">i8"), ("rest", "V12")]))["first"]
    return (int(np.flatnonzero(ids == first_transaction_id)[-1]) + 1) * TIME_ENTRY_BYTES


class ActiveSegment:
    """The files of the segment at the end of the log. `next_id` and `size` tell what is written; the log above tells what is synced."""

    def __init__(
        self,
        header: SegmentHeader,
        data: DiskFile,
        index: DiskFile,
        times_file: DiskFile,
        *,
        next_id: int,
        size: int,
        times: AppendTimes,
        times_end: int,
    ) -> None:
        self.header = header
        self.first = header.first_transaction_id
        self.next_id = next_id
        self.size = size
        self.times = times
        self._times_end = times_end
        self._data = data
        self._index = index
        self._times_file = times_file
        self._index_due = False
        self._times_due = False
        self._times_synced_ms: int | None = None

    def append(self, blocks: Sequence[Block]) -> None:
        """Writes the blocks, which follow on what is there, with one write and one sync. They are on the medium when it returns."""
        lengths = b"".join([block.lengths for block in blocks])
        records = b"".join([block.records for block in blocks]) if len(blocks) > 1 else blocks[0].records
        offsets = offsets_array(lengths) + self.size
        assert int(offsets[-1]) == self.size + len(records), "lengths and records were verified to agree"
        self._data.write(self.size, records)
        entries = b"".join([encode_time(block.first_transaction_id, block.append_time_ms) for block in blocks])
        self._times_file.write(self._times_end, entries)
        self._data.sync()
        self._index.write(self._index_offset(self.next_id), offsets[:-1].astype(">i8").tobytes())
        self._times_end += len(entries)
        for block in blocks:
            self.times.add(block.first_transaction_id, block.append_time_ms)
        self.size = int(offsets[-1])
        before, self.next_id = self.next_id, self.next_id + len(lengths) // 4
        self._index_due |= before // CHECKPOINT_TRANSACTIONS < self.next_id // CHECKPOINT_TRANSACTIONS
        newest_ms = blocks[-1].append_time_ms
        self._times_due |= self._times_synced_ms is None or not 0 <= newest_ms - self._times_synced_ms < TIMES_SYNC_MS
        if self._times_due:
            self._times_synced_ms = newest_ms

    def _index_offset(self, transaction_id: int) -> int:
        return FILE_HEADER_BYTES + 8 * (transaction_id - self.first)

    @property
    def checkpoint_due(self) -> bool:
        return self._index_due or self._times_due

    def checkpoint(self) -> None:
        """What is due of the index and the times is on the medium when it returns."""
        if self._index_due:
            self._index.sync()
            self._index_due = False
        if self._times_due:
            self._times_file.sync()
            self._times_due = False

    def complete(self) -> None:
        """All that the index and the times tell is on the medium when it returns."""
        self._index_due = self._times_due = True
        self.checkpoint()

    def cut(self, last_transaction_id: int) -> None:
        """Truncates to the id, which may be the one before the segment's first. Durable when it returns."""
        place = self._index_offset(last_transaction_id + 1)
        found = self._index.read(place, 8)
        size = int.from_bytes(found, "big") if len(found) == 8 else self.size
        if size != self.size and int.from_bytes(self._data.read(size, 8), "big", signed=True) != last_transaction_id + 1:
            where = file_name(self.first, INDEX)
            raise CorruptData(where=where, offset=place, transaction_id=last_transaction_id + 1, reason=f"index entry points astray: {size}")
        self._index.truncate(place)
        self._index.sync()
        self._data.truncate(size)
        self._data.sync()
        self.times.cut(last_transaction_id)
        _, self._times_end = read_times(self._times_file, self.header, last_transaction_id)
        self._times_file.truncate(self._times_end)
        self._times_file.sync()
        self.size, self.next_id = size, last_transaction_id + 1

    def close(self) -> None:
        for file in (self._data, self._index, self._times_file):
            file.close()
