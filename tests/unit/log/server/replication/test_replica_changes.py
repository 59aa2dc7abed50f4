"""Replicas that are added, removed and replaced while clients append: no client notices, and what cannot be is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

import pytest

from waltz_log.cli.cluster.replicas import change_replicas
from waltz_log.client import Transaction, WaltzClient
from waltz_log.core.metadata import REPLICAS, PartitionMetadata, ReplicaAssignment, partition_path
from waltz_log.core.replica_change import ReplicaChange, clean_members
from waltz_log.errors import InvalidRequest, Unavailable
from waltz_log.testing.cluster import MemoryCluster
from waltz_log.testing.virtual_time import run_in_virtual_time


async def _change(
    cluster: MemoryCluster, *, add: str | None = None, remove: str | None = None, force: bool = False, wait_s: float = 60.0
) -> list[str]:
    reported: list[str] = []
    change = ReplicaChange(0, add, remove, force)
    await change_replicas(cluster.ensemble.session(), cluster.network, "memory/test", change, wait_s=wait_s, report=reported.append)
    return reported


async def _replicas(cluster: MemoryCluster) -> tuple[tuple[str, ...], set[str]]:
    """Assigned, and clean in the newest session."""
    session = cluster.ensemble.session()
    assigned, metadata = await session.get(REPLICAS), await session.get(partition_path(0))
    assert assigned is not None
    assert metadata is not None
    return ReplicaAssignment.from_bytes(assigned.data).replicas[0], set(clean_members(PartitionMetadata.from_bytes(metadata.data)))


def _under_load(scenario: Callable[[MemoryCluster], Awaitable[None]], *, replicas: int = 3) -> None:
    """Runs it while a client appends; the client must see nothing but ids that follow each other, on one mount."""

    async def run() -> None:
        cluster = MemoryCluster(servers=1, storages=replicas, delay_s=lambda: 0.001)
        await cluster.start()
        for name in ("storage-1", "storage-2", "storage-3", "storage-4"):
            if name not in cluster.storages:
                await cluster.start_storage(name)
        client = await cluster.connect()
        await client.append(0, b"mounted")
        done = asyncio.Event()
        appending = asyncio.ensure_future(_append_on(client, done))
        await asyncio.sleep(0.2)
        await scenario(cluster)
        done.set()
        ids = await appending
        assert ids == list(range(1, len(ids) + 1))
        assert len(ids) > 100
        assert client._producers.by_key[0].mounts == 1
        await client.close()
        await cluster.stop()

    run_in_virtual_time(run())


async def _append_on(client: WaltzClient, done: asyncio.Event) -> list[int]:
    ids: list[int] = []
    while not done.is_set():
        found = await asyncio.gather(*(client.append(0, bytes(500)) for _ in range(10)))
        ids += [receipt.transaction_id for receipt in found]
    return ids


def test_a_replica_is_added_and_another_removed_under_load() -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        reported = await _change(cluster, add="storage-3")
        assert any("storage-3 holds" in line and "transactions" in line for line in reported)
        assert await _replicas(cluster) == (
            ("storage-0", "storage-1", "storage-2", "storage-3"),
            {"storage-0", "storage-1", "storage-2", "storage-3"},
        )
        await _change(cluster, remove="storage-0")
        assert await _replicas(cluster) == (("storage-1", "storage-2", "storage-3"), {"storage-1", "storage-2", "storage-3"})
        assert await _change(cluster, add="storage-3") == ["partition 0: replicas are storage-1, storage-2, storage-3"]

    _under_load(scenario)


@pytest.mark.parametrize("alive", [True, False])
def test_all_replicas_are_replaced_one_after_another_under_load(alive: bool) -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        for old, new in (("storage-0", "storage-3"), ("storage-1", "storage-4")):
            if not alive:
                await cluster.kill_storage(old)
                await asyncio.sleep(0.1)
            reported = await _change(cluster, add=new, remove=old)
            steps = [line for line in reported if "becomes" in line]
            assert len(steps) == (2 if alive else 1)
        assert set((await _replicas(cluster))[0]) == {"storage-2", "storage-3", "storage-4"}
        assert (await _replicas(cluster))[1] == {"storage-2", "storage-3", "storage-4"}

    _under_load(scenario)


def test_one_replica_becomes_two_and_three_and_one_again_under_load() -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        assert (await _replicas(cluster))[0] == ("storage-0",)
        for count, name in ((2, "storage-1"), (3, "storage-2")):
            reported = await _change(cluster, add=name)
            assert any(f"{name} holds" in line for line in reported)
            held = tuple(f"storage-{n}" for n in range(count))
            assert await _replicas(cluster) == (held, set(held))
        for left in (("storage-1", "storage-2"), ("storage-2",)):
            gone = (await _replicas(cluster))[0][0]
            with pytest.raises(InvalidRequest, match="--force"):
                await _change(cluster, remove=gone)
            await _change(cluster, remove=gone, force=True)
            assert await _replicas(cluster) == (left, set(left))

    _under_load(scenario, replicas=1)


def test_a_second_replica_that_fills_slowly_delays_no_other_and_loses_nothing_when_the_owner_changes() -> None:
    """Until it holds everything the first one alone accepts appends, with any owner; given up, it is forgotten."""

    async def run() -> None:
        cluster = MemoryCluster(servers=1, storages=1)
        await cluster.start()
        await cluster.start_storage("storage-1")
        client = await cluster.connect()
        for number in range(20):
            await client.append(0, b"%d" % number)
        full = cluster.disks["storage-1"]
        full.total -= full.free_bytes() - 1000
        with pytest.raises(Unavailable, match="the cluster goes on with it"):
            await _change(cluster, add="storage-1", wait_s=3)
        assert await _replicas(cluster) == (("storage-0", "storage-1"), {"storage-0"})
        assert (await client.append(0, b"20")).transaction_id == 20
        await cluster.kill_server("server-0")
        await cluster.start_server("server-0")
        assert (await client.append(0, b"21")).transaction_id == 21
        await _change(cluster, remove="storage-1")  # it was never filled, so nothing is at risk
        assert await _replicas(cluster) == (("storage-0",), {"storage-0"})
        full.total = 1 << 40
        await _change(cluster, add="storage-1")
        assert await _replicas(cluster) == (("storage-0", "storage-1"), {"storage-0", "storage-1"})
        await cluster.kill_storage("storage-0")  # and the second one has it all
        await _expect_held(cluster, "storage-1", 22)
        await cluster.start_storage("storage-0")
        assert (await client.append(0, b"22")).transaction_id == 22
        await client.close()
        await cluster.stop()

    run_in_virtual_time(run())


async def _expect_held(cluster: MemoryCluster, name: str, count: int) -> None:
    node, _ = cluster.storages[name]
    assert (await node.partition(0)).last_id == count - 1


def test_a_change_that_would_break_the_majority_is_refused_and_changes_nothing() -> None:
    async def run() -> None:
        cluster = MemoryCluster(servers=1)
        await cluster.start()
        await cluster.start_storage("storage-3")
        client = await cluster.connect()
        await client.append(0, b"x")
        await cluster.kill_storage("storage-1")
        before = await _replicas(cluster)
        for change in ({"add": "storage-3"}, {"remove": "storage-0", "force": True}):
            with pytest.raises(Unavailable, match="no majority"):
                await _change(cluster, **change)
        for change in ({"add": "storage-9"}, {"remove": "storage-9"}):
            with pytest.raises(InvalidRequest):
                await _change(cluster, **change)  # type: ignore[arg-type]
        assert await _replicas(cluster) == before
        with pytest.raises(InvalidRequest, match=r"would have 2 replicas, storage-0, storage-2: .*--force"):
            await _change(cluster, remove="storage-1")
        assert await _replicas(cluster) == before
        reported = await _change(cluster, remove="storage-1", force=True)  # the one that is gone may go
        assert any(line.startswith("warning: partition 0 would have 2 replicas") for line in reported)
        assert (await client.append(0, b"y")).transaction_id == 1
        await client.close()
        await cluster.stop()

    run_in_virtual_time(run())


def test_a_change_that_was_interrupted_goes_on_and_another_one_waits_for_it() -> None:
    async def run() -> None:
        cluster = MemoryCluster(servers=1)
        await cluster.start()
        for name in ("storage-3", "storage-4"):
            await cluster.start_storage(name)
        client = await cluster.connect()
        await client.append(0, b"x")
        full = cluster.disks["storage-3"]
        full.total -= full.free_bytes() - 1000  # it cannot be filled for now
        with pytest.raises(Unavailable, match="the cluster goes on with it"):
            await _change(cluster, add="storage-3", remove="storage-0", wait_s=3)
        with pytest.raises(Unavailable, match="still being filled"):
            await _change(cluster, remove="storage-2")
        assert (await client.append(0, b"y")).transaction_id == 1
        full.total = 1 << 40
        await _change(cluster, add="storage-3", remove="storage-0")
        assert await _replicas(cluster) == (("storage-1", "storage-2", "storage-3"), {"storage-1", "storage-2", "storage-3"})
        await client.close()
        await cluster.stop()

    run_in_virtual_time(run())


def test_a_removed_replica_supplies_what_only_it_and_one_other_still_hold() -> None:
    """Between the inspection of the replicas and the change of one of them, another lost its disk, and the owner died: of those that are assigned
    now, one has something. The session before decides with its own replicas, and the new ones replace them when a majority of them can."""

    async def run() -> None:
        cluster = MemoryCluster(servers=1)
        await cluster.start()
        await cluster.start_storage("storage-3")
        client = await cluster.connect()
        for _ in range(5):
            await client.append(0, b"acknowledged")
        await cluster.kill_server("server-0")
        await cluster.kill_storage("storage-0")
        wanted = ("storage-0", "storage-2", "storage-3")
        await cluster.ensemble.session().set(REPLICAS, ReplicaAssignment({0: wanted}).to_bytes(), -1)
        await cluster.start_server("server-0")
        assert (await client.append(0, b"next")).transaction_id == 5, "which the two that are left of the session before decide"
        await asyncio.sleep(5)
        assert await _replicas(cluster) == (wanted, {"storage-2", "storage-3"}), "which could not take over before storage-3 was filled"
        del cluster.disks["storage-0"]
        await cluster.start_storage("storage-0")
        async with asyncio.timeout(30):
            while await _replicas(cluster) != (wanted, set(wanted)):
                await asyncio.sleep(0.1)
        await cluster.kill_storage("storage-2")
        assert (await client.append(0, b"last")).transaction_id == 6
        found = [transaction.data async for transaction in _first(client, 7)]
        assert found == [b"acknowledged"] * 5 + [b"next", b"last"]
        await client.close()
        await cluster.stop()

    run_in_virtual_time(run())


async def _first(client: WaltzClient, count: int) -> AsyncGenerator[Transaction, None]:
    async with aclosing(client.feed(0)) as feed:
        async for transaction in feed:
            yield transaction
            count -= 1
            if count == 0:
                return


@pytest.mark.parametrize(("add", "remove"), [("storage-1", "storag-0"), ("storage-9", None), (None, "storage-9"), ("storage-3", "storag-0")])
def test_a_name_that_no_storage_node_has_is_refused_with_the_nearest(add: str | None, remove: str | None) -> None:
    """Also where the replica to add is assigned already: the change would pass for one that was completed before."""

    async def scenario(cluster: MemoryCluster) -> None:
        with pytest.raises(InvalidRequest, match=r"no storage node of the cluster is named (storag-0|storage-9), did you mean storage-"):
            await _change(cluster, add=add, remove=remove)
        assert (await _replicas(cluster))[0] == ("storage-0", "storage-1", "storage-2")

    _under_load(scenario)


def test_a_second_replica_that_is_lost_right_after_the_change_comes_back_empty_under_its_name() -> None:
    """Between the closing write and the next session both replicas are needed, and no change of replicas is possible. The way out that
    docs/guides/operations.md names loses nothing."""

    async def run() -> None:
        cluster = MemoryCluster(servers=1, storages=1, delay_s=lambda: 0.001)
        await cluster.start()
        await cluster.start_storage("storage-1")
        client = await cluster.connect()
        for number in range(50):
            await client.append(0, b"%d" % number)
        lost: list[asyncio.Future[None]] = []

        def lose_when_closed(path: str, data: bytes, *_: object) -> None:
            if path == partition_path(0) and not lost:
                metadata = PartitionMetadata.from_bytes(data)
                if "storage-1" in metadata.replicas and not clean_members(metadata):
                    lost.append(asyncio.ensure_future(cluster.kill_storage("storage-1")))

        cluster.ensemble.observer = lose_when_closed
        with pytest.raises(Unavailable, match="not complete yet"):
            await _change(cluster, add="storage-1", wait_s=30)
        await lost[0]
        assert await _replicas(cluster) == (("storage-0", "storage-1"), set())
        with pytest.raises(Unavailable, match="no majority"):
            await _change(cluster, remove="storage-1", force=True)
        appending = asyncio.ensure_future(client.append(0, b"waits"))
        await asyncio.sleep(1)
        assert not appending.done()
        cluster.disks.pop("storage-1")
        await cluster.start_storage("storage-1")  # as `waltz storage --replace` with an empty directory
        async with asyncio.timeout(60):
            assert (await appending).transaction_id == 50
            while (await _replicas(cluster))[1] != {"storage-0", "storage-1"}:
                await asyncio.sleep(0.1)
        await _change(cluster, remove="storage-1", force=True)
        assert await _replicas(cluster) == (("storage-0",), {"storage-0"})
        assert (await client.append(0, b"goes on")).transaction_id == 51
        assert [each.data async for each in _read_first(client, 50)] == [b"%d" % number for number in range(50)]
        await client.close()
        await cluster.stop()

    run_in_virtual_time(run())


async def _read_first(client: WaltzClient, count: int) -> AsyncGenerator[Transaction, None]:
    async with aclosing(client.feed(0)) as feed:
        async for transaction in feed:
            yield transaction
            if transaction.transaction_id == count - 1:
                return
