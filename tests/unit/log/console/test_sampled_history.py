"""Time in which nothing was known is a gap in the charts, not a line across it."""

from __future__ import annotations

from waltz_log.console.reading.sampled_history import History
from waltz_log.console.rendering import polylines
from waltz_log.coordination.survey import PartitionState, ServerState, Survey


def survey(*marks: int | None) -> Survey:
    partitions = tuple(PartitionState(number, 0, "a:1", 0, 0, mark, (), mark is not None) for number, mark in enumerate(marks))
    return Survey("test", "key", partitions, (ServerState(0, "a:1", True, {}),), ())


def test_a_time_without_a_survey_is_a_gap_and_its_growth_is_not_a_peak() -> None:
    history = History()
    for second, mark in ((0, 0), (1, 10)):
        history.add(survey(mark), 1000 * second)
    history.gap(3000)
    history.gap(5000)
    history.add(survey(5000), 60_000)
    history.add(survey(5010), 61_000)
    assert [each.time_ms for each in history.points] == [1000, 3000, 61_000]
    assert history.points[1].appended is None
    assert history.sparkline(0) == (10.0, None, 10.0)


def test_a_partition_without_an_owner_has_a_gap_while_others_go_on() -> None:
    history = History()
    for second, marks in enumerate(((0, 0), (10, 10), (None, 20), (None, 30))):
        history.add(survey(*marks), 1000 * second)
    assert history.sparkline(0) == (10.0, None, None)
    assert history.sparkline(1) == (10.0, 10.0, 10.0)


def test_a_topic_has_the_rate_of_the_partitions_that_are_known() -> None:
    history = History()
    for second, marks in enumerate(((0, 0, 0), (10, 5, 7), (20, None, None))):
        history.add(survey(*marks), 1000 * second)
        if second == 1:
            assert history.rate([0, 1]) == 15.0
    assert history.rate([0, 1]) == 10.0
    assert history.rate([1, 2]) is None
    assert history.rate([9]) is None


def test_a_sparkline_with_a_gap_is_two_lines_and_a_single_value_a_dot() -> None:
    assert polylines([]) == []
    assert len(polylines([1.0, 2.0, 3.0])) == 1
    first, dot = polylines([1.0, 2.0, None, None, 4.0])
    assert first == "0.0,16.0 24.0,11.0"
    assert dot == "96.0,1.0 96.0,1.0"
    assert polylines([None, None]) == []
