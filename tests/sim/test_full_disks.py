"""Disks of replicas that fill up: distinguished from broken ones, waited out, and never a reason for a new session."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from waltz_log.errors import NotAppended
from waltz_log.statistics import to_json
from waltz_log.testing.cluster import MemoryCluster
from waltz_log.testing.virtual_time import run_in_virtual_time

ROOMY = 1 << 40


def fill(cluster: MemoryCluster, *names: str) -> None:
    for name in names:
        disk = cluster.disks[name]
        disk.total -= disk.free_bytes() - 1000


def partition(cluster: MemoryCluster) -> dict[str, Any]:
    return to_json(next(iter(cluster.servers.values()))[0].statistics())["partitions"]["0"]  # type: ignore[no-any-return]


def states(cluster: MemoryCluster) -> dict[str, str]:
    return {name: replica["state"] for name, replica in partition(cluster)["replicas"].items()}


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


def test_one_full_disk_of_three_is_reported_and_catches_up_when_there_is_room() -> None:
    async def run() -> None:
        cluster = MemoryCluster(servers=1)
        await cluster.start()
        client = await cluster.connect()
        await client.append(0, b"first")
        fill(cluster, "storage-1")
        for n in range(5):
            await client.append(0, b"%d" % n)
        await until(lambda: states(cluster)["storage-1"] == "full")
        assert cluster.storages["storage-1"][0].statistics().space == "refusing"
        session = partition(cluster)["session"]
        cluster.disks["storage-1"].total = ROOMY
        await until(lambda: states(cluster)["storage-1"] == "live")
        await client.append(0, b"last")
        await until(lambda: cluster.storages["storage-1"][0].statistics().partitions[0].last_transaction_id == 6)
        assert partition(cluster)["session"] == session
        await client.close()
        await cluster.stop()

    run_in_virtual_time(run())


def test_without_room_on_a_majority_appends_are_refused_and_go_on_when_there_is_room() -> None:
    async def run() -> None:
        cluster = MemoryCluster(servers=1)
        await cluster.start()
        client = await cluster.connect()
        await client.append(0, b"first")
        session = partition(cluster)["session"]
        fill(cluster, "storage-0", "storage-2")
        waiting = asyncio.create_task(client.append(0, b"in flight when it was found out"))
        await until(lambda: list(states(cluster).values()).count("full") == 2)
        for _ in range(3):
            with pytest.raises(NotAppended, match="full"):
                await client.append(0, b"refused")
        assert not waiting.done()
        cluster.disks["storage-0"].total = cluster.disks["storage-2"].total = ROOMY
        assert (await waiting).transaction_id == 1
        await until(lambda: "full" not in states(cluster).values())
        assert (await client.append(0, b"third")).transaction_id == 2
        assert partition(cluster)["session"] == session
        await client.close()
        await cluster.stop()

    run_in_virtual_time(run())
