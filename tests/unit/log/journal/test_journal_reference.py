"""The reference reader by itself: it must give what the documents write down, or it proves nothing about the journal."""

from __future__ import annotations

import pytest

from tests.unit.log.journal.reference import (
    ADD,
    ADD_TX,
    COMMIT,
    DELETE,
    DELETE_TX,
    PREPARE,
    ROLLBACK,
    UPDATE_TX,
    Entry,
    FileImage,
    load,
    read_file,
    ring_order,
)

VECTORS = [
    (Entry(ADD, id=1, user_type=2, body=b"abc"), "0b000000070000000000000001000000030261626300000019"),
    (Entry(ADD_TX, id=1, transaction=9, user_type=2, body=b"abc"), "0d0000000700000000000000090000000000000001000000030261626300000021"),
    (Entry(DELETE, id=1), "1000000007000000000000000100000011"),
    (Entry(ROLLBACK, transaction=9), "1300000007000000000000000900000011"),
    (Entry(COMMIT, transaction=9, listed=((6, 2), (7, 3))), "12000000070000000000000009000000020000000600000002000000070000000300000025"),
]


@pytest.mark.parametrize(("entry", "expected"), VECTORS)
def test_records_are_the_documented_bytes(entry: Entry, expected: str) -> None:
    assert entry.encode(7).hex() == expected


@pytest.mark.parametrize("entry", [entry for entry, _ in VECTORS])
def test_records_are_found_anywhere_in_a_file(entry: Entry) -> None:
    for hole in (0, 1, 7, 100):
        image = FileImage(7, 300).hole(hole).put(entry).hole(hole).put(entry)
        file_id, found = read_file(bytes(image))
        assert file_id == 7
        assert [each.entry for each in found] == [entry, entry]


def test_a_record_of_an_earlier_use_is_not_one() -> None:
    entry = Entry(ADD, id=1, body=b"abc")
    used = FileImage(7, 100).put(entry, entry, entry)
    again = FileImage(8, 100, below=bytes(used))
    assert read_file(bytes(again)) == (8, [])
    again.put(Entry(DELETE, id=5))
    assert [each.entry.id for each in read_file(bytes(again))[1]] == [5]


@pytest.mark.parametrize("offset", range(25))
def test_every_byte_of_a_record_except_ids_type_and_body_is_checked(offset: int) -> None:
    image = FileImage(7, 60).put(Entry(ADD, id=1, user_type=2, body=b"abc"))
    image.damage(4 + offset, bytes([image.content[4 + offset] ^ 0x80]))
    found = [each.entry for each in read_file(bytes(image))[1]]
    blind = 5 <= offset < 13 or 17 <= offset < 21  # record id, user type and body: a length does not notice them
    assert bool(found) == blind


def test_only_complete_transactions_count_at_the_place_of_their_commit() -> None:
    first = FileImage(1, 400).put(Entry(ADD, id=1, body=b"a"), Entry(ADD_TX, 2, 50, 0, b"b"), Entry(DELETE_TX, 1, 50), Entry(ADD_TX, 3, 60))
    second = FileImage(2, 400).put(
        Entry(UPDATE_TX, 2, 50, 0, b"c"), Entry(COMMIT, transaction=50, listed=((1, 2), (2, 1))), Entry(ROLLBACK, transaction=60)
    )
    state = load([bytes(second), bytes(first)])
    assert state.latest() == {2: (0, b"c")}
    assert not state.failed
    assert not state.prepared
    # The first file was reclaimed: what is left of the transaction is safe.
    assert load([bytes(second)]).latest() == {2: (0, b"c")}
    # A record that says it is another transaction's is missing in its own.
    first.damage(4 + 23 + 5, b"\xff")
    assert load([bytes(first), bytes(second)]).latest() == {1: (0, b"a")}


def test_a_hole_in_the_first_of_two_files_fails_the_whole_transaction() -> None:
    first = FileImage(1, 400).put(Entry(ADD_TX, 2, 50, 0, b"b"), Entry(ADD_TX, 3, 50, 0, b"b"))
    second = FileImage(2, 400).put(Entry(ADD_TX, 4, 50, 0, b"c"), Entry(COMMIT, transaction=50, listed=((1, 2), (2, 1))))
    assert set(load([bytes(first), bytes(second)]).latest()) == {2, 3, 4}
    first.damage(4, b"J")
    state = load([bytes(first), bytes(second)])
    assert state.latest() == {}
    assert state.failed == {50}


def test_a_prepared_transaction_is_in_doubt_until_it_is_decided() -> None:
    image = FileImage(1, 400).put(Entry(ADD_TX, 2, 50, 3, b"b"), Entry(PREPARE, transaction=50, listed=((1, 1),)), Entry(PREPARE, transaction=51))
    state = load([bytes(image)])
    assert state.prepared == {50: [Entry(ADD_TX, 2, 50, 3, b"b")], 51: []}
    assert not state.records
    assert load([bytes(image.put(Entry(COMMIT, transaction=50, listed=((1, 1),)), Entry(ROLLBACK, transaction=51)))]).latest() == {2: (3, b"b")}


def test_a_delete_ends_a_record_and_one_of_an_unknown_record_says_nothing() -> None:
    image = FileImage(1, 400).put(Entry(DELETE, id=7), Entry(ADD, id=7), Entry(ADD, id=8), Entry(DELETE, id=8))
    assert set(load([bytes(image)]).records) == {7}


def test_file_ids_follow_each_other_around_the_ring() -> None:
    assert ring_order([3, 1, 2]) == [1, 2, 3]
    top = (1 << 31) - 1
    assert ring_order([1, top, top - 1, 2]) == [top - 1, top, 1, 2]
    assert ring_order([5]) == [5]
    assert ring_order([]) == []
