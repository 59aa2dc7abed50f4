"""What the replicas of a store session hold, and the ids that a majority holds."""

from __future__ import annotations

from waltz_log.server.replication.acknowledgments import Acknowledgments


def test_a_majority_of_the_assigned_replicas_counts() -> None:
    held = Acknowledgments()
    assert held.synced("a", 7, 3) is None
    assert held.synced("b", 5, 3) == 5
    assert held.synced("c", 9, 3) == 7
    assert held.synced("c", 3, 3) == 7, "an acknowledgment that arrives late lowers nothing"


def test_received_blocks_count_only_for_listed_replicas() -> None:
    held = Acknowledgments()
    held.synced("a", 4, 3)
    assert held.received("b", 9, 3) is None
    held.synced("b", 1, 3)
    assert held.received("a", 6, 3) == 6
    held.forget_memory("b")
    assert held.received("a", 6, 3) == 1


def test_a_learner_counts_for_no_mark_and_a_replica_that_lost_data_for_none_either() -> None:
    held = Acknowledgments()
    held.learned("c", 9)
    held.synced("a", 4, 3)
    assert held.synced("b", 4, 3) == 4
    assert (held.holding(4), held.learners_holding(["b", "c"], 4)) == (["a", "b"], ["c"])
    held.forget("b")
    held.forget("c")
    assert held.received("a", 8, 3) is None
    assert (held.holding(0), held.learners_holding(["c"], 0)) == (["a"], [])
