"""The log of one partition on disk: a row of segments, the last of which is appended to (seeds/on_disk_data_structures.md, Directory Structure).

Invariants: ids are dense from the first segment's number to `tail.last_id`; everything up to there is on the medium; a segment exists once its
data file has its name, durably, before the first record is written to it. After a failed write, sync or rename nothing is written any more: what the
medium holds is unknown until the next opening verifies it.

Changing calls block and come from one thread at a time; readers come from any.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import NamedTuple
from uuid import UUID

import structlog

from waltz_log.core.block import Block
from waltz_log.core.ports import Clock, Disk
from waltz_log.core.segment_format import DATA, FILE_HEADER_BYTES, INDEX, TIMES, SegmentHeader
from waltz_log.errors import CorruptData, OutOfRange, StorageFailed
from waltz_log.storage.opening import open_last, remove_leftovers, repair_closed_index
from waltz_log.storage.reader import SegmentReader
from waltz_log.storage.segment import ActiveSegment, create_files, segment_path

__all__ = ["SegmentLog", "Tail"]

log = structlog.get_logger(__name__)


class Tail(NamedTuple):
    """What is on the medium: the last transaction, and where the data of the last segment ends. Replaced as a whole."""

    last_id: int
    segment: int
    end: int


class SegmentLog:
    """Made by `open`."""

    def __init__(self, disk: Disk, clock: Clock, key: UUID, partition: int, segment_bytes: int, firsts: list[int], active: ActiveSegment) -> None:
        self._disk = disk
        self._clock = clock
        self._key = key
        self.partition = partition
        self._segment_bytes = segment_bytes
        self._firsts = firsts
        self._active = active
        self.tail = Tail(active.next_id - 1, active.first, active.size)
        self.failed: StorageFailed | None = None

    @classmethod
    def open(cls, disk: Disk, clock: Clock, key: UUID, partition: int, segment_bytes: int, known_good: int) -> SegmentLog:
        """Opens what is there, or makes an empty log. `known_good`: the local low-water mark. Raises `CorruptData` where acknowledged transactions
        are not whole, `StorageFailed` where the disk does not do what it must."""
        directory = str(partition)
        try:
            if not disk.list(directory):
                disk.make_directory(directory)
                disk.sync_directory("")
            firsts = remove_leftovers(disk, directory)
            if not firsts:
                if known_good >= 0:
                    reason = f"acknowledged transactions are missing: known_good={known_good}"
                    raise CorruptData(where=directory, offset=0, transaction_id=known_good, reason=reason)
                create_files(disk, directory, SegmentHeader(clock.now_ms(), key, partition, 0))
                firsts = [0]
            for first, following in pairwise(firsts):
                repair_closed_index(disk, directory, key, partition, first, following)
            active = open_last(disk, directory, key, partition, firsts[-1], known_good)
        except OSError as error:
            raise StorageFailed(partition=partition, reason=f"cannot open: {error}") from None
        return cls(disk, clock, key, partition, segment_bytes, firsts, active)

    @property
    def directory(self) -> str:
        return str(self.partition)

    @property
    def first_id(self) -> int:
        return self._firsts[0]

    @property
    def segments(self) -> int:
        return len(self._firsts)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """The first failure is the last: after it the medium is left as it is."""
        if self.failed is not None:
            raise self.failed
        try:
            yield
        except (OSError, CorruptData) as error:
            self.failed = StorageFailed(partition=self.partition, reason=str(error))
            raise self.failed from None

    # ---- changing --------------------------------------------------------------------------------------------------------------------------------

    def append(self, blocks: Sequence[Block]) -> None:
        """Appends blocks that were verified and follow on `tail.last_id`. On the medium when it returns: one write and one sync for each segment
        touched, which is one unless the blocks do not fit. Raises `StorageFailed`."""
        with self._writing():
            if self._active.checkpoint_due:
                self._active.checkpoint()
            group: list[Block] = []
            size = self._active.size
            for block in blocks:
                if size > FILE_HEADER_BYTES and size + len(block.records) > self._segment_bytes:
                    self._append_group(group)
                    group = []
                    self._roll()
                    size = self._active.size
                group.append(block)
                size += len(block.records)
            self._append_group(group)

    def _append_group(self, group: Sequence[Block]) -> None:
        if group:
            assert group[0].first_transaction_id == self._active.next_id
            self._active.append(group)
            self._advance()

    def _advance(self) -> None:
        self.tail = Tail(self._active.next_id - 1, self._active.first, self._active.size)

    def _roll(self) -> None:
        """Closes the active segment for good and begins the next. A crash at any step leaves what opens by itself."""
        self._active.complete()
        first = self._active.next_id
        create_files(self._disk, self.directory, SegmentHeader(self._clock.now_ms(), self._key, self.partition, first))
        following = open_last(self._disk, self.directory, self._key, self.partition, first, first - 1)
        self._active.close()
        self._active = following
        self._firsts.append(first)
        self._advance()

    @property
    def checkpoint_due(self) -> bool:
        return self._active.checkpoint_due

    def checkpoint(self) -> None:
        """Syncs what is due of index and times. `append` does it where nobody did before. Raises `StorageFailed`."""
        with self._writing():
            self._active.checkpoint()

    def truncate(self, last_id: int) -> None:
        """Cuts away what is above the id, across segments, newest first, so that at no time there is a gap. Durable when it returns."""
        if not self.first_id - 1 <= last_id <= self.tail.last_id:
            raise OutOfRange(partition=self.partition, asked=last_id, first=self.first_id - 1, last=self.tail.last_id)
        with self._writing():
            while len(self._firsts) > 1 and self._firsts[-1] > last_id:
                gone = self._firsts[-1]
                self._active.close()
                for kind in (DATA, INDEX, TIMES):
                    self._disk.remove(segment_path(self.directory, gone, kind))
                self._disk.sync_directory(self.directory)
                self._firsts.pop()
                self._active = open_last(self._disk, self.directory, self._key, self.partition, self._firsts[-1], gone - 1)
                self._advance()
            if self.tail.last_id > last_id:
                self._active.cut(last_id)
                self._advance()

    # ---- reading ---------------------------------------------------------------------------------------------------------------------------------

    def reader(self, transaction_id: int) -> SegmentReader:
        """A reader of the segment that holds the id. Raises `OutOfRange` where none does."""
        firsts, active = list(self._firsts), self._active
        if not firsts[0] <= transaction_id <= self.tail.last_id:
            raise OutOfRange(partition=self.partition, asked=transaction_id, first=firsts[0], last=self.tail.last_id)
        place = bisect_right(firsts, transaction_id) - 1
        first = firsts[place]
        if first == active.first:
            return SegmentReader(self._disk, self.directory, self._key, self.partition, first, times=active.times)
        last = firsts[place + 1] - 1 if place + 1 < len(firsts) else None
        return SegmentReader(self._disk, self.directory, self._key, self.partition, first, last=last)

    def read(self, reader: SegmentReader, first: int, last: int, max_bytes: int) -> list[Block]:
        """The next blocks of the reader's segment, none where `first` is beyond it. Never beyond what is on the medium."""
        tail = self.tail
        if tail.segment == reader.first:
            last, end = min(last, tail.last_id), tail.end
        else:
            # Closed, perhaps while it was read.
            if reader.last is None:
                place = bisect_right(self._firsts, reader.first)
                reader.last = (self._firsts[place] if place < len(self._firsts) else tail.last_id + 1) - 1
            last, end = min(last, reader.last), None
        return reader.read(first, last, max_bytes, end) if first <= last else []

    def close(self) -> None:
        """Leaves the index and the times on the medium, where the disk still does what it should."""
        try:
            if self.failed is None:
                self._active.complete()
        except OSError as error:
            log.warning("checkpoint at closing failed", partition=self.partition, error=str(error))
        finally:
            self._active.close()
