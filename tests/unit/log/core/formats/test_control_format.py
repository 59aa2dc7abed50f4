from __future__ import annotations

from uuid import UUID

import pytest

from waltz_log.core.formats.control_format import (
    ControlHeader,
    SessionMark,
    decode_counter,
    decode_mark,
    encode_counter,
    encode_entry,
    encode_mark,
    mark_offset,
    newest,
)
from waltz_log.errors import CorruptData

KEY = UUID("00112233-4455-6677-8899-aabbccddeeff")
HEADER = bytes.fromhex("0000000000000174876e800000112233445566778899aabbccddeeff00000004") + bytes(96)
MARK = bytes.fromhex("00000000000000070000000000000029000000000000002898b42a69")


def test_header_has_the_documented_bytes() -> None:
    header = ControlHeader(1_600_000_000_000, KEY, 4)
    assert header.to_bytes() == HEADER
    assert ControlHeader.from_bytes(HEADER, "test") == header


def test_header_that_is_cut_off_or_unusable_is_refused() -> None:
    for bad in (HEADER[:127], b"", b"\0\0\0\1" + HEADER[4:], HEADER[:28] + b"\xff\xff\xff\xff" + bytes(96)):
        with pytest.raises(CorruptData):
            ControlHeader.from_bytes(bad, "test")


def test_struct_has_the_documented_bytes() -> None:
    assert encode_mark(SessionMark(7, 41, 40)) == MARK
    assert decode_mark(MARK) == SessionMark(7, 41, 40)


def test_entry_is_the_number_and_two_structs() -> None:
    assert encode_entry(9, SessionMark(7, 41, 40)) == bytes.fromhex("00000009") + MARK + MARK
    assert (mark_offset(0, 0), mark_offset(0, 1), mark_offset(2, 0)) == (132, 160, 252)


def test_every_flipped_bit_and_every_prefix_of_a_struct_is_found() -> None:
    for encoded, decode in ((MARK, decode_mark), (encode_counter(12), decode_counter)):
        for bit in range(8 * len(encoded)):
            damaged = bytearray(encoded)
            damaged[bit // 8] ^= 1 << bit % 8
            assert decode(bytes(damaged)) is None
        for length in range(len(encoded)):
            assert decode(encoded[:length]) is None
        assert decode(bytes(len(encoded))) is None


def test_the_later_valid_struct_is_current() -> None:
    old, new = SessionMark(3, 5, 5), SessionMark(4, 5, 4)
    assert newest([old, new]) == (new, 1)
    assert newest([new, old]) == (new, 0)
    assert newest([None, old]) == (old, 1)
    assert newest([new, None]) == (new, 0)
    assert newest([SessionMark(4, 5, 4), SessionMark(4, 6, 6)]) == (SessionMark(4, 6, 6), 1)
    nothing: list[SessionMark | None] = [None, None]
    assert newest(nothing) is None
