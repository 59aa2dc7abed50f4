"""The thread that writes checkpoints of tables' logs beside the batches."""

from __future__ import annotations

import threading
from functools import partial

from structlog.testing import capture_logs

from waltz_delta.base.checkpoints import Checkpoints, checkpoint_every, with_interval

PATIENCE_S = 5.0


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
    checkpoints, written = Checkpoints(), list[int]()
    for version in range(1, 40, 3):  # two commits of three are another writer's
        checkpoints.committed("t", version, 10, -1, partial(written.append, version))
        assert checkpoints.settle(PATIENCE_S)
    assert written == [10, 22, 34]


def test_a_checkpoint_of_another_writer_counts() -> None:
    checkpoints, written = Checkpoints(), list[int]()
    for version, newest in ((10, 5), (14, 5), (15, 5), (24, 20), (30, 20)):
        checkpoints.committed("t", version, 10, newest, partial(written.append, version))
        assert checkpoints.settle(PATIENCE_S)
    assert written == [15, 30]


def test_a_table_that_was_replaced_begins_anew() -> None:
    checkpoints, written = Checkpoints(), list[int]()
    for version in (50, 1, 9, 10, 11):
        checkpoints.committed("t", version, 10, -1, partial(written.append, version))
        assert checkpoints.settle(PATIENCE_S)
    assert written == [50, 10]


def test_an_interval_that_the_user_chose_is_kept() -> None:
    assert with_interval({"delta.CheckpointInterval": "7"}) == {"delta.CheckpointInterval": "7"}
    assert checkpoint_every(7) == 7
    made = with_interval({"delta.appendOnly": "true"})
    assert made["delta.appendOnly"] == "true"
    assert checkpoint_every(int(made["delta.checkpointInterval"])) == 10
