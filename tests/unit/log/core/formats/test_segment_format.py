from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltz_log.core.formats.records import decode_record, encode_record, measure_records
from waltz_log.core.formats.segment_format import (
    DATA,
    INDEX,
    TIME_ENTRY_BYTES,
    SegmentHeader,
    decode_times,
    encode_time,
    file_name,
    first_id_of,
)
from waltz_log.errors import ClusterKeyMismatch, CorruptData

KEY = UUID("00112233-4455-6677-8899-aabbccddeeff")
VECTOR = bytes.fromhex("0000000000000174876e800000112233445566778899aabbccddeeff0000000300000000000003e8") + bytes(88)


def test_header_has_the_documented_bytes() -> None:
    header = SegmentHeader(1_600_000_000_000, KEY, 3, 1000)
    assert header.to_bytes() == VECTOR
    assert SegmentHeader.from_bytes(VECTOR, "test") == header


def test_header_that_is_cut_off_or_of_another_version_is_refused() -> None:
    for length in range(128):
        with pytest.raises(CorruptData):
            SegmentHeader.from_bytes(VECTOR[:length], "test")
    with pytest.raises(CorruptData):
        SegmentHeader.from_bytes(b"\0\0\0\1" + VECTOR[4:], "test")


def test_header_of_another_cluster_partition_or_segment_is_refused() -> None:
    header = SegmentHeader(1, KEY, 3, 1000)
    header.expect(KEY, 3, 1000, "test")
    with pytest.raises(ClusterKeyMismatch):
        header.expect(UUID(int=1), 3, 1000, "test")
    for partition, first in ((2, 1000), (3, 999)):
        with pytest.raises(CorruptData):
            header.expect(KEY, partition, first, "test")


def test_names_are_nineteen_digits_and_a_kind() -> None:
    assert file_name(1000, DATA) == "0000000000000001000.seg"
    assert first_id_of("0000000000000001000.seg", DATA) == 1000
    for name in ("0000000000000001000.idx", "1000.seg", "0000000000000001000.seg.new", "seg", "٠000000000000001000.seg", ".seg"):
        assert first_id_of(name, DATA) is None
    assert first_id_of(file_name(2**63 - 1, INDEX), INDEX) == 2**63 - 1


entries = st.lists(st.tuples(st.integers(1, 50), st.integers(0, 2**45)), max_size=20)


@given(entries, st.integers(0, 19))
def test_times_come_back_and_a_torn_last_entry_is_left_out(steps: list[tuple[int, int]], torn: int) -> None:
    firsts, times, total = [], [], 0
    for step, time_ms in steps:
        total += step
        firsts.append(total)
        times.append(time_ms)
    data = b"".join(map(encode_time, firsts, times))
    found = decode_times(data + encode_time(total + 1, 5)[:torn])
    assert (found[0].tolist(), found[1].tolist(), found[2]) == (firsts, times, len(data))


def test_every_flipped_bit_in_the_times_leaves_out_that_entry_alone() -> None:
    data = b"".join(encode_time(first, 100 + first) for first in (3, 7, 9))
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        gone = bit // 8 // TIME_ENTRY_BYTES
        firsts, times, end = decode_times(bytes(damaged))
        assert firsts.tolist() == [first for n, first in enumerate((3, 7, 9)) if n != gone]
        assert times.tolist() == [100 + first for first in firsts.tolist()]
        assert end == (40 if gone == 2 else 60)


def test_time_entries_that_go_back_are_left_out() -> None:
    firsts, _, end = decode_times(encode_time(5, 1) + encode_time(3, 2) + encode_time(4, 3))
    assert (firsts.tolist(), end) == ([5], 20)


@given(st.lists(st.binary(max_size=30), max_size=10), st.integers(0, 500))
def test_records_are_measured_up_to_the_first_that_is_not_whole(data: list[bytes], cut: int) -> None:
    records = [encode_record(1, 1, 1, n, 0, body, n) for n, body in enumerate(data)]
    joined = b"".join(records)[:cut]
    lengths, end = measure_records(joined)
    whole = 0
    while sum(map(len, records[: whole + 1])) <= len(joined) and whole < len(records):
        whole += 1
    assert lengths == [len(record) for record in records[:whole]]
    assert end == sum(lengths)
    if lengths:
        assert decode_record(joined)[1] == lengths[0]
