"""The thread that writes checkpoints of tables' logs beside the batches, and which commits it writes them after."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from structlog.testing import capture_logs

from waltz_delta.base.checkpoint_pace import CheckpointPace, checkpoint_pace
from waltz_delta.base.checkpoints import Checkpoints

PATIENCE_S = 5.0
EVERY_TENTH = checkpoint_pace(10)
DEFAULT = checkpoint_pace(100)


def written_after(pace: CheckpointPace, commits: Iterable[tuple[float, int, int]]) -> list[int]:
    """The versions after which a checkpoint is written. A commit: its time in seconds, its version, the newest checkpoint that it sees."""
    now_s, written = 0.0, list[int]()
    checkpoints = Checkpoints(lambda: now_s)
    for at_s, version, newest in commits:
        now_s = at_s
        checkpoints.committed("t", version, pace, newest, lambda version=version: written.append(version))  # type: ignore[misc]
        assert checkpoints.settle(PATIENCE_S)
    return written


def test_one_checkpoint_of_a_table_waits_at_most_and_the_newest_is_written() -> None:
    checkpoints, written, goes_on = Checkpoints(), list[str](), threading.Event()

    def first() -> None:
        assert goes_on.wait(PATIENCE_S)
        written.append("a first")

    checkpoints.schedule("a", first)
    for number in range(3):
        checkpoints.schedule("b", lambda number=number: written.append(f"b {number}"))  # type: ignore[misc]
    assert not checkpoints.settle(0.05), "one is being written"
    goes_on.set()
    assert checkpoints.settle(PATIENCE_S)
    assert written == ["a first", "b 2"]
    checkpoints.schedule("a", lambda: written.append("a again"))
    assert checkpoints.settle(PATIENCE_S)
    assert written[-1] == "a again"


def test_a_checkpoint_that_fails_is_logged_and_hinders_no_other() -> None:
    checkpoints, written = Checkpoints(), list[str]()

    def fails() -> None:
        raise OSError("no space left on device")

    with capture_logs() as logs:
        checkpoints.schedule("a", fails)
        assert checkpoints.settle(PATIENCE_S)
        checkpoints.schedule("b", lambda: written.append("b"))
        assert checkpoints.settle(PATIENCE_S)
    assert written == ["b"]
    assert [(each["table"], each["error"]) for each in logs] == [("a", "no space left on device")]


def test_nothing_to_write_is_settled_at_once() -> None:
    assert Checkpoints().settle(0.0)


def test_a_checkpoint_is_due_when_the_last_one_is_as_many_commits_old() -> None:
    commits = [(0.0, version, -1) for version in range(1, 40, 3)]  # two commits of three are another writer's
    assert written_after(EVERY_TENTH, commits) == [10, 22, 34]


def test_a_checkpoint_of_another_writer_counts() -> None:
    assert written_after(EVERY_TENTH, [(0.0, 10, 5), (0.0, 14, 5), (0.0, 15, 5), (0.0, 24, 20), (0.0, 30, 20)]) == [15, 30]
    assert written_after(DEFAULT, [(0.0, 10, 5), (60.0, 14, 5), (61.0, 15, 5), (130.0, 24, 20), (131.0, 30, 20)]) == [15, 30]


def test_a_table_that_was_replaced_begins_again() -> None:
    assert written_after(EVERY_TENTH, [(0.0, version, -1) for version in (50, 1, 9, 10, 11)]) == [50, 10]


def test_the_pause_of_a_table_that_was_replaced_begins_with_its_first_commit() -> None:
    commits = [(0.0, 50, 45), (60.0, 60, 45), (100.0, 1, -1), (159.0, 20, -1), (160.0, 21, -1)]
    assert written_after(DEFAULT, commits) == [60, 21]


def test_a_slow_table_gets_a_checkpoint_after_every_tenth_commit() -> None:
    assert written_after(DEFAULT, [(3600.0 * version, version, -1) for version in range(31)]) == [10, 20, 30]


def test_a_fast_table_gets_a_checkpoint_every_minute() -> None:
    assert written_after(DEFAULT, [(1000.0 + version, version, -1) for version in range(200)]) == [60, 120, 180]


def test_the_pause_begins_with_the_first_commit_of_this_process() -> None:
    """A table that another process filled: its checkpoint is 49 commits old."""
    assert written_after(DEFAULT, [(1000.0, 99, 50), (1059.9, 110, 50), (1060.0, 111, 50)]) == [111]


def test_a_hundred_commits_wait_for_no_pause() -> None:
    assert written_after(DEFAULT, [(0.0, version, -1) for version in range(301)]) == [100, 200, 300]
    assert written_after(DEFAULT, [(0.0, 149, 50), (0.0, 150, 50)]) == [150]


def test_the_interval_of_a_user_knows_no_pause() -> None:
    for interval in (1, 7, 99, 101, 500):
        commits = [(0.0, version, -1) for version in range(2 * interval + 1)]
        assert written_after(checkpoint_pace(interval), commits) == [interval, 2 * interval]
        assert written_after(checkpoint_pace(interval), [(3600.0 * version, version, -1) for version in range(interval)]) == []
