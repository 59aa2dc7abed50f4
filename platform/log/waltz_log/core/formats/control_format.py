"""The bytes of a storage directory's two small files.

`waltz-storage.ctl` is the documented control file (On-Disk Data Structures, Control File): a header, then for each partition its number and
two structs that are written alternately, so that a torn write costs the newer struct and never both.

`waltz-storage.fence` is ours: the same header, then pairs of (long value, int crc32) that are written one after the other: first how often the
directory was started, then for each partition the newest store session ever seen. It is a separate file, because the control file holds the session
in which the replica was last made clean, and that is not the number that fences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final, TypeVar
from uuid import UUID

from waltz_log.core.formats.crc import crc32
from waltz_log.errors import CorruptData

__all__ = [
    "CONTROL_FILE",
    "CONTROL_HEADER_BYTES",
    "COUNTER_BYTES",
    "ENTRY_BYTES",
    "FENCE_FILE",
    "MARK_BYTES",
    "ControlHeader",
    "SessionMark",
    "counter_offset",
    "decode_counter",
    "decode_mark",
    "encode_counter",
    "encode_entry",
    "encode_mark",
    "mark_offset",
    "newest",
]

CONTROL_FILE: Final = "waltz-storage.ctl"
FENCE_FILE: Final = "waltz-storage.fence"
CONTROL_HEADER_BYTES: Final = 128
MARK_BYTES: Final = 28
ENTRY_BYTES: Final = 4 + 2 * MARK_BYTES
COUNTER_BYTES: Final = 12

_HEADER = Struct(">iq16si96x")
_NUMBER = Struct(">i")
_MARK = Struct(">qqq")
_COUNTER = Struct(">q")
_CHECKSUM = Struct(">I")


@dataclass(frozen=True, slots=True)
class ControlHeader:
    creation_time_ms: int
    cluster_key: UUID
    partitions: int

    def to_bytes(self) -> bytes:
        return _HEADER.pack(0, self.creation_time_ms, self.cluster_key.bytes, self.partitions)

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> ControlHeader:
        if len(data) < CONTROL_HEADER_BYTES:
            raise CorruptData(where=where, offset=0, transaction_id=-1, reason=f"header is cut off: bytes={len(data)}")
        version, created, key, partitions = _HEADER.unpack_from(data)
        if version != 0 or partitions < 0:
            raise CorruptData(where=where, offset=0, transaction_id=-1, reason=f"unusable header: version={version} partitions={partitions}")
        return cls(created, UUID(bytes=key), partitions)


@dataclass(frozen=True, slots=True, order=True)
class SessionMark:
    """What a replica remembers of the last session it was made clean in. Ordered by age: later sessions are larger, and later marks within one."""

    session: int = -1
    low_water_mark: int = -1
    local_low_water_mark: int = -1


def encode_mark(mark: SessionMark) -> bytes:
    body = _MARK.pack(mark.session, mark.low_water_mark, mark.local_low_water_mark)
    return body + _CHECKSUM.pack(crc32(body))


def decode_mark(data: bytes) -> SessionMark | None:
    """None if it is cut off or its checksum does not match."""
    if len(data) != MARK_BYTES or crc32(data[:24]) != _CHECKSUM.unpack_from(data, 24)[0]:
        return None
    return SessionMark(*_MARK.unpack_from(data))


def encode_entry(partition: int, mark: SessionMark) -> bytes:
    """A whole entry with both structs the same."""
    return _NUMBER.pack(partition) + 2 * encode_mark(mark)


def mark_offset(partition: int, which: int) -> int:
    return CONTROL_HEADER_BYTES + partition * ENTRY_BYTES + 4 + which * MARK_BYTES


def encode_counter(value: int) -> bytes:
    body = _COUNTER.pack(value)
    return body + _CHECKSUM.pack(crc32(body))


def decode_counter(data: bytes) -> int | None:
    if len(data) != COUNTER_BYTES or crc32(data[:8]) != _CHECKSUM.unpack_from(data, 8)[0]:
        return None
    return int(_COUNTER.unpack_from(data)[0])


def counter_offset(slot: int, which: int) -> int:
    return CONTROL_HEADER_BYTES + (2 * slot + which) * COUNTER_BYTES


T = TypeVar("T", SessionMark, int)


def newest(pair: Sequence[T | None]) -> tuple[T, int] | None:
    """The current value of an alternating pair and which of the two holds it; None if neither is valid."""
    valid = [(value, which) for which, value in enumerate(pair) if value is not None]
    return max(valid, key=lambda found: found[0]) if valid else None
