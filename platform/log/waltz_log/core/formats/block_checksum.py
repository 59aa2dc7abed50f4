"""One checksum over a whole block, from the owner that verified its records to the replicas that store it.

When a client's frame arrives, the owner verifies both checksums of every record and assigns the ids. In the same step it computes the checksum of the
block. A replica verifies this one in a single pass over the bytes. Verifying every record again cost a storage node a sixth of its processor time. A
block without a checksum, such as one that is copied from another replica, is verified record by record. The records keep their own checksums, which
every reader verifies (docs/decisions, 44).
"""

from __future__ import annotations

from struct import Struct

from waltz_log.core.formats.block import Block
from waltz_log.core.formats.columns import shortest_and_sum, verify_records
from waltz_log.core.formats.crc import crc32
from waltz_log.core.formats.record_layout import ID_AND_PARTITION, RECORD_OVERHEAD_BYTES
from waltz_log.errors import CorruptData

__all__ = ["block_checksum", "verify_block"]

_ID_AND_TIME = Struct(">qq")


def block_checksum(first_transaction_id: int, lengths: bytes, records: bytes, append_time_ms: int) -> int:
    """CRC-32 of the id and the time (i8 each, big-endian), the lengths and the records, in this order."""
    return crc32(records, crc32(lengths, crc32(_ID_AND_TIME.pack(first_transaction_id, append_time_ms))))


def verify_block(block: Block, partition: int, where: str) -> None:
    """Raises `CorruptData` unless the checksum is that of the block, the lengths add up to the bytes of the records, and the first and last record
    have the expected ids and partition. A block without a checksum is verified by `verify_records`."""
    first, lengths, records = block.first_transaction_id, block.lengths, block.records
    if not block.checksum:
        verify_records(records, lengths, first_transaction_id=first, partition=partition, where=where)
        return
    found = block_checksum(first, lengths, records, block.append_time_ms)
    if found != block.checksum:
        raise CorruptData(where=where, offset=0, transaction_id=first, reason=f"block checksum does not match: found={found} sent={block.checksum}")
    if not lengths or len(lengths) % 4:
        raise CorruptData(where=where, offset=0, transaction_id=first, reason=f"lengths are cut off: bytes={len(lengths)}")
    shortest, total = shortest_and_sum(lengths)
    if shortest < RECORD_OVERHEAD_BYTES or total != len(records):
        raise CorruptData(where=where, offset=0, transaction_id=first, reason=f"bad lengths: shortest={shortest} sum={total} bytes={len(records)}")
    last_start = total - int.from_bytes(lengths[-4:], "big")
    for start, expected in ((0, first), (last_start, block.last_transaction_id)):
        transaction_id, found_partition = ID_AND_PARTITION.unpack_from(records, start)
        if (transaction_id, found_partition) != (expected, partition):
            reason = f"unexpected record: id={transaction_id} partition={found_partition} expected_id={expected} expected_partition={partition}"
            raise CorruptData(where=where, offset=start, transaction_id=expected, reason=reason)
