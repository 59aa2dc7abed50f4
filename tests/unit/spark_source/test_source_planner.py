"""Limits of a micro-batch, starts and ends by time: the planner against one that reads every transaction."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_waltz.offsets import Extent, Offset, batch_starts
from pyspark_waltz.options import Limits
from pyspark_waltz.planner import Measure, Range, Size, capped, latest_offset, resolve, times_needed, within_bytes
from pyspark_waltz.positions import EARLIEST, LATEST, Positions, Times
from waltz_log.errors import InvalidSetting, OutOfRange

KEY = "k"

logs = st.dictionaries(st.integers(0, 4), st.lists(st.integers(41, 400), max_size=25), min_size=1)
"""Partition to the sizes of its transactions."""


def measured(sizes: Mapping[int, list[int]]) -> Measure:
    """A log that adds up one record after the other."""

    def measure(ranges: Mapping[int, Range]) -> dict[int, Size]:
        found = {}
        for partition, asked in ranges.items():
            total, within = 0, asked.first - 1
            for at in range(asked.first, asked.last + 1):
                total += sizes[partition][at]
                within = at if total <= asked.max_bytes else within
            found[partition] = Size(total, within)
        return found

    return measure


def brute_force_bytes(sizes: Mapping[int, list[int]], starts: Mapping[int, int], limit: int) -> dict[int, int]:
    """How many transactions of each: all where they fit, else one after the other while within a share in proportion, and at least one."""
    left = {p: sizes[p][at:] for p, at in starts.items() if sizes[p][at:]}
    everything = sum(sum(each) for each in left.values())
    if everything <= limit:
        return {p: len(each) for p, each in left.items()}
    found = {}
    for p, each in left.items():
        taken = 0
        while taken < len(each) and sum(each[: taken + 1]) * everything <= (limit * sum(each) // everything) * everything:
            taken += 1
        found[p] = max(1, taken)
    return found


@given(logs, st.integers(1, 6000))
@settings(deadline=None)
def test_bytes_are_shared_as_one_who_counts_every_transaction_shares_them(sizes: dict[int, list[int]], limit: int) -> None:
    starts = {p: len(each) // 3 for p, each in sizes.items()}
    backlog = {p: len(sizes[p]) - at for p, at in starts.items() if len(sizes[p]) > at}
    found = within_bytes(backlog, starts, limit, measured(sizes))
    assert found == brute_force_bytes(sizes, starts, limit)
    taken = {p: sizes[p][starts[p] : starts[p] + count] for p, count in found.items()}
    forced = sum(each[0] for each in taken.values() if len(each) == 1)
    assert sum(map(sum, taken.values())) <= limit + forced, "only first transactions that do not fit may go beyond the limit"


@given(logs, st.none() | st.integers(1, 20), st.none() | st.integers(1, 3000))
@settings(deadline=None)
def test_batches_under_both_limits_hold_each_transaction_once_and_every_partition_gets_on(
    sizes: dict[int, list[int]], rows: int | None, size: int | None
) -> None:
    extents = {p: Extent(0, len(each)) for p, each in sizes.items()}
    start = Offset(dict.fromkeys(extents, 0), initial=True, cluster=KEY)
    seen: dict[int, list[int]] = {p: [] for p in extents}
    for _ in range(200):
        end = latest_offset(start, extents, Limits(max_rows=rows, max_bytes=size), measure=measured(sizes))
        if end is start:
            break
        assert end.cluster == KEY
        starts = batch_starts(start, end)
        batch = {p: range(at, end.next[p]) for p, at in starts.items()}
        if rows is not None:
            assert sum(map(len, batch.values())) <= rows
        if rows is None:
            assert all(batch[p] for p, at in starts.items() if at < extents[p].next), "a partition with a backlog stands still"
        for p, ids in batch.items():
            seen[p] += ids
        start = Offset.from_json(end.to_json())
    else:
        pytest.fail("the planner does not come to an end")
    assert seen == {p: list(range(len(each))) for p, each in sizes.items()}


def test_a_least_is_waited_for_until_it_is_there_or_the_time_is_over() -> None:
    limits = Limits(min_rows=10, delay_ms=1000)
    start, few, enough = Offset({0: 5, 1: 0}), {0: Extent(0, 9), 1: Extent(0, 5)}, {0: Extent(0, 9), 1: Extent(0, 6)}
    assert latest_offset(start, few, limits, waited_ms=999) is start
    assert latest_offset(start, few, limits, waited_ms=1000).next == {0: 9, 1: 5}
    assert latest_offset(start, enough, limits, waited_ms=0).next == {0: 9, 1: 6}
    assert latest_offset(start, few, limits, waited_ms=None).next == {0: 9, 1: 5}, "nothing is waited for where nothing more will come"
    assert latest_offset(Offset({0: 9, 1: 5}), few, limits, waited_ms=5000).next == {0: 9, 1: 5}, "nothing at all makes no batch"


def test_a_least_and_a_most_hold_together() -> None:
    limits = Limits(max_rows=12, min_rows=10, delay_ms=1000)
    start = Offset({0: 0})
    assert latest_offset(start, {0: Extent(0, 9)}, limits, waited_ms=0) is start
    assert latest_offset(start, {0: Extent(0, 40)}, limits, waited_ms=0).next == {0: 12}


def test_waiting_in_the_first_batch_keeps_where_the_query_began() -> None:
    limits = Limits(min_rows=10, delay_ms=1000)
    begun = latest_offset(Offset({0: 5}, initial=True, cluster=KEY), {0: Extent(0, 9), 1: Extent(0, 1)}, limits, waited_ms=0)
    assert begun.to_json() == {"0": 5, "began": {"0": 5}, "origin": {"0": 5}, "cluster": KEY}
    assert latest_offset(begun, {0: Extent(0, 9), 1: Extent(0, 1)}, limits, waited_ms=2000).next == {0: 9, 1: 1}


def test_every_offset_says_where_the_stream_began_and_one_of_an_older_stream_says_that_it_does_not_know() -> None:
    first = latest_offset(Offset({0: 5, 1: 0}, initial=True), {0: Extent(0, 9), 1: Extent(0, 3)})
    found = Offset.from_json(first.to_json())
    assert found.origin == {0: 5}
    later = latest_offset(found, {0: Extent(0, 20), 1: Extent(0, 30), 2: Extent(4, 8)})
    assert Offset.from_json(later.to_json()).origin == {0: 5, 2: 4}, "partition 2 was added, and its first four were trimmed before"
    assert latest_offset(later, {0: Extent(0, 20), 1: Extent(0, 30), 2: Extent(4, 8)}) is later
    assert "origin" in latest_offset(Offset({0: 0}, initial=True), {0: Extent(0, 9)}).to_json(), "beginning at 0 is known too"
    assert latest_offset(Offset({0: 5}), {0: Extent(0, 9), 1: Extent(7, 9)}).origin is None


def test_an_end_is_never_passed_and_never_moves_a_query_back() -> None:
    extents = {0: Extent(0, 100), 1: Extent(20, 100), 2: Extent(0, 3)}
    ends = capped(extents, {0: 10, 1: 10, 2: 50})
    assert ends == {0: Extent(0, 10), 1: Extent(10, 10), 2: Extent(0, 3)}
    assert latest_offset(Offset({0: 4, 1: 30, 2: 0}), ends).next == {0: 10, 1: 30, 2: 3}
    done = Offset({0: 10, 1: 30, 2: 3})
    assert latest_offset(done, ends) is done


# ---- by time -----------------------------------------------------------------------------------------------------------------------------------


def lookup(log: Mapping[int, tuple[int, list[int]]], times: Mapping[int, int]) -> dict[int, int]:
    """What a log of (first id, append times) answers."""
    found = {}
    for p, time_ms in times.items():
        first, appended = log[p]
        found[p] = next((first + n for n, each in enumerate(appended) if each >= time_ms), first + len(appended))
    return found


@given(
    st.dictionaries(st.integers(0, 4), st.tuples(st.integers(0, 9), st.lists(st.integers(0, 30), max_size=12).map(sorted)), min_size=1),
    st.none() | st.integers(0, 31),
    st.dictionaries(st.integers(0, 4), st.integers(0, 31)),
    st.dictionaries(st.integers(0, 4), st.sampled_from([EARLIEST, LATEST])),
    st.sampled_from([EARLIEST, LATEST]),
)
@settings(deadline=None)
def test_positions_by_time_are_the_first_as_new_and_the_most_specific_wins(
    log: dict[int, tuple[int, list[int]]], everywhere: int | None, each: dict[int, int], named: dict[int, int], otherwise: int
) -> None:
    extents = {p: Extent(first, first + len(appended)) for p, (first, appended) in log.items()}
    each = {p: time_ms for p, time_ms in each.items() if p in log}
    named = {p: at for p, at in named.items() if p in log}
    positions = Positions(otherwise, named)
    times = Times("t", everywhere, each, otherwise) if everywhere is not None or each else None
    found = resolve(positions, extents, option="o", times=times, at_times=lookup(log, times_needed(positions, times, extents)))
    for p, (first, appended) in log.items():
        word = named.get(p, otherwise)
        time_ms = None if p in named else each.get(p, everywhere)
        if time_ms is not None:
            expected = next((first + n for n, at in enumerate(appended) if at >= time_ms), first + len(appended))
        else:
            expected = first if word == EARLIEST else first + len(appended)
        assert found[p] == expected


def test_nothing_as_new_is_an_error_or_the_latest_as_the_strategy_says() -> None:
    extents = {0: Extent(3, 10)}
    for strict in (True, False):
        times = Times("startingTimestamp", 1_700_000_000_000, otherwise=EARLIEST, strict=strict)
        if strict:
            with pytest.raises(InvalidSetting, match=r"startingTimestamp.*partition 0 was appended at 2023-11-14T22:13:20.000Z or later"):
                resolve(Positions(EARLIEST), extents, option="startingTransactionIds", times=times, at_times={0: 10})
        else:
            assert resolve(Positions(EARLIEST), extents, option="startingTransactionIds", times=times, at_times={0: 10}) == {0: 10}


def test_a_position_of_a_partition_that_is_not_there_is_refused_by_the_option_that_names_it() -> None:
    times = Times("startingTransactionIdsByTimestamp", given_ms={9: 5}, otherwise=EARLIEST)
    with pytest.raises(InvalidSetting, match=r"startingTransactionIdsByTimestamp names partition 9, the log has 0"):
        resolve(Positions(EARLIEST), {0: Extent(0, 4)}, option="startingTransactionIds", times=times, at_times={})
    with pytest.raises(OutOfRange):
        resolve(Positions(EARLIEST, {0: 5}), {0: Extent(0, 4)}, option="startingTransactionIds")


def test_a_checkpoint_of_another_cluster_is_refused() -> None:
    offset = Offset.from_json(Offset({0: 1}, cluster="a").to_json())
    offset.expect_cluster("a")
    Offset({0: 1}).expect_cluster("a")
    with pytest.raises(InvalidSetting, match="checkpoint=a cluster=b"):
        offset.expect_cluster("b")
