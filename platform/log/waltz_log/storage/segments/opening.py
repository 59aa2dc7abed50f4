"""Opens the files of a partition after a stop or a crash: what is valid, what is torn, what is corrupt (docs/internals/storage.md).

The rules, in order:

1. Leftovers of a roll (temporary files, an index or times without data) are removed.
2. Only the names and sizes of closed segments are checked. An index of a wrong size is rebuilt from the data when a read needs it, or in the
   background, so the time to open does not depend on the size of a partition.
3. The last segment is scanned from the last checkpoint in its index. A record in the index was acknowledged. If one is damaged *below* the end of
   the index, or below the local low-water mark, that is corruption and stops the partition; nothing is truncated.
4. Zeros up to the end of the file are preallocated space: no record is all zeros, because the checksum of zeros is not zero.
5. Other damage above what is known to be good is the torn tail of an append that was never acknowledged: it is truncated, with a line in the log.
6. What was found is synced before any use of it, also by the index: a killed process may have left it in the page cache only.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

import numpy as np

from waltz_log.core.formats.record_layout import RECORD_OVERHEAD_BYTES
from waltz_log.core.formats.segment_format import CHECKPOINT_TRANSACTIONS, DATA, FILE_HEADER_BYTES, INDEX, TIMES, SegmentHeader, first_id_of
from waltz_log.core.ports import Disk, DiskFile
from waltz_log.errors import CorruptData, WaltzError
from waltz_log.loggers import get_logger
from waltz_log.storage.segments.holes import skip_hole
from waltz_log.storage.segments.open_files import OpenFiles, PooledFile
from waltz_log.storage.segments.scan import CHUNK_BYTES, Scan
from waltz_log.storage.segments.segment import KINDS, ActiveSegment, allocating_space, create_files, put_file, read_header, segment_path
from waltz_log.storage.segments.times import SegmentTimes

__all__ = ["has_right_sizes", "open_last", "remove_leftovers", "remove_segment", "repair_closed_index"]

log = get_logger(__name__)

INDEX_CHUNK_ENTRIES: Final = 64 * 1024


def remove_leftovers(disk: Disk, directory: str) -> list[int]:
    """Removes what a crash left of other segments, and returns the first ids of the existing ones, in order."""
    names = disk.list(directory)
    firsts = [first for name in names if (first := first_id_of(name, DATA)) is not None]
    known = set(firsts)
    leftovers = [name for name in names if name.endswith(".new")]
    for kind in (INDEX, TIMES):
        leftovers += [name for name in names if (first := first_id_of(name, kind)) is not None and first not in known]
    for name in leftovers:
        log.warning("removing an incomplete segment", file=f"{directory}/{name}")
        disk.remove(f"{directory}/{name}")
    # Also without leftovers: a process killed between a rename or removal and its sync left a directory that is not on the medium yet.
    disk.sync_directory(directory)
    return sorted(firsts)


def remove_segment(files: OpenFiles, directory: str, first: int) -> None:
    """Durable when it returns. The data file is removed first: opening the directory removes what a crash leaves of the others."""
    names = set(files.disk.list(directory))
    for kind in (DATA, INDEX, TIMES):
        path = segment_path(directory, first, kind)
        if path.rpartition("/")[2] in names:
            files.disk.remove(path)
        files.forget(path)  # after the removal: a file reopened in between would keep the space
    files.disk.sync_directory(directory)


# ---- closed segments ---------------------------------------------------------------------------------------------------------------------------


def has_right_sizes(disk: Disk, directory: str, first: int, following: int) -> bool:
    """Whether the sizes of a closed segment's files are possible."""
    count = following - first
    index, data = (_size(disk, segment_path(directory, first, kind)) for kind in (INDEX, DATA))
    return index == FILE_HEADER_BYTES + 8 * count and data >= FILE_HEADER_BYTES + RECORD_OVERHEAD_BYTES * count


def _size(disk: Disk, path: str) -> int:
    """-1 if there is no such file."""
    if not disk.exists(path):
        return -1
    file = disk.open(path, "read")
    try:
        return file.size()
    finally:
        file.close()


def repair_closed_index(files: OpenFiles, directory: str, key: UUID, partition: int, first: int, following: int) -> None:
    """Rebuilds the index of a closed segment and replaces the old one, concurrently with readers. Raises `CorruptData` if the data is damaged; the
    old index then stays."""
    where = segment_path(directory, first, DATA)
    data = files.reading(where)
    header = read_header(data, key, partition, first, where)
    path = segment_path(directory, first, INDEX)
    put_file(files.disk, f"{path}.new", header.to_bytes())
    index = files.disk.open(f"{path}.new", "write")
    try:
        scan = Scan(data, where, partition, next_id=first, offset=FILE_HEADER_BYTES, end=data.size(), last=following - 1)
        _rewrite(index, scan, first)
        if scan.damage is not None:
            raise scan.damage
        if scan.next_id != following:
            reason = f"ends before the next segment: next_transaction_id={scan.next_id}"
            raise CorruptData(where=where, offset=scan.offset, transaction_id=scan.next_id, reason=reason)
        index.sync()
    except BaseException:
        files.disk.remove(f"{path}.new")
        raise
    finally:
        index.close()
    files.disk.rename(f"{path}.new", path)
    files.disk.sync_directory(directory)
    files.forget(path)
    log.warning("index of a closed segment rebuilt", file=path, transactions=following - first)


def _rewrite(index: DiskFile, scan: Scan, first: int) -> None:
    """Runs the scan and writes the entries that differ from the index."""
    next_id = scan.next_id
    for offsets in scan.run():
        place = FILE_HEADER_BYTES + 8 * (next_id - first)
        entries = offsets.astype(">i8").tobytes()
        if index.read(place, len(entries)) != entries:
            index.write(place, entries)
        next_id += len(offsets)


# ---- the last segment --------------------------------------------------------------------------------------------------------------------------


def open_last(files: OpenFiles, directory: str, key: UUID, partition: int, first: int, known_good: int) -> ActiveSegment:
    """The last segment, ready for appends. `known_good`: every record up to this id must be intact. Raises `CorruptData` if one is not."""
    where = segment_path(directory, first, DATA)
    try:
        data = files.writing(where)
        header = read_header(data, key, partition, first, where)
        index = _open_or_create(files, directory, header, INDEX)
        times = _open_or_create(files, directory, header, TIMES)
        # Before the index lists any of it: a killed process may have left records in the page cache only.
        data.sync()
        scan = _scanned(data, index, where, header, known_good)
        allocated = data.size()
        if scan.damage is not None and not _is_unwritten(data, scan.offset, allocated):
            log.warning("dropping a torn tail", file=where, offset=scan.offset, dropped_bytes=allocated - scan.offset, found=scan.damage.reason)
            data.truncate(scan.offset)
            allocated = scan.offset
        index_end = FILE_HEADER_BYTES + 8 * (scan.next_id - first)
        if index.size() != index_end:
            index.truncate(index_end)
        times_end = SegmentTimes(times, header.creation_time_ms).end(scan.next_id - 1)
        if times.size() != times_end:
            times.truncate(times_end)
        for file in (data, index, times):
            file.sync()
        return ActiveSegment(header, data, index, times, next_id=scan.next_id, size=scan.offset, times_end=times_end, allocated=allocated)
    except BaseException:
        for kind in KINDS:
            files.forget(segment_path(directory, first, kind))
        raise


def _open_or_create(files: OpenFiles, directory: str, header: SegmentHeader, kind: str) -> PooledFile:
    """A side file, recreated if it is missing or its header is not this segment's."""
    path = segment_path(directory, header.first_transaction_id, kind)
    if files.disk.exists(path):
        file = files.writing(path)
        try:
            read_header(file, header.cluster_key, header.partition, header.first_transaction_id, path)
            return file
        except WaltzError as error:
            log.warning("side file rebuilt", file=path, error=str(error))
    create_files(files.disk, directory, header, (kind,))
    return files.writing(path)


def _scanned(data: DiskFile, index: DiskFile, where: str, header: SegmentHeader, known_good: int) -> Scan:
    first, size = header.first_transaction_id, data.size()
    entries = _credible_entries(index)
    known_good = max(known_good, first + entries - 1)
    checkpoint = (first + entries - 1) // CHECKPOINT_TRANSACTIONS * CHECKPOINT_TRANSACTIONS

    def scanned_from(next_id: int, offset: int) -> Scan:
        scan = Scan(data, where, header.partition, next_id=next_id, offset=offset, end=size)
        with allocating_space():
            _rewrite(index, scan, first)
        return scan

    if checkpoint > first:
        scan = scanned_from(checkpoint, int.from_bytes(index.read(FILE_HEADER_BYTES + 8 * (checkpoint - first), 8), "big"))
        if scan.next_id > known_good:
            return scan
        # The entry of the checkpoint itself may be wrong: scan the whole segment.
    scan = scanned_from(first, FILE_HEADER_BYTES)
    if scan.next_id > known_good:
        return scan
    raise scan.damage or CorruptData(
        where=where, offset=scan.offset, transaction_id=scan.next_id, reason=f"acknowledged transactions are missing: known_good={known_good}"
    )


def _credible_entries(index: DiskFile) -> int:
    """How many entries from the first on can be right. Some may be missing after a crash of the machine: pages reach the medium in any order."""
    count, before = 0, FILE_HEADER_BYTES - RECORD_OVERHEAD_BYTES
    while raw := index.read(FILE_HEADER_BYTES + 8 * count, 8 * INDEX_CHUNK_ENTRIES):
        entries = np.frombuffer(raw[: len(raw) // 8 * 8], dtype=">i8").astype(np.int64)
        credible = np.diff(entries, prepend=before) >= RECORD_OVERHEAD_BYTES
        if not count and len(entries):
            credible[0] = entries[0] == FILE_HEADER_BYTES
        wrong = np.flatnonzero(~credible)
        if len(wrong) or len(entries) < INDEX_CHUNK_ENTRIES:
            return count + (int(wrong[0]) if len(wrong) else len(entries))
        count, before = count + len(entries), int(entries[-1])
    return count


def _is_unwritten(data: DiskFile, offset: int, end: int) -> bool:
    while (offset := skip_hole(data, offset, 1)) < end:
        chunk = data.read(offset, min(CHUNK_BYTES, end - offset))
        if chunk != bytes(len(chunk)):
            return False
        offset += len(chunk)
    return True
