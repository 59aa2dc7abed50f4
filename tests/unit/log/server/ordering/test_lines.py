"""Lines for locks: who is told of a rejection, when, and of whom."""

from __future__ import annotations

from waltz_log.server.ordering import lines as module
from waltz_log.server.ordering.lines import TURN_S, Lines

LOCK = 7


def _lines(*sequences: int) -> Lines[str]:
    lines: Lines[str] = Lines()
    for sequence in sequences:
        assert lines.join(LOCK, f"client {sequence}", sequence)
    return lines


def test_one_is_told_for_each_commit_of_the_lock_in_the_order_of_coming() -> None:
    lines = _lines(1, 2, 3)
    assert lines.due(10, {LOCK: 10}.__getitem__, 0.0) == [("client 1", 1, 10)]
    assert lines.due(10, {LOCK: 10}.__getitem__, 0.0) == []
    assert lines.due(12, {LOCK: 11}.__getitem__, 0.0) == [("client 2", 2, 11)]
    assert lines.due(12, {LOCK: 12}.__getitem__, 0.0) == [("client 3", 3, 12)]
    assert not lines.waiting


def test_nobody_is_told_of_a_winner_whose_fate_is_not_known() -> None:
    lines = _lines(1)
    assert lines.due(10, {LOCK: 11}.__getitem__, 0.0) == []
    assert lines.due(10, {LOCK: 11}.__getitem__, 100 * TURN_S) == []
    assert lines.due(11, {LOCK: 11}.__getitem__, 100 * TURN_S) == [("client 1", 1, 11)]


def test_those_who_do_not_come_back_hold_up_the_others_for_a_few_turns_only() -> None:
    lines = _lines(*range(100))
    told = []
    now_s = 0.0
    while lines.waiting:
        told.append(len(lines.due(10, {LOCK: 10}.__getitem__, now_s)))
        now_s += TURN_S
    assert told == [1, 2, 4, 8, 16, 32, 37]
    # a commit makes it one at a time again
    lines = _lines(*range(100))
    lines.due(10, {LOCK: 10}.__getitem__, 0.0)
    assert len(lines.due(10, {LOCK: 10}.__getitem__, TURN_S)) == 2
    assert len(lines.due(11, {LOCK: 11}.__getitem__, TURN_S)) == 1


def test_a_lone_rejection_is_told_at_once_and_its_line_ends_with_the_turn() -> None:
    lines = _lines(1)
    assert lines.due(10, {LOCK: 10}.__getitem__, 0.0) == [("client 1", 1, 10)]
    assert lines
    lines.due(10, {LOCK: 10}.__getitem__, TURN_S)
    assert not lines


def test_who_leaves_is_told_everything_and_the_others_stay() -> None:
    lines = _lines(1, 2)
    lines.join(8, "client 1", 5)
    writers = {LOCK: 10, 8: 4}
    assert sorted(lines.leave("client 1", writers.__getitem__)) == [("client 1", 1, 10), ("client 1", 5, 4)]
    assert lines.waiting == 1
    assert lines.leave(None, writers.__getitem__) == [("client 2", 2, 10)]
    assert lines.waiting == 0


def test_lines_and_waiting_are_bounded() -> None:
    lines: Lines[str] = Lines()
    for lock in range(module.LINES_MAX):
        assert lines.join(lock, "a", lock)
    assert not lines.join(-1, "a", 0)
    assert lines.join(0, "b", 0)
    for sequence in range(module.LINE_MAX - 2):
        assert lines.join(0, "c", sequence)
    assert not lines.join(0, "d", 0)
    assert lines.waiting == module.LINES_MAX + module.LINE_MAX - 1
    lines.waiting = module.WAITING_MAX
    assert not lines.join(1, "d", 0)
