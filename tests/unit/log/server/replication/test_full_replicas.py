"""Replicas without room: what clients and operators see, and that nothing stays refused when there is room again."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from waltz_log.cli.cluster.cluster import show
from waltz_log.client import ClientSettings, Receipt, WaltzClient
from waltz_log.coordination.survey import survey
from waltz_log.core import metadata as paths
from waltz_log.core.metadata import ReplicaAssignment
from waltz_log.errors import NotAppended
from waltz_log.statistics import to_json
from waltz_log.testing.cluster import MemoryCluster
from waltz_log.testing.virtual_time import run_in_virtual_time

ROOMY = 1 << 40


def _fill(cluster: MemoryCluster, *names: str) -> None:
    for name in names:
        disk = cluster.disks[name]
        disk.total -= disk.free_bytes() - 1000


def _empty(cluster: MemoryCluster, *names: str) -> None:
    for name in names:
        cluster.disks[name].total = ROOMY


def _states(cluster: MemoryCluster) -> list[str]:
    status: dict[str, Any] = to_json(next(iter(cluster.servers.values()))[0].statistics())["partitions"].get("0", {})
    return [replica["state"] for replica in status.get("replicas", {}).values()]


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


def test_queued_appends_are_refused_too_and_none_of_them_is_in_the_log() -> None:
    async def scenario() -> None:
        cluster = MemoryCluster(servers=1, delay_s=lambda: 0.001, settings={"block_bytes_max": 4096})
        await cluster.start()
        client = await cluster.connect(ClientSettings(frame_bytes=4096, append_timeout_s=1000))
        await client.append(0, b"first")
        _fill(cluster, "storage-0", "storage-2")
        waiting = [await client.append_nowait(0, bytes(1000)) for _ in range(100)]
        await _until(lambda: sum(future.done() for future in waiting) >= 90)
        refused = [future for future in waiting if future.done()]
        for future in refused:
            assert isinstance(future.exception(), NotAppended)
        assert _states(cluster).count("full") == 2
        _empty(cluster, "storage-0", "storage-2")
        undecided: list[Receipt] = await asyncio.gather(*(future for future in waiting if future not in refused))
        assert [receipt.transaction_id for receipt in undecided] == list(range(1, len(undecided) + 1))
        assert (await client.append(0, b"last")).transaction_id == len(undecided) + 1
        await client.close()
        await cluster.stop()

    run_in_virtual_time(scenario())


def test_replicas_that_had_no_room_to_recover_accept_appends_when_they_have_recovered() -> None:
    """They have nothing to refuse or accept any more then: that they caught up must say it."""

    async def scenario() -> None:
        cluster = MemoryCluster(servers=1)
        await cluster.start()
        client = await cluster.connect()
        for _ in range(5):
            await client.append(0, b"x")
        for name in ("storage-3", "storage-4"):
            await cluster.start_storage(name)
        _fill(cluster, "storage-3", "storage-4")
        more = ReplicaAssignment({0: ("storage-0", "storage-1", "storage-2", "storage-3", "storage-4")})
        await cluster.ensemble.session().set(paths.REPLICAS, more.to_bytes(), -1)
        await _until(lambda: _states(cluster).count("full") == 2)
        _empty(cluster, "storage-3", "storage-4")
        await _until(lambda: _states(cluster).count("live") == 5)
        for name in ("storage-1", "storage-2"):
            await cluster.kill_storage(name)
        assert (await client.append(0, b"next")).transaction_id == 5
        await client.close()
        await cluster.stop()

    run_in_virtual_time(scenario())


def test_the_status_names_full_replicas() -> None:
    async def scenario() -> None:
        cluster = MemoryCluster(servers=1)
        await cluster.start()
        client = await cluster.connect()
        await client.append(0, b"first")
        _fill(cluster, "storage-1")
        await client.append(0, b"second")
        await _until(lambda: "full" in _states(cluster))
        found = await survey(cluster.ensemble.session(), cluster.network, "memory/test")
        reported = io.StringIO()
        show(found, Console(file=reported, width=200))
        assert "storage-0 live, storage-1 full, storage-2 live" in reported.getvalue()
        for _ in range(20):  # also while it is tried again
            assert _states(cluster).count("full") == 1
            await asyncio.sleep(0.013)
        await client.close()
        await cluster.stop()

    run_in_virtual_time(scenario())


@pytest.mark.parametrize("count", [1, 2])
def test_appends_are_refused_only_where_no_majority_has_room(count: int) -> None:
    async def scenario() -> None:
        cluster = MemoryCluster(servers=1)
        await cluster.start()
        client = await cluster.connect()
        await client.append(0, b"first")
        _fill(cluster, *(f"storage-{number}" for number in range(count)))
        probe = await client.append_nowait(0, b"finds out")
        await _until(lambda: _states(cluster).count("full") == count)
        if count == 1:
            assert (await client.append(0, b"goes on")).transaction_id == 2
        else:
            with pytest.raises(NotAppended, match="full"):
                await client.append(0, b"refused")
            _empty(cluster, "storage-0", "storage-1")
        assert (await probe).transaction_id == 1
        await client.close()
        await cluster.stop()

    run_in_virtual_time(scenario())


BOUND_S = 1.5
"""Within which a client is answered that the storage is full, whatever state the partition is in: its longest pause between two mounts, and a bit."""


async def _expect_refused(client: WaltzClient, times: int = 5) -> None:
    loop = asyncio.get_running_loop()
    for _ in range(times):
        began_s = loop.time()
        with pytest.raises(NotAppended, match="storage is full"):
            await client.append(0, b"refused", timeout_s=20)
        assert loop.time() - began_s < BOUND_S


async def _end(cluster: MemoryCluster, *clients: WaltzClient) -> None:
    """With room again everything goes on."""
    _empty(cluster, *cluster.disks)
    await _until(lambda: _states(cluster) != [] and "full" not in _states(cluster))
    for client in clients:
        await client.append(0, b"goes on")
        await client.close()
    await cluster.stop()


def test_a_client_that_mounts_while_blocks_wait_for_room_is_answered_that_the_storage_is_full() -> None:
    async def scenario() -> None:
        cluster = MemoryCluster(servers=1)
        await cluster.start()
        client = await cluster.connect()
        await client.append(0, b"first")
        _fill(cluster, "storage-0", "storage-2")
        stuck = await client.append_nowait(0, b"finds out")
        await _until(lambda: _states(cluster).count("full") == 2)
        other = await cluster.connect(seed=1)
        await _expect_refused(other)
        # The first client's connection breaks: what is in flight stays undecided, everything else is answered.
        cluster.network.cut(cluster.servers["server-0"][0].address)
        cluster.network.heal(cluster.servers["server-0"][0].address)
        await asyncio.sleep(0.01)  # it noticed: what it sends on a broken connection is undecided too
        await _expect_refused(client)
        assert not stuck.done()
        _empty(cluster, *cluster.disks)
        await stuck
        await _end(cluster, client, other)

    run_in_virtual_time(scenario())


def test_a_client_of_a_partition_that_cannot_open_for_want_of_room_is_answered_that_the_storage_is_full() -> None:
    """One replica is full, one is full and has to copy what it missed, the third is away."""

    async def scenario() -> None:
        cluster = MemoryCluster(servers=1)
        await cluster.start()
        client = await cluster.connect()
        await client.append(0, b"first")
        await cluster.stop_storage("storage-2")
        for _ in range(5):
            await client.append(0, b"missed by the third")
        await cluster.kill_server("server-0")
        await cluster.stop_storage("storage-1")
        _fill(cluster, "storage-0", "storage-2")
        await cluster.start_storage("storage-2")
        await cluster.start_server("server-0")
        await _until(lambda: to_json(next(iter(cluster.servers.values()))[0].statistics())["partitions"] != {})
        await asyncio.sleep(1)
        other = await cluster.connect(seed=1)
        await _expect_refused(client)
        await _expect_refused(other)
        await cluster.start_storage("storage-1")
        await _end(cluster, client, other)

    run_in_virtual_time(scenario())


@pytest.mark.parametrize("orderly", [True, False])
def test_the_next_owner_knows_at_once_that_the_storage_is_full(orderly: bool) -> None:
    """No append has to get lost in flight for it to find out."""

    async def scenario() -> None:
        cluster = MemoryCluster(servers=2)
        await cluster.start()
        client = await cluster.connect()
        await client.append(0, b"first")
        _fill(cluster, "storage-0", "storage-2")
        await (cluster.stop_server if orderly else cluster.kill_server)("server-0")
        await _until(lambda: "full" in _states(cluster))
        await _expect_refused(client)
        other = await cluster.connect(seed=1)
        await _expect_refused(other)
        await asyncio.sleep(10)  # the replicas were tried again meanwhile
        await _expect_refused(client)
        await _end(cluster, client, other)

    run_in_virtual_time(scenario())


def test_a_renewed_session_still_knows_that_the_storage_is_full() -> None:
    async def scenario() -> None:
        cluster = MemoryCluster(servers=1, settings={"checkpoint_transactions": 3})
        await cluster.start()
        client = await cluster.connect()
        await client.append(0, b"first")
        await client.append(0, b"second")
        _fill(cluster, "storage-0")
        await client.append(0, b"one of three is full")
        session = to_json(next(iter(cluster.servers.values()))[0].statistics())["partitions"]["0"]["session"]
        _fill(cluster, "storage-2")
        await _until(lambda: to_json(next(iter(cluster.servers.values()))[0].statistics())["partitions"]["0"].get("session", 0) > session)
        await _until(lambda: _states(cluster).count("full") == 2)
        await _expect_refused(client)
        other = await cluster.connect(seed=1)
        await _expect_refused(other)
        await _end(cluster, client, other)

    run_in_virtual_time(scenario())
