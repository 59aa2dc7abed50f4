"""A replica that is filled over many store sessions: what it copied outlasts them, and until it has everything it does not count as clean."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import structlog

from waltz_log.client import WaltzClient
from waltz_log.core.metadata import PartitionMetadata, partition_path
from waltz_log.core.replica_change import clean_members
from waltz_log.errors import SessionTooOld
from waltz_log.server.replication.replica_session import ReplicaSession
from waltz_log.statistics import to_json
from waltz_log.storage.replica.partition_store import PartitionStore
from waltz_log.testing.cluster import MemoryCluster
from waltz_log.testing.virtual_time import run_in_virtual_time

DELAY_S = 0.002
RECORDS = 4000
FILLED = "storage-2"


async def _metadata(cluster: MemoryCluster) -> PartitionMetadata:
    node = await cluster.ensemble.session().get(partition_path(0))
    assert node is not None
    return PartitionMetadata.from_bytes(node.data)


async def _store(cluster: MemoryCluster, name: str = FILLED) -> PartitionStore:
    return await cluster.storages[name][0].partition(0)


def _owner(cluster: MemoryCluster) -> dict[str, Any]:
    for server, _ in cluster.servers.values():
        for each in server._partitions.values():
            found: dict[str, Any] = to_json(each.statistics())
            if found.get("state") == "open":
                return found
    return {}


async def _append_on(client: WaltzClient, done: asyncio.Event, pause_s: float) -> int:
    count = 0
    while not done.is_set():
        await client.append(0, bytes(500))
        count += 1
        await asyncio.sleep(pause_s)
    return count


def _refilled(scenario: Callable[[MemoryCluster], Awaitable[None]], *, pause_s: float = 0.002, servers: int = 1, **settings: Any) -> None:
    """Runs it with a replica that was emptied, under load, in sessions much shorter than its fill; in the end all replicas hold the same."""

    async def run() -> None:
        bounds = {"checkpoint_transactions": 15, "feed_bytes_max": 4096, "replica_bytes_in_flight": 65536, "transaction_cache_bytes": 1 << 20}
        cluster = MemoryCluster(servers=servers, settings=bounds | settings, delay_s=lambda: DELAY_S)
        await cluster.start()
        client = await cluster.connect()
        for _ in range(RECORDS // 500):
            await asyncio.gather(*(client.append(0, bytes(500)) for _ in range(500)))
        done = asyncio.Event()
        appending = asyncio.ensure_future(_append_on(client, done, pause_s))
        await cluster.kill_storage(FILLED)
        del cluster.disks[FILLED]
        await cluster.start_storage(FILLED)
        await scenario(cluster)
        done.set()
        assert await appending > 10
        while len({(await _store(cluster, name)).last_id for name in cluster.storages}) > 1:
            await asyncio.sleep(0.1)
        held = [await _bytes(cluster, name) for name in cluster.storages]
        assert held[0] == held[1] == held[2]
        await client.close()
        await cluster.stop()

    run_in_virtual_time(run())


async def _bytes(cluster: MemoryCluster, name: str) -> bytes:
    store = await _store(cluster, name)
    return b"".join([block.records async for run in store.read(0, -1, 0, store.last_id, 1 << 20) for block in run])


async def _until(condition: Callable[[], Awaitable[bool]], timeout_s: float) -> None:
    async with asyncio.timeout(timeout_s):
        while not await condition():
            await asyncio.sleep(0.01)


async def _clean(cluster: MemoryCluster) -> bool:
    return FILLED in clean_members(await _metadata(cluster))


def test_a_fill_goes_on_over_many_sessions_and_ends() -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        began = (await _metadata(cluster)).session
        held: list[int] = []

        async def filled() -> bool:
            held.append((await _store(cluster)).last_id)
            return await _clean(cluster)

        await _until(filled, 60)
        assert (await _metadata(cluster)).session - began >= 10
        assert held == sorted(held), "what was copied is copied again"

    _refilled(scenario)


def test_a_partly_filled_replica_never_counts_as_clean() -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        looked = 0

        async def filled() -> bool:
            nonlocal looked
            metadata = await _metadata(cluster)
            if FILLED in clean_members(metadata):
                return True
            store = await _store(cluster)
            if store.last_id > 0 and metadata.session > 0:
                looked += 1
                if store.settled_session() is not None:
                    # Only a replica with everything that the session began with repairs and is repaired from. The metadata records it next.
                    assert store.settled_session() == metadata.session
                    assert store.last_id >= _owner(cluster)["low_water_mark"] > RECORDS
                    return False
                with pytest.raises(SessionTooOld):  # it serves no reader, up to no bound
                    async for _ in store.read(metadata.session, 0, 0, 0, 1):
                        pass
                with pytest.raises(SessionTooOld):
                    store.expect_member(metadata.session)
                replica = _owner(cluster).get("replicas", {}).get(FILLED, {})
                assert replica.get("acknowledged") is None
                assert replica.get("state") != "live"
            return False

        await _until(filled, 60)
        assert looked > 20

    _refilled(scenario)


@pytest.mark.parametrize("killed", ["server", "storage"])
def test_progress_outlasts_a_change_of_owner_and_a_crash_of_the_replica(killed: str) -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        async def half() -> bool:
            return (await _store(cluster)).last_id > RECORDS // 2

        await _until(half, 60)
        assert not await _clean(cluster)
        if killed == "server":
            owner = next(name for name, (server, _) in cluster.servers.items() if server._partitions)
            await cluster.kill_server(owner)
        else:
            await cluster.kill_storage(FILLED)
            await cluster.start_storage(FILLED)
        lowest = (await _store(cluster)).last_id
        while not await _clean(cluster):
            lowest = min(lowest, (await _store(cluster)).last_id)
            await asyncio.sleep(0.005)
        assert lowest > RECORDS // 4

    _refilled(scenario, servers=2)


def test_a_fill_reports_its_progress_and_the_time_left() -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        reported: list[dict[str, Any]] = []

        async def filled() -> bool:
            found = _owner(cluster).get("replicas", {}).get(FILLED, {}).get("filling")
            if found and found["remaining_s"] is not None:
                reported.append(found | {"at_s": asyncio.get_running_loop().time()})
            return await _clean(cluster)

        await _until(filled, 60)
        ended_s = asyncio.get_running_loop().time()
        middle = reported[len(reported) // 2]
        assert 0 < middle["last"] < middle["target"]
        assert middle["missing"] == middle["target"] - middle["last"]
        assert middle["bytes"] > 500 * middle["transactions"] > 0
        assert middle["mb_s"] > 0
        assert not middle["outpaced"]
        left_s = ended_s - middle["at_s"]
        assert left_s / 3 < middle["remaining_s"] < 3 * left_s + 1

    _refilled(scenario)


def test_a_fill_that_appends_outpace_says_so_with_an_estimate() -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        async def slow() -> bool:
            found = _owner(cluster).get("replicas", {}).get(FILLED, {}).get("filling")
            return bool(found and found["outpaced"])

        copied, original = ReplicaSession._in_turns, ReplicaSession._in_turns

        async def slowly(self: ReplicaSession, runs: Any) -> Any:
            async for run in original(self, runs):
                yield run
                await asyncio.sleep(0.2)

        ReplicaSession._in_turns = slowly  # type: ignore[method-assign]
        try:
            with structlog.testing.capture_logs() as logs:
                await _until(slow, 60)
        finally:
            ReplicaSession._in_turns = copied  # type: ignore[method-assign]
        (warned,) = [each for each in logs if each["event"] == "appends arrive faster than a replica is filled"]
        assert warned["log_level"] == "warning"
        assert warned["replica"] == FILLED
        assert warned["missing"] > 0
        assert warned["without_appends_s"] > 0
        await _until(lambda: _clean(cluster), 120)

    _refilled(scenario)
