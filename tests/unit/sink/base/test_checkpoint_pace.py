"""When a checkpoint of a table's log is due."""

from __future__ import annotations

import pytest

from waltz_delta.base.checkpoint_pace import checkpoint_pace, with_interval

HOUR_S = 3600.0


@pytest.mark.parametrize(
    ("commits", "passed_s", "due"),
    [
        (0, HOUR_S, False),
        (9, HOUR_S, False),
        (10, 0.0, False),
        (10, 59.0, False),
        (10, 60.0, True),
        (99, 59.9, False),
        (100, 0.0, True),
    ],
)
def test_a_table_of_the_sink_needs_ten_commits_and_a_minute_or_a_hundred_commits(commits: int, passed_s: float, due: bool) -> None:
    made = with_interval({"delta.appendOnly": "true"})
    assert made["delta.appendOnly"] == "true"
    assert checkpoint_pace(int(made["delta.checkpointInterval"])).is_due(commits, passed_s) is due


def test_an_interval_that_the_user_chose_is_kept_whatever_the_time() -> None:
    assert with_interval({"delta.CheckpointInterval": "7"}) == {"delta.CheckpointInterval": "7"}
    for interval in (1, 7, 200):
        pace = checkpoint_pace(interval)
        assert [pace.is_due(interval - 1, HOUR_S), pace.is_due(interval, 0.0)] == [False, True]
