"""`python -m benchmarks.decoding`: decodes a block of a feed with the client's loop, and with numpy, which an application does not install. Both
verify every record. The benchmark checks that both return the same transactions. Processor time of one core, the best of several turns, in ns a
transaction.
"""

from __future__ import annotations

import struct
import sys
import time
from collections.abc import Callable
from zlib import crc32

from waltz_log.client import Transaction
from waltz_log.client.feed.decode_feed import decode_block
from waltz_log.core.formats import columns
from waltz_log.core.formats.record_layout import HEADER_BYTES
from waltz_log.transport import waltz_pb2 as pb

__all__ = ["decode_with_numpy", "made_block", "main"]

BLOCKS = ((1, 100), (16, 100), (100, 100), (1000, 100), (4000, 100), (4000, 1000))
"""Transactions, and bytes of each."""

TURNS, TRANSACTIONS_A_TURN = 9, 8000

_HEADER, _CHECKSUM = struct.Struct(">qiiiiiiI"), struct.Struct(">I")


def made_block(count: int, data_bytes: int) -> pb.Block:
    records = []
    for number in range(count):
        data = number.to_bytes(8, "big") * (data_bytes // 8) + bytes(data_bytes % 8)
        signed = _HEADER.pack(number, 1, 1, 0, number, 7, len(data), crc32(data)) + data
        records.append(signed + _CHECKSUM.pack(crc32(signed)))
    lengths = struct.pack(f">{count}i", *map(len, records))
    return pb.Block(first_transaction_id=0, append_time_ms=1, lengths=lengths, records=b"".join(records))


def decode_with_numpy(block: pb.Block) -> list[Transaction]:
    records, time_ms = block.records, block.append_time_ms
    columns.verify_records(records, block.lengths, first_transaction_id=0, partition=0, where="benchmark")
    headers = columns.headers_array(records, block.lengths)
    offsets = columns.offsets_array(block.lengths).tolist()
    fields = [headers[name].tolist() for name in ("transaction_id", "header", "client_id", "generation", "sequence")]
    new = tuple.__new__
    return [
        new(Transaction, (transaction_id, time_ms, header, records[start + HEADER_BYTES : end - 4], client_id, generation, sequence))
        for transaction_id, header, client_id, generation, sequence, start, end in zip(*fields, offsets, offsets[1:], strict=False)
    ]


def spent_ns(decode: Callable[[], object], transactions: int) -> float:
    rounds = max(1, TRANSACTIONS_A_TURN // transactions)
    started_ns = time.process_time_ns()
    for _ in range(rounds):
        decode()
    return (time.process_time_ns() - started_ns) / rounds / transactions


def main() -> int:
    print(f"{'transactions':>12} {'bytes':>6} {'loop':>8} {'numpy':>8}   ns a transaction")
    for count, data_bytes in BLOCKS:
        block = made_block(count, data_bytes)
        assert decode_block(block, 0) == decode_with_numpy(block)
        turns = [(spent_ns(lambda: decode_block(block, 0), count), spent_ns(lambda: decode_with_numpy(block), count)) for _ in range(TURNS)]  # noqa: B023
        loop_ns, numpy_ns = (min(values) for values in zip(*turns, strict=True))
        print(f"{count:>12} {data_bytes:>6} {loop_ns:>8.0f} {numpy_ns:>8.0f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
