"""Reads a replica's log for its compacted view: transactions in batches, as the fold needs them.

The segment reader verifies checksums. Blocks, and holds nothing between two batches; concurrent with appends, trimming and other readers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Final

from waltz_log.compaction import LogRecord
from waltz_log.compaction.compactor import ReadLog
from waltz_log.core.formats.block import Block
from waltz_log.core.formats.record_layout import APPLICATION_HEADER, HEADER_BYTES
from waltz_log.errors import OutOfRange, StorageFailed, WaltzError
from waltz_log.storage.segments.segment_log import SegmentLog

__all__ = ["read_log"]

BATCH_BYTES: Final = 1 << 20
_LENGTHS: Final = Struct(">i")


def read_log(log: SegmentLog) -> ReadLog:
    """Raises `OutOfRange` if the log was trimmed or truncated meanwhile, `CorruptData`, `StorageFailed`."""

    def read(first: int, end: int) -> Iterator[Sequence[LogRecord]]:
        while first < end:
            try:
                reader = log.reader(first)
                while blocks := log.read(reader, first, end - 1, BATCH_BYTES):
                    for block in blocks:
                        yield _records(block)
                    first = blocks[-1].last_transaction_id + 1
            except (OSError, WaltzError) as error:
                if first < log.first_id:
                    raise OutOfRange(partition=log.partition, asked=first, first=log.first_id, last=log.tail.last_id) from None
                if isinstance(error, OSError):
                    raise StorageFailed(partition=log.partition, reason=f"cannot read the log: {error}") from None
                raise

    return read


def _records(block: Block) -> list[LogRecord]:
    found = []
    start, time_ms, records = 0, block.append_time_ms, block.records
    for transaction_id, (length,) in enumerate(_LENGTHS.iter_unpack(block.lengths), block.first_transaction_id):
        (header,) = APPLICATION_HEADER.unpack_from(records, start)
        found.append(LogRecord(transaction_id, time_ms, header, records[start + HEADER_BYTES : start + length - 4]))
        start += length
    return found
