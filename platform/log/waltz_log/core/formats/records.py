"""One transaction record: the pair of functions between a transaction and its bytes (On-Disk Data Structures, Transaction Record).

    long transaction id | int client id | int generation | int partition id | int sequence | int header | int data length | int crc32(data)
    | data | int crc32(of the 36 bytes before the data, and the data)

Big-endian. The client encodes a record once, with id zero; these bytes then travel and rest unchanged but for the id and the closing checksum, which
the partition's owner patches (`columns.assign_ids`). Whole blocks are the business of `columns`; here is one record, without numpy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count, repeat
from typing import NamedTuple

from waltz_log.core.formats.crc import crc32
from waltz_log.core.formats.record_layout import CHECKSUM, DATA_LENGTH, HEADER, HEADER_BYTES, RECORD_OVERHEAD_BYTES
from waltz_log.errors import CorruptData

__all__ = ["Record", "decode_record", "encode_record", "encode_records", "measure_records"]

_pack_header = HEADER.pack
_pack_checksum = CHECKSUM.pack


class Record(NamedTuple):
    transaction_id: int
    client_id: int
    generation: int
    partition: int
    sequence: int
    header: int
    data: bytes


def encode_record(client_id: int, generation: int, partition: int, sequence: int, header: int, data: bytes, transaction_id: int = 0) -> bytes:
    """The record's bytes. `struct.error` where a number does not fit its field; callers check what users give before."""
    start = _pack_header(transaction_id, client_id, generation, partition, sequence, header, len(data), crc32(data))
    return b"".join((start, data, _pack_checksum(crc32(data, crc32(start)))))


def encode_records(
    client_id: int, generation: int, partition: int, first_sequence: int, headers: Iterable[int], bodies: Sequence[bytes | memoryview]
) -> bytes:
    """The records of a frame back to back, ids zero, sequences from `first_sequence`: what `encode_record` gives for each, in less than half the
    time. `headers`: one for each record."""
    # Column by column with `map`, because a loop in Python would be a fifth slower.
    fixed = (repeat(0), repeat(client_id), repeat(generation), repeat(partition))
    starts = [*map(_pack_header, *fixed, count(first_sequence), headers, map(len, bodies), map(crc32, bodies))]
    parts: list[bytes | memoryview] = [b""] * (3 * len(bodies))
    parts[::3] = starts
    parts[1::3] = bodies
    parts[2::3] = map(_pack_checksum, map(crc32, bodies, map(crc32, starts)))
    return b"".join(parts)


def decode_record(buffer: bytes | bytearray | memoryview, offset: int = 0) -> tuple[Record, int]:
    """The record at `offset` and the offset after it. Raises `CorruptData` if it is cut off or either checksum does not match."""
    here = len(buffer) - offset
    if here < RECORD_OVERHEAD_BYTES:
        raise _corrupt(offset, -1, f"cut off: bytes={here}")
    transaction_id, client_id, generation, partition, sequence, header, data_length, data_checksum = HEADER.unpack_from(buffer, offset)
    if not 0 <= data_length <= here - RECORD_OVERHEAD_BYTES:
        raise _corrupt(offset, transaction_id, f"cut off or bad length: bytes={here} data_length={data_length}")
    start = offset + HEADER_BYTES
    end = start + data_length
    data = bytes(memoryview(buffer)[start:end])
    if crc32(data) != data_checksum:
        raise _corrupt(offset, transaction_id, "data checksum does not match")
    if crc32(data, crc32(memoryview(buffer)[offset:start])) != CHECKSUM.unpack_from(buffer, end)[0]:
        raise _corrupt(offset, transaction_id, "record checksum does not match")
    return Record(transaction_id, client_id, generation, partition, sequence, header, data), end + 4


def _corrupt(offset: int, transaction_id: int, reason: str) -> CorruptData:
    return CorruptData(where="record", offset=offset, transaction_id=transaction_id, reason=reason)


def measure_records(buffer: bytes | memoryview) -> tuple[list[int], int]:
    """The lengths of the whole records at the start of a buffer, read from their headers, and where the first incomplete record starts. Checks
    nothing else: the bytes may still be corrupt."""
    lengths: list[int] = []
    size = len(buffer)
    start = 0
    unpack = DATA_LENGTH.unpack_from
    while start + RECORD_OVERHEAD_BYTES <= size:
        (data_length,) = unpack(buffer, start)
        end = start + RECORD_OVERHEAD_BYTES + data_length
        if data_length < 0 or end > size:
            break
        lengths.append(end - start)
        start = end
    return lengths, start
