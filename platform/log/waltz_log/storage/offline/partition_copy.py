"""Copies a partition from one storage directory into another whose node is stopped: offline recovery (the original's recover-partition).

Copies only what the source knows to be clean, up to its local low-water mark: that is permanently committed. What the target has above its own mark
is truncated first. Before that, the target is marked as restored, so that it counts as absent in votes until it has caught up with its peers;
otherwise transactions that it had acknowledged could count as never written. If the source is not known to be clean beyond the target's own mark, it
has nothing to offer, and the target stays as it is. The source is only read; its node may run. If the copy is interrupted, repeat it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from waltz_log.core.formats.control_format import CONTROL_FILE, SessionMark, encode_entry
from waltz_log.core.ports import Clock, Disk
from waltz_log.errors import ClusterKeyMismatch, CorruptData, InvalidSetting, OutOfRange, StorageFailed
from waltz_log.storage.control.storage_directory import StorageDirectory, read_directory, segment_firsts
from waltz_log.storage.offline.locked import locked
from waltz_log.storage.segments.open_files import OpenFiles
from waltz_log.storage.segments.reader import SegmentReader
from waltz_log.storage.segments.segment import put_file
from waltz_log.storage.segments.segment_log import SegmentLog

__all__ = ["PartitionCopy", "copy_partition"]

RUN_BYTES: Final = 4 * 1024 * 1024
SEGMENT_BYTES: Final = 256 * 1024 * 1024
OPEN_FILES: Final = 16


@dataclass(frozen=True, slots=True)
class PartitionCopy:
    """`kept`: the last transaction that the target already had and kept; `last`: the last one that it has now, known to be clean."""

    partition: int
    kept: int
    last: int


def _nothing(_bytes: int) -> None:
    pass


def copy_partition(source: Disk, target: Disk, partition: int, clock: Clock, on_bytes: Callable[[int], None] = _nothing) -> PartitionCopy:
    """Raises `ClusterKeyMismatch`, `InvalidSetting` if a directory is none of ours or the target is in use, `OutOfRange` if the source begins above
    what the target needs, `CorruptData`, `StorageFull`, `StorageFailed`."""
    clean = _clean(read_directory(source), partition)
    with locked(target):
        try:
            return _copy(source, target, partition, clean, clock, on_bytes)
        except OSError as error:
            raise StorageFailed(partition=partition, reason=f"cannot copy: {error}") from None


def _clean(found: StorageDirectory, partition: int) -> int:
    if found.java is not None:
        raise InvalidSetting(name="directory", reason="was written by Java Waltz: run `waltz storage migrate` on it first", nearest=None)
    if not 0 <= partition < found.header.partitions:
        raise InvalidSetting(name="partition", reason=f"must be one of the {found.header.partitions} that there are", nearest=None)
    return found.known_good(partition)


def _copy(source: Disk, target: Disk, partition: int, clean: int, clock: Clock, on_bytes: Callable[[int], None]) -> PartitionCopy:
    key = read_directory(source).key
    found = read_directory(target)
    _clean(found, partition)
    if any(entry.mark is None for entry in found.entries):
        raise CorruptData(where=CONTROL_FILE, offset=0, transaction_id=-1, reason="has a partition of which neither struct is valid")
    if found.key != key:
        raise ClusterKeyMismatch(where="the target directory")
    mark = found.entries[partition].mark or SessionMark()
    kept = mark.local_low_water_mark
    if clean <= kept:
        return PartitionCopy(partition, kept, kept)
    restored = min(-2, -clock.now_ms())
    _put_mark(target, found, partition, SessionMark(restored, mark.low_water_mark, kept))
    log = SegmentLog.open(target, clock, key, partition, SEGMENT_BYTES, kept)
    try:
        if log.tail.last_id > kept:
            log.truncate(max(kept, log.first_id - 1))
        _fill(source, log, clean, on_bytes)
        last = max(kept, log.tail.last_id)
    finally:
        log.close()
    _put_mark(target, found, partition, SessionMark(restored, max(mark.low_water_mark, last), last))
    return PartitionCopy(partition, kept, last)


def _put_mark(target: Disk, found: StorageDirectory, partition: int, mark: SessionMark) -> None:
    """Rewrites the control file with a new mark of this partition; both structs get the same content."""
    marks = [mark if place == partition else entry.mark for place, entry in enumerate(found.entries)]
    entries = [encode_entry(place, each or SessionMark()) for place, each in enumerate(marks)]
    put_file(target, f"{CONTROL_FILE}.new", found.header.to_bytes() + b"".join(entries))
    target.rename(f"{CONTROL_FILE}.new", CONTROL_FILE)
    target.sync_directory("")


def _fill(source: Disk, log: SegmentLog, clean: int, on_bytes: Callable[[int], None]) -> None:
    directory = str(log.partition)
    firsts = segment_firsts(source, directory)
    next_id = log.tail.last_id + 1
    if next_id <= clean and (not firsts or firsts[0] > next_id):
        raise OutOfRange(partition=log.partition, asked=next_id, first=firsts[0] if firsts else -1, last=clean)
    files = OpenFiles(source, OPEN_FILES)
    try:
        for first, following in pairwise([*firsts, clean + 1]):
            last = min(clean, following - 1)
            if last < next_id:
                continue
            reader = SegmentReader(files, directory, log.key, log.partition, first)
            while next_id <= last:
                blocks = reader.read(next_id, last, RUN_BYTES, None)
                log.append(blocks)
                next_id = blocks[-1].last_transaction_id + 1
                on_bytes(sum(len(block.records) for block in blocks))
    finally:
        files.forget_directory(directory)
    if next_id <= clean:
        raise CorruptData(where=directory, offset=0, transaction_id=next_id, reason=f"acknowledged transactions are missing: known_good={clean}")
