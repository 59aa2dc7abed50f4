"""The journal's fast reader of a file against the reference's slow one: on whatever a file may hold they find the same records at the same places."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.log.journal.reference import BODIED, ELEMENTS, Check, Entry, FileImage, check_size, hash_check, read_file
from waltz_log.journal import record_codec

FILE_BYTES = 700
ID_MAX = (1 << 31) - 1
SALT = b"a salt of a test"


FORMATS: list[tuple[bytes | None, Check]] = [(None, check_size), (SALT, hash_check(SALT))]

small = st.integers(0, 5)
ids = st.one_of(small, st.integers(-(1 << 63), (1 << 63) - 1))


@st.composite
def entries(draw: st.DrawFn) -> Entry:
    kind = draw(st.integers(11, 19))
    bodied = kind in BODIED
    return Entry(
        kind,
        id=draw(ids) if bodied or kind in (15, 16) else 0,
        transaction=draw(ids) if kind in (*ELEMENTS, 17, 18, 19) else 0,
        user_type=draw(st.integers(0, 255)) if bodied else 0,
        body=draw(st.binary(max_size=40)) if bodied else b"",
        listed=tuple(draw(st.lists(st.tuples(small, small), max_size=3))) if kind in (17, 18) else (),
    )


@st.composite
def pieces(draw: st.DrawFn, check: Check, file_id: int) -> bytes:
    """Part of a file: healthy records, records of other uses, torn ones, ones within others, holes, noise."""
    entry = draw(entries())
    choice = draw(st.sampled_from(["healthy", "healthy", "stale", "torn", "within", "hole", "noise", "heads"]))
    if choice == "stale":
        return entry.encode(draw(st.sampled_from([(file_id - 1) & ID_MAX, (file_id + 1) & ID_MAX, file_id ^ 0x01000000])), check)
    if choice == "torn":
        whole = entry.encode(file_id, check)
        return whole[: draw(st.integers(0, len(whole)))]
    if choice == "within":
        outer = Entry(11, 1, body=b"-" + entry.encode(file_id, check) + b"-").encode(file_id, check)
        return outer[: len(outer) - draw(st.sampled_from([0, 1, 5]))]
    if choice == "hole":
        return b"J" * draw(st.integers(0, 30))
    if choice == "noise":
        return draw(st.binary(max_size=30))
    if choice == "heads":
        return bytes([draw(st.integers(10, 20))]) + file_id.to_bytes(4, "big") + draw(st.binary(max_size=12))
    return entry.encode(file_id, check)


@pytest.mark.parametrize(("salt", "check"), FORMATS, ids=["size", "hash"])
@settings(max_examples=75, deadline=None)
@given(data=st.data())
def test_both_find_the_same_records_in_any_file(salt: bytes | None, check: Check, data: st.DataObject) -> None:
    compare(salt, check, data)


@pytest.mark.long
@pytest.mark.parametrize(("salt", "check"), FORMATS, ids=["size", "hash"])
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_both_find_the_same_records_in_more_files(salt: bytes | None, check: Check, data: st.DataObject) -> None:
    compare(salt, check, data)


def compare(salt: bytes | None, check: Check, data: st.DataObject) -> None:
    file_id = data.draw(st.sampled_from([0, 1, 7, 0x0B0C0D0E, 0x0B0B0B0B, 0x7FFFFFFF]))
    content = bytearray(file_id.to_bytes(4, "big") + b"".join(data.draw(st.lists(pieces(check, file_id), max_size=12))))[:FILE_BYTES]
    for _ in range(data.draw(st.integers(0, 3))):
        content[data.draw(st.integers(4, max(4, len(content) - 1))) % len(content)] ^= 1 << data.draw(st.integers(0, 7))
    content[:4] = file_id.to_bytes(4, "big")
    _, expected = read_file(bytes(content), check)
    found = [
        each for each in record_codec.scan(bytes(content), file_id, record_codec.check_seed(salt, file_id)) if each.kind != record_codec.UNHEALTHY
    ]
    assert [
        (
            Entry(each.kind, each.record_id if each.kind <= record_codec.DELETE else 0, each.transaction_id, each.user_type, each.body, each.counts),
            each.offset,
            each.end,
        )
        for each in found
    ] == [(each.entry, each.offset, each.offset + each.length) for each in expected]


@pytest.mark.parametrize(("salt", "check"), FORMATS, ids=["size", "hash"])
@settings(max_examples=200, deadline=None)
@given(entry=entries(), file_id=st.integers(0, (1 << 31) - 1))
def test_both_write_a_record_in_the_same_bytes(salt: bytes | None, check: Check, entry: Entry, file_id: int) -> None:
    seed = record_codec.check_seed(salt, file_id)
    transaction = entry.transaction if entry.kind in ELEMENTS else None
    if entry.kind in BODIED:
        made = record_codec.encode_body(entry.kind, file_id, seed, entry.id, entry.user_type, entry.body, transaction)
        if entry.kind == record_codec.ADD:
            assert record_codec.encode_adds(file_id, seed, [(entry.id, entry.user_type, entry.body)] * 2) == [made, made]
    elif entry.kind in (record_codec.DELETE, record_codec.DELETE_TX):
        made = record_codec.encode_delete(file_id, seed, entry.id, transaction)
    elif entry.kind == record_codec.ROLLBACK:
        made = record_codec.encode_rollback(file_id, seed, entry.transaction)
    else:
        made = record_codec.encode_summary(entry.kind, file_id, seed, entry.transaction, entry.listed)
        assert len(made) == record_codec.summary_bytes(len(entry.listed))
    assert made == entry.encode(file_id, check)


def test_a_file_full_of_heads_is_read_in_a_moment() -> None:
    """The worst a file can hold is nothing but beginnings of records: each is read once."""
    content = bytes(FileImage(7, 5 * 20_000 + 4).raw(b"\x0b\x00\x00\x00\x07" * 20_000))
    found = list(record_codec.scan(content, 7, None))
    assert {each.kind for each in found} == {record_codec.UNHEALTHY}
    assert len(found) < 20_001
