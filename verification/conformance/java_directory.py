"""A storage directory as Java Waltz 0.13 writes it, to test migration. It is built byte by byte from the layout, without our codecs. It has what the
original writes: 76-byte control entries, no times, and an index whose header was made a moment after that of the data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import pack
from uuid import UUID
from zlib import crc32

from waltz_log.core.ports import Disk

__all__ = ["java_control_file", "java_record", "java_struct", "write_java_directory"]

FLAGS_AVAILABLE_AND_ASSIGNED = 5


def java_struct(session: int, low_water_mark: int, local_low_water_mark: int, sequence: int, flags: int = FLAGS_AVAILABLE_AND_ASSIGNED) -> bytes:
    body = pack(">qqqii", session, low_water_mark, local_low_water_mark, flags, sequence)
    return body + pack(">I", crc32(body))


def java_control_file(key: UUID, created_ms: int, entries: Sequence[tuple[bytes, bytes]]) -> bytes:
    header = pack(">iq", 0, created_ms) + key.bytes + pack(">i", len(entries)) + bytes(96)
    return header + b"".join(pack(">i", partition) + first + second for partition, (first, second) in enumerate(entries))


def java_record(transaction_id: int, partition: int, data: bytes, *, header: int = 0, client_id: int = 1, generation: int = 1) -> bytes:
    start = pack(">qiiiiiiI", transaction_id, client_id, generation, partition, transaction_id & 0x7FFFFFFF, header, len(data), crc32(data))
    return start + data + pack(">I", crc32(start + data))


def write_java_directory(
    disk: Disk,
    key: UUID,
    entries: Sequence[tuple[bytes, bytes]],
    partitions: Mapping[int, Sequence[Sequence[bytes]]],
    *,
    created_ms: int = 1_600_000_000_000,
) -> None:
    """`partitions`: for each, its segments, each a list of records' data. Ids begin at 0. Everything is on the medium when it returns."""
    _put(disk, "waltz-storage.ctl", java_control_file(key, created_ms, entries))
    for partition, segments in partitions.items():
        disk.make_directory(str(partition))
        first = 0
        for segment in segments:
            records = [java_record(first + place, partition, data, header=place) for place, data in enumerate(segment)]
            rest = key.bytes + pack(">iq", partition, first) + bytes(88)
            offsets, end = [], 128
            for record in records:
                offsets.append(end)
                end += len(record)
            _put(disk, f"{partition}/{first:019d}.seg", pack(">iq", 0, created_ms + first) + rest + b"".join(records))
            _put(disk, f"{partition}/{first:019d}.idx", pack(">iq", 0, created_ms + first + 1) + rest + pack(f">{len(offsets)}q", *offsets))
            first += len(segment)
        disk.sync_directory(str(partition))
    disk.sync_directory("")


def _put(disk: Disk, path: str, content: bytes) -> None:
    file = disk.open(path, "create")
    file.write(0, content)
    file.sync()
    file.close()
