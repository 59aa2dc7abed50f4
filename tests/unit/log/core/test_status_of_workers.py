"""The statistics of a node's workers as those of one node."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from waltz_log.core.status.server_statistics import (
    BudgetStatistics,
    CacheStatistics,
    RecoveringPartitionStatistics,
    ServerStatistics,
    UpkeepStatistics,
)
from waltz_log.core.status.storage_statistics import NodeStatistics, PartitionStatistics, ScrubStatistics
from waltz_log.core.status.worker_statistics import WorkerStatistics
from waltz_log.statistics import from_json, merge, to_json


def server(**values: Any) -> ServerStatistics:
    return replace(from_json(ServerStatistics, {}, unknown="refuse", missing="empty"), **values)


def node(**values: Any) -> NodeStatistics:
    return replace(from_json(NodeStatistics, {}, unknown="refuse", missing="empty"), **values)


def stored(partition: int) -> PartitionStatistics:
    return from_json(PartitionStatistics, {"partition": partition}, unknown="refuse", missing="empty")


def test_partitions_of_all_workers_are_those_of_the_node_in_order() -> None:
    def owned(*partitions: int) -> ServerStatistics:
        return server(partitions={each: RecoveringPartitionStatistics(each, "recovering", None) for each in partitions})

    merged = merge([owned(0, 10), owned(2)])
    assert [(number, each.generation) for number, each in merged.partitions.items()] == [(0, 0), (2, 2), (10, 10)]
    assert list(to_json(merged)["partitions"]) == ["0", "2", "10"]
    held = merge([node(partitions=(stored(0), stored(3))), node(partitions=(stored(1),))])
    assert [each.partition for each in held.partitions] == [0, 1, 3]


def test_counts_add_up_and_what_is_of_the_whole_node_is_reported_once() -> None:
    merged = merge([node(name="a", start=7, disk_free_bytes=100, open_files=3), node(name="a", start=7, disk_free_bytes=90, open_files=2)])
    assert (merged.name, merged.start, merged.disk_free_bytes, merged.open_files) == ("a", 7, 100, 5)
    caches = [CacheStatistics(transactions=BudgetStatistics(0, 0, 0), frames=BudgetStatistics(count, 10, 0)) for count in (1, 2)]
    both = merge([server(server_id=4, caches=each) for each in caches])
    assert (both.server_id, both.caches.frames) == (4, BudgetStatistics(3, 20, 0))


def test_the_worst_state_holds_and_one_that_says_yes_is_enough() -> None:
    assert merge([node(space=space) for space in ("ample", "refusing", "low")]).space == "refusing"
    assert merge([server(manager=False), server(manager=True)]).manager is True


def test_facts_that_only_one_worker_reports_are_kept() -> None:
    scrub = ScrubStatistics(2, 100, 1, 0, 1, {"3/00.seg": "corrupt"})
    merged = merge([node(scrub=None, stopped={}), node(scrub=scrub, stopped={3: "corruption"})])
    assert (merged.scrub, merged.stopped) == (scrub, {3: "corruption"})
    assert merge([node(scrub=scrub), node(scrub=None)]).scrub == scrub
    assert to_json(merged)["stopped"] == {"3": "corruption"}


def test_workers_are_listed_by_number_and_a_node_of_one_process_lists_none() -> None:
    workers = [WorkerStatistics(number, answers=True, pid=number) for number in (1, 0)]
    merged = merge([server(workers=(each,)) for each in workers])
    assert to_json(merged)["workers"] == [{"worker": 0, "answers": True, "pid": 0}, {"worker": 1, "answers": True, "pid": 1}]
    assert "workers" not in to_json(server())


def test_upkeep_reports_nothing_before_its_first_round_and_only_the_error_of_one_that_failed() -> None:
    assert to_json(UpkeepStatistics()) == {}
    assert to_json(UpkeepStatistics(error="no")) == {"error": "no"}
    assert to_json(UpkeepStatistics(first=0, held_by=None, replicas={})) == {"first": 0, "held_by": None, "replicas": {}}
