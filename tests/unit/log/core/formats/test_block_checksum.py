from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from waltz_log.core.formats.block import Block
from waltz_log.core.formats.block_checksum import block_checksum, verify_block
from waltz_log.core.formats.columns import FEW_LENGTHS, assign_ids, slice_block
from waltz_log.core.formats.records import encode_record
from waltz_log.errors import CorruptData

FIRST, PARTITION, TIME_MS = 1_000, 3, 1_700_000_000_123
SIZES = (1, 2, 7, FEW_LENGTHS - 1, FEW_LENGTHS, FEW_LENGTHS + 40)


def block_of(count: int, partition: int = PARTITION, first: int = FIRST) -> Block:
    """As an owner makes it."""
    records = [encode_record(5, 2, partition, 9 + n, 0, bytes([n % 251]) * (n % 40), 0) for n in range(count)]
    lengths = struct.pack(f">{count}i", *map(len, records))
    return sealed(Block(first, lengths, assign_ids(b"".join(records), lengths, first), TIME_MS))


def sealed(block: Block) -> Block:
    return replace(block, checksum=block_checksum(block.first_transaction_id, block.lengths, block.records, block.append_time_ms))


def verify(block: Block) -> None:
    verify_block(block, PARTITION, where="test")


@pytest.mark.parametrize("count", SIZES)
def test_a_block_as_its_owner_made_it_is_accepted(count: int) -> None:
    verify(block_of(count))
    verify(replace(block_of(count), checksum=0))


@pytest.mark.parametrize("count", SIZES)
def test_any_changed_bit_of_records_or_lengths_is_found(count: int) -> None:
    block = block_of(count)
    for at in {0, len(block.records) // 2, len(block.records) - 1}:
        damaged = bytearray(block.records)
        damaged[at] ^= 0x10
        with pytest.raises(CorruptData, match="block checksum"):
            verify(replace(block, records=bytes(damaged)))
    for at in {0, len(block.lengths) // 2, len(block.lengths) - 1}:
        damaged = bytearray(block.lengths)
        damaged[at] ^= 0x01
        with pytest.raises(CorruptData, match="block checksum"):
            verify(replace(block, lengths=bytes(damaged)))


def test_another_id_or_append_time_is_found() -> None:
    block = block_of(4)
    with pytest.raises(CorruptData, match="block checksum"):
        verify(replace(block, append_time_ms=TIME_MS + 1))
    with pytest.raises(CorruptData, match="block checksum"):
        verify(replace(block, first_transaction_id=FIRST + 1))


@pytest.mark.parametrize("cut", [1, 4, 40])
def test_a_message_that_was_cut_is_found(cut: int) -> None:
    block = block_of(3)
    with pytest.raises(CorruptData, match="block checksum"):
        verify(replace(block, records=block.records[:-cut]))


def test_an_owner_that_computed_the_checksum_of_something_else_is_refused() -> None:
    block = block_of(3)
    with pytest.raises(CorruptData, match="lengths"):
        verify(sealed(replace(block, records=block.records + bytes(8))))
    with pytest.raises(CorruptData, match="lengths are cut off"):
        verify(sealed(replace(block, lengths=block.lengths[:-1])))
    with pytest.raises(CorruptData, match="lengths are cut off"):
        verify(sealed(replace(block, lengths=b"")))
    with pytest.raises(CorruptData, match="lengths"):
        verify(sealed(replace(block, lengths=struct.pack(">3i", 0, 0, len(block.records)))))
    with pytest.raises(CorruptData, match="unexpected record"):
        verify(sealed(replace(block, first_transaction_id=FIRST + 1)))
    with pytest.raises(CorruptData, match="unexpected record"):
        verify(block_of(3, partition=PARTITION + 1))


def test_without_a_checksum_each_record_is_verified() -> None:
    block = block_of(3)
    damaged = bytearray(block.records)
    damaged[50] ^= 1
    with pytest.raises(CorruptData, match="checksum does not match"):
        verify(replace(block, records=bytes(damaged), checksum=0))


def test_a_part_of_a_block_has_no_checksum() -> None:
    assert slice_block(block_of(5), FIRST + 1, FIRST + 3).checksum == 0
