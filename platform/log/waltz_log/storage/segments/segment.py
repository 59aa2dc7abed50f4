"""One segment that is written to: data, index and times of consecutive transactions (core/formats/segment_format.py has the bytes).

Invariants: an entry of the index is written only after its record is durable, so a record in the index must be there, intact; entries of written,
unsynced records wait in memory. When records are truncated, their index entries are removed first. The index is synced at checkpoints, before the
record that follows one; the times about once per second of append time, so that a crash of the machine loses little of them and no acknowledgment
needs two syncs. The data file may have preallocated space: zeros beyond `size`, which are released when the segment is closed.

Blocks; called by one thread at a time. `OSError` is not caught; the log decides what it means. Only after `NoSpace` is the content of the medium
known: the bytes without space were not acknowledged and can be truncated.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final
from uuid import UUID

from waltz_log.core.formats.block import Block
from waltz_log.core.formats.columns import index_entries
from waltz_log.core.formats.segment_format import (
    CHECKPOINT_TRANSACTIONS,
    DATA,
    FILE_HEADER_BYTES,
    INDEX,
    TIMES,
    SegmentHeader,
    encode_time,
    file_name,
)
from waltz_log.core.ports import Disk, DiskFile
from waltz_log.errors import CorruptData
from waltz_log.storage.segments.open_files import PooledFile
from waltz_log.storage.segments.times import SegmentTimes

__all__ = ["KINDS", "ActiveSegment", "NoSpace", "allocating_space", "create_files", "put_file", "read_header", "segment_path"]

TIMES_SYNC_MS: Final = 1000
UNCACHED_BYTES: Final = 2 << 20
"""Size of the pieces that are dropped from the page cache: few calls, and never a part of what the system holds as one piece (a huge page)."""

KINDS: Final = (INDEX, TIMES, DATA)
"""In the order in which their names appear. The data file makes the segment exist, so it comes last."""


class NoSpace(OSError):
    """The disk is full. No sync or rename was left half done."""


@contextmanager
def allocating_space() -> Iterator[None]:
    """Around calls that allocate space. Not around the sync of data that must be durable: once that failed, nothing is known about the data, whatever
    the reason."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NoSpace(error.errno, error.strerror, error.filename) from None
        raise


def segment_path(directory: str, first_transaction_id: int, kind: str) -> str:
    return f"{directory}/{file_name(first_transaction_id, kind)}"


def create_files(disk: Disk, directory: str, header: SegmentHeader, kinds: Sequence[str] = KINDS) -> None:
    """Creates the files of a segment with their headers, so that after a crash at any point there is either no data file or a complete one. Opening
    the directory removes an index or times without data."""
    with allocating_space():
        for kind in kinds:
            put_file(disk, f"{segment_path(directory, header.first_transaction_id, kind)}.new", header.to_bytes())
        for kind in kinds:
            path = segment_path(directory, header.first_transaction_id, kind)
            disk.rename(f"{path}.new", path)
    disk.sync_directory(directory)


def put_file(disk: Disk, path: str, content: bytes) -> None:
    """Writes a file with this content, synced. An existing one is the remains of an interrupted call, and is replaced."""
    if disk.exists(path):
        disk.remove(path)
    file = disk.open(path, "create")
    try:
        file.write(0, content)
        file.sync()
    finally:
        file.close()


def _rounded_down(size: int) -> int:
    return size // UNCACHED_BYTES * UNCACHED_BYTES


def read_header(file: DiskFile, key: UUID, partition: int, first_transaction_id: int, where: str) -> SegmentHeader:
    header = SegmentHeader.from_bytes(file.read(0, FILE_HEADER_BYTES), where)
    header.expect(key, partition, first_transaction_id, where)
    return header


class ActiveSegment:
    """The files of the segment at the end of the log. `next_id` and `size` count what is written, `synced_id` and `synced_size` what is durable."""

    def __init__(
        self,
        header: SegmentHeader,
        data: PooledFile,
        index: PooledFile,
        times: PooledFile,
        *,
        next_id: int,
        size: int,
        times_end: int,
        allocated: int,
    ) -> None:
        self.header = header
        self.first = header.first_transaction_id
        self.next_id = self.synced_id = next_id
        self.last_sync_s = 0.0
        """Duration of the last sync of data, for statistics alone."""
        self.size = self.synced_size = size
        self.allocated = allocated
        """The size of the data file. Beyond `size` there are zeros."""
        self._times_end = times_end
        self._data = data
        self._index = index
        self._times = times
        self._entries: list[bytes] = []
        """Index entries of what is written and not synced."""
        self._index_due = False
        self._times_due = False
        self._times_synced_ms: int | None = None
        self._cached_from = _rounded_down(size)
        """Below this offset the data file was dropped from the page cache; a reader may have loaded parts again."""

    def append(self, blocks: Sequence[Block], allocate_to: int, *, sync: bool = True) -> None:
        """Writes the blocks, which follow the last record, with one write and one sync, and they are durable when it returns. Without `sync` they are
        only in the page cache until `sync` is called. The data file allocates space up to `allocate_to` if it is shorter."""
        lengths = b"".join([block.lengths for block in blocks])
        records = b"".join([block.records for block in blocks]) if len(blocks) > 1 else blocks[0].records
        index, end = index_entries(lengths, self.size)
        assert end == self.size + len(records), "lengths and records were verified to agree"
        entries = b"".join([encode_time(block.first_transaction_id, block.append_time_ms) for block in blocks])
        before = (self.size, self.next_id, self._times_end)
        with allocating_space():
            if allocate_to > self.allocated:
                self._data.allocate(allocate_to)
                self.allocated = allocate_to
            self._data.write(self.size, records)
            self._times.write(self._times_end, entries)
        self._entries.append(index)
        self._times_end += len(entries)
        self.size = end
        self.allocated = max(self.allocated, self.size)
        self.next_id += len(lengths) // 4
        newest_ms = blocks[-1].append_time_ms
        self._times_due |= self._times_synced_ms is None or not 0 <= newest_ms - self._times_synced_ms < TIMES_SYNC_MS
        if self._times_due:
            self._times_synced_ms = newest_ms
        if sync:
            try:
                self.sync()
            except NoSpace:
                # No space for the index. These blocks are refused; unsynced blocks before them stay.
                self._entries.pop()
                self.size, self.next_id, self._times_end = before
                raise

    def sync(self) -> None:
        """Everything written is durable when it returns, and in the index."""
        if not self._entries:
            return
        began_s = time.perf_counter()
        self._data.sync()
        self.last_sync_s = time.perf_counter() - began_s
        with allocating_space():
            self._index.write(self._index_offset(self.synced_id), self._entries[0] if len(self._entries) == 1 else b"".join(self._entries))
        self._entries = []
        self._index_due |= self.synced_id // CHECKPOINT_TRANSACTIONS < self.next_id // CHECKPOINT_TRANSACTIONS
        self.synced_id, self.synced_size = self.next_id, self.size

    def uncache(self, cached_bytes: int) -> None:
        """Drops durable data from the page cache except for the last `cached_bytes`, so that the next writes reuse the same memory and the system
        need not search for free memory."""
        end = _rounded_down(self.synced_size - cached_bytes)
        if end > self._cached_from:
            self._data.uncache(self._cached_from, end)
            self._cached_from = end

    @property
    def held_bytes(self) -> int:
        """Memory in use until the next sync."""
        return 8 * (self.next_id - self.synced_id)

    def _index_offset(self, transaction_id: int) -> int:
        return FILE_HEADER_BYTES + 8 * (transaction_id - self.first)

    @property
    def checkpoint_due(self) -> bool:
        return self._index_due or self._times_due

    def checkpoint(self) -> None:
        """Index and times up to the checkpoint are durable when it returns."""
        if self._index_due:
            self._index.sync()
            self._index_due = False
        if self._times_due:
            self._times.sync()
            self._times_due = False

    def complete(self) -> None:
        """The files have their final content, durably, and no preallocated space."""
        self.sync()
        if self.allocated > self.size:
            self._data.truncate(self.size)
            self._data.sync()
            self.allocated = self.size
        self._index_due = self._times_due = True
        self.checkpoint()

    def cut_back(self) -> None:
        """Truncates what a write that found no space may have left. Durable when it returns."""
        with allocating_space():
            self._index.truncate(self._index_offset(self.synced_id))
            self._data.truncate(self.size)
            self._times.truncate(self._times_end)
        self.allocated = self.size
        for file in (self._index, self._data, self._times):
            file.sync()

    def cut(self, last_transaction_id: int) -> None:
        """Truncates to the id, which may be the one before the segment's first. All that is written must be synced. Durable when it returns."""
        assert not self._entries, "what is cut must be known to the index"
        place = self._index_offset(last_transaction_id + 1)
        found = self._index.read(place, 8)
        size = int.from_bytes(found, "big") if len(found) == 8 else self.size
        if size != self.size and int.from_bytes(self._data.read(size, 8), "big", signed=True) != last_transaction_id + 1:
            where = file_name(self.first, INDEX)
            raise CorruptData(where=where, offset=place, transaction_id=last_transaction_id + 1, reason=f"index entry outside the data file: {size}")
        self._index.truncate(place)
        self._index.sync()
        self._data.truncate(size)
        self._data.sync()
        self._times_end = SegmentTimes(self._times, self.header.creation_time_ms).end(last_transaction_id)
        self._times.truncate(self._times_end)
        self._times.sync()
        self.size = self.synced_size = self.allocated = size
        self.next_id = self.synced_id = last_transaction_id + 1
        self._cached_from = min(self._cached_from, _rounded_down(size))

    def settle(self) -> None:
        """Ends writing; readers continue to use the files."""
        for file in (self._data, self._index, self._times):
            file.settle()

    def close(self) -> None:
        for file in (self._data, self._index, self._times):
            file.close()
