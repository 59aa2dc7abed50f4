"""A record without its data: 40 bytes, each bit of which a reader of headers verifies."""

from __future__ import annotations

import struct
from collections.abc import Callable
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verification.fuzz.canceling_checksums import frame_of
from waltz_log.client.feed import decode_feed as feed_decoding
from waltz_log.client.feed.decode_feed import decode_feed
from waltz_log.console.reading import transaction_reader
from waltz_log.core.formats import closing_checksum
from waltz_log.core.formats.block import Block
from waltz_log.core.formats.closing_checksum import ZEROS_MAX, closing_without_data
from waltz_log.core.formats.columns import headers_array
from waltz_log.core.formats.record_checksums import closings_without_data, words_of
from waltz_log.core.formats.record_layout import HEADER_BYTES, SEALED_HEADER_BYTES
from waltz_log.core.formats.sealed_headers import SEALED_HEADER_DTYPE, seal_headers, sealed_headers_array, verify_sealed_headers
from waltz_log.errors import ConnectionLost, CorruptData, ProtocolViolation
from waltz_log.server.replication import received_blocks
from waltz_log.server.replication.received_blocks import expect_unchanged
from waltz_log.transport import waltz_pb2 as pb

FIRST, PARTITION = 1000, 3
SIZES = (0, 1, 5, 200, ZEROS_MAX, ZEROS_MAX + 1, 100_000)

Check = Callable[[bytes], None]


def columns(sealed: bytes) -> None:
    verify_sealed_headers(sealed, first_transaction_id=FIRST, partition=PARTITION, where="test")


def feed(sealed: bytes) -> None:
    decode_feed(pb.FeedFrame(blocks=[pb.Block(first_transaction_id=FIRST, records=sealed)]), PARTITION, FIRST, data=False)


def owner(sealed: bytes) -> None:
    lengths = bytes(4 * (len(sealed) // SEALED_HEADER_BYTES))
    expect_unchanged("storage-1", PARTITION, [Block(FIRST, lengths, sealed, 1)], headers_only=True)


def console(sealed: bytes) -> None:
    transaction_reader._expect_whole("storage-1:1", PARTITION, pb.Block(first_transaction_id=FIRST, records=sealed), headers_only=True)


CHECKS: list[Check] = [columns, feed, owner, console]


def accepts(check: Check, sealed: bytes) -> bool:
    try:
        check(sealed)
    except (CorruptData, ProtocolViolation, ConnectionLost):
        return False
    return True


def sealed_of(*sizes: int) -> bytes:
    lengths, records = frame_of([bytes([n % 251]) * size for n, size in enumerate(sizes, 1)], first=FIRST, partition=PARTITION)
    return seal_headers(records, lengths)


@pytest.mark.parametrize("size", [*SIZES, 16 * 1024 * 1024])
def test_the_closing_checksum_follows_from_the_header_without_the_data(size: int) -> None:
    data = bytes(range(256)) * (size // 256) + bytes(size % 256)
    header = struct.pack(">qiiiiiiI", 7, 1, 2, 3, 4, 5, size, crc32(data))
    assert closing_without_data(header, size, crc32(data)) == crc32(header + data)
    words = words_of(np.frombuffer(header, dtype="V36"))
    assert closings_without_data(words, size).tolist() == [crc32(header + data)]


def test_a_sealed_header_is_the_record_without_its_data() -> None:
    lengths, records = frame_of([b"one", b"", b"three"], first=FIRST, partition=PARTITION)
    expected, start = b"", 0
    for (length,) in struct.iter_unpack(">i", lengths):
        expected += records[start : start + HEADER_BYTES] + records[start + length - 4 : start + length]
        start += length
    sealed = seal_headers(records, lengths)
    assert sealed == expected
    rows = sealed_headers_array(sealed)
    assert rows.dtype == SEALED_HEADER_DTYPE
    assert [row[:8] for row in rows.tolist()] == headers_array(records, lengths).tolist()
    assert seal_headers(b"", b"") == b""
    columns(b"")


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("size", SIZES)
def test_each_flipped_bit_of_a_sealed_header_is_noticed(check: Check, size: int) -> None:
    sealed = sealed_of(3, size, 3)
    check(sealed)
    for bit in range(8 * SEALED_HEADER_BYTES, 16 * SEALED_HEADER_BYTES):
        damaged = bytearray(sealed)
        damaged[bit // 8] ^= 1 << bit % 8
        assert not accepts(check, bytes(damaged)), f"bit {bit - 8 * SEALED_HEADER_BYTES}"


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_sealed_header_that_is_cut_off_out_of_place_or_of_another_partition_is_refused(check: Check) -> None:
    assert not accepts(check, sealed_of(3, 4)[:-1])
    assert not accepts(check, sealed_of(3, 4)[SEALED_HEADER_BYTES:])
    lengths, records = frame_of([b"one"], first=FIRST, partition=PARTITION + 1)
    assert not accepts(check, seal_headers(records, lengths))


@given(st.lists(st.sampled_from(SIZES), min_size=1, max_size=5), st.data())
@settings(max_examples=100, deadline=None)
def test_every_reader_of_headers_concludes_the_same(sizes: list[int], data: st.DataObject) -> None:
    sealed = bytearray(sealed_of(*sizes))
    for _ in range(data.draw(st.integers(0, 2))):
        start = data.draw(st.integers(0, len(sealed) - 1))
        for place, value in enumerate(data.draw(st.binary(min_size=1, max_size=4)), start):
            if place < len(sealed):
                sealed[place] ^= value
    expected = bytes(sealed) == sealed_of(*sizes)
    assert {check.__name__: accepts(check, bytes(sealed)) for check in CHECKS} == {check.__name__: expected for check in CHECKS}


def test_errors_of_two_sealed_headers_do_not_cancel() -> None:
    """The same error in two closing checksums, and the two swapped."""
    sealed = bytearray(sealed_of(3, 3, 3))
    for place in (36, 76):
        sealed[place] ^= 0x55
    assert [accepts(check, bytes(sealed)) for check in CHECKS] == [False] * len(CHECKS)
    sealed = bytearray(sealed_of(3, 3))
    sealed[36:40], sealed[76:80] = sealed[76:80], sealed[36:40]
    assert [accepts(check, bytes(sealed)) for check in CHECKS] == [False] * len(CHECKS)


def test_an_owner_refuses_headers_of_another_count_than_the_lengths() -> None:
    with pytest.raises(ConnectionLost, match="cut off"):
        expect_unchanged("storage-1", PARTITION, [Block(FIRST, bytes(8), sealed_of(3), 1)], headers_only=True)


def test_planted_a_reader_of_headers_that_does_not_verify_accepts_a_flipped_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    damaged = bytearray(sealed_of(200))
    damaged[27] ^= 1  # the header of the transaction
    monkeypatch.setattr(received_blocks, "verify_sealed_headers", lambda *_, **__: None)
    monkeypatch.setattr(transaction_reader, "verify_sealed_headers", lambda *_, **__: None)
    monkeypatch.setattr(feed_decoding, "closing_without_data", lambda *_: int.from_bytes(damaged[36:], "big"))
    assert [accepts(check, bytes(damaged)) for check in (feed, owner, console)] == [True] * 3


def test_powers_are_computed_for_lengths_beyond_the_zeros() -> None:
    rng = np.random.default_rng(1)
    for length in rng.integers(ZEROS_MAX + 1, 1 << 20, 20).tolist():
        zeros = bytes(length)
        assert closing_checksum._shift_by(length)(0xDEADBEEF) == crc32(zeros, 0xDEADBEEF) ^ crc32(zeros)


def test_the_sealed_header_of_the_documentation_is_that_of_its_record() -> None:
    record = bytes.fromhex("00000000000003e80000000500000002000000030000000900000102000000053610a68668656c6c6fab162243")
    sealed = bytes.fromhex("00000000000003e80000000500000002000000030000000900000102000000053610a686ab162243")
    assert seal_headers(record, struct.pack(">i", len(record))) == sealed
    columns(sealed)
