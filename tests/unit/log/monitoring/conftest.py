"""Statistics of a server and of a storage node, as the tests of this folder need them."""

from __future__ import annotations

import pytest

from waltz_log.core.replica_status import ReplicaStatus
from waltz_log.core.status.latency import Latency
from waltz_log.core.status.server_statistics import (
    BudgetStatistics,
    CacheStatistics,
    FeedStatistics,
    HotLockStatistics,
    LockTableStatistics,
    OpenPartitionStatistics,
    RecoveringPartitionStatistics,
    ReplicaStatistics,
    RetainedStatistics,
    ServerStatistics,
    ServerTotals,
    UpkeepStatistics,
    ViewStatistics,
)
from waltz_log.core.status.storage_statistics import NodeStatistics, PartitionStatistics, ScrubStatistics
from waltz_log.core.status.trace_statistics import TraceStatistics
from waltz_log.core.status.worker_statistics import ForwardingStatistics, WorkerStatistics

CLUSTER_KEY = "5e1f0c7a-secret"
HOT_LOCK = "00ffee00ffee00ff"


def replica(state: ReplicaStatus, holds: int = 99) -> ReplicaStatistics:
    return ReplicaStatistics(state, acknowledged=holds, holds=holds, filling=None, error=None, corrupt_reads=0)


def open_partition(*states: ReplicaStatus) -> OpenPartitionStatistics:
    return OpenPartitionStatistics(
        generation=3,
        state="open",
        mounts=2,
        catching_up=1,
        feed=FeedStatistics(10, 20, 3, 4, 5, 6),
        last_transaction_id=101,
        appended_transactions=77,
        rejected=7,
        refused=1,
        blocks=12,
        queued_bytes=4096,
        locks=LockTableStatistics(9, 0, 8, 2, (HotLockStatistics(HOT_LOCK, 8, 0),), 1, 10),
        upkeep=UpkeepStatistics(first=5, replicas={"storage-0": RetainedStatistics(5, 90, 1, ViewStatistics(5, 60, 3, 4), None)}),
        session=11,
        low_water_mark=20,
        committed=99,
        in_memory=0,
        replicas={f"storage-{number}": replica(state, 99 - 10 * number) for number, state in enumerate(states)},
    )


@pytest.fixture
def server() -> ServerStatistics:
    """One partition is open with two of three replicas, one recovers. Two workers, of which one does not answer."""
    caches = CacheStatistics(BudgetStatistics(100, 200, 3), BudgetStatistics(10, 20, 0))
    partitions: dict[int, OpenPartitionStatistics | RecoveringPartitionStatistics] = {
        0: open_partition(ReplicaStatus.LIVE, ReplicaStatus.REPAIRING, ReplicaStatus.FAILED),
        4: RecoveringPartitionStatistics(generation=2, state="recovering", error="no majority answers"),
    }
    workers = (
        WorkerStatistics(0, answers=True, pid=1, restarts=2, cpu_s=1.5, memory_max_kib=2048, passed_on=ForwardingStatistics(9, 1, 100, 200)),
        WorkerStatistics(1, answers=False),
    )
    latency = Latency()
    for seconds in (0.0001, 0.003, 0.003, 100.0):
        latency.observe(seconds)
    durations = latency.statistics()
    totals = ServerTotals(durations, durations, durations, durations, durations, sessions=4, fenced_generations=1, fenced_sessions=2, fenced_mounts=3)
    return ServerStatistics(
        6,
        CLUSTER_KEY,
        True,
        caches,
        partitions,
        workers,
        totals=totals,
        cluster_partitions=5,
        subscribers={"flights": 7, "legs": 0},
        traces=TraceStatistics(exported=9, dropped=2, waiting=1),
    )


@pytest.fixture
def node() -> NodeStatistics:
    """Partition 0 is served, 1 is corrupt, and the writes of 2 failed."""

    def partition(number: int, failed: str | None = None) -> PartitionStatistics:
        return PartitionStatistics(number, 5, 6, 10, 0, 99, 2, 30, 90, 9000, 4, 128, failed)

    return NodeStatistics(
        name="storage-0",
        cluster_key=CLUSTER_KEY,
        start=3,
        disk_free_bytes=1000,
        open_files=4,
        disk_total_bytes=5000,
        space="low",
        partitions=(partition(0), partition(2, "cannot sync: Input/output error")),
        stopped={1: "corrupt data in 1.seg"},
        corrupt=(1,),
        repairing=(),
        scrub=ScrubStatistics(1, 2, 3, 2, 1, {}),
        writer_bytes=128,
        writer_bytes_highest=256,
        writer_bytes_max=1024,
        write_latency=Latency().statistics(),
        sync_latency=Latency().statistics(),
        traces=TraceStatistics(exported=9, dropped=2, waiting=1),
    )
