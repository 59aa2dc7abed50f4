"""When a process is ready: each cause of `/readyz` that fails, with its reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from waltz_log.core.replica_status import ReplicaStatus
from waltz_log.core.status.server_statistics import FollowerStatistics, OpenPartitionStatistics, ServerStatistics
from waltz_log.core.status.storage_statistics import NodeStatistics
from waltz_log.monitoring.readiness import REASON_MAX, Check, checks_of, is_ready, report


def _failed(statistics: ServerStatistics | NodeStatistics) -> dict[str, str]:
    return {check.name: check.failed for check in checks_of(statistics) if check.failed is not None}


def test_a_recovering_partition_and_a_silent_worker_are_reasons(server: ServerStatistics) -> None:
    assert _failed(server) == {"worker 1": "does not answer", "partition 4": "recovering: no majority answers"}


def test_a_server_is_ready_while_a_majority_of_the_replicas_is_live(server: ServerStatistics) -> None:
    alone = replace(server, workers=(), partitions={0: server.partitions[0]})
    assert is_ready(checks_of(alone))


def test_a_server_without_partitions_is_ready(server: ServerStatistics) -> None:
    assert is_ready(checks_of(replace(server, workers=(), partitions={})))


@pytest.mark.parametrize("state", [each for each in ReplicaStatus if each not in (ReplicaStatus.LIVE, ReplicaStatus.REPAIRING)])
def test_a_partition_without_a_live_majority_is_a_reason(server: ServerStatistics, state: ReplicaStatus) -> None:
    found = server.partitions[0]
    assert isinstance(found, OpenPartitionStatistics)
    replicas = {name: replace(each, state=state) if name != "storage-0" else each for name, each in found.replicas.items()}
    stuck = replace(server, workers=(), partitions={0: replace(found, replicas=replicas)})
    expected = f"no majority of its replicas accepts appends: storage-1 {state.value}, storage-2 {state.value}"
    assert _failed(stuck) == {"partition 0": expected}


def test_replicas_that_do_not_count_do_not_make_a_server_unready(server: ServerStatistics) -> None:
    found = server.partitions[0]
    assert isinstance(found, OpenPartitionStatistics)
    replicas = {name: replace(each, counts=name == "storage-0") for name, each in found.replicas.items()}
    assert is_ready(checks_of(replace(server, workers=(), partitions={0: replace(found, replicas=replicas)})))


def test_a_server_that_does_not_reach_the_coordinator_stays_ready(server: ServerStatistics) -> None:
    """Otherwise all servers would leave DNS at once, while every owner serves."""
    ready = replace(server, workers=(), partitions={})
    assert _failed(replace(ready, followers=FollowerStatistics(age_s=3600.0), refused_values={"/assignment": "missing"})) == {}


def test_a_server_that_has_not_joined_is_not_ready(server: ServerStatistics) -> None:
    assert _failed(replace(server, workers=(), partitions={}, cluster_key=None)) == {"cluster": "not joined yet"}


def test_partitions_that_a_node_does_not_serve_are_reasons(node: NodeStatistics) -> None:
    assert _failed(node) == {"partition 1": "corrupt data in 1.seg", "partition 2": "cannot sync: Input/output error"}
    assert [check.name for check in checks_of(node)] == ["disk", "partition 0", "partition 1", "partition 2"]


@pytest.mark.parametrize(
    ("space", "writable", "reason"),
    [
        ("ample", True, None),
        ("low", True, None),
        ("refusing", True, "the disk has less free space than disk_refuse_free_bytes, appends are refused"),
        ("ample", False, "the directory cannot be written to"),
    ],
)
def test_the_disk_must_accept_appends(node: NodeStatistics, space: str, writable: bool, reason: str | None) -> None:
    well = replace(node, stopped={}, partitions=node.partitions[:1], space=space, writable=writable)
    assert _failed(well) == ({} if reason is None else {"disk": reason})


def test_a_report_lists_what_fails_and_with_verbose_everything() -> None:
    checks = (Check("disk"), Check("partition 1", "corrupt\ndata"))
    assert report("readyz", checks, verbose=False) == "[-]partition 1 failed: corrupt data\nreadyz check failed\n"
    assert report("readyz", checks, verbose=True) == "[+]disk ok\n[-]partition 1 failed: corrupt data\nreadyz check failed\n"
    assert report("readyz", checks[:1], verbose=False) == "readyz check passed\n"


def test_a_long_reason_is_cut() -> None:
    line = report("readyz", (Check("disk", "x" * 10_000),), verbose=False).splitlines()[0]
    assert len(line) < REASON_MAX + 30
