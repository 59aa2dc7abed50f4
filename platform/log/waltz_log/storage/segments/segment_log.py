"""The log of one partition on disk: a sequence of segments, the last of which is appended to (On-Disk Data Structures, Directory Structure).

Invariants: ids are dense from the first segment's number to `tail.last_id`; everything up to there is durable, and nothing above it is read; a
segment exists once its data file has its name, durably, before the first record is written to it; the files of a closed segment are never written in
place, only replaced as a whole. After a failed write, sync or rename nothing is written any more: the content of the medium is unknown until the next
opening verifies it. A full disk is the exception (`StorageFull`): what found no space is truncated, and the next append tries again.

Changing calls block and come from one thread at a time; readers come from any. For code that inspects segments as a whole: `closed` lists those that
are no longer appended to. `verify.SegmentCheck` reads their files concurrently with everything else, and `replacement.Replacement` replaces them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from threading import Lock
from typing import NamedTuple
from uuid import UUID

from waltz_log.core.formats.block import Block
from waltz_log.core.formats.segment_format import SegmentHeader
from waltz_log.core.ports import Clock, Disk
from waltz_log.errors import CorruptData, OutOfRange, StorageFailed, StorageFull
from waltz_log.loggers import get_logger
from waltz_log.storage.segments.beginning import announce, carry_out, finish_beginning
from waltz_log.storage.segments.fitting import fitted
from waltz_log.storage.segments.open_files import OpenFiles
from waltz_log.storage.segments.opening import has_right_sizes, open_last, remove_leftovers, remove_segment, repair_closed_index
from waltz_log.storage.segments.reader import SegmentReader
from waltz_log.storage.segments.segment import KINDS, ActiveSegment, NoSpace, create_files, segment_path
from waltz_log.storage.segments.times import SegmentTimes

__all__ = ["SegmentLog", "Tail"]

log = get_logger(__name__)

OPEN_FILES_MAX = 16
"""For a log that shares its files with no other."""


class Tail(NamedTuple):
    """What is durable: the last transaction, and where the data of the last segment ends. Replaced as a whole."""

    last_id: int
    segment: int
    end: int


class SegmentLog:
    """Created by `open`."""

    def __init__(
        self,
        files: OpenFiles,
        clock: Clock,
        key: UUID,
        partition: int,
        segment_bytes: int,
        preallocate_bytes: int,
        cached_bytes: int | None,
        firsts: Sequence[int],
        active: ActiveSegment,
    ) -> None:
        self.files = files
        self.key = key
        self.partition = partition
        self.tail = Tail(active.next_id - 1, active.first, active.size)
        self.failed: StorageFailed | None = None
        self.cuts = 0
        """Rises by one when a truncation begins and again when it ends, so it is odd meanwhile. Data that was read while it was odd or rose may no
        longer exist."""
        self._clock = clock
        self.segment_bytes = segment_bytes
        self._preallocate_bytes = preallocate_bytes
        self._cached_bytes = cached_bytes
        self._firsts = tuple(firsts)
        self._active = active
        self._full = False
        self._suspects = {first for first, following in pairwise(firsts) if not has_right_sizes(files.disk, str(partition), first, following)}
        self._repairs: dict[int, CorruptData | None] = {}
        """Closed segments whose index was rebuilt, or the damage that prevented it."""
        self._repairing = Lock()

    @classmethod
    def open(
        cls,
        disk: Disk,
        clock: Clock,
        key: UUID,
        partition: int,
        segment_bytes: int,
        known_good: int,
        *,
        files: OpenFiles | None = None,
        preallocate_bytes: int = 0,
        cached_bytes: int | None = None,
    ) -> SegmentLog:
        """Opens the existing log, or creates an empty one.

        `known_good`: the local low-water mark; `files`: the bounded pool of open files, shared with other logs; `preallocate_bytes`: step of
        preallocation, 0 for none; `cached_bytes`: how much of the end of the log stays in the page cache, None to leave it to the system.

        Raises `CorruptData` if acknowledged transactions are damaged, `StorageFailed` if the disk fails, `StorageFull` if there is no space for new
        files, which can be tried again."""
        directory = str(partition)
        files = files or OpenFiles(disk, OPEN_FILES_MAX)
        try:
            if not disk.list(directory):
                disk.make_directory(directory)
                disk.sync_directory("")
            finish_beginning(files, directory, SegmentHeader(clock.now_ms(), key, partition, 0))
            firsts = remove_leftovers(disk, directory)
            if not firsts:
                if known_good >= 0:
                    reason = f"acknowledged transactions are missing: known_good={known_good}"
                    raise CorruptData(where=directory, offset=0, transaction_id=known_good, reason=reason)
                create_files(disk, directory, SegmentHeader(clock.now_ms(), key, partition, 0))
                firsts = [0]
            active = open_last(files, directory, key, partition, firsts[-1], known_good)
            return cls(files, clock, key, partition, segment_bytes, preallocate_bytes, cached_bytes, firsts, active)
        except OSError as error:
            files.forget_directory(directory)
            if isinstance(error, NoSpace):
                raise StorageFull(partition=partition, reason=f"cannot open: {error}", free_bytes=disk.free_bytes()) from None
            raise StorageFailed(partition=partition, reason=f"cannot open: {error}") from None

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
    def writing(self) -> Iterator[None]:
        """Around everything that changes the medium. After the first failure nothing is changed any more. Only after a full disk is the content of
        the medium known."""
        if self.failed is not None:
            raise self.failed
        try:
            if self._full:
                self._make_good()
            yield
        except NoSpace as error:
            self._full = True
            try:
                self._make_good()
            except NoSpace:
                log.warning("a full disk cannot truncate the failed write", partition=self.partition)
            except OSError as worse:
                raise self._stop(worse) from None
            raise StorageFull(partition=self.partition, reason=str(error), free_bytes=self.files.disk.free_bytes()) from None
        except (OSError, CorruptData) as error:
            raise self._stop(error) from None

    def _stop(self, error: OSError | CorruptData) -> StorageFailed:
        self.failed = StorageFailed(partition=self.partition, reason=str(error))
        # Closed as they are, so that no later sync covers what a failed sync left behind.
        self._active.close()
        return self.failed

    def _make_good(self) -> None:
        """After a full disk: truncates what found no space, and removes an incomplete next segment."""
        self._active.cut_back()
        if self._active.next_id > self._active.first:
            for kind in KINDS:
                path = segment_path(self.directory, self._active.next_id, kind)
                for left in (f"{path}.new", path):
                    if self.files.disk.exists(left):
                        self.files.disk.remove(left)
            self.files.disk.sync_directory(self.directory)
        self._full = False
        log.info("failed write truncated", partition=self.partition, last=self.tail.last_id)

    # ---- changing --------------------------------------------------------------------------------------------------------------------------------

    def append(self, blocks: Sequence[Block], *, sync: bool = True) -> None:
        """Appends blocks that were verified and follow `written_id`. Durable when it returns: one write and one sync for each segment touched, which
        is one unless the blocks do not fit. Without `sync` they are only written, and the log ends there once `sync` was called. Raises
        `TransactionTooLarge` before anything is written, `StorageFull`, `StorageFailed`."""
        groups = fitted(blocks, self._active.size, self.segment_bytes)
        with self.writing():
            if self._active.checkpoint_due:
                self._active.checkpoint()
            for place, group in enumerate(groups):
                if place:
                    self._roll()
                if group:
                    assert group[0].first_transaction_id == self._active.next_id
                    end = self._active.size + sum(len(block.records) for block in group)
                    self._active.append(group, self._allocate_to(end), sync=sync)
                    self._advance()
            self._uncache()

    def sync(self) -> None:
        """Everything written is durable when it returns. Raises `StorageFull`, after which it can be tried again, and `StorageFailed`."""
        if self._active.next_id > self._active.synced_id:
            with self.writing():
                self._active.sync()
                self._advance()
                self._uncache()

    def _uncache(self) -> None:
        if self._cached_bytes is not None:
            self._active.uncache(self._cached_bytes)

    @property
    def written_id(self) -> int:
        """The last transaction that is written; what is above `tail.last_id` is lost if the machine dies."""
        return self._active.next_id - 1

    @property
    def last_sync_s(self) -> float:
        """Duration of the last sync of appended data."""
        return self._active.last_sync_s

    @property
    def held_bytes(self) -> int:
        """Memory in use until the next sync."""
        return self._active.held_bytes

    def _allocate_to(self, end: int) -> int:
        step = self._preallocate_bytes
        return max(end, min(-(-end // step) * step, self.segment_bytes)) if step and end > self._active.allocated else 0

    def _advance(self) -> None:
        self.tail = Tail(self._active.synced_id - 1, self._active.first, self._active.synced_size)

    def _roll(self) -> None:
        """Closes the active segment and begins the next. After a crash at any step, opening the log finishes it."""
        self._active.complete()
        self._advance()
        first = self._active.next_id
        create_files(self.files.disk, self.directory, SegmentHeader(self._clock.now_ms(), self.key, self.partition, first))
        following = open_last(self.files, self.directory, self.key, self.partition, first, first - 1)
        self._active.settle()
        self._active = following
        self._firsts += (first,)
        self._advance()

    def close_active(self) -> None:
        """Begins a new segment, unless the active one is empty. Durable when it returns. Raises `StorageFull`, `StorageFailed`."""
        with self.writing():
            if self._active.first < self._active.next_id:
                self._roll()

    @property
    def checkpoint_due(self) -> bool:
        return self._active.checkpoint_due

    def checkpoint(self) -> None:
        """Syncs index and times if a checkpoint is due. `append` does it if the caller has not. Raises `StorageFailed`."""
        with self.writing():
            self._active.checkpoint()

    def truncate(self, last_id: int) -> None:
        """Truncates above the id, across segments, newest first, so that there is never a gap. Durable when it returns."""
        self.sync()
        if not self.first_id - 1 <= last_id <= self.tail.last_id:
            raise OutOfRange(partition=self.partition, asked=last_id, first=self.first_id - 1, last=self.tail.last_id)
        with self.writing(), self._cutting():
            while len(self._firsts) > 1 and self._firsts[-1] > last_id:
                gone = self._firsts[-1]
                self._active.close()
                remove_segment(self.files, self.directory, gone)
                self._firsts = self._firsts[:-1]
                self._active = open_last(self.files, self.directory, self.key, self.partition, self._firsts[-1], gone - 1)
                self._advance()
            if self.tail.last_id > last_id:
                self._active.cut(last_id)
                self._advance()

    @contextmanager
    def _cutting(self) -> Iterator[None]:
        self.cuts += 1
        try:
            yield
        finally:
            self.cuts += 1

    def trim(self, first_id: int) -> None:
        """Removes the segments that hold nothing from the id on, oldest first, each durably before the next. The last one stays. If it too holds
        nothing from there on, an empty one replaces it, and its name is the id at which the log continues."""
        with self.writing():
            if self._active.first < self._active.next_id <= first_id:
                self._roll()
            while len(self._firsts) > 1 and self._firsts[1] <= first_id:
                gone, self._firsts = self._firsts[0], self._firsts[1:]
                remove_segment(self.files, self.directory, gone)
                log.info("segment trimmed", partition=self.partition, segment=gone, first=self.first_id)

    def begin(self, first_id: int) -> None:
        """Leaves only an empty segment at the id, which is beyond the end of the log. Durable when it returns; after a crash the log is the old or
        the new one."""
        if first_id <= self._active.next_id:
            raise OutOfRange(partition=self.partition, asked=first_id, first=self.first_id, last=self.tail.last_id)
        with self.writing(), self._cutting():
            announce(self.files.disk, self.directory, first_id)
            self._active.close()
            try:
                carry_out(self.files, self.directory, SegmentHeader(self._clock.now_ms(), self.key, self.partition, first_id))
                self._active = open_last(self.files, self.directory, self.key, self.partition, first_id, first_id - 1)
            except NoSpace as error:
                raise OSError(error.errno, error.strerror, error.filename) from None  # the next opening finishes it
            with self._repairing:
                self._suspects.clear()
                self._repairs.clear()
            self._firsts = (first_id,)
            self._advance()
            log.info("log starts empty at a new first id", partition=self.partition, first=first_id)

    # ---- reading ---------------------------------------------------------------------------------------------------------------------------------

    def reader(self, transaction_id: int) -> SegmentReader:
        """A reader of the segment that holds the id. Raises `OutOfRange` if none does."""
        firsts = self._firsts
        if not firsts[0] <= transaction_id <= self.tail.last_id:
            raise OutOfRange(partition=self.partition, asked=transaction_id, first=firsts[0], last=self.tail.last_id)
        first = firsts[bisect_right(firsts, transaction_id) - 1]
        if first in self._suspects:
            self.repair_index(first)
        return SegmentReader(self.files, self.directory, self.key, self.partition, first)

    def read(self, reader: SegmentReader, first: int, last: int, max_bytes: int) -> list[Block]:
        """The next blocks of the reader's segment, none if `first` is beyond it. Only durable blocks. Raises `CorruptData`."""
        tail = self.tail
        if tail.segment == reader.first:
            last = min(last, tail.last_id)
            return reader.read(first, last, max_bytes, tail.end) if first <= last else []
        # The segment is closed, perhaps since the read began.
        last = min(last, self._following(reader.first) - 1)
        if first > last:
            return []
        try:
            return reader.read(first, last, max_bytes, None)
        except CorruptData:
            # Perhaps only the index is wrong, and that can be rebuilt.
            if reader.first in self._repairs or not self.repair_index(reader.first):
                raise
            return reader.read(first, last, max_bytes, None)

    def _following(self, first: int) -> int:
        """The first id after the segment."""
        firsts = self._firsts
        place = bisect_right(firsts, first)
        return firsts[place] if place < len(firsts) else self.tail.last_id + 1

    def position_at(self, time_ms: int) -> int:
        """The first id of the first block appended at the time or later, according to the times; the id after the last if there is none yet."""
        firsts = self._firsts
        place = bisect_left(firsts, time_ms, key=lambda first: self._times(first).earliest_ms())
        if place == 0:
            return firsts[0]
        found = self._times(firsts[place - 1]).first_at(time_ms)
        return min(found if found is not None else self._following(firsts[place - 1]), self.tail.last_id + 1)

    def newest_ms(self, first: int, last: int) -> int:
        """The append time of a segment's last transaction; if its own times do not have it, the start of the next segment, which is later."""
        found = self._times(first).latest_ms(last)
        if found is not None:
            return found
        following = self._following(first)
        return self._times(following).earliest_ms() if following in self._firsts else self._clock.now_ms()

    def _times(self, first: int) -> SegmentTimes:
        return SegmentReader(self.files, self.directory, self.key, self.partition, first).times

    # ---- closed segments -------------------------------------------------------------------------------------------------------------------------

    def closed(self) -> list[tuple[int, int]]:
        """First and last id of each segment that is no longer appended to."""
        return [(first, following - 1) for first, following in pairwise(self._firsts)]

    @property
    def suspects(self) -> list[int]:
        """The closed segments whose files had the wrong size at opening and were not checked since."""
        return sorted(self._suspects)

    def repair_index(self, first: int) -> bool:
        """Rebuilds the index of a closed segment, at most once while the log is open; returns whether it did. Raises `CorruptData` if the data is
        damaged. Runs concurrently with appends and readers, and is called by them."""
        with self._repairing:
            known = first in self._repairs
            if not known:
                self._remake(first)
            damage = self._repairs[first]
            if damage is not None:
                raise damage
            return not known

    def remake_index(self, first: int) -> None:
        """Like `repair_index`, however often it was rebuilt before: for a caller that has found the index to be wrong."""
        with self._repairing:
            self._remake(first)
            damage = self._repairs[first]
        if damage is not None:
            raise damage

    def _remake(self, first: int) -> None:
        try:
            repair_closed_index(self.files, self.directory, self.key, self.partition, first, self._following(first))
            self._repairs[first] = None
            self._suspects.discard(first)
        except CorruptData as error:
            self._repairs[first] = error

    def replaced(self, first: int) -> None:
        """The files of a closed segment were replaced, with the same transactions."""
        for kind in KINDS:
            self.files.forget(segment_path(self.directory, first, kind))
        with self._repairing:
            self._suspects.discard(first)
            self._repairs.pop(first, None)

    def close(self) -> bool:
        """Completes the files as the format describes them, if the disk has not failed. Returns whether everything written is durable."""
        try:
            if self.failed is None and not self._full:
                self._active.complete()
                self._advance()
                return True
        except OSError as error:
            log.warning("checkpoint at closing failed", partition=self.partition, error=str(error))
        finally:
            self.files.forget_directory(self.directory)
        return False
