"""Shows the content of a segment's files, entry by entry, without deciding whether it is right (`verify` does that). Changes nothing.

Everything is an iterator over bounded reads, so that a range of any size can be shown. A record whose checksums do not match is shown as damaged. If
its length is not credible, the scan continues at the next offset in the index.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Final

from waltz_log.core.formats.closing_checksum import closing_without_data
from waltz_log.core.formats.crc import crc32
from waltz_log.core.formats.record_layout import HEADER, HEADER_BYTES, RECORD_OVERHEAD_BYTES
from waltz_log.core.formats.segment_format import DATA, FILE_HEADER_BYTES, INDEX, TIME_ENTRY_BYTES, TIMES, SegmentHeader
from waltz_log.core.ports import Disk, DiskFile
from waltz_log.errors import OutOfRange
from waltz_log.storage.segments.scan import RECORD_BYTES_MAX
from waltz_log.storage.segments.segment import segment_path

__all__ = ["IndexEntry", "StoredRecord", "TimeEntry", "dump_index", "dump_records", "dump_times", "read_segment_header"]

_OFFSET = Struct(">q")
_TIME = Struct(">qqI")
ENTRIES_AT_ONCE: Final = 4096


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """`damage`: what does not match, None if both checksums match. `data` is None if it was not requested; damage of it is then not found."""

    offset: int
    transaction_id: int
    client_id: int
    generation: int
    partition: int
    sequence: int
    header: int
    data_length: int
    data: bytes | None
    damage: str | None


@dataclass(frozen=True, slots=True)
class IndexEntry:
    place: int
    transaction_id: int
    offset: int


@dataclass(frozen=True, slots=True)
class TimeEntry:
    place: int
    first_transaction_id: int
    append_time_ms: int
    damage: str | None


def read_segment_header(disk: Disk, directory: str, first: int, kind: str = DATA) -> SegmentHeader:
    path = segment_path(directory, first, kind)
    file = disk.open(path, "read")
    try:
        return SegmentHeader.from_bytes(file.read(0, FILE_HEADER_BYTES), path)
    finally:
        file.close()


def dump_records(
    disk: Disk, directory: str, first: int, *, from_id: int | None = None, to_id: int | None = None, data: bool = True
) -> Iterator[StoredRecord]:
    """Records of the segment in order. Without `data` only the header and the closing checksum of each are read, and checked against each other.
    Raises `OutOfRange` if the segment begins above `to_id` or ends below `from_id`."""
    from_id = first if from_id is None else from_id
    path = segment_path(directory, first, INDEX)
    file = disk.open(segment_path(directory, first, DATA), "read")
    index = disk.open(path, "read") if disk.exists(path) else None
    shown = False
    position, offset = first, FILE_HEADER_BYTES
    try:
        if index is not None and from_id > first and (indexed := _indexed_offset(index, from_id - first, file.size())) is not None:
            position, offset = from_id, indexed
        size = file.size()
        while offset + RECORD_OVERHEAD_BYTES <= size and (to_id is None or position <= to_id):
            found, length = _record(file, offset, size, data and position >= from_id)
            if found.transaction_id != position and index is not None:
                # The previous length may have been wrong; the index has the right offset.
                indexed = _indexed_offset(index, position - first, size)
                if indexed is not None and indexed != offset and int.from_bytes(file.read(indexed, 8), "big", signed=True) == position:
                    offset = indexed
                    found, length = _record(file, offset, size, data and position >= from_id)
            if found.transaction_id == 0 == found.data_length and position != 0 and found.damage is not None and length == RECORD_OVERHEAD_BYTES:
                break  # preallocated space
            if position >= from_id:
                shown = True
                yield found
            position += 1
            if length is None:
                indexed = None if index is None else _indexed_offset(index, position - first, size)
                if indexed is None or indexed <= offset:
                    break
                offset = indexed
            else:
                offset += length
    finally:
        file.close()
        if index is not None:
            index.close()
    if not shown and (from_id != first or (to_id is not None and to_id < first)):
        raise OutOfRange(partition=-1, asked=from_id if to_id is None or to_id >= first else to_id, first=first, last=position - 1)


def _indexed_offset(index: DiskFile, element: int, size: int) -> int | None:
    """The record's offset according to the index; None if the entry is not credible."""
    raw = index.read(FILE_HEADER_BYTES + 8 * element, 8)
    offset = int(_OFFSET.unpack(raw)[0]) if len(raw) == 8 else -1
    return offset if FILE_HEADER_BYTES <= offset < size else None


def _record(file: DiskFile, offset: int, size: int, with_data: bool) -> tuple[StoredRecord, int | None]:
    """The record and its length, None if that is not credible."""
    raw = file.read(offset, HEADER_BYTES)
    transaction_id, client_id, generation, partition, sequence, header, data_length, data_checksum = HEADER.unpack(raw)
    length: int | None = RECORD_OVERHEAD_BYTES + data_length
    damage = data = None
    if data_length < 0 or RECORD_OVERHEAD_BYTES + data_length > min(RECORD_BYTES_MAX, size - offset):
        damage, length = f"impossible length or cut off: left={size - offset}", None
    elif with_data:
        body = file.read(offset + HEADER_BYTES, data_length + 4)
        data = body[:data_length]
        if crc32(data) != data_checksum:
            damage = "data checksum does not match"
        elif crc32(data, crc32(raw)) != int.from_bytes(body[data_length:], "big"):
            damage = "record checksum does not match"
    else:
        closing = file.read(offset + HEADER_BYTES + data_length, 4)
        if closing_without_data(raw, data_length, data_checksum) != int.from_bytes(closing, "big"):
            damage = "record checksum does not match"
    return StoredRecord(offset, transaction_id, client_id, generation, partition, sequence, header, data_length, data, damage), length


def dump_index(disk: Disk, directory: str, first: int, *, from_id: int | None = None, to_id: int | None = None) -> Iterator[IndexEntry]:
    file = disk.open(segment_path(directory, first, INDEX), "read")
    try:
        position = max(first, from_id if from_id is not None else first)
        while to_id is None or position <= to_id:
            count = ENTRIES_AT_ONCE if to_id is None else min(ENTRIES_AT_ONCE, to_id - position + 1)
            place = FILE_HEADER_BYTES + 8 * (position - first)
            raw = file.read(place, 8 * count)
            for at in range(0, len(raw) // 8 * 8, 8):
                yield IndexEntry(place + at, position, int(_OFFSET.unpack_from(raw, at)[0]))
                position += 1
            if len(raw) < 8 * count:
                return
    finally:
        file.close()


def dump_times(disk: Disk, directory: str, first: int, *, from_id: int | None = None, to_id: int | None = None) -> Iterator[TimeEntry]:
    """Entries of blocks that begin within the range. A segment of the original has none."""
    path = segment_path(directory, first, TIMES)
    if not disk.exists(path):
        return
    file = disk.open(path, "read")
    try:
        place = FILE_HEADER_BYTES
        while raw := file.read(place, TIME_ENTRY_BYTES * ENTRIES_AT_ONCE):
            for at in range(0, len(raw) // TIME_ENTRY_BYTES * TIME_ENTRY_BYTES, TIME_ENTRY_BYTES):
                begins, time_ms, checksum = _TIME.unpack_from(raw, at)
                if (from_id is None or begins >= from_id) and (to_id is None or begins <= to_id):
                    whole = crc32(raw[at : at + 16]) == checksum
                    yield TimeEntry(place + at, begins, time_ms, None if whole else "checksum does not match")
            place += len(raw)
    finally:
        file.close()
