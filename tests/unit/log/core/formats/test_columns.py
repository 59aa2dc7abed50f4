from __future__ import annotations

import struct
from collections.abc import Sequence
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waltz_log.core.formats import columns
from waltz_log.core.formats.block import Block
from waltz_log.core.formats.columns import (
    CHUNK_BYTES,
    FEW_DIFFERENT,
    FEW_LENGTHS,
    HEADER_DTYPE,
    assign_ids,
    headers_array,
    index_entries,
    lengths_array,
    offsets_array,
    senders,
    slice_block,
    verify_records,
)
from waltz_log.core.formats.crc_algebra import LOW_BITS, crc_of_words, shift
from waltz_log.core.formats.records import decode_record, encode_record
from waltz_log.core.formats.sealed_headers import seal_headers, verify_sealed_headers
from waltz_log.errors import CorruptData


def build(data: Sequence[bytes], first: int | None = None, partition: int = 3) -> tuple[bytes, bytes]:
    """Lengths and records, by the codec of single records."""
    records = [encode_record(5, 2, partition, 9 + n, n - 4, body, 0 if first is None else first + n) for n, body in enumerate(data)]
    return struct.pack(f">{len(records)}i", *map(len, records)), b"".join(records)


MANY = FEW_DIFFERENT + 4
"""Records of a block that is handled in columns."""

bodies = st.one_of(
    st.lists(st.binary(max_size=40), max_size=8),
    st.lists(st.integers(0, 70_000), min_size=FEW_DIFFERENT - 6, max_size=FEW_DIFFERENT + 14).map(
        lambda sizes: [bytes([n % 251]) * (size % 611) for n, size in enumerate(sizes)]
    ),
    st.integers(0, 300).map(lambda size: [bytes([n % 251]) * size for n in range(MANY)]),
)


@given(st.binary(max_size=64), st.integers(0, 2**20))
@settings(max_examples=50)
def test_shift_is_the_effect_of_bytes_that_follow(start: bytes, following: int) -> None:
    other = bytes(len(start)) if start != bytes(len(start)) else b"\x01" * len(start)
    tail = bytes(following)
    got = shift(np.array([crc32(start) ^ crc32(other)], dtype=np.uint32), np.array([following]))
    assert int(got[0]) == crc32(start + tail) ^ crc32(other + tail)


def test_shift_by_the_largest_count_agrees_with_two_halves() -> None:
    value = np.array([0xDEADBEEF], dtype=np.uint32)
    assert shift(shift(value, 2**31), 2**31 - 1) == shift(value, 2**32 - 1)
    assert shift(value, 0) == value
    assert shift(value, 2**31) == shift(value, np.array([2**31]))


@given(st.lists(st.binary(min_size=12, max_size=12), min_size=1, max_size=5), st.integers(0, 3))
def test_checksums_of_rows_are_those_of_zlib(rows: list[bytes], alike: int) -> None:
    rows = [rows[0][: 4 * alike] + row[4 * alike :] for row in rows]
    words = np.frombuffer(b"".join(rows), dtype=">u4").reshape(-1, 3).T.astype(np.uint32)
    assert crc_of_words(words).tolist() == [crc32(row) for row in rows]


@given(bodies, st.integers(0, 2**40))
@settings(max_examples=60)
def test_ids_are_assigned_as_if_each_record_were_encoded_again(data: list[bytes], first: int) -> None:
    lengths, records = build(data)
    assert assign_ids(records, lengths, first) == build(data, first)[1]


@pytest.mark.parametrize("size", [0, 1, 200])
@pytest.mark.parametrize("first", [1, (1 << LOW_BITS) - 3, (1 << 32) - 9, (1 << 40) - 1])
def test_ids_of_records_of_one_length_are_assigned_where_low_bits_wrap(size: int, first: int) -> None:
    data = [bytes([n % 251]) * size for n in range((1 << LOW_BITS) + 700)]
    lengths, records = build(data)
    assert assign_ids(records, lengths, first) == build(data, first)[1]


@given(bodies, st.one_of(st.none(), st.integers(1, 2**40)))
@settings(max_examples=60)
def test_whole_blocks_pass_and_their_columns_are_those_of_each_record(data: list[bytes], first: int | None) -> None:
    lengths, records = build(data, first)
    verify_records(records, lengths, first_transaction_id=first, partition=3, where="test")
    verify_records(records, lengths, first_transaction_id=first, partition=None, where="test")
    headers = headers_array(records, lengths)
    offset = 0
    for n in range(len(data)):
        record, end = decode_record(records, offset)
        assert (offset, end) == tuple(offsets_array(lengths)[n : n + 2])
        assert end - offset == lengths_array(lengths)[n]
        assert headers[n].tolist() == (*record[:6], len(record.data), crc32(record.data))
        offset = end
    assert headers.dtype == HEADER_DTYPE
    assert list(senders(records, lengths)) == headers[["client_id", "generation", "sequence"]].tolist()


@given(st.lists(st.integers(40, 1 << 20), max_size=FEW_LENGTHS + 20), st.integers(0, 1 << 40))
def test_index_entries_are_the_offsets_of_the_records_in_their_file(sizes: list[int], start: int) -> None:
    entries, end = index_entries(struct.pack(f">{len(sizes)}i", *sizes), start)
    assert struct.unpack(f">{len(sizes)}q", entries) == tuple(start + sum(sizes[:n]) for n in range(len(sizes)))
    assert end == start + sum(sizes)


@pytest.mark.parametrize(("count", "sizes"), [(3, 3), (MANY, 3), (MANY, 1)])
def test_every_flipped_bit_in_a_block_is_found_and_its_record_named(count: int, sizes: int) -> None:
    lengths, records = build([bytes([n]) * (2 + n % sizes) for n in range(count)], 100)
    offsets = offsets_array(lengths).tolist()
    verify_records(records, lengths, first_transaction_id=100, partition=3, where="test")
    for bit in range(0, 8 * len(records), 1 if count < 10 else 13):
        damaged = bytearray(records)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptData) as caught:
            verify_records(bytes(damaged), lengths, first_transaction_id=100, partition=None, where="test")
        record = next(n for n in range(count) if offsets[n] <= bit // 8 < offsets[n + 1])
        assert caught.value.transaction_id == 100 + record
        assert caught.value.offset == offsets[record]
        assert caught.value.where == "test"


@pytest.mark.parametrize("sizes", [1, 40])
def test_a_block_of_several_chunks_is_verified_to_its_end(sizes: int) -> None:
    count = CHUNK_BYTES // 60 * 5 // 2 + 1
    lengths, records = build([bytes([n % 251]) * (20 + n % sizes) for n in range(count)], 9)
    assert len(records) > 2 * CHUNK_BYTES
    verify_records(records, lengths, first_transaction_id=9, partition=3, where="test")
    for place in range(0, len(records), len(records) // 7):
        damaged = bytearray(records)
        damaged[place] ^= 1
        assert not columns._verified_at_once(bytes(damaged), lengths, 9, 3)
    assert not columns._verified_at_once(records[:-1] + bytes([records[-1] ^ 1]), lengths, 9, 3)


@given(st.integers(MANY, MANY + 20), st.data())
@settings(max_examples=100)
def test_the_check_at_once_finds_what_the_loop_finds(count: int, data: st.DataObject) -> None:
    lengths, records = build([bytes([n]) * (n * 7 % 50 if count % 2 else 23) for n in range(count)], 5)
    damaged = bytearray(records)
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(damaged) - 1))
        burst = data.draw(st.binary(min_size=1, max_size=4))
        for place, value in enumerate(burst, start):
            if place < len(damaged):
                damaged[place] ^= value
    whole = columns._verified_at_once(bytes(damaged), lengths, 5, 3)
    try:
        columns._verify_one_by_one(bytes(damaged), lengths, 5, 3, "test")
        singly = True
    except CorruptData:
        singly = False
    assert whole == singly == (bytes(damaged) == records)


def _reseal(record: bytes) -> bytes:
    return record[:-4] + struct.pack(">I", crc32(record[:-4]))


@pytest.mark.parametrize("count", [2, MANY])
def test_a_data_checksum_that_is_wrong_under_a_right_record_checksum_is_found(count: int) -> None:
    lengths, records = build([b"x" * 9] * count, 1)
    start = 49 * (count - 1)
    bad = bytearray(records[start:])
    bad[35] ^= 1
    with pytest.raises(CorruptData, match="data checksum"):
        verify_records(records[:start] + _reseal(bytes(bad)), lengths, first_transaction_id=1, partition=3, where="test")


@pytest.mark.parametrize("count", [2, MANY])
def test_framing_ids_and_partition_are_checked(count: int) -> None:
    lengths, records = build([b"abc"] * count, 7)
    zero_lengths, zero = build([b"abc"] * count)

    def refused(records: bytes, lengths: bytes, first: int | None = 7, partition: int | None = 3) -> str:
        with pytest.raises(CorruptData) as caught:
            verify_records(records, lengths, first_transaction_id=first, partition=partition, where="test")
        return str(caught.value.reason)

    assert "transaction id" in refused(records, lengths, first=8)
    assert "transaction id" in refused(records, lengths, first=None)
    assert "transaction id" in refused(zero, zero_lengths, first=7)
    assert "partition" in refused(records, lengths, partition=4)
    assert "after the last" in refused(records + b"\0", lengths)
    assert "bad length" in refused(records[:-1], lengths)
    assert "cut off" in refused(records, lengths[:-1])
    assert "after the last" in refused(records, lengths[:-4])
    assert "bad length" in refused(records, lengths + struct.pack(">i", 43))
    assert "bad length" in refused(records, struct.pack(">i", 39) + lengths[4:])
    assert "bad length" in refused(records, struct.pack(">i", -1) + lengths[4:])
    assert "data length" in refused(records, struct.pack(">2i", 42, 44) + lengths[8:])


@pytest.mark.parametrize("first", [-1, -(2**63), 2**63 - 2, 2**63])
@pytest.mark.parametrize("count", [2, MANY])
def test_ids_that_no_record_can_have_are_refused(first: int, count: int) -> None:
    lengths, records = build([b"abc"] * count, 7)
    with pytest.raises(CorruptData, match="impossible transaction ids"):
        verify_records(records, lengths, first_transaction_id=first, partition=3, where="test")
    with pytest.raises(CorruptData, match="impossible transaction ids"):
        verify_sealed_headers(seal_headers(records, lengths), first_transaction_id=first, partition=3, where="test")


def test_an_empty_block_is_fine_and_bytes_without_lengths_are_not() -> None:
    verify_records(b"", b"", first_transaction_id=4, partition=3, where="test")
    assert assign_ids(b"", b"", 4) == b""
    assert len(headers_array(b"", b"")) == 0
    with pytest.raises(CorruptData):
        verify_records(b"x", b"", first_transaction_id=4, partition=3, where="test")


def test_assigning_ids_does_not_heal_a_damaged_record() -> None:
    for count in (3, 100):
        lengths, records = build([b"payload"] * count)
        damaged = bytearray(records)
        damaged[40] ^= 4
        with pytest.raises(CorruptData):
            verify_records(assign_ids(bytes(damaged), lengths, 9), lengths, first_transaction_id=9, partition=3, where="test")


def test_a_slice_holds_the_named_transactions() -> None:
    data = [b"a" * n for n in range(10)]
    lengths, records = build(data, 50)
    block = Block(50, lengths, records, 1234)
    assert slice_block(block, 50, 59) is block
    for first in range(50, 60):
        for last in range(first, 60):
            cut = slice_block(block, first, last)
            expected = build(data, 50)[1]
            offsets = offsets_array(lengths)
            assert cut == Block(first, lengths[4 * (first - 50) : 4 * (last - 49)], expected[offsets[first - 50] : offsets[last - 49]], 1234)
            assert (cut.count, cut.last_transaction_id) == (last - first + 1, last)
    for first, last in ((49, 50), (55, 60), (56, 55)):
        with pytest.raises(ValueError, match="not within"):
            slice_block(block, first, last)
