"""How fast an empty replica is filled, without load and while a client appends as fast as it can, and the rate of the appends meanwhile.

Sessions are short, so that the fill under load outlasts several. A fill ends when the replica is recorded as clean.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.load import pipelined
from benchmarks.measurement import Measurement
from benchmarks.setting import RECORD_BYTES, Workload
from waltz_log.cli.cluster.replicas import change_replicas
from waltz_log.client import WaltzClient
from waltz_log.coordination.coordinator import ZooKeeperCoordinator
from waltz_log.core.metadata import REPLICAS, PartitionMetadata, ReplicaAssignment, partition_path
from waltz_log.core.ports import Coordinator
from waltz_log.core.replica_change import ReplicaChange
from waltz_log.errors import Unavailable
from waltz_log.processes.local_cluster import LocalCluster
from waltz_log.transport.grpc import GrpcNetwork

__all__ = ["run"]

WINDOW = 2_000
CHECKPOINT_TRANSACTIONS = 20_000
CACHE_BYTES = 16 * 1024 * 1024
BASELINE_S = 5.0
TRIES = 10
RETRY_S = 1.0
SETTLED_S = 1.5
"""Seconds after the change of replicas, which begins a session."""

TIMEOUT_S = 120.0


@dataclass(frozen=True)
class _Fill:
    megabytes: float
    seconds: float
    sessions: int
    appended: int


def run(directory: Path, workload: Workload, conditions: Mapping[str, Any]) -> list[Measurement]:
    settings = {"transaction_cache_bytes": CACHE_BYTES, "checkpoint_transactions": CHECKPOINT_TRANSACTIONS}
    with LocalCluster(directory / "refill", partitions=1, storages=5, servers=1, server_settings=settings) as cluster:
        return asyncio.run(_measure(cluster, workload, conditions))


async def _measure(cluster: LocalCluster, workload: Workload, conditions: Mapping[str, Any]) -> list[Measurement]:
    coordinator = await ZooKeeperCoordinator.connect(cluster.coordinator, timeout_s=10.0)
    try:
        async with WaltzClient.open(cluster.cluster) as client:
            await pipelined(client, workload.log // 8, window=WINDOW)
            held = await _replicas(coordinator)
            alone, beside = (name for name in cluster.storage_names if name not in held)
            idle = await _fill(cluster, coordinator, client, alone)
            await _change(cluster, coordinator, ReplicaChange(0, remove=alone))
            async with _load(client):
                undisturbed, loaded = await _fill_beside_appends(cluster, coordinator, client, beside)
    finally:
        await coordinator.close()
    during = loaded.appended / loaded.seconds
    shared = {**conditions, "checkpoint_transactions": CHECKPOINT_TRANSACTIONS}
    return [
        Measurement("refill.mb_s", idle.megabytes / idle.seconds, "MB/s", {**shared, "megabytes": round(idle.megabytes, 1)}),
        Measurement(
            "refill.mb_s_under_load",
            loaded.megabytes / loaded.seconds,
            "MB/s",
            {**shared, "megabytes": round(loaded.megabytes, 1), "sessions": loaded.sessions, "appended_s": round(during)},
        ),
        Measurement("refill.append_ratio", during / undisturbed, "ratio", {**shared, "in_flight": WINDOW, "without_fill_s": round(undisturbed)}),
    ]


async def _fill(cluster: LocalCluster, coordinator: Coordinator, client: WaltzClient, name: str) -> _Fill:
    before, sessions, began_s = await client.high_water_mark(0), await _session(coordinator), time.perf_counter()
    await _change(cluster, coordinator, ReplicaChange(0, add=name))
    seconds, mark = time.perf_counter() - began_s, await client.high_water_mark(0)
    megabytes = (mark + 1) * RECORD_BYTES / 1e6
    return _Fill(megabytes, seconds, await _session(coordinator) - sessions, mark - before)


async def _fill_beside_appends(cluster: LocalCluster, coordinator: Coordinator, client: WaltzClient, name: str) -> tuple[float, _Fill]:
    """The rate of appends while the replica is assigned and its node stopped, so that the majority is the same; then the fill."""
    assigned = asyncio.Event()
    change = ReplicaChange(0, add=name)
    adding = asyncio.ensure_future(_change(cluster, coordinator, change, lambda line: assigned.set() if "becomes" in line else None))
    await asyncio.wait([adding, asyncio.ensure_future(assigned.wait())], return_when=asyncio.FIRST_COMPLETED)
    cluster.pause(name)
    await asyncio.sleep(SETTLED_S)
    before, began_s = await client.high_water_mark(0), time.perf_counter()
    await asyncio.sleep(BASELINE_S)
    reached, sessions, resumed_s = await client.high_water_mark(0), await _session(coordinator), time.perf_counter()
    cluster.resume(name)
    await adding
    seconds, mark = time.perf_counter() - resumed_s, await client.high_water_mark(0)
    megabytes = (mark + 1) * RECORD_BYTES / 1e6
    return (reached - before) / (resumed_s - began_s), _Fill(megabytes, seconds, await _session(coordinator) - sessions, mark - reached)


async def _change(cluster: LocalCluster, coordinator: Coordinator, change: ReplicaChange, announce: Callable[[str], None] = lambda _: None) -> None:
    for _ in range(TRIES):
        try:
            return await change_replicas(coordinator, GrpcNetwork(), cluster.coordinator, change, wait_s=TIMEOUT_S, report=announce)
        except Unavailable:
            await asyncio.sleep(RETRY_S)  # a replica was behind for a moment
    raise RuntimeError(f"the replicas could not be changed: {change}")


async def _replicas(coordinator: Coordinator) -> tuple[str, ...]:
    node = await coordinator.get(REPLICAS)
    assert node is not None
    return ReplicaAssignment.from_bytes(node.data).replicas[0]


async def _session(coordinator: Coordinator) -> int:
    node = await coordinator.get(partition_path(0))
    assert node is not None
    return PartitionMetadata.from_bytes(node.data).session


@asynccontextmanager
async def _load(client: WaltzClient) -> AsyncIterator[None]:
    """Appends as fast as the window allows, until the block ends."""

    async def append_on() -> None:
        while True:
            await pipelined(client, 10 * WINDOW, window=WINDOW)

    task = asyncio.ensure_future(append_on())
    try:
        yield
        if task.done():
            task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
