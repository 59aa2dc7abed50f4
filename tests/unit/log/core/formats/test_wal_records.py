"""The records of a compacted view's files."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltz_log.core.formats.wal_records import HEADER_BYTES, WalRecord, decode_wal_record, encode_wal_record, walk_wal_records
from waltz_log.errors import CorruptData

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
RECORDS = st.builds(WalRecord, INT64, INT64, st.integers(-(1 << 31), (1 << 31) - 1), st.binary(max_size=40), st.binary(max_size=40))


@given(st.lists(RECORDS, max_size=5))
def test_records_read_as_they_were_written(records: list[WalRecord]) -> None:
    data = b"".join(map(encode_wal_record, records))
    assert [record for _, record, _ in walk_wal_records(data, where="x")] == records


def test_the_header_is_laid_out_as_documented() -> None:
    data = encode_wal_record(WalRecord(7, 0, 0, b"foo", b"bar"))
    assert data[12:HEADER_BYTES] == bytes.fromhex("03000000 0f000000 00 02 feca")
    assert data[HEADER_BYTES : HEADER_BYTES + 3] == b"foo"


def test_every_flipped_bit_is_noticed() -> None:
    data = encode_wal_record(WalRecord(1 << 40, 1_600_000_000_000, 5, b"a key", b"and a value"))
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptData):
            decode_wal_record(bytes(damaged), 0, where="x")


def test_a_record_cut_at_any_byte_is_noticed() -> None:
    data = encode_wal_record(WalRecord(1, 2, 3, b"key", b"value"))
    for size in range(len(data)):
        with pytest.raises(CorruptData):
            decode_wal_record(data[:size], 0, where="x")


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_but_corrupt_data(data: bytes) -> None:
    try:
        for _ in walk_wal_records(data, where="x"):
            pass
    except CorruptData:
        pass
