"""Transactions that count what their own client wrote as known: judged as if every write of every lock were remembered with its client."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waltz_log.core.locks import own_writes
from waltz_log.core.locks.locks import LockTable
from waltz_log.core.locks.own_writes import LOCKS_KEPT

ONE = b"\1\0\0"

LOCKS = st.lists(st.integers(0, 5), max_size=2)
TRANSACTION = st.tuples(st.integers(0, 12), st.booleans(), LOCKS, LOCKS, LOCKS)
NOTHING: st.SearchStrategy[list[int]] = st.just([])
ONE_WRITE = st.tuples(st.integers(0, 12), st.booleans(), st.lists(st.integers(0, 5), min_size=1, max_size=1), NOTHING, NOTHING)
FRAME = st.tuples(st.integers(1, 3), st.one_of(st.lists(TRANSACTION, min_size=1, max_size=6), st.lists(ONE_WRITE, min_size=1, max_size=6)))


@given(st.lists(FRAME, max_size=20), st.sampled_from([2, 4, 131_072]), st.sampled_from([6, 1000]))
@settings(max_examples=120, deadline=None)
def test_own_writes_are_known_and_no_write_of_another_is_missed(frames: list[tuple], locks_kept: int, entries_max: int) -> None:  # type: ignore[type-arg]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(own_writes, "LOCKS_KEPT", locks_kept)
        table = LockTable(floor=5, entries_max=entries_max)
        exact = (locks_kept, entries_max) == (131_072, 1000)
        writes: list[tuple[int, int, int]] = []  # lock, id, client
        next_id = 6
        for client, rows in frames:
            first = next_id
            marks = [max(-1, next_id - 1 - lag) for lag, *_ in rows]
            counts = b"".join(bytes((len(write), len(read), len(append))) for _, _, write, read, append in rows)
            locks = [lock for _, _, write, read, append in rows for lock in (*write, *read, *append)]
            own = bytes(flag for _, flag, *_ in rows)
            verdict = table.judge(marks, counts if locks else b"", locks, first, client, own)
            rejected = dict(verdict.rejected)
            for position, (_, flag, write, read, append) in enumerate(rows):
                mark = marks[position]
                above = [number for lock, number, who in writes if lock in (*write, *read) and number > mark and not (flag and who == client)]
                older = bool(write or read) and mark < 5  # before the table was made another writer may have written anything
                if above or older:
                    assert position in rejected, (position, above)
                    if above:
                        assert rejected[position] >= max(above) or rejected[position] > mark
                elif exact:
                    assert position not in rejected
                if position not in rejected:
                    writes += [(lock, next_id, client) for lock in (*write, *append)]
                    next_id += 1
            assert len(verdict.accepted) == next_id - first


def test_a_foreign_write_between_two_of_ones_own_is_a_conflict() -> None:
    table = LockTable(floor=0, entries_max=100)
    one = b"\1\0\0"
    assert table.judge([0], one, [7], 1, 1, b"\1").accepted == [0]
    assert table.judge([0, 0], one * 2, [7, 7], 2, 1, b"\1\1").accepted == [0, 1]
    assert table.judge([3], one, [7], 4, 2).accepted == [0]
    assert table.judge([3], one, [7], 5, 1, b"\1").rejected == [(0, 4)]
    assert table.judge([4], one, [7], 5, 1, b"\1").accepted == [0]
    assert table.judge([4], one, [7], 6, 1).rejected == [(0, 5)], "who says what it has read has not read its own"


def test_an_append_lock_does_not_hide_the_write_of_another() -> None:
    table = LockTable(floor=0, entries_max=100)
    assert table.judge([0], b"\1\0\0", [7], 1, 2).accepted == [0]
    assert table.judge([0], b"\0\0\1", [7], 2, 1, b"\1").accepted == [0]
    assert table.judge([0], b"\0\1\0", [7], 3, 1, b"\1").rejected == [(0, 1)]
    assert table.judge([1], b"\0\1\0", [7], 3, 1, b"\1").accepted == [0]


def test_what_was_found_for_one_client_is_not_used_for_another() -> None:
    table = LockTable(floor=0, entries_max=100)
    write, read = b"\1\0\0", b"\0\1\0"
    assert table.judge([0], write, [7], 1, 1, b"\1").accepted == [0]
    assert table.judge([0], read, [7], 2, 1, b"\1").accepted == [0]
    assert table.judge([0], read, [7], 3, 2, b"\1").rejected == [(0, 1)]


def test_below_what_is_remembered_the_floor_is_the_reason_and_not_what_the_client_wrote_itself() -> None:
    """A transaction that was on its way when its partition was handed over: another client may have written up to the floor, no one did after it."""
    table = LockTable(floor=13, entries_max=100)
    assert table.judge([13], ONE, [7], 14, 1, b"\1").accepted == [0]
    assert table.judge([12], ONE, [7], 15, 1, b"\1").rejected == [(0, 13)], "14 is its own"
    assert table.judge([14], ONE, [7], 15, 2).accepted == [0]
    assert table.judge([12], ONE, [7], 16, 1, b"\1").rejected == [(0, 15)]
    assert table.judge([15], ONE, [7], 16, 1, b"\1").accepted == [0]
    assert table.judge([12], ONE, [7], 17, 1, b"\1").rejected == [(0, 15)], "16 is its own, 15 is not"


def test_an_append_lock_of_another_is_a_write() -> None:
    table = LockTable(floor=0, entries_max=100)
    assert table.judge([0], b"\0\0\1", [7], 1, 2).accepted == [0]
    assert table.judge([0], b"\0\0\1", [7], 2, 1, b"\1").accepted == [0]
    assert table.judge([0], b"\0\1\0", [7], 3, 1, b"\1").rejected == [(0, 1)]


def test_every_transaction_of_a_full_window_may_conflict_without_holding_up_the_others() -> None:
    """A client comes back after another wrote all its locks. Each of its transactions is looked up, and none of them searches what was kept:
    it cost milliseconds for each, so that a server stood still for a minute."""
    table = LockTable(floor=0, entries_max=1_000_000)
    locks, portion = list(range(100, 100 + LOCKS_KEPT)), 4096
    for client, first in ((1, 1), (2, LOCKS_KEPT + 1)):
        for at in range(0, LOCKS_KEPT, portion):
            marks = [first - 1] * portion
            assert len(table.judge(marks, ONE * portion, locks[at : at + portion], first + at, client, b"\1" * portion).accepted) == portion
    began_s = time.process_time()
    rejected = table.judge([LOCKS_KEPT] * 16_384, ONE * 16_384, locks[:16_384], 2 * LOCKS_KEPT + 1, 1, b"\1" * 16_384).rejected
    assert rejected == [(position, LOCKS_KEPT + 1 + position) for position in range(16_384)]
    assert time.process_time() - began_s < 3.0, "0.1 s; it was a minute"


def test_own_writes_among_many_of_others_are_looked_up_as_fast() -> None:
    """The lock's last writer is the client itself, so what others wrote before must be known too."""
    table = LockTable(floor=0, entries_max=1_000_000)
    portion, first = 4096, 1
    for client in (1, *[2] * 28):
        locks = list(range(client * 1_000_000, client * 1_000_000 + portion))
        assert len(table.judge([0] * portion, ONE * portion, locks, first, client, b"\1" * portion).accepted) == portion
        first += portion
    began_s = time.process_time()
    locks = list(range(1_000_000, 1_000_000 + portion))
    assert len(table.judge([0] * portion, ONE * portion, locks, first, 1, b"\1" * portion).accepted) == portion
    assert time.process_time() - began_s < 2.0
