"""Which server owned what, as servers report it."""

from __future__ import annotations

import random

import pytest

from waltz_log.core.metadata import Assignment, Ownership
from waltz_log.core.status.server_statistics import ServerStatistics
from waltz_log.server.node import owner_history
from waltz_log.server.node.owner_history import OwnerHistory
from waltz_log.statistics import rules_of


def assigned(**partitions: tuple[int | None, int]) -> Assignment:
    return Assignment({int(name[1:]): Ownership(*each) for name, each in partitions.items()}, {7: "a:1", 8: "b:1"})


def test_each_generation_is_kept_once_with_the_time_it_began() -> None:
    history = OwnerHistory()
    history.observe(assigned(p0=(7, 1), p1=(8, 1)), 1000)
    history.observe(assigned(p0=(7, 1), p1=(8, 1)), 2000)
    history.observe(assigned(p0=(None, 2), p1=(8, 1)), 3000)
    history.observe(assigned(p0=(8, 3), p1=(8, 1)), 4000)
    found = [(e.partition, e.generation, e.server_id, e.address, e.since_ms, e.exact) for e in history.statistics()]
    assert found == [(0, 1, 7, "a:1", 1000, False), (0, 2, None, None, 3000, True), (0, 3, 8, "b:1", 4000, True), (1, 1, 8, "b:1", 1000, False)]


def test_only_the_newest_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner_history, "OWNERS_KEPT", 3)
    history = OwnerHistory()
    for generation in range(10):
        history.observe(assigned(p0=(7, generation)), generation)
    assert [each.generation for each in history.statistics()] == [7, 8, 9]


def test_several_observers_make_one_history_in_any_order() -> None:
    rule = rules_of(ServerStatistics)["owners"]
    first, late = OwnerHistory(), OwnerHistory()
    first.observe(assigned(p0=(7, 1)), 1000)
    first.observe(assigned(p0=(8, 2)), 2000)
    late.observe(assigned(p0=(8, 2)), 5000)
    late.observe(assigned(p0=(7, 3)), 6000)
    reported = [first.statistics(), late.statistics()]
    random.shuffle(reported)
    merged = rule.merge(*reported)
    assert [(e.generation, e.since_ms, e.exact) for e in merged] == [(1, 1000, False), (2, 2000, True), (3, 6000, True)]
