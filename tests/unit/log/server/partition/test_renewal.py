"""A session that is followed by the next one of the same owner: what clients notice of it (nothing), and what it leaves behind."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from waltz_log.client import WaltzClient
from waltz_log.core import metadata as paths
from waltz_log.core.metadata import PartitionMetadata, ReplicaAssignment, ReplicaState, partition_path
from waltz_log.errors import Fenced
from waltz_log.server.partition.partition import Partition
from waltz_log.server.replication.store_session import StoreSession
from waltz_log.statistics import to_json
from waltz_log.testing.cluster import MemoryCluster
from waltz_log.testing.virtual_time import run_in_virtual_time

DELAY_S = 0.001


async def _metadata(cluster: MemoryCluster) -> PartitionMetadata:
    node = await cluster.ensemble.session().get(partition_path(0))
    assert node is not None
    return PartitionMetadata.from_bytes(node.data)


def _partition(cluster: MemoryCluster) -> Partition:
    return next(server._partitions[0] for server, _ in cluster.servers.values() if server._partitions)


def _statistics(cluster: MemoryCluster) -> dict[str, Any]:
    return to_json(_partition(cluster).statistics())


def _low_water_marks(cluster: MemoryCluster) -> dict[str, int]:
    return {name: node.statistics().partitions[0].low_water_mark for name, (node, _) in cluster.storages.items()}


async def _cluster(delay_s: Callable[[], float] = lambda: DELAY_S, **settings: Any) -> MemoryCluster:
    cluster = MemoryCluster(servers=1, settings=settings, delay_s=delay_s)
    await cluster.start()
    return cluster


async def _append(client: WaltzClient, count: int, *, timeout_s: float = 30.0) -> list[int]:
    async def one(number: int) -> int:
        return (await client.append(0, str(number).encode(), timeout_s=timeout_s)).transaction_id

    return await asyncio.gather(*(one(number) for number in range(count)))


async def _appended_in_rounds(client: WaltzClient, rounds: int) -> list[int]:
    return [transaction_id for _ in range(rounds) for transaction_id in await _append(client, 10)]


def test_sessions_follow_each_other_while_clients_append_and_read_and_none_of_them_notices() -> None:
    async def scenario() -> None:
        cluster = await _cluster(checkpoint_transactions=100)
        client, reader = await cluster.connect(), await cluster.connect()
        seen: list[int] = []
        follower = await reader.follow(0, lambda batch: seen.extend(each.transaction_id for each in batch))
        await client.append(0, b"mounted")
        mount = next(iter(_partition(cluster)._serving.mounts))  # type: ignore[union-attr]
        loop = asyncio.get_running_loop()
        slowest = 0.0
        ids: list[int] = []
        for _ in range(95):
            began = loop.time()
            ids += await _append(client, 10)
            slowest = max(slowest, loop.time() - began)
        assert ids == list(range(1, 951))
        await follower.wait(950)
        assert seen == list(range(951))
        statistics = _statistics(cluster)
        assert 8 <= statistics["session"] <= 11
        assert mount in _partition(cluster)._serving.mounts  # type: ignore[union-attr]
        assert client._producers.by_key[0].mounts == 1
        assert slowest < 40 * DELAY_S  # a few round trips, not a pause of any retry
        assert min(_low_water_marks(cluster).values()) >= 850
        assert set((await _metadata(cluster)).replicas.values()) == {ReplicaState(statistics["session"], None)}
        await reader.close()
        await client.close()
        await cluster.stop()

    run_in_virtual_time(scenario())


def test_a_question_about_an_outcome_is_answered_across_a_renewal() -> None:
    async def scenario() -> None:
        rng = random.Random(5)
        cluster = await _cluster(lambda: rng.uniform(0, 3 * DELAY_S), checkpoint_transactions=50)
        client = await cluster.connect()
        await _append(client, 1)
        serving = _partition(cluster)._serving
        assert serving is not None
        asking = [asyncio.ensure_future(_ask_on(serving.store)) for _ in range(8)]
        for _ in range(20):
            await _append(client, 30)
        for task in asking:
            assert not task.done(), task.result()
            task.cancel()
        assert serving is _partition(cluster)._serving, "the store session was made anew"
        assert _statistics(cluster)["session"] > 8
        await client.close()
        await cluster.stop()

    run_in_virtual_time(scenario())


async def _ask_on(store: StoreSession) -> None:
    while True:
        await store.confirm()


def test_a_replica_that_is_away_is_left_behind_and_comes_back_into_the_newest_session() -> None:
    async def scenario() -> None:
        cluster = await _cluster(checkpoint_transactions=100)
        client = await cluster.connect()
        await _append(client, 10)
        await cluster.kill_storage("storage-1")
        await _appended_in_rounds(client, 30)
        away = (await _metadata(cluster)).replicas["storage-1"]
        assert away.closing_high_water_mark is not None
        assert _statistics(cluster)["session"] > away.session + 1
        await cluster.start_storage("storage-1")
        async with asyncio.timeout(30):
            while (await _metadata(cluster)).replicas["storage-1"] != ReplicaState(_statistics(cluster)["session"], None):
                await asyncio.sleep(0.05)
        assert client._producers.by_key[0].mounts == 1
        await client.close()
        await cluster.stop()

    run_in_virtual_time(scenario())


@pytest.mark.parametrize("when", ["no majority", "no coordinator"])
def test_a_renewal_waits_for_a_moment_at_which_it_is_short(when: str) -> None:
    async def scenario() -> None:
        cluster = await _cluster(checkpoint_transactions=100)
        client = await cluster.connect()
        await _append(client, 50)
        _, session = cluster.servers["server-0"]
        if when == "no coordinator":
            cluster.ensemble.cut(session)
            await _appended_in_rounds(client, 20)  # goes on without it
            assert _statistics(cluster)["session"] == 1
            cluster.ensemble.heal(session)
        else:
            for name in ("storage-0", "storage-1"):
                await cluster.stop_storage(name)
            pending = asyncio.ensure_future(_append(client, 60))
            await asyncio.sleep(3)
            assert not pending.done()
            assert _statistics(cluster)["session"] == 1
            for name in ("storage-0", "storage-1"):
                await cluster.start_storage(name)
            await pending
        async with asyncio.timeout(30):
            while _statistics(cluster)["session"] == 1:
                await asyncio.sleep(0.05)
        assert client._producers.by_key[0].mounts == 1
        await client.close()
        await cluster.stop()

    run_in_virtual_time(scenario())


def test_a_checkpoint_that_retention_asks_for_renews_the_session_once() -> None:
    """Retention checks again only after a minute; until then appends do not each begin a session."""

    async def scenario() -> None:
        cluster = await _cluster(checkpoint_transactions=1000)
        client = await cluster.connect()
        await _append(client, 10)
        store = _partition(cluster)._serving.store  # type: ignore[union-attr]
        store.checkpoint_due = True
        store.advanced.notify()
        for _ in range(20):
            await client.append(0, b"one at a time")
            await asyncio.sleep(0.1)
        assert _statistics(cluster)["session"] == 2
        await client.close()
        await cluster.stop()

    run_in_virtual_time(scenario())


def test_a_storage_node_that_dies_during_renewals_affects_no_client() -> None:
    """One after another is killed and comes back while sessions follow each other every few blocks."""

    async def scenario() -> None:
        cluster = await _cluster(checkpoint_transactions=20)
        client = await cluster.connect()
        done = False

        async def kill() -> None:
            number = 0
            while not done:
                name = f"storage-{number % 3}"
                await cluster.kill_storage(name)
                await asyncio.sleep(0.05)
                await cluster.start_storage(name)
                async with asyncio.timeout(30):
                    while _statistics(cluster)["replicas"][name]["state"] != "live":
                        await asyncio.sleep(0.01)
                number += 1

        killing = asyncio.ensure_future(kill())
        ids = await _appended_in_rounds(client, 100)
        done = True
        await killing
        assert ids == list(range(1000))
        assert client._producers.by_key[0].mounts == 1
        assert _statistics(cluster)["session"] > 10
        await client.close()
        await cluster.stop()

    run_in_virtual_time(scenario())


def test_a_replica_is_replaced_while_clients_append() -> None:
    async def scenario() -> None:
        cluster = await _cluster()
        client = await cluster.connect()
        await _append(client, 100)
        await cluster.start_storage("storage-3")
        appending = asyncio.ensure_future(_appended_in_rounds(client, 50))
        coordinator = cluster.ensemble.session()
        await coordinator.set(paths.REPLICAS, ReplicaAssignment({0: ("storage-0", "storage-3", "storage-2")}).to_bytes(), -1)
        assert await appending == list(range(100, 600))
        async with asyncio.timeout(30):
            while (await _metadata(cluster)).replicas.get("storage-3") != ReplicaState(2, None):
                await asyncio.sleep(0.05)
        assert set((await _metadata(cluster)).replicas) == {"storage-0", "storage-2", "storage-3"}
        assert client._producers.by_key[0].mounts == 1
        await client.close()
        await cluster.stop()

    run_in_virtual_time(scenario())


def test_a_message_of_the_session_before_that_comes_late_is_refused_and_ends_nothing() -> None:
    async def scenario() -> None:
        cluster = await _cluster(checkpoint_transactions=10)
        client = await cluster.connect()
        await _appended_in_rounds(client, 3)
        serving = _partition(cluster)._serving
        assert serving is not None
        store = serving.store
        assert store.session > 1
        late = Fenced(what="store session", partition=0, mine=store.session - 1, newer=store.session)
        store.fenced(late)
        assert store.failed is None
        store.fenced(Fenced(what="store session", partition=0, mine=store.session, newer=store.session + 1))
        assert store.failed is not None
        await client.close()
        await cluster.stop()

    run_in_virtual_time(scenario())
