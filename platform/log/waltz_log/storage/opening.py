"""Opens the files of a partition after nobody watched them: what is there, what is torn, what is corrupt (docs/formats.md).

The rules, in order:
1. Leftovers of a roll (temporary files, an index or times without data) are removed.
2. Closed segments are trusted as they are; only the size of an index is compared, and a wrong one is made again from the data.
3. The last segment is scanned from the last checkpoint its index tells. A record the index knows of was acknowledged: one that is not whole *below*
   that, or below the local low-water mark, is corruption and stops the partition; nothing is cut away.
4. What is not whole above that is the torn tail of an append nobody was told of: dropped, with a logged line.
5. What was found is synced before anybody is told of it: a killed process may have left it in the page cache only.
"""

from __future__ import annotations

from uuid import UUID

import numpy as np
import structlog
from numpy.typing import NDArray

from waltz_log.core.block import RECORD_OVERHEAD_BYTES
from waltz_log.core.ports import Disk, DiskFile
from waltz_log.core.segment_format import CHECKPOINT_TRANSACTIONS, DATA, FILE_HEADER_BYTES, INDEX, TIMES, SegmentHeader, first_id_of
from waltz_log.errors import CorruptData, WaltzError
from waltz_log.storage.scan import Scan
from waltz_log.storage.segment import ActiveSegment, create_files, read_header, read_times, segment_path

__all__ = ["open_last", "remove_leftovers", "repair_closed_index"]

log = structlog.get_logger(__name__)


def remove_leftovers(disk: Disk, directory: str) -> list[int]:
    """The first ids of the segments that are there, in order, once what a crash left of others is gone."""
    names = disk.list(directory)
    firsts = [first for name in names if (first := first_id_of(name, DATA)) is not None]
    known = set(firsts)
    leftovers = [name for name in names if name.endswith(".new")]
    for kind in (INDEX, TIMES):
        leftovers += [name for name in names if (first := first_id_of(name, kind)) is not None and first not in known]
    for name in leftovers:
        log.warning("removing what a crash left of a segment", file=f"{directory}/{name}")
        disk.remove(f"{directory}/{name}")
    # Also without leftovers: a process that was killed between a rename or removal and its sync left names that the medium does not have yet.
    disk.sync_directory(directory)
    return sorted(firsts)


def repair_closed_index(disk: Disk, directory: str, key: UUID, partition: int, first: int, following: int) -> None:
    """Makes the index of a closed segment again where its size is wrong. Raises `CorruptData` where the data does not hold what it must."""
    path = segment_path(directory, first, INDEX)
    expected = FILE_HEADER_BYTES + 8 * (following - first)
    if disk.exists(path):
        file = disk.open(path, "read")
        try:
            if file.size() == expected:
                return
        finally:
            file.close()
    where = segment_path(directory, first, DATA)
    data = disk.open(where, "read")
    try:
        header = read_header(data, key, partition, first, where)
        index = _open_or_create(disk, directory, header, INDEX)
        try:
            scan = Scan(data, where, partition, next_id=first, offset=FILE_HEADER_BYTES, end=data.size())
            _rewrite(index, scan, first)
            if scan.damage is not None:
                raise scan.damage
            if scan.next_id != following:
                reason = f"ends before the next segment: next_transaction_id={scan.next_id}"
                raise CorruptData(where=where, offset=scan.offset, transaction_id=following - 1, reason=reason)
            index.truncate(expected)
            index.sync()
        finally:
            index.close()
    finally:
        data.close()
    log.warning("made the index of a closed segment again", file=path, transactions=following - first)


def _open_or_create(disk: Disk, directory: str, header: SegmentHeader, kind: str) -> DiskFile:
    """A side file, made anew where it is missing or its header is not this segment's."""
    path = segment_path(directory, header.first_transaction_id, kind)
    if disk.exists(path):
        file = disk.open(path, "write")
        try:
            read_header(file, header.cluster_key, header.partition, header.first_transaction_id, path)
            return file
        except WaltzError as error:
            log.warning("side file is unusable and made again", file=path, error=str(error))
            file.close()
    create_files(disk, directory, header, (kind,))
    return disk.open(path, "write")


def _rewrite(index: DiskFile, scan: Scan, first: int) -> None:
    """Runs the scan and writes the entries it finds where the index has others."""
    next_id = scan.next_id
    for offsets in scan.run():
        place = FILE_HEADER_BYTES + 8 * (next_id - first)
        entries = offsets.astype(">i8").tobytes()
        if index.read(place, len(entries)) != entries:
            index.write(place, entries)
        next_id += len(offsets)


def open_last(disk: Disk, directory: str, key: UUID, partition: int, first: int, known_good: int) -> ActiveSegment:
    """The last segment, ready to be appended to. `known_good`: every record up to this id must be whole. Raises `CorruptData` where one is not."""
    where = segment_path(directory, first, DATA)
    data = disk.open(where, "write")
    opened = [data]
    try:
        header = read_header(data, key, partition, first, where)
        index = _open_or_create(disk, directory, header, INDEX)
        opened.append(index)
        times_file = _open_or_create(disk, directory, header, TIMES)
        opened.append(times_file)
        scan = _scanned(data, index, where, header, known_good)
        if scan.damage is not None:
            log.warning("dropping a torn tail", file=where, offset=scan.offset, dropped_bytes=data.size() - scan.offset, found=scan.damage.reason)
            data.truncate(scan.offset)
        index_end = FILE_HEADER_BYTES + 8 * (scan.next_id - first)
        if index.size() != index_end:
            index.truncate(index_end)
        times, times_end = read_times(times_file, header, scan.next_id - 1)
        if times_file.size() != times_end:
            times_file.truncate(times_end)
        for file in opened:
            file.sync()
        return ActiveSegment(header, data, index, times_file, next_id=scan.next_id, size=scan.offset, times=times, times_end=times_end)
    except BaseException:
        for file in opened:
            file.close()
        raise


def _scanned(data: DiskFile, index: DiskFile, where: str, header: SegmentHeader, known_good: int) -> Scan:
    first, size = header.first_transaction_id, data.size()
    told = _credible_entries(index)
    known_good = max(known_good, first + len(told) - 1)
    checkpoint = (first + len(told) - 1) // CHECKPOINT_TRANSACTIONS * CHECKPOINT_TRANSACTIONS
    starts = [(checkpoint, int(told[checkpoint - first]))] if checkpoint > first else []
    for next_id, offset in [*starts, (first, FILE_HEADER_BYTES)]:
        scan = Scan(data, where, header.partition, next_id=next_id, offset=offset, end=size)
        _rewrite(index, scan, first)
        if scan.next_id > known_good:
            return scan
        # The entry of the checkpoint itself may be what is wrong: the whole segment tells.
    raise scan.damage or CorruptData(
        where=where, offset=scan.offset, transaction_id=scan.next_id, reason=f"acknowledged transactions are missing: known_good={known_good}"
    )


def _credible_entries(index: DiskFile) -> NDArray[np.int64]:
    """The entries from the first on that can be true. Some may be missing after a crash of the machine: pages reach the medium in any order."""
    raw = index.read(FILE_HEADER_BYTES, index.size() - FILE_HEADER_BYTES)
    entries = np.frombuffer(raw[: len(raw) // 8 * 8], dtype=">i8").astype(np.int64)
    expected_first = np.concatenate([np.array([FILE_HEADER_BYTES - RECORD_OVERHEAD_BYTES], dtype=np.int64), entries])
    credible = np.diff(expected_first) >= RECORD_OVERHEAD_BYTES
    if len(entries):
        credible[0] = entries[0] == FILE_HEADER_BYTES
    wrong = np.flatnonzero(~credible)
    return entries[: int(wrong[0])] if len(wrong) else entries
