"""Partitions that are added to a log in use: who gets them, who learns of them, and that no other client notices."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waltz_log.client import Context, Receipt, Transaction, WaltzClient
from waltz_log.client.transactions.context import Application
from waltz_log.coordination.cluster import grow_cluster, grow_replicas, place_replicas
from waltz_log.coordination.topics import change_catalogue, pool_of
from waltz_log.core.metadata import ASSIGNMENT, CLUSTER, REPLICAS, Assignment, ClusterParameters, ReplicaAssignment
from waltz_log.core.topics.catalogue import Catalogue
from waltz_log.core.topics.topic_names import TopicName
from waltz_log.errors import InvalidRequest
from waltz_log.testing.cluster import MemoryCluster
from waltz_log.testing.virtual_time import run_in_virtual_time

# ---- which nodes -----------------------------------------------------------------------------------------------------------------------------------


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 30), st.integers(1, 6), st.integers(1, 6), st.integers(0, 40))
def test_existing_replicas_stay_and_new_ones_go_to_the_nodes_with_the_fewest(partitions: int, storages: int, replication: int, added: int) -> None:
    names = [f"s{n}" for n in range(storages)]
    replication = min(replication, storages)
    before = place_replicas(partitions, names, replication)
    after = grow_replicas(before, partitions + added, storages=None, replication=None)
    assert set(after.replicas) == set(range(partitions + added))
    assert {p: after.replicas[p] for p in before.replicas} == before.replicas
    assert all(len(set(held)) == replication for held in after.replicas.values())
    load = Counter(name for held in after.replicas.values() for name in held)
    if partitions >= storages or added:
        assert max(load.values()) - min(load[name] for name in {n for held in before.replicas.values() for n in held}) <= 1
    assert grow_replicas(after, partitions + added, storages=None, replication=None) == after


def test_new_nodes_may_be_named_and_what_does_not_fit_is_refused() -> None:
    before = place_replicas(2, ["a", "b", "c"], 3)
    after = grow_replicas(before, 4, storages=["d", "e", "f"], replication=2)
    assert {name for p in (2, 3) for name in after.replicas[p]} == {"d", "e", "f"}
    assert [len(after.replicas[p]) for p in range(4)] == [3, 3, 2, 2]
    for arguments in ({"storages": ["d"], "replication": 2}, {"storages": ["d", "d"], "replication": 1}, {"storages": None, "replication": 4}):
        with pytest.raises(InvalidRequest):
            grow_replicas(before, 4, **arguments)
    with pytest.raises(InvalidRequest, match="1 to 4096"):
        grow_replicas(before, 4097, storages=None, replication=None)


# ---- the coordinator -------------------------------------------------------------------------------------------------------------------------------


async def read(cluster: MemoryCluster) -> tuple[int, ReplicaAssignment]:
    session = cluster.ensemble.session()
    found, held = await session.get(CLUSTER), await session.get(REPLICAS)
    assert found is not None
    assert held is not None
    return ClusterParameters.from_bytes(found.data).partitions, ReplicaAssignment.from_bytes(held.data)


def test_a_dry_run_changes_nothing_fewer_is_refused_and_again_does_nothing() -> None:
    async def run() -> None:
        cluster = MemoryCluster(partitions=2, servers=0, storages=3)
        await cluster.start()
        session = cluster.ensemble.session()
        before = await read(cluster)
        parameters, assignment = await grow_cluster(session, 5, dry_run=True)
        assert (parameters.partitions, set(assignment.replicas)) == (5, set(range(5)))
        assert await read(cluster) == before
        with pytest.raises(InvalidRequest, match="named storag-1, did you mean storage-1"):
            await grow_cluster(session, 5, storages=["storage-0", "storag-1"], dry_run=True)
        with pytest.raises(InvalidRequest, match="their number cannot decrease"):
            await grow_cluster(session, 1)
        await grow_cluster(session, 5)
        grown = await read(cluster)
        assert (grown[0], set(grown[1].replicas)) == (5, set(range(5)))
        await grow_cluster(session, 5)
        assert await read(cluster) == grown
        await cluster.stop()

    run_in_virtual_time(run())


def test_of_two_who_grow_at_once_both_are_done_and_one_that_died_half_way_is_finished_by_the_next() -> None:
    async def run() -> None:
        cluster = MemoryCluster(partitions=2, servers=0, storages=3)
        await cluster.start()
        await asyncio.gather(grow_cluster(cluster.ensemble.session(), 4), grow_cluster(cluster.ensemble.session(), 6), return_exceptions=True)
        assert await read(cluster) == (6, (await read(cluster))[1])
        count, held = await read(cluster)
        session = cluster.ensemble.session()
        half = grow_replicas(held, 9, storages=["storage-1"], replication=1)
        await session.set(REPLICAS, half.to_bytes(), -1)  # and then the process died
        await grow_cluster(session, 8)
        count, held = await read(cluster)
        assert count == 8
        assert {p: held.replicas[p] for p in (6, 7)} == {6: ("storage-1",), 7: ("storage-1",)}
        with pytest.raises(InvalidRequest, match="no cluster"):
            await grow_cluster(MemoryCluster().ensemble.session(), 8)
        await cluster.stop()

    run_in_virtual_time(run())


# ---- a cluster in use ------------------------------------------------------------------------------------------------------------------------------


async def until_assigned(cluster: MemoryCluster, partitions: int) -> None:
    session = cluster.ensemble.session()
    while True:
        node = await session.get(ASSIGNMENT)
        assert node is not None
        found = Assignment.from_bytes(node.data)
        if len(found.partitions) == partitions and all(owned.server_id is not None for owned in found.partitions.values()):
            return
        await session.wait_changed(ASSIGNMENT, node.version)


async def append_on(client: WaltzClient, partition: int, done: asyncio.Event) -> list[Receipt]:
    receipts = []
    while not done.is_set():
        receipts.append(await client.append(partition, b"x"))
        await asyncio.sleep(0.005)
    return receipts


class Spread(Context):
    """Asks how many partitions its key is spread over."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    def partition(self, count: int) -> int:
        self.counts.append(count)
        return 0

    def execute(self, tx: Any) -> None:
        tx.append(b"spread")


class Nothing(Application):
    def client_high_water_mark(self, partition: int) -> int:
        return -1

    def apply(self, partition: int, transactions: list[Transaction]) -> None:
        """It keeps no state."""


def test_every_process_picks_up_the_new_partitions_and_the_old_ones_do_not_notice() -> None:
    async def run() -> None:
        cluster = MemoryCluster(partitions=2, servers=2, delay_s=lambda: 0.001)
        await cluster.start()
        client = await cluster.connect()
        await client.append(0, b"first")
        mounts = client._producers.by_key[0].mounts
        application = Nothing()
        await client.mount(application, [0])
        done = asyncio.Event()
        appending = [asyncio.ensure_future(append_on(client, partition, done)) for partition in (0, 1)]
        await asyncio.sleep(0.2)
        with pytest.raises(InvalidRequest, match="no such partition"):
            await client.append(6, b"not yet")
        await grow_cluster(cluster.ensemble.session(), 7)
        await until_assigned(cluster, 7)
        for partition in range(2, 7):
            while client.partitions < 7:
                await asyncio.sleep(0.01)
            receipt = await client.append(partition, b"new")
            assert (receipt.partition, receipt.transaction_id) == (partition, 0)
            assert [each.data async for each in _first(client.feed(partition))] == [b"new"]
        done.set()
        for receipts in await asyncio.gather(*appending):
            assert [each.transaction_id for each in receipts] == list(range(receipts[0].transaction_id, receipts[-1].transaction_id + 1))
        assert client._producers.by_key[0].mounts == mounts
        context = Spread()
        await (await client.submit(context))
        assert context.counts == [2], "what keys are spread over does not change under an application"
        assert {len(server._partitions) for server, _ in cluster.servers.values()} == {3, 4}, "the work is shared"
        for node, _ in cluster.storages.values():
            assert node.control.header.partitions == 7
        await client.close()
        await cluster.stop()

    run_in_virtual_time(run())


async def _first(feed: Any) -> Any:
    async for each in feed:
        yield each
        await feed.aclose()
        return


def test_nodes_that_were_down_make_room_when_they_are_back_and_all_is_there_after_a_crash() -> None:
    async def run() -> None:
        cluster = MemoryCluster(partitions=1, servers=1, delay_s=lambda: 0.001)
        await cluster.start()
        client = await cluster.connect()
        await client.append(0, b"old")
        await cluster.kill_storage("storage-2")
        await grow_cluster(cluster.ensemble.session(), 3)
        await until_assigned(cluster, 3)
        while client.partitions < 3:
            await asyncio.sleep(0.01)
        assert (await client.append(2, b"new")).transaction_id == 0
        await cluster.start_storage("storage-2")
        await cluster.kill_storage("storage-0")
        assert (await client.append(2, b"with the other")).transaction_id == 1, "the node that was down is needed for a majority"
        await cluster.start_storage("storage-0")
        for name in ("storage-0", "storage-1", "storage-2"):
            await cluster.kill_storage(name)
        await cluster.kill_server("server-0")
        for name in ("storage-0", "storage-1", "storage-2"):
            await cluster.start_storage(name)
        await cluster.start_server("server-0")
        assert (await client.append(0, b"still")).transaction_id == 1
        assert (await client.append(2, b"after the crash")).transaction_id == 2
        assert [each.data async for each in _first(client.feed(2))] == [b"new"]
        await client.close()
        await cluster.stop()

    run_in_virtual_time(run())


def test_a_topic_that_finds_too_few_partitions_says_what_to_run_and_is_made_after_that() -> None:
    async def run() -> None:
        cluster = MemoryCluster(partitions=4, servers=1, storages=1)
        await cluster.start()
        client = await cluster.connect()
        session = cluster.ensemble.session()

        async def create() -> None:
            pool = await pool_of(session)

            def change(catalogue: Catalogue) -> Any:
                return catalogue.with_new(TopicName("shop", "orders"), type="regular", partitions=6, pool=pool, now_ms=0)

            await change_catalogue(session, change)

        with pytest.raises(InvalidRequest, match=r"waltz cluster grow --partitions 6"):
            await create()
        await grow_cluster(session, 6)
        await create()
        topic = await client.topic("shop/orders")  # though this client has not seen the new partitions yet
        assert (await topic.append(b"x", partition=5)).partition == 5
        await client.close()
        await cluster.stop()

    run_in_virtual_time(run())
