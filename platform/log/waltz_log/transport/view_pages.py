"""Pages of a compacted view, each way: records as columns in one message (waltz.proto, ReadViewResponse). Imports nothing heavy.

A page carries the checksum of each record as its file has it. Each receiver verifies the records before it uses one: clients, the Spark source, and a
storage node that loads another one's view. The owner, which forwards pages between storage nodes, does not change them.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import error as StructError
from struct import pack, unpack

from waltz_log.core.formats.wal_records import WalRecord, wal_checksum
from waltz_log.errors import CorruptData, ProtocolViolation
from waltz_log.transport import waltz_pb2 as pb

__all__ = ["decode_view_page", "encode_view_page"]


def encode_view_page(
    records: Sequence[WalRecord], checksums: Sequence[int], *, start: int, bound: int, next_transaction_id: int, done: bool
) -> pb.ReadViewResponse:
    count = len(records)
    return pb.ReadViewResponse(
        start=start,
        bound=bound,
        transaction_ids=pack(f">{count}q", *[record.transaction_id for record in records]),
        times_ms=pack(f">{count}q", *[record.time_ms for record in records]),
        headers=pack(f">{count}i", *[record.header for record in records]),
        key_lengths=pack(f">{count}i", *[len(record.key) for record in records]),
        value_lengths=pack(f">{count}i", *[len(record.value) for record in records]),
        keys=b"".join([record.key for record in records]),
        values=b"".join([record.value for record in records]),
        checksums=pack(f">{count}i", *checksums),
        next_transaction_id=next_transaction_id,
        done=done,
    )


def decode_view_page(page: pb.ReadViewResponse) -> list[WalRecord]:
    """Raises `ProtocolViolation` if the columns do not fit together, `CorruptData` if a record is not the one that its checksum belongs to."""
    found, checksums = _unverified(page)
    for at, record in enumerate(found):
        if wal_checksum(record) != checksums[at]:
            raise CorruptData(where="page of a view", offset=at, transaction_id=record.transaction_id, reason="checksum does not match")
    return found


def _unverified(page: pb.ReadViewResponse) -> tuple[list[WalRecord], Sequence[int]]:
    """Records and their checksums."""
    count = len(page.transaction_ids) // 8
    all_keys, all_values = page.keys, page.values  # once: protobuf copies a field each time that it is read
    try:
        ids, times = unpack(f">{count}q", page.transaction_ids), unpack(f">{count}q", page.times_ms)
        headers, key_lengths = unpack(f">{count}i", page.headers), unpack(f">{count}i", page.key_lengths)
        value_lengths = unpack(f">{count}i", page.value_lengths)
        checksums = unpack(f">{count}i", page.checksums)
    except StructError:
        raise ProtocolViolation(reason=f"columns of a view's page are of different lengths: records={count}") from None
    if sum(key_lengths) != len(all_keys) or sum(value_lengths) != len(all_values) or min((*key_lengths, 1)) < 1 or min((*value_lengths, 0)) < 0:
        raise ProtocolViolation(reason=f"keys or values of a view's page do not fit: records={count}")
    found: list[WalRecord] = []
    key_at = value_at = 0
    for transaction_id, time_ms, header, key_bytes, value_bytes in zip(ids, times, headers, key_lengths, value_lengths, strict=True):
        key, value = all_keys[key_at : key_at + key_bytes], all_values[value_at : value_at + value_bytes]
        found.append(WalRecord(transaction_id, time_ms, header, key, value))
        key_at, value_at = key_at + key_bytes, value_at + value_bytes
    return found, checksums
