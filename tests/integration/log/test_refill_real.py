"""A replica that is added under load, on real processes, with sessions much shorter than its fill: it becomes clean."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

from waltz_log.cli.cluster.replicas import change_replicas
from waltz_log.client import WaltzClient
from waltz_log.coordination.coordinator import ZooKeeperCoordinator
from waltz_log.core.metadata import REPLICAS, PartitionMetadata, ReplicaAssignment, partition_path
from waltz_log.core.ports import Coordinator
from waltz_log.core.replica_change import ReplicaChange, clean_members
from waltz_log.processes.local_cluster import LocalCluster
from waltz_log.transport.grpc import GrpcNetwork

DATA = bytes(1000)
PRELOADED = 60_000
CHECKPOINT_TRANSACTIONS = 500


async def _metadata(coordinator: Coordinator) -> PartitionMetadata:
    node = await coordinator.get(partition_path(0))
    assert node is not None
    return PartitionMetadata.from_bytes(node.data)


async def _append_on(client: WaltzClient, done: asyncio.Event) -> int:
    count = 0
    while not done.is_set():
        await asyncio.gather(*(client.append(0, DATA) for _ in range(100)))
        count += 100
        await asyncio.sleep(0.02)
    return count


async def test_a_replica_added_under_load_becomes_clean_over_many_sessions(tmp_path: Path) -> None:
    settings = {"checkpoint_transactions": CHECKPOINT_TRANSACTIONS, "transaction_cache_bytes": 1 << 20}
    with LocalCluster(tmp_path / "cluster", partitions=1, storages=4, servers=1, server_settings=settings) as cluster:
        coordinator = await ZooKeeperCoordinator.connect(cluster.coordinator, timeout_s=10.0)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(coordinator.close)
            client = await stack.enter_async_context(WaltzClient.open(cluster.cluster))
            for _ in range(PRELOADED // 2000):
                await asyncio.gather(*(client.append(0, DATA) for _ in range(2000)))
            node = await coordinator.get(REPLICAS)
            assert node is not None
            (added,) = set(cluster.storage_names) - set(ReplicaAssignment.from_bytes(node.data).replicas[0])
            done, reported = asyncio.Event(), list[str]()
            appending = asyncio.ensure_future(_append_on(client, done))
            before = (await _metadata(coordinator)).session
            await change_replicas(coordinator, GrpcNetwork(), cluster.coordinator, ReplicaChange(0, add=added), wait_s=100.0, report=reported.append)
            after = await _metadata(coordinator)
            done.set()
            assert await appending > 0
            while added not in clean_members(await _metadata(coordinator)):  # no replica is, while a session begins
                await asyncio.sleep(0.05)
            assert after.session - before >= 3
            assert any("MB/s" in line for line in reported), reported
