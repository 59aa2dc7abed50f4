"""The thread that writes checkpoints of tables' logs beside the batches."""

from __future__ import annotations

import threading

from structlog.testing import capture_logs

from waltz_delta.checkpoints import Checkpoints

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
