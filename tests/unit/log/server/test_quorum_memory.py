"""A topic that is acknowledged from memory: when, what is lost then and what is not, and that nothing but the answers comes before the disks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from waltz_log.client import WaltzClient
from waltz_log.core.catalogue import Policies
from waltz_log.core.topic_names import TopicName
from waltz_log.testing.cluster import MemoryCluster
from waltz_log.testing.virtual_time import run_in_virtual_time
from waltz_log.zookeeper.topics import change_catalogue

TOPIC = TopicName("test", "fast")
PERIOD_S = 10.0
STORAGES = ("storage-0", "storage-1", "storage-2")


async def with_topic(cluster: MemoryCluster, **policies: Any) -> None:
    wanted = Policies(durability="quorum_memory").changed(policies)
    await change_catalogue(
        cluster.ensemble.session(),
        lambda found: found.with_new(TOPIC, type="regular", partitions=cluster.partitions, pool=range(cluster.partitions), now_ms=0, policies=wanted),
    )


async def alter(cluster: MemoryCluster, **policies: Any) -> None:
    await change_catalogue(cluster.ensemble.session(), lambda found: found.with_policies(TOPIC, policies))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


def on_disk(cluster: MemoryCluster) -> dict[str, int]:
    return {name: node.statistics().partitions[0].last_transaction_id for name, (node, _) in cluster.storages.items()}


def now_s() -> float:
    return asyncio.get_running_loop().time()


async def read(client: WaltzClient, count: int) -> list[bytes]:
    found: list[bytes] = []
    batches = client.feed_batches(0, after=-1)
    async with asyncio.timeout(60):
        async for batch in batches:
            found += [transaction.data for transaction in batch]
            if len(found) >= count:
                break
    await batches.aclose()
    return found


def in_cluster(scenario: Callable[[MemoryCluster, WaltzClient], Any], **policies: Any) -> None:
    async def run() -> None:
        cluster = MemoryCluster(servers=1)
        await cluster.start()
        await with_topic(cluster, **policies)
        client = await cluster.connect()
        await client.append(0, b"the first")  # after it the replicas are live, and know the policy
        await until(lambda: set(on_disk(cluster).values()) == {0})
        await scenario(cluster, client)
        await client.close()
        await cluster.stop()

    run_in_virtual_time(run())


def test_an_append_is_answered_when_a_majority_has_received_it_and_synced_within_the_period() -> None:
    async def scenario(cluster: MemoryCluster, client: WaltzClient) -> None:
        began = now_s()
        receipt = await client.append(0, b"fast")
        assert receipt.durability == "quorum_memory"
        assert now_s() - began < 1
        assert set(on_disk(cluster).values()) == {0}
        await asyncio.sleep(PERIOD_S - 1 - (now_s() - began))
        assert set(on_disk(cluster).values()) == {0}
        await asyncio.sleep(1.5)
        assert set(on_disk(cluster).values()) == {1}
        assert (await client.high_water_mark(0)) == 1

    in_cluster(scenario)
