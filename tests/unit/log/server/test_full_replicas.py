"""Replicas without room: what clients and operators are told, and that nothing stays refused when there is room again."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from waltz_log.cli.cluster import show
from waltz_log.client import ClientSettings, Receipt
from waltz_log.core import metadata as paths
from waltz_log.core.metadata import ReplicaAssignment
from waltz_log.errors import NotAppended
from waltz_log.testing.cluster import MemoryCluster
from waltz_log.testing.virtual_time import run_in_virtual_time
from waltz_log.zookeeper.survey import survey

ROOMY = 1 << 40


def _fill(cluster: MemoryCluster, *names: str) -> None:
    for name in names:
        disk = cluster.disks[name]
        disk.total -= disk.free_bytes() - 1000


def _empty(cluster: MemoryCluster, *names: str) -> None:
    for name in names:
        cluster.disks[name].total = ROOMY


def _states(cluster: MemoryCluster) -> list[str]:
    status: dict[str, Any] = next(iter(cluster.servers.values()))[0].statistics()["partitions"]["0"]
    return [replica["state"] for replica in status.get("replicas", {}).values()]


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


def test_what_waits_in_the_queue_is_refused_too_and_none_of_it_gets_into_the_log() -> None:
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


def test_replicas_that_had_no_room_to_recover_take_appends_when_they_have_recovered() -> None:
    """They have nothing to refuse or take any more then: that they caught up must say it."""

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
        told = io.StringIO()
        show(found, Console(file=told, width=200))
        assert "storage-0 live, storage-1 full, storage-2 live" in told.getvalue()
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
