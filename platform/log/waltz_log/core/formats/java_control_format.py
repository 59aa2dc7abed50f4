"""The bytes of the control file that Java Waltz 0.13 wrote: the documented header (`control_format`), then 76 bytes for each partition instead of 60,
because each of the two structs holds flags and a sequence number as well:

    int partition id | struct | struct        struct: long session id | long low-water mark | long local low-water mark | int flags
                                                      | int sequence number | int crc32 of the 32 bytes before

The valid struct with the larger *sequence number* is current: an original's change of flags alone rises it and leaves the session as it was.
Pure; `storage/offline/migrate.py` converts a directory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final

from waltz_log.core.formats.control_format import CONTROL_HEADER_BYTES, ENTRY_BYTES, SessionMark
from waltz_log.core.formats.crc import crc32

__all__ = ["JAVA_ENTRY_BYTES", "JavaEntry", "JavaStruct", "decode_java_entry", "encode_java_entry", "is_java_size"]

JAVA_STRUCT_BYTES: Final = 36
JAVA_ENTRY_BYTES: Final = 4 + 2 * JAVA_STRUCT_BYTES

_NUMBER = Struct(">i")
_STRUCT = Struct(">qqqii")
_CHECKSUM = Struct(">I")


@dataclass(frozen=True, slots=True)
class JavaStruct:
    mark: SessionMark
    flags: int
    sequence: int


@dataclass(frozen=True, slots=True)
class JavaEntry:
    """`structs`: None if a struct's checksum does not match."""

    partition: int
    structs: tuple[JavaStruct | None, JavaStruct | None]

    @property
    def current(self) -> JavaStruct | None:
        """None if neither is valid, or both have one sequence number and differ, which the original never writes."""
        first, second = self.structs
        if first is None or second is None:
            return first or second
        if first.sequence == second.sequence and first != second:
            return None
        return max(first, second, key=lambda found: found.sequence)


def is_java_size(size: int, partitions: int) -> bool:
    """Whether a control file of this size was written by the original. A file without partitions could be from either."""
    return partitions > 0 and size == CONTROL_HEADER_BYTES + partitions * JAVA_ENTRY_BYTES != CONTROL_HEADER_BYTES + partitions * ENTRY_BYTES


def decode_java_entry(data: bytes) -> JavaEntry:
    """Raises `ValueError` unless there are exactly the bytes of one entry."""
    if len(data) != JAVA_ENTRY_BYTES:
        raise ValueError(f"an entry has {JAVA_ENTRY_BYTES} bytes, not {len(data)}")
    structs = [_decode_struct(data[start : start + JAVA_STRUCT_BYTES]) for start in (4, 4 + JAVA_STRUCT_BYTES)]
    return JavaEntry(_NUMBER.unpack_from(data)[0], (structs[0], structs[1]))


def _decode_struct(data: bytes) -> JavaStruct | None:
    if crc32(data[:32]) != _CHECKSUM.unpack_from(data, 32)[0]:
        return None
    session, low_water_mark, local_low_water_mark, flags, sequence = _STRUCT.unpack_from(data)
    return JavaStruct(SessionMark(session, low_water_mark, local_low_water_mark), flags, sequence)


def _encode_struct(struct: JavaStruct) -> bytes:
    mark = struct.mark
    body = _STRUCT.pack(mark.session, mark.low_water_mark, mark.local_low_water_mark, struct.flags, struct.sequence)
    return body + _CHECKSUM.pack(crc32(body))


def encode_java_entry(partition: int, structs: Sequence[JavaStruct]) -> bytes:
    return _NUMBER.pack(partition) + b"".join(_encode_struct(struct) for struct in structs)
