"""From a feed frame to transactions, one at a time and all checked: framing, both checksums, density. Pure.

Record by record with struct, so that a service that follows the log needs no numpy; bulk readers decode whole blocks
(`core.formats.columns`).
"""

from __future__ import annotations

import struct

from waltz_log.client.transactions.transaction import Transaction
from waltz_log.core.formats.closing_checksum import closing_without_data
from waltz_log.core.formats.crc import crc32
from waltz_log.core.formats.record_layout import CHECKSUM, HEADER, HEADER_BYTES, RECORD_OVERHEAD_BYTES, SEALED_HEADER, SEALED_HEADER_BYTES
from waltz_log.errors import CorruptData, ProtocolViolation
from waltz_log.transport import waltz_pb2 as pb

__all__ = ["decode_block", "decode_feed"]


def decode_feed(frame: pb.FeedFrame, partition: int, expected: int, *, data: bool) -> list[Transaction]:
    """The transactions of a frame, whose first id must be `expected`.

    Raises `ProtocolViolation` for a gap, a repeat, another partition or columns that do not fit; `CorruptData` if a checksum does not match.
    """
    found: list[Transaction] = []
    decode = _records if data else _headers
    for block in frame.blocks:
        decode(block, partition, expected + len(found), found)
    if not found:
        raise ProtocolViolation(reason=f"empty feed frame: partition={partition} expected={expected}")
    return found


def decode_block(block: pb.Block, partition: int) -> list[Transaction]:
    """The transactions of a block of whole records. Raises as `decode_feed`."""
    found: list[Transaction] = []
    _records(block, partition, block.first_transaction_id, found)
    return found


def _records(block: pb.Block, partition: int, expected: int, found: list[Transaction]) -> None:
    packed, records, time_ms = block.lengths, block.records, block.append_time_ms
    if len(packed) % 4:
        raise ProtocolViolation(reason=f"lengths are cut off: partition={partition} bytes={len(packed)}")
    view = memoryview(records)
    total = len(records)
    unpack, unpack_checksum, new = HEADER.unpack_from, CHECKSUM.unpack_from, tuple.__new__
    start = 0
    for length in struct.unpack(f">{len(packed) // 4}i", packed):
        end = start + length
        if length < RECORD_OVERHEAD_BYTES or end > total:
            raise ProtocolViolation(reason=f"record does not fit the frame: partition={partition} expected={expected} length={length}")
        transaction_id, client_id, generation, of_partition, sequence, header, data_length, checksum = unpack(records, start)
        data = records[start + HEADER_BYTES : end - 4]
        if crc32(view[start : end - 4]) != unpack_checksum(records, end - 4)[0]:
            raise _corrupt(partition, start, expected, "record checksum does not match")
        if crc32(data) != checksum:
            raise _corrupt(partition, start, expected, "data checksum does not match")
        if transaction_id != expected or of_partition != partition or data_length != length - RECORD_OVERHEAD_BYTES:
            raise _misplaced(partition, expected, transaction_id, of_partition)
        found.append(new(Transaction, (transaction_id, time_ms, header, data, client_id, generation, sequence)))
        expected += 1
        start = end
    if start != total:
        raise ProtocolViolation(reason=f"bytes after the last record: partition={partition} bytes={total - start}")


def _headers(block: pb.Block, partition: int, expected: int, found: list[Transaction]) -> None:
    sealed, time_ms = block.records, block.append_time_ms
    if len(sealed) % SEALED_HEADER_BYTES:
        raise ProtocolViolation(reason=f"headers are cut off: partition={partition} bytes={len(sealed)}")
    view = memoryview(sealed)
    start = 0
    for transaction_id, client_id, generation, of_partition, sequence, header, data_length, checksum, closing in SEALED_HEADER.iter_unpack(sealed):
        if data_length < 0 or closing_without_data(view[start : start + HEADER_BYTES], data_length, checksum) != closing:
            raise _corrupt(partition, start, expected, "record checksum does not match")
        if transaction_id != expected or of_partition != partition:
            raise _misplaced(partition, expected, transaction_id, of_partition)
        found.append(Transaction(transaction_id, time_ms, header, b"", client_id, generation, sequence))
        expected += 1
        start += SEALED_HEADER_BYTES


def _corrupt(partition: int, offset: int, expected: int, reason: str) -> CorruptData:
    return CorruptData(where=f"feed of partition {partition}", offset=offset, transaction_id=expected, reason=reason)


def _misplaced(partition: int, expected: int, transaction_id: int, of_partition: int) -> ProtocolViolation:
    return ProtocolViolation(reason=f"feed is not dense: partition={partition} expected={expected} got={transaction_id} of partition {of_partition}")
