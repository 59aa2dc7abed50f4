"""The planner against a brute-force one, over random logs, limits and restarts."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_waltz.errors import DataLost
from pyspark_waltz.offsets import Extent, Offset, batch_starts, checked_starts
from pyspark_waltz.options import EARLIEST, LATEST, Limits, Positions
from pyspark_waltz.planner import Span, cut, latest_offset, resolve, split_limit
from waltz_log.errors import InvalidSetting, OutOfRange

KEY = "00000000-0000-0000-0000-000000000007"


def initial_offset(positions: Positions, extents: dict[int, Extent]) -> Offset:
    return Offset(resolve(positions, extents, option="startingTransactionIds"), initial=True, cluster=KEY)


def at_most(rows: int | None) -> Limits:
    return Limits(max_rows=rows)


def tasks(starts: dict[int, int], ends: dict[int, int], *, min_partitions: int | None, max_records: int) -> list[Span]:
    return cut([Span(p, starts[p], ends[p] - 1) for p in sorted(ends)], min_partitions=min_partitions, max_records=max_records)


backlogs = st.dictionaries(st.integers(0, 6), st.integers(0, 40), min_size=1)
sizes = st.dictionaries(st.integers(0, 6), st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1)


def brute_force_share(backlog: dict[int, int], limit: int) -> dict[int, int]:
    """One to each that waits, then single transactions to the partition furthest below its exact share."""
    share = {partition: 1 for partition, size in backlog.items() if size > 0}
    behind = {partition: backlog[partition] - 1 for partition in share}
    rest, total = limit - len(share), sum(behind.values())
    exact = {partition: Fraction(rest * size, total) if total else Fraction(0) for partition, size in behind.items()}
    whole = dict.fromkeys(share, 0)
    for partition in share:
        while whole[partition] + 1 <= exact[partition]:
            whole[partition] += 1
    for _ in range(rest - sum(whole.values())):
        neediest = min(share, key=lambda p: (-(exact[p] - whole[p]), p))
        whole[neediest] += 1
    return {partition: 1 + whole[partition] for partition in share}


@settings(deadline=None)
@given(backlogs, st.integers(1, 200))
def test_a_limit_is_shared_as_the_brute_force_planner_shares_it(backlog: dict[int, int], limit: int) -> None:
    waiting = [partition for partition, size in backlog.items() if size]
    if limit >= sum(backlog.values()):
        return
    share = split_limit(backlog, limit, turn=0)
    assert sum(share.values()) == limit
    assert all(share[partition] <= backlog[partition] for partition in share)
    if limit >= len(waiting):
        assert share == brute_force_share(backlog, limit)
        assert sorted(share) == sorted(waiting)


@settings(deadline=None)
@given(st.integers(1, 6), st.integers(1, 5))
def test_partitions_alternate_if_the_limit_is_below_their_number(partitions: int, limit: int) -> None:
    start = Offset(dict.fromkeys(range(partitions), 0))
    extents = {partition: Extent(0, 1000) for partition in range(partitions)}
    for _ in range(partitions):
        start = latest_offset(start, extents, at_most(limit))
    assert all(at >= 1 for at in start.next.values())


@settings(deadline=None)
@given(sizes, st.none() | st.integers(1, 60))
def test_batches_follow_each_other_without_gap_or_repeat_up_to_the_end(log: dict[int, tuple[int, int]], limit: int | None) -> None:
    extents = {partition: Extent(first, first + count) for partition, (first, count) in log.items()}
    start = initial_offset(Positions(EARLIEST), extents)
    seen: dict[int, list[int]] = {partition: [] for partition in extents}
    for _ in range(500):
        end = latest_offset(start, extents, at_most(limit))
        if end == start:
            break
        starts = batch_starts(start, end)
        spans = tasks(starts, dict(end.next), min_partitions=None, max_records=7)
        rows = [(span.partition, at) for span in spans for at in range(span.first, span.last + 1)]
        assert limit is None or len(rows) <= limit
        for partition, at in rows:
            seen[partition].append(at)
        start = Offset.from_json(end.to_json())
    else:
        pytest.fail("the planner does not come to an end")
    assert seen == {partition: list(range(extent.first, extent.next)) for partition, extent in extents.items()}


@settings(deadline=None)
@given(sizes, sizes, st.none() | st.integers(1, 60), st.sampled_from([EARLIEST, LATEST]))
def test_a_first_batch_is_replayed_alike_whatever_the_start_would_be_now(
    then: dict[int, tuple[int, int]], grown: dict[int, tuple[int, int]], limit: int | None, default: int
) -> None:
    before = {partition: Extent(first, first + count) for partition, (first, count) in then.items()}
    start = initial_offset(Positions(default), before)
    end = latest_offset(start, before, at_most(limit))
    planned = batch_starts(start, end)
    now = {p: Extent(before[p].first, before[p].next + grown.get(p, (0, 0))[1]) for p in before}
    asked_again = initial_offset(Positions(default), now)
    assert batch_starts(Offset.from_json(asked_again.to_json()), Offset.from_json(end.to_json())) == planned


def test_a_partition_that_appears_while_running_starts_at_its_earliest_and_is_replayed_from_there() -> None:
    start = Offset({0: 5})
    end = latest_offset(start, {0: Extent(0, 8), 1: Extent(3, 9)})
    assert end.to_json() == {"0": 8, "1": 9, "began": {"1": 3}}
    assert batch_starts(start, end) == {0: 5, 1: 3}
    after = latest_offset(end, {0: Extent(0, 8), 1: Extent(3, 10)})
    assert after.to_json() == {"0": 8, "1": 10}


def test_without_progress_the_offset_stays_and_spark_sees_no_new_data() -> None:
    start = Offset({0: 5, 1: 0}, began={0: 2})
    assert latest_offset(start, {0: Extent(0, 5), 1: Extent(0, 0)}, at_most(10)) is start
    assert Offset.from_json(start.to_json()) == start


def test_a_partition_without_an_owner_stays_where_it_is() -> None:
    assert latest_offset(Offset({0: 5, 1: 7}), {1: Extent(0, 9)}).next == {0: 5, 1: 9}


def test_a_bound_below_the_offset_never_moves_it_back() -> None:
    assert latest_offset(Offset({0: 5}), {0: Extent(0, 3)}).next == {0: 5}


@settings(deadline=None)
@given(sizes, st.none() | st.integers(1, 40), st.integers(1, 20))
def test_tasks_cover_every_id_once_within_their_bounds(batch: dict[int, tuple[int, int]], least: int | None, most: int) -> None:
    starts = {partition: first for partition, (first, _) in batch.items()}
    ends = {partition: first + count for partition, (first, count) in batch.items()}
    spans = tasks(starts, ends, min_partitions=least, max_records=most)
    covered = [(span.partition, at) for span in spans for at in range(span.first, span.last + 1)]
    assert covered == [(partition, at) for partition in sorted(batch) for at in range(starts[partition], ends[partition])]
    assert all(span.last - span.first + 1 <= most for span in spans)
    if least is not None:
        assert len(spans) >= min(least, len(covered))


def test_an_empty_batch_has_no_tasks() -> None:
    assert tasks({0: 5}, {0: 5}, min_partitions=8, max_records=10) == []
    assert tasks({}, {}, min_partitions=None, max_records=10) == []


def test_tasks_of_one_partition_are_even() -> None:
    assert tasks({0: 0}, {0: 10}, min_partitions=3, max_records=100) == [Span(0, 0, 1), Span(0, 2, 4), Span(0, 5, 6), Span(0, 7, 9)]


def test_positions_resolve_against_the_log() -> None:
    extents = {0: Extent(3, 10), 1: Extent(0, 4), 2: Extent(1, 1)}
    assert resolve(Positions(EARLIEST, {0: 7, 1: -1}), extents, option="startingTransactionIds") == {0: 7, 1: 4, 2: 1}
    with pytest.raises(InvalidSetting, match="partition 9"):
        resolve(Positions(EARLIEST, {9: 1}), extents, option="startingTransactionIds")
    with pytest.raises(OutOfRange):
        resolve(Positions(EARLIEST, {1: 5}), extents, option="startingTransactionIds")


def test_loss_names_partition_and_exact_range_or_is_skipped() -> None:
    starts, ends, extents = {0: 2, 1: 5}, {0: 9, 1: 6}, {0: Extent(5, 20), 1: Extent(0, 20)}
    with pytest.raises(DataLost) as caught:
        checked_starts(starts, ends, extents, fail_on_data_loss=True)
    assert (caught.value.partition, caught.value.first, caught.value.last) == (0, 2, 4)
    assert checked_starts(starts, ends, extents, fail_on_data_loss=False) == {0: 5, 1: 5}
    assert checked_starts({0: 2}, {0: 4}, extents, fail_on_data_loss=False) == {0: 4}


def test_a_limit_is_not_used_up_by_what_was_trimmed() -> None:
    assert latest_offset(Offset({0: 0}), {0: Extent(100, 200)}, at_most(10)).next == {0: 110}


@pytest.mark.parametrize("foreign", [{"topic": {"0": 1}}, {"0": None}, {"0": [1]}, {"0": 1, "began": 3}])
def test_an_offset_of_another_source_is_refused(foreign: dict[str, object]) -> None:
    with pytest.raises(InvalidSetting, match="no offset of this source"):
        Offset.from_json(foreign)


def test_a_batch_that_ends_before_it_starts_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="cannot be"):
        batch_starts(Offset({0: 5}), Offset({0: 4}))
    with pytest.raises(InvalidSetting, match="cannot be"):
        batch_starts(Offset({}), Offset({0: 4}))
