"""A replica that lives and does not answer, as one whose disk hangs: the connection is there, and nothing comes. The others do without it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from waltz_log.client import ClientSettings, OutcomeUnknown
from waltz_log.statistics import to_json
from waltz_log.storage.node.service import _Service
from waltz_log.testing.cluster import MemoryCluster
from waltz_log.testing.virtual_time import run_in_virtual_time

COUNT = 30
RPC_S = 2.0
IN_TIME_S = 1.75 * RPC_S
"""It is asked once in vain, and not twice."""


class _Hung:
    """Calls of these kinds to these nodes are never answered."""

    def __init__(self, patch: pytest.MonkeyPatch, *calls: str) -> None:
        self.nodes: set[str] = set()
        self.asked = 0
        for call in calls:
            patch.setattr(_Service, call, self._hanging(getattr(_Service, call)))

    def _hanging(self, honest: Callable[..., Any]) -> Callable[..., Any]:
        async def call(service: _Service, *arguments: Any) -> Any:
            if service._node.settings.name in self.nodes:
                self.asked += 1
                await asyncio.sleep(36_000)
            return await honest(service, *arguments)

        return call


async def _cluster(**settings: Any) -> MemoryCluster:
    cluster = MemoryCluster(servers=1, settings={"rpc_timeout_s": RPC_S} | settings, delay_s=lambda: 0.001)
    await cluster.start()
    return cluster


async def _append(cluster: MemoryCluster, count: int, timeout_s: float = 10.0) -> None:
    client = await cluster.connect()
    for number in range(count):
        await client.append(0, bytes([number]), timeout_s=timeout_s)
    await client.close()


def _forget(cluster: MemoryCluster) -> None:
    """What was appended is not in the owner's memory any more."""
    server, _ = cluster.servers["server-0"]
    server._caches.transactions.bytes_max = 1
    server._caches.transactions.changed(0)


def _acknowledged(cluster: MemoryCluster, name: str) -> int | None:
    server, _ = cluster.servers["server-0"]
    found: int | None = to_json(server._partitions[0].statistics())["replicas"][name]["acknowledged"]
    return found


@pytest.mark.parametrize("call", ["open", "read"])
def test_other_replicas_decide_the_outcome_of_an_append(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        hung = _Hung(monkeypatch, call)
        cluster = await _cluster(rpc_timeout_s=10.0)
        asker, writer = await cluster.connect(ClientSettings(request_timeout_s=2.0)), await cluster.connect()
        for number in range(COUNT):
            await writer.append(0, bytes([number]))
        _forget(cluster)
        hung.nodes = {"storage-0"}
        began = asyncio.get_running_loop().time()
        unknown = OutcomeUnknown(partition=0, client_id=writer.client_id, sequence=COUNT, since=-1, reason="lost")
        found = await asker.resolve(unknown, timeout_s=60)
        assert found is not None
        assert found.transaction_id == COUNT - 1
        assert hung.asked
        assert asyncio.get_running_loop().time() - began < (1.0 if call == "open" else 10.0)
        await asker.close()
        await writer.close()
        await cluster.stop()

    run_in_virtual_time(scenario())


def test_a_partition_opens_with_what_another_replica_has(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        hung = _Hung(monkeypatch, "read", "set_low_water_mark")
        cluster = await _cluster()
        await _append(cluster, 3)
        await cluster.stop_storage("storage-2")
        await _append(cluster, COUNT)
        await cluster.kill_server("server-0")
        hung.nodes = {"storage-0"}
        await cluster.start_storage("storage-2")  # what it lacks both of the others have
        began = asyncio.get_running_loop().time()
        await cluster.start_server("server-0")
        await _append(cluster, 1, timeout_s=60)
        assert hung.asked
        assert asyncio.get_running_loop().time() - began < IN_TIME_S
        await cluster.stop()

    run_in_virtual_time(scenario())


def test_a_replica_that_was_away_catches_up_at_another(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        hung = _Hung(monkeypatch, "read")
        cluster = await _cluster()
        await _append(cluster, 3)
        await cluster.stop_storage("storage-2")
        await _append(cluster, COUNT)
        _forget(cluster)
        hung.nodes = {"storage-0"}
        await cluster.start_storage("storage-2")
        async with asyncio.timeout(IN_TIME_S):
            while _acknowledged(cluster, "storage-2") != COUNT + 2:
                await asyncio.sleep(0.1)
        assert hung.asked
        await cluster.stop()

    run_in_virtual_time(scenario())


def test_an_owner_to_which_reads_are_not_answered_knows_that_it_reaches_no_majority(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is appended, so the streams of blocks are silent, and a partition that serves no reader could move to a server that does better."""

    async def scenario() -> None:
        hung = _Hung(monkeypatch, "open", "read")
        cluster = await _cluster()
        await _append(cluster, COUNT)
        _forget(cluster)
        server, _ = cluster.servers["server-0"]
        partition = server._partitions[0]
        assert partition.lacks_majority() is None
        hung.nodes = {"storage-0", "storage-1", "storage-2"}
        client = await cluster.connect()
        reading = asyncio.ensure_future(anext(client.feed_batches(0, after=-1)))
        await asyncio.sleep(3 * RPC_S)
        assert partition.lacks_majority() is None, "one of three was asked"
        await asyncio.sleep(4 * RPC_S)
        assert partition.lacks_majority() is not None
        hung.nodes = set()
        await reading
        await asyncio.sleep(2 * RPC_S)
        assert partition.lacks_majority() is None
        await client.close()
        await cluster.stop()

    run_in_virtual_time(scenario())
