from __future__ import annotations

from uuid import UUID

import pytest

from verification.conformance.java_directory import java_control_file, java_struct
from waltz_log.core.formats.control_format import ControlHeader, SessionMark
from waltz_log.core.formats.java_control_format import JAVA_ENTRY_BYTES, JavaEntry, JavaStruct, decode_java_entry, encode_java_entry, is_java_size

HEADER = "00000000000001a1fd51b78ca183fca3ed08410aad31ca0dd338074800000002" + 96 * "00"
ENTRY = (
    "00000001"
    "ffffffffffffffffffffffffffffffffffffffffffffffff000000050000000104ed1498"
    "0000000000000000ffffffffffffffffffffffffffffffff0000000500000002049e6766"
)
"""As Java Waltz 0.13.2 wrote them: the header of a cluster of two partitions, and the entry of the second after its first session."""

FRESH = JavaStruct(SessionMark(), 5, 1)
FIRST = JavaStruct(SessionMark(0, -1, -1), 5, 2)


def test_the_originals_bytes_are_read_and_written() -> None:
    header = ControlHeader.from_bytes(bytes.fromhex(HEADER), "")
    assert header == ControlHeader(1795251353484, UUID("a183fca3-ed08-410a-ad31-ca0dd3380748"), 2)
    assert decode_java_entry(bytes.fromhex(ENTRY)) == JavaEntry(1, (FRESH, FIRST))
    assert encode_java_entry(1, (FRESH, FIRST)).hex() == ENTRY


def test_directories_built_by_tests_match_those_of_java_waltz() -> None:
    pair = (java_struct(-1, -1, -1, 1), java_struct(0, -1, -1, 2))
    built = java_control_file(UUID("a183fca3-ed08-410a-ad31-ca0dd3380748"), 1795251353484, [pair, pair])
    assert built.hex() == HEADER + ENTRY.replace("00000001", "00000000", 1) + ENTRY


def test_the_larger_sequence_number_holds_and_not_the_larger_session() -> None:
    older, newer = JavaStruct(SessionMark(9, 50, 50), 5, 7), JavaStruct(SessionMark(8, 40, 40), 5, 8)
    assert JavaEntry(0, (older, newer)).current == newer
    assert JavaEntry(0, (newer, older)).current == newer


def test_one_struct_with_a_bit_flipped_anywhere_leaves_the_other_and_two_leave_none() -> None:
    whole = bytes.fromhex(ENTRY)
    for bit in range(8 * 4, 8 * JAVA_ENTRY_BYTES):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        found = decode_java_entry(bytes(flipped))
        assert found.structs == ((None, FIRST) if bit < 8 * 40 else (FRESH, None)), f"bit {bit}"
        assert found.current == (FIRST if bit < 8 * 40 else FRESH)
    flipped[10] ^= 1
    assert decode_java_entry(bytes(flipped)).current is None


def test_two_structs_of_one_number_that_differ_say_nothing() -> None:
    assert JavaEntry(0, (FIRST, JavaStruct(SessionMark(3, 3, 3), 5, 2))).current is None
    assert JavaEntry(0, (FIRST, FIRST)).current == FIRST


@pytest.mark.parametrize("size", [0, 75, 77])
def test_another_length_is_no_entry(size: int) -> None:
    with pytest.raises(ValueError, match="76 bytes"):
        decode_java_entry(bytes(size))


def test_a_file_is_recognised_by_its_size() -> None:
    assert is_java_size(128 + 76 * 2, 2)
    for size, partitions in ((128 + 60 * 2, 2), (128, 0), (128 + 76 * 2, 3), (0, 2), (128 + 76 * 2 + 1, 2)):
        assert not is_java_size(size, partitions)
