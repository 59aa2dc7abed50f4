"""Histograms of durations: every duration is in one bucket, and those of several workers add up."""

from __future__ import annotations

import math
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from waltz_log.core.status.latency import BOUNDS_S, Latency
from waltz_log.statistics import merge

DURATIONS = st.lists(st.floats(min_value=0, max_value=1e4) | st.sampled_from(BOUNDS_S))


def _observed(durations: list[float]) -> Latency:
    latency = Latency()
    for each in durations:
        latency.observe(each)
    return latency


@given(DURATIONS)
def test_a_bucket_has_the_durations_above_the_bound_before_it_and_at_most_its_own(durations: list[float]) -> None:
    found = _observed(durations).statistics()
    bounds = [-math.inf, *BOUNDS_S, math.inf]
    assert list(found.counts) == [sum(low < each <= high for each in durations) for low, high in pairwise(bounds)]
    assert math.isclose(found.sum_s, sum(durations), abs_tol=1e-9)


@given(DURATIONS, DURATIONS)
def test_the_histograms_of_two_workers_merge_to_that_of_both(one: list[float], other: list[float]) -> None:
    both = merge([_observed(one).statistics(), _observed(other).statistics()])
    assert both.counts == _observed(one + other).statistics().counts


def test_a_snapshot_does_not_change_any_more() -> None:
    latency = _observed([0.001])
    before = latency.statistics()
    latency.observe(0.001)
    assert (sum(before.counts), sum(latency.statistics().counts)) == (1, 2)
