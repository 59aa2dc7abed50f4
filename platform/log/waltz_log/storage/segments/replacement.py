"""A new copy of a closed segment, written next to the old one and renamed over it as a whole: how corruption is repaired from a peer.

    replacement = Replacement(log, first)       # `log.closed()` lists them
    replacement.add(blocks)                     # as often as needed: verified, in order, from the segment's first id to its last
    replacement.seal()                          # makes all of it durable
    replacement.put_in_place()                  # in the partition's turn: renamed over the old files, durable when it returns
    replacement.abandon()                       # instead, at any time before

Decides nothing about where the transactions come from. Invariants: the files under the real names are complete at every moment, because the copy
has other names until it is on disk; a crash leaves temporary files that the next opening removes; readers continue in the old files or the new
ones, which hold the same transactions at the same offsets. A failure before `put_in_place` leaves the log untouched.

Blocks; one thread at a time. Appends and readers continue at the same time.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import contextmanager
from typing import TYPE_CHECKING

from waltz_log.core.formats.block import Block
from waltz_log.core.formats.columns import offsets_array, verify_records
from waltz_log.core.formats.segment_format import DATA, FILE_HEADER_BYTES, INDEX, TIMES, SegmentHeader, encode_time
from waltz_log.errors import OutOfRange, ProtocolViolation, StorageFailed, StorageFull, WaltzError
from waltz_log.storage.segments.segment import KINDS, NoSpace, allocating_space, put_file, read_header, segment_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from waltz_log.core.ports import DiskFile
    from waltz_log.storage.segments.segment_log import SegmentLog

__all__ = ["Replacement"]


class Replacement:
    def __init__(self, log: SegmentLog, first: int) -> None:
        """Raises `OutOfRange` if no closed segment begins at the id."""
        last = dict(log.closed()).get(first)
        if last is None:
            raise OutOfRange(partition=log.partition, asked=first, first=log.first_id, last=log.tail.segment - 1)
        self.first = first
        self.last = last
        self.next_id = first
        self._log = log
        self._size = FILE_HEADER_BYTES
        self._times_end = FILE_HEADER_BYTES
        self._files: dict[str, DiskFile] = {}
        self._sealed = False

    def _path(self, kind: str) -> str:
        return segment_path(self._log.directory, self.first, kind)

    def _temporary(self, kind: str) -> str:
        return f"{self._path(kind)}.copy.new"

    def add(self, blocks: Iterable[Block]) -> None:
        """Raises `CorruptData` if a block is damaged, `ProtocolViolation` if it is not the next, `StorageFull`, `StorageFailed`."""
        for block in blocks:
            if block.first_transaction_id != self.next_id or not block.count or block.last_transaction_id > self.last:
                ids = f"{block.first_transaction_id}..{block.last_transaction_id}"
                raise ProtocolViolation(reason=f"not the next of the segment: ids={ids} expected={self.next_id}..{self.last}")
            verify_records(
                block.records, block.lengths, first_transaction_id=self.next_id, partition=self._log.partition, where=f"copy of {self._path(DATA)}"
            )
            with self._failing():
                if not self._files:
                    self._create(block.append_time_ms)
                entry = encode_time(block.first_transaction_id, block.append_time_ms)
                offsets = offsets_array(block.lengths)[:-1] + self._size
                self._files[DATA].write(self._size, block.records)
                self._files[INDEX].write(FILE_HEADER_BYTES + 8 * (self.next_id - self.first), offsets.astype(">i8").tobytes())
                self._files[TIMES].write(self._times_end, entry)
            self._size += len(block.records)
            self._times_end += len(entry)
            self.next_id += block.count

    def _create(self, append_time_ms: int) -> None:
        log = self._log
        header = SegmentHeader(append_time_ms, log.key, log.partition, self.first)
        for kind in KINDS:
            # Keep the segment's creation time, from the first of its files that still has it.
            try:
                header = read_header(log.files.reading(self._path(kind)), log.key, log.partition, self.first, self._path(kind))
                break
            except (OSError, WaltzError):
                continue
        for kind in KINDS:
            put_file(log.files.disk, self._temporary(kind), header.to_bytes())
            self._files[kind] = log.files.disk.open(self._temporary(kind), "write")

    def seal(self) -> None:
        """Durable when it returns, under temporary names. Raises `ProtocolViolation` if transactions are missing."""
        if self.next_id != self.last + 1:
            raise ProtocolViolation(reason=f"copy of a segment is not complete: next={self.next_id} last={self.last}")
        with self._failing():
            for file in self._files.values():
                file.sync()
        self._close()
        self._sealed = True

    def put_in_place(self) -> None:
        """Durable when it returns. Raises `OutOfRange` if the segment is not closed or no longer there, `StorageFailed`."""
        log = self._log
        assert self._sealed, "what is not on the medium does not replace what is"
        if (self.first, self.last) not in log.closed():
            self.abandon()
            raise OutOfRange(partition=log.partition, asked=self.first, first=log.first_id, last=log.tail.last_id)
        with log.writing():
            for kind in KINDS:
                log.files.disk.rename(self._temporary(kind), self._path(kind))
            log.files.disk.sync_directory(log.directory)
        log.replaced(self.first)

    def abandon(self) -> None:
        self._close()
        for kind in KINDS:
            if self._log.files.disk.exists(self._temporary(kind)):
                self._log.files.disk.remove(self._temporary(kind))

    def _close(self) -> None:
        for file in self._files.values():
            file.close()

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """A failure of the copy does not stop the log."""
        partition = self._log.partition
        try:
            with allocating_space():
                yield
        except NoSpace as error:
            self.abandon()
            raise StorageFull(partition=partition, reason=f"no room for a copy: {error}", free_bytes=self._log.files.disk.free_bytes()) from None
        except OSError as error:
            self.abandon()
            raise StorageFailed(partition=partition, reason=f"cannot copy a segment: {error}") from None
