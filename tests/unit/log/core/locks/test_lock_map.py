"""The map of a lock table against a dict: one lock at a time and whole frames, locks that share places, and growth."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waltz_log.core.locks import lock_map
from waltz_log.core.locks.lock_map import ABSENT, FEW_ASTRAY, MULTIPLIER, LockMap

LOCKS = st.one_of(st.integers(-3, 40), st.sampled_from([-(2**63), 2**63 - 1, 1 << 32]))

SHARED = 1
"""With this multiplier, small locks have their place at the beginning: all of them share it."""


def put_all(found: LockMap, locks: list[int], writers: list[int]) -> bool:
    column = np.array(locks, dtype=np.int64)
    places = found.places(column)
    return found.put_all(column, places, found.writers_at(places), np.array(writers, dtype=np.int64))


def _contents(found: LockMap) -> dict[int, int]:
    locks, last_writers = found.items()
    assert len(locks) == len(found)
    return dict(zip(locks.tolist(), last_writers.tolist(), strict=True))


def writers(found: LockMap, locks: list[int]) -> list[int]:
    held: list[int] = found.writers_at(found.places(np.array(locks, dtype=np.int64))).tolist()
    return held


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.one_of(st.tuples(LOCKS, st.integers(0, 99)), st.lists(LOCKS, min_size=1, max_size=90)), max_size=12),
    st.sampled_from([MULTIPLIER, SHARED, 1 << 57 | 1]),
    st.sampled_from([0, lock_map.MOVED_AT_ONCE]),
)
def test_a_map_holds_what_a_dict_does(steps: list[tuple[int, int] | list[int]], multiplier: int, moved_at_once: int) -> None:
    """A pair is written alone, a list as a frame, which is refused if it has a lock twice. A map that grows moves its locks at once or later."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lock_map, "MOVED_AT_ONCE", moved_at_once)
        patch.setattr(lock_map, "MOVED_MIN", 1)
        _compare(steps, LockMap(multiplier))


def _compare(steps: list[tuple[int, int] | list[int]], found: LockMap) -> None:
    exact: dict[int, int] = {}
    for number, step in enumerate(steps):
        if isinstance(step, tuple):
            found.put(*step)
            exact[step[0]] = step[1]
        else:
            ids = list(range(1_000 * number, 1_000 * number + len(step)))
            distinct = len(set(step)) == len(step)
            assert put_all(found, step, ids) == distinct
            exact |= dict(zip(step, ids, strict=True)) if distinct else {}
        assert len(found) == len(exact)
        asked = [*list(exact)[number % 7 :: 7], -7, 41, 0]  # a lock that is looked up moves at once
        assert writers(found, asked) == [exact.get(lock, ABSENT) for lock in asked]
        assert [found.get(lock) for lock in asked] == [exact.get(lock, ABSENT) for lock in asked]
    assert _contents(found) == exact


@pytest.mark.parametrize("count", [FEW_ASTRAY, 100])
def test_new_locks_that_share_one_place_all_get_one(count: int) -> None:
    found = LockMap(SHARED)
    assert put_all(found, list(range(count)), list(range(count)))
    assert writers(found, [*range(count), count]) == [*range(count), ABSENT]
    assert put_all(found, list(range(count // 2, 2 * count)), list(range(count, count + 2 * count - count // 2)))
    assert len(found) == 2 * count
    assert [found.get(lock) for lock in (0, count // 2, 2 * count - 1, 2 * count)] == [0, count, 3 * count - count // 2 - 1, ABSENT]


def test_a_map_that_grew_many_times_has_lost_nothing() -> None:
    rng = random.Random(7)
    found, exact = LockMap(), dict[int, int]()
    for number in range(40):
        frame = list({rng.getrandbits(64) - 2**63 if rng.random() < 0.5 else rng.randrange(10_000) for _ in range(rng.choice([1, 500, 3_000]))})
        ids = list(range(number * 10_000, number * 10_000 + len(frame)))
        assert put_all(found, frame, ids)
        exact |= dict(zip(frame, ids, strict=True))
    assert len(found) == len(exact) > 20_000
    assert writers(found, list(exact)) == list(exact.values())


def test_a_map_that_grows_moves_a_few_locks_with_each_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its size: to move all at once would take longer than other clients may wait."""
    entered: list[int] = []
    enter = lock_map._Places.enter

    def counted(places: lock_map._Places, locks: lock_map.Int64s, stored: lock_map.Int64s) -> None:
        entered.append(len(locks))
        enter(places, locks, stored)

    monkeypatch.setattr(lock_map._Places, "enter", counted)
    found, frame = LockMap(), 1_000
    for first in range(0, 300_000, frame):
        ids = list(range(first, first + frame))
        assert put_all(found, ids, ids)
        assert found.get(first // 2) == first // 2
    assert sum(entered) > 300_000, "it grew"
    assert max(entered) <= max(lock_map.MOVED_EACH * frame + lock_map.MOVED_MIN, lock_map.MOVED_AT_ONCE)
    assert _contents(found) == {each: each for each in range(300_000)}


def test_a_frame_with_a_lock_twice_leaves_the_map_as_it_was() -> None:
    found = LockMap()
    assert put_all(found, [5, 6], [1, 2])
    assert not put_all(found, [6, 7, 8, 7], [3, 4, 5, 6])
    assert writers(found, [5, 6, 7, 8]) == [1, 2, ABSENT, ABSENT]
    assert len(found) == 2
    assert put_all(found, [7, 8], [7, 8])
    assert writers(found, [5, 6, 7, 8]) == [1, 2, 7, 8]


def test_another_multiplier_spreads_locks_in_another_way() -> None:
    """Or a client could choose locks that share a place."""
    locks = np.arange(1_000, dtype=np.int64) << 32
    places = []
    for multiplier in (MULTIPLIER, MULTIPLIER ^ 0x5555_5555_5555_5554):
        found = LockMap(multiplier)
        places.append(found.places(locks))
    assert (places[0] != places[1]).mean() > 0.9
