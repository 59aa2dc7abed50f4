"""Frames whose wrong checksums cancel: what a sender writes who chooses the bytes, and knows that CRC-32 is linear.

If the errors of several records are combined in any way that the sender can predict, such as by one CRC-32 over the whole frame, the error of one
record can be chosen such that the combination is zero. Each record by itself is unreadable.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from zlib import crc32

from waltz_log.core.formats.record_layout import HEADER_BYTES
from waltz_log.core.formats.records import decode_record
from waltz_log.errors import CorruptData

__all__ = ["canceling", "frame_of", "is_sound", "shift_bytes", "with_errors"]


def frame_of(bodies: Sequence[bytes], *, first: int | None, partition: int, client_id: int = 5, first_sequence: int = 9) -> tuple[bytes, bytes]:
    """Lengths and records, sound. `first`: the id of the first record; None: all are zero."""
    records = []
    for place, data in enumerate(bodies):
        transaction_id = 0 if first is None else first + place
        header = struct.pack(">qiiiiiiI", transaction_id, client_id, 2, partition, first_sequence + place, 7, len(data), crc32(data))
        records.append(header + data + struct.pack(">I", crc32(header + data)))
    return struct.pack(f">{len(records)}i", *map(len, records)), b"".join(records)


def shift_bytes(error: int, count: int) -> int:
    """What a difference of the register becomes after `count` bytes."""
    zeros = bytes(count)
    return crc32(zeros, error) ^ crc32(zeros)


def canceling(lengths: Sequence[int], errors: Mapping[int, int], last: int) -> dict[int, int]:
    """The errors, and that of the record `last`, behind all of theirs, with which a CRC-32 over the whole frame is as if none of them were wrong."""
    share = 0
    for place, error in errors.items():
        share ^= shift_bytes(error, sum(lengths[place + 1 : last + 1]))
    return {**errors, last: share}


def with_errors(records: bytes, lengths: Sequence[int], errors: Mapping[int, int], *, of_data: bool) -> bytes:
    """The records with these errors in their closing checksums. `of_data`: in their data checksums, below closing checksums that are right."""
    found = bytearray(records)
    for place, error in errors.items():
        start = sum(lengths[:place])
        closing = start + lengths[place] - 4
        at = start + HEADER_BYTES - 4 if of_data else closing
        struct.pack_into(">I", found, at, struct.unpack_from(">I", found, at)[0] ^ error)
        if of_data:
            struct.pack_into(">I", found, closing, crc32(bytes(found[start:closing])))
    return bytes(found)


def is_sound(records: bytes, lengths: bytes, first: int | None, partition: int) -> bool:
    """Record by record with the codec of one record: what every reader must conclude."""
    position = 0
    for place, (length,) in enumerate(struct.iter_unpack(">i", lengths)):
        try:
            record, end = decode_record(records[position : position + length])
        except CorruptData:
            return False
        if (record.transaction_id, record.partition, end) != (0 if first is None else first + place, partition, length):
            return False
        position += length
    return position == len(records)
