from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltz_log.core.formats.record_layout import RECORD_OVERHEAD_BYTES
from waltz_log.core.formats.records import Record, decode_record, encode_record, encode_records
from waltz_log.errors import CorruptData

VECTOR = bytes.fromhex("00000000000003e80000000500000002000000030000000900000102000000053610a68668656c6c6fab162243")
"""docs/reference/formats.md: id 1000, client 5, generation 2, partition 3, sequence 9, header 0x0102, "hello"."""

i32 = st.integers(-(2**31), 2**31 - 1)


def test_record_is_encoded_to_the_documented_bytes() -> None:
    assert encode_record(5, 2, 3, 9, 0x0102, b"hello", transaction_id=1000) == VECTOR


def test_record_is_decoded_from_the_documented_bytes() -> None:
    assert decode_record(VECTOR) == (Record(1000, 5, 2, 3, 9, 0x0102, b"hello"), len(VECTOR))


@given(i32, i32, i32, i32, i32, st.binary(max_size=300), st.integers(0, 2**63 - 1), st.binary(max_size=9))
def test_any_record_comes_back_from_any_offset(
    client: int, generation: int, partition: int, sequence: int, header: int, data: bytes, transaction_id: int, before: bytes
) -> None:
    encoded = encode_record(client, generation, partition, sequence, header, data, transaction_id)
    assert len(encoded) == RECORD_OVERHEAD_BYTES + len(data)
    found, end = decode_record(memoryview(before + encoded + b"more"), len(before))
    assert found == Record(transaction_id, client, generation, partition, sequence, header, data)
    assert end == len(before) + len(encoded)


def test_every_prefix_of_a_record_is_refused() -> None:
    for length in range(len(VECTOR)):
        with pytest.raises(CorruptData):
            decode_record(VECTOR[:length])


def test_every_flipped_bit_of_a_record_is_found() -> None:
    for bit in range(8 * len(VECTOR)):
        damaged = bytearray(VECTOR)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptData):
            decode_record(bytes(damaged))


@given(st.binary(max_size=200))
def test_garbage_is_refused_as_corrupt_and_nothing_else(garbage: bytes) -> None:
    with pytest.raises(CorruptData):
        decode_record(garbage)


def test_coding_a_record_needs_no_numpy() -> None:
    code = "import sys, waltz_log.core.formats.records; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=30, check=False).returncode == 0


@given(st.lists(st.tuples(st.integers(-(2**31), 2**31 - 1), st.binary(max_size=50)), max_size=5), st.integers(0, 2**31 - 6))
def test_records_of_a_frame_are_those_encoded_one_by_one(rows: list[tuple[int, bytes]], first: int) -> None:
    singly = [encode_record(5, 3, 2, first + place, header, data) for place, (header, data) in enumerate(rows)]
    assert encode_records(5, 3, 2, first, [header for header, _ in rows], [data for _, data in rows]) == b"".join(singly)
