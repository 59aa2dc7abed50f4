from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waltz_log.core.locks.hot_keys import HotKeys
from waltz_log.core.locks.lock_columns import TURN_MARK, unpack_i8
from waltz_log.core.locks.locks import FEW_LOCKS, LockTable


def _counts(*rows: tuple[int, int, int]) -> bytes:
    return bytes(value for row in rows for value in row)


def test_write_lock_conflicts_above_the_clients_mark_and_passes_at_it() -> None:
    table = LockTable(floor=10, entries_max=1000)
    assert table.judge([10], _counts((1, 0, 0)), [7], 11).accepted == [0]
    assert table.judge([10], _counts((1, 0, 0)), [7], 12).rejected == [(0, 11)]
    assert table.judge([11], _counts((1, 0, 0)), [7], 12).accepted == [0]


def test_read_lock_checks_and_does_not_set() -> None:
    table = LockTable(floor=0, entries_max=1000)
    table.judge([0], _counts((0, 1, 0)), [7], 1)
    assert table.judge([0], _counts((1, 0, 0)), [7], 2).accepted == [0]
    assert table.judge([1], _counts((0, 1, 0)), [7], 3).rejected == [(0, 2)]


def test_append_lock_sets_and_never_fails() -> None:
    table = LockTable(floor=5, entries_max=1000)
    assert table.judge([-1], _counts((0, 0, 1)), [7], 6).accepted == [0]
    assert table.judge([-1], _counts((0, 0, 1)), [7], 7).accepted == [0]
    assert table.judge([6], _counts((0, 1, 0)), [7], 8).rejected == [(0, 7)]


def test_a_transaction_without_locks_always_passes() -> None:
    table = LockTable(floor=100, entries_max=1000)
    assert list(table.judge([-1, -1], b"", [], 101).accepted) == [0, 1]
    assert table.judge([-1], _counts((0, 0, 0)), [], 103).accepted == [0]


def test_a_rejected_transaction_needs_no_id_and_sets_nothing() -> None:
    table = LockTable(floor=0, entries_max=1000)
    verdict = table.judge([0, 0, 0], _counts((1, 0, 0), (1, 0, 1), (1, 0, 0)), [1, 1, 9, 9], 1)
    assert verdict.accepted == [0, 2]
    assert verdict.rejected == [(1, 1)]
    assert table.last_writer(9) == 2


@pytest.mark.parametrize("counts", [(1, 0, 0), (0, 1, 0)])
@pytest.mark.parametrize("floor", [-1, 5])
def test_who_asks_for_a_turn_is_never_accepted_and_counts_as_no_conflict(counts: tuple[int, int, int], floor: int) -> None:
    table = LockTable(floor=floor, entries_max=1000)
    verdict = table.judge([TURN_MARK, floor], _counts(counts, counts), [7, 7], floor + 1, 3, b"\0\0")
    assert (verdict.accepted, verdict.rejected, verdict.holders, verdict.turns) == ([1], [(0, floor)], [7], [0])
    assert table.statistics().conflicts == 0
    assert table.statistics().hottest == ()
    verdict = table.judge([floor, TURN_MARK], _counts((1, 0, 0), counts), [7, 7], floor + 2, 4)
    assert verdict.turns == [0 if counts[1] else 1]
    assert table.statistics().conflicts == (0 if counts[1] else 1)


def test_conflicts_inside_one_frame_are_seen() -> None:
    table = LockTable(floor=0, entries_max=1000)
    assert table.judge([0, 0], _counts((1, 0, 0), (1, 0, 0)), [7, 7], 1).rejected == [(1, 1)]


@given(
    st.lists(
        st.tuples(
            st.integers(0, 30),
            st.lists(st.integers(0, 12), max_size=2),
            st.lists(st.integers(0, 12), max_size=2),
            st.lists(st.integers(0, 12), max_size=2),
        ),
        max_size=60,
    ),
    st.sampled_from([4, 8, 1000]),
)
def test_no_conflict_is_missed_and_with_memory_none_is_needless(rows: list[tuple[int, list[int], list[int], list[int]]], entries_max: int) -> None:
    """Against a dict that forgets nothing. A table with too little memory may reject more, never less."""
    table = LockTable(floor=5, entries_max=entries_max)
    exact: dict[int, int] = {}
    next_id = 6
    for lag, writes, reads, appends in rows:
        mark = next_id - 1 - lag
        winner = max((exact.get(lock, 5) for lock in writes + reads), default=-1)
        verdict = table.judge([mark], _counts((len(writes), len(reads), len(appends))), writes + reads + appends, next_id)
        if winner > mark:
            assert verdict.rejected
            assert verdict.rejected[0][1] >= winner
        elif entries_max == 1000:
            assert verdict.accepted == [0]
        if verdict.accepted:
            for lock in writes + appends:
                exact[lock] = next_id
            next_id += 1
        assert len(table) <= entries_max + 6


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 12)), min_size=1, max_size=20), max_size=8), st.sampled_from([6, 1000]))
def test_transactions_of_one_write_lock_are_judged_as_all_others(frames: list[list[tuple[int, int]]], entries_max: int) -> None:
    """A lock that is read too is judged by the general rule, and must fare the same."""
    quick, general = LockTable(floor=5, entries_max=entries_max), LockTable(floor=5, entries_max=entries_max)
    next_id = 6
    for frame in frames:
        marks = [next_id - 1 - lag for lag, _ in frame]
        found = quick.judge(marks, _counts((1, 0, 0)) * len(frame), [lock for _, lock in frame], next_id)
        assert found == general.judge(marks, _counts((1, 1, 0)) * len(frame), [lock for _, lock in frame for _ in range(2)], next_id)
        assert quick.statistics() == general.statistics()
        next_id += len(found.accepted)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([-1, 5]), st.sampled_from([0.0, 0.02, 0.3]))
def test_large_frames_are_judged_as_if_their_transactions_came_one_by_one(seed: int, floor: int, stale: float) -> None:
    """Frames of one write lock for each transaction and of any locks, with and without conflicts."""
    rng = random.Random(seed)
    whole, single = LockTable(floor, 1_000_000), LockTable(floor, 1_000_000)
    next_id = floor + 1
    for _ in range(6):
        count = rng.choice([1, FEW_LOCKS, 100])
        kinds = [(1, 0, 0)] * count if rng.random() < 0.6 else rng.choices([(1, 0, 0), (0, 1, 0), (1, 1, 1), (0, 0, 1)], k=count)
        marks = [next_id - 1 - rng.randrange(50) if rng.random() < stale else next_id - 1 for _ in range(count)]
        locks = [[lock] for lock in rng.sample(range(400), count)]
        if stale:
            locks = [[rng.randrange(400) for _ in range(sum(kind))] for kind in kinds]
        elif kinds != [(1, 0, 0)] * count:
            continue
        found = whole.judge(marks, _counts(*kinds), [lock for each in locks for lock in each], next_id)
        accepted: list[int] = []
        rejected: list[tuple[int, int]] = []
        for position in range(count):
            one = single.judge([marks[position]], _counts(kinds[position]), locks[position], next_id + len(accepted))
            accepted += [position] * len(one.accepted)
            rejected += [(position, winner) for _, winner in one.rejected]
        assert (list(found.accepted), found.rejected) == (accepted, rejected)
        assert stale or count < FEW_LOCKS or isinstance(found.accepted, range), "judged together"
        assert whole.statistics() == single.statistics()
        assert whole.newest(1_000) == single.newest(1_000)
        next_id += len(accepted)


@given(st.integers(-1, 9), st.lists(st.integers(-3, 3), min_size=2, max_size=12), st.sampled_from([4, 1000]))
def test_each_mark_of_a_frame_is_compared_with_the_floor(floor: int, lags: list[int], entries_max: int) -> None:
    """Locks that are not known count as written at the floor: one stale mark among many recent ones is enough for a conflict."""
    together, one_by_one = LockTable(floor, entries_max), LockTable(floor, entries_max)
    together.few_locks, one_by_one.few_locks = 1, 1_000
    marks, counts = [floor + lag for lag in lags], _counts((1, 0, 0)) * len(lags)
    next_id = floor + 4
    for first_lock in (0, 100):
        locks = list(range(first_lock, first_lock + len(lags)))
        found = together.judge(marks, counts, locks, next_id)
        expected = one_by_one.judge(marks, counts, locks, next_id)
        assert (list(found.accepted), found.rejected, found.holders) == (list(expected.accepted), expected.rejected, expected.holders)
        assert all(marks[position] >= floor for position in found.accepted)
        assert together.newest(1_000) == one_by_one.newest(1_000)
        next_id += len(found.accepted)


def test_a_lock_in_the_old_half_is_known_when_nothing_was_forgotten_yet() -> None:
    """The floor is that of an empty partition then, below every id and equal to what a map says of an unknown lock."""
    for count in (1, FEW_LOCKS):
        table = LockTable(floor=-1, entries_max=2 * count)
        table.judge([-1] * count, _counts((1, 0, 0)) * count, list(range(count)), 0)
        assert (table.floor, len(table)) == (-1, count)
        assert table.last_writer(count - 1) == count - 1
        assert table.judge([-1] * count, _counts((1, 0, 0)) * count, list(range(count)), count).accepted == []


def test_the_floor_rises_only_when_something_is_forgotten() -> None:
    table = LockTable(floor=0, entries_max=10)
    for number in range(1, 200):
        table.judge([number - 1], _counts((1, 0, 0)), [number], number)
    assert 150 < table.floor < 199
    assert table.last_writer(1) == table.floor
    assert table.last_writer(199) == 199


def test_packed_columns_are_big_endian() -> None:
    assert list(unpack_i8(bytes.fromhex("00000000000000010000000000000102fffffffffffffffe"))) == [1, 258, -2]


def test_conflicts_are_counted_by_their_lock_and_those_of_forgotten_locks_apart() -> None:
    table = LockTable(floor=10, entries_max=1000)
    table.judge([10, 10], _counts((1, 0, 0), (1, 0, 0)), [7, 8], 11)
    table.judge([11, 10, 11], _counts((1, 1, 0), (0, 1, 0), (1, 0, 0)), [7, 8, 7, 9], 13)  # 8 was written by 12, 7 by 11; 9 is free
    table.judge([9], _counts((1, 0, 0)), [99], 14)  # not remembered: 99
    statistics = table.statistics()
    assert (statistics.conflicts, statistics.floor_conflicts, statistics.floor) == (3, 1, 10)
    assert {(hot.key, hot.times) for hot in statistics.hottest} == {(8, 1), (7, 1), (99, 1)}


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, 40), max_size=400), st.integers(1, 8))
def test_counts_of_hot_keys_stay_within_their_error_and_no_key_above_it_is_missed(keys: list[int], kept: int) -> None:
    hot, exact = HotKeys(kept), Counter(keys)
    for key in keys:
        hot.add(key)
        assert len(hot) <= 2 * kept
    found = hot.hottest(2 * kept)
    for each in found:
        assert exact[each.key] <= each.times <= exact[each.key] + each.error
    assert [each.times for each in found] == sorted((each.times for each in found), reverse=True)
    missing = exact.keys() - {each.key for each in found}
    assert all(exact[key] <= len(keys) / kept for key in missing)


def test_a_hot_key_among_many_others_is_found() -> None:
    hot = HotKeys(16)
    for number in range(20_000):
        hot.add(number if number % 10 else -1)
    assert hot.hottest(1)[0].key == -1
