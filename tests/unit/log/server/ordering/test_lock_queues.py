"""LockQueues for locks: who learns of a rejection, when, and of whom."""

from __future__ import annotations

from waltz_log.core.status.latency import Latency
from waltz_log.server.ordering import lock_queues as module
from waltz_log.server.ordering.lock_queues import TURN_S, LockQueues

LOCK = 7


def _queues(*sequences: int) -> LockQueues[str]:
    queues: LockQueues[str] = LockQueues()
    for sequence in sequences:
        assert queues.enqueue(LOCK, f"client {sequence}", sequence)
    return queues


def test_one_rejection_is_answered_for_each_commit_of_the_lock_in_order_of_arrival() -> None:
    queues = _queues(1, 2, 3)
    assert queues.due(10, {LOCK: 10}.__getitem__, 0.0) == [("client 1", 1, 10)]
    assert queues.due(10, {LOCK: 10}.__getitem__, 0.0) == []
    assert queues.due(12, {LOCK: 11}.__getitem__, 0.0) == [("client 2", 2, 11)]
    assert queues.due(12, {LOCK: 12}.__getitem__, 0.0) == [("client 3", 3, 12)]
    assert not queues.waiting


def test_no_rejection_is_answered_before_its_winner_is_decided() -> None:
    queues = _queues(1)
    assert queues.due(10, {LOCK: 11}.__getitem__, 0.0) == []
    assert queues.due(10, {LOCK: 11}.__getitem__, 100 * TURN_S) == []
    assert queues.due(11, {LOCK: 11}.__getitem__, 100 * TURN_S) == [("client 1", 1, 11)]


def test_those_who_do_not_come_back_hold_up_the_others_for_a_few_turns_only() -> None:
    queues = _queues(*range(100))
    reported = []
    now_s = 0.0
    while queues.waiting:
        reported.append(len(queues.due(10, {LOCK: 10}.__getitem__, now_s)))
        now_s += TURN_S
    assert reported == [1, 2, 4, 8, 16, 32, 37]
    # a commit makes it one at a time again
    queues = _queues(*range(100))
    queues.due(10, {LOCK: 10}.__getitem__, 0.0)
    assert len(queues.due(10, {LOCK: 10}.__getitem__, TURN_S)) == 2
    assert len(queues.due(11, {LOCK: 11}.__getitem__, TURN_S)) == 1


def test_a_lone_rejection_is_answered_at_once_and_its_queue_ends_with_the_turn() -> None:
    queues = _queues(1)
    assert queues.due(10, {LOCK: 10}.__getitem__, 0.0) == [("client 1", 1, 10)]
    assert queues
    queues.due(10, {LOCK: 10}.__getitem__, TURN_S)
    assert not queues


def test_a_client_that_leaves_gets_all_its_answers_and_the_others_stay() -> None:
    queues = _queues(1, 2)
    queues.enqueue(8, "client 1", 5)
    writers = {LOCK: 10, 8: 4}
    assert sorted(queues.remove("client 1", writers.__getitem__)) == [("client 1", 1, 10), ("client 1", 5, 4)]
    assert queues.waiting == 1
    assert queues.remove(None, writers.__getitem__) == [("client 2", 2, 10)]
    assert queues.waiting == 0


def test_lines_and_waiting_are_bounded() -> None:
    queues: LockQueues[str] = LockQueues()
    for lock in range(module.QUEUES_MAX):
        assert queues.enqueue(lock, "a", lock)
    assert not queues.enqueue(-1, "a", 0)
    assert queues.enqueue(0, "b", 0)
    for sequence in range(module.QUEUE_LENGTH_MAX - 2):
        assert queues.enqueue(0, "c", sequence)
    assert not queues.enqueue(0, "d", 0)
    assert queues.waiting == module.QUEUES_MAX + module.QUEUE_LENGTH_MAX - 1
    queues.waiting = module.WAITING_MAX
    assert not queues.enqueue(1, "d", 0)


def test_the_time_until_an_answer_is_counted_and_that_of_a_client_that_leaves_is_not() -> None:
    waits = Latency()
    queues: LockQueues[str] = LockQueues(waits)
    for sequence, now_s in ((1, 5.0), (2, 6.0)):
        queues.enqueue(LOCK, f"client {sequence}", sequence, now_s)
    queues.due(10, {LOCK: 10}.__getitem__, 7.5)
    queues.remove("client 2", {LOCK: 10}.__getitem__)
    assert (sum(waits.statistics().counts), waits.statistics().sum_s) == (1, 2.5)
