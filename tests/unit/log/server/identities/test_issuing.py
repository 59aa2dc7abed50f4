"""Client ids from log servers: without the coordinator, once each, and none after the counter was set back or destroyed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from waltz_log.core.client_ids import BLOCK_MIN, CLIENT_ID_MAX
from waltz_log.core.metadata import CLIENT_IDS, STORAGE_NODES
from waltz_log.errors import ClusterKeyMismatch, QuotaExceeded, Unavailable
from waltz_log.security.identity import Identity, Role
from waltz_log.server.identities import issuing
from waltz_log.testing.cluster import LoopClock, MemoryCluster
from waltz_log.testing.virtual_time import run_in_virtual_time
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.methods import CLIENT_ID


def _in_a_cluster(test: Callable[[MemoryCluster], Coroutine[Any, Any, None]], **more: Any) -> None:
    async def main() -> None:
        cluster = MemoryCluster(**{"servers": 2, **more})
        await cluster.start()
        await _stocked(cluster)
        await test(cluster)
        await cluster.stop()

    run_in_virtual_time(main())


class StoppedClock(LoopClock):
    def now_ms(self) -> int:
        return 1


async def _stocked(cluster: MemoryCluster) -> None:
    async with asyncio.timeout(20):
        while any(server.statistics().client_ids.left == 0 for server, _ in cluster.servers.values()):  # type: ignore[union-attr]
            await asyncio.sleep(0.01)


async def _id(cluster: MemoryCluster, name: str = "server-0", host: str = "client", key: bytes | None = None) -> int:
    address = cluster.servers[name][0].address
    request = pb.ClientIdRequest(cluster_key=cluster.key.bytes if key is None else key)
    return int((await cluster.network.host(host).connect(address).call(CLIENT_ID, request, timeout_s=5)).client_id)


async def _counter(cluster: MemoryCluster) -> bytes:
    node = await cluster.ensemble.session().get(CLIENT_IDS)
    assert node is not None
    return node.data


def test_no_two_clients_get_the_same_id_whichever_server_they_ask_and_whichever_restarts() -> None:
    async def main(cluster: MemoryCluster) -> None:
        found: list[int] = []
        for round_number in range(6):
            for name in ("server-0", "server-1"):
                found += await asyncio.gather(*(_id(cluster, name) for _ in range(BLOCK_MIN // 3)))
            await cluster.kill_server("server-0")
            await cluster.start_server("server-0")
            await _stocked(cluster)
            assert len(set(found)) == len(found), round_number
        assert min(found) == 1

    _in_a_cluster(main)


@pytest.mark.parametrize("clock", ["stopped", "set back"])
def test_ids_come_from_the_counter_and_from_no_clock(clock: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two servers, and one that starts again, at the same moment or an earlier one."""
    now_s = 1_000_000.0

    def now() -> float:
        nonlocal now_s
        now_s -= 60.0 if clock == "set back" else 0.0
        return now_s

    monkeypatch.setattr(issuing, "_now_s", now)

    async def main(cluster: MemoryCluster) -> None:
        cluster.clocks |= dict.fromkeys(("server-0", "server-1"), StoppedClock())
        found: list[int] = []
        for _ in range(3):
            for name in ("server-0", "server-1"):
                await cluster.kill_server(name)
                await cluster.start_server(name)
            await _stocked(cluster)
            for name in ("server-0", "server-1"):
                found += await asyncio.gather(*(_id(cluster, name) for _ in range(10)))
        assert len(set(found)) == len(found) == 60
        assert max(found) <= 8 * BLOCK_MIN, "small numbers: each start reserves one block above the last"

    _in_a_cluster(main)


def test_new_clients_get_ids_while_the_coordinator_does_not_answer() -> None:
    async def main(cluster: MemoryCluster) -> None:
        before = await _id(cluster)
        for _, session in cluster.servers.values():
            cluster.ensemble.cut(session)
        began_s = asyncio.get_running_loop().time()
        found = [before]
        while asyncio.get_running_loop().time() < began_s + 60:
            found.append(await _id(cluster))
            await asyncio.sleep(0.2)
        assert found == list(range(before, before + len(found)))
        for _, session in cluster.servers.values():
            cluster.ensemble.heal(session)

    _in_a_cluster(main, servers=1)


def test_a_counter_that_was_set_back_gives_no_id_a_second_time() -> None:
    async def main(cluster: MemoryCluster) -> None:
        backup = cluster.ensemble.snapshot()
        given = {await _id(cluster) for _ in range(600)}
        await asyncio.sleep(1)  # the next block is reserved
        given.add(await _id(cluster))
        await cluster.kill_server("server-0")
        await cluster.stop_server("server-1")
        cluster.restore_coordinator(backup)
        for name in cluster.storages:
            await cluster.ensemble.session().get(f"{STORAGE_NODES}/{name}")
        await cluster.start_server("server-0")
        for _ in range(5):
            with pytest.raises(Unavailable, match="set back"):
                await _id(cluster)
        refused = cluster.servers["server-0"][0].statistics().client_ids
        assert refused is not None
        assert refused.left == 0
        assert "set back" in str(refused.refused)

    _in_a_cluster(main)


def test_a_living_server_gives_nothing_more_once_it_notices() -> None:
    async def main(cluster: MemoryCluster) -> None:
        await cluster.ensemble.session().set(CLIENT_IDS, b"0", -1)
        with pytest.raises(Unavailable, match="set back"):
            for _ in range(BLOCK_MIN):
                await _id(cluster)
        assert await _counter(cluster) == b"0"

    _in_a_cluster(main, servers=1)


@pytest.mark.parametrize(("garbage", "words"), [(b"x", "unreadable"), (b"", "unreadable"), (b"%d" % CLIENT_ID_MAX, "used up"), (b"-5", "unreadable")])
def test_a_counter_of_garbage_stops_issuing_and_is_left_as_it_is(garbage: bytes, words: str) -> None:
    async def main(cluster: MemoryCluster) -> None:
        await cluster.ensemble.session().set(CLIENT_IDS, garbage, -1)
        await cluster.kill_server("server-0")
        await cluster.start_server("server-0")
        with pytest.raises(Unavailable, match=words):
            await _id(cluster)
        assert await _counter(cluster) == garbage

    _in_a_cluster(main, servers=1)


def test_ids_wait_for_a_majority_of_the_storage_nodes() -> None:
    async def main(cluster: MemoryCluster) -> None:
        await cluster.kill_server("server-0")
        for name in ("storage-0", "storage-1"):
            await cluster.stop_storage(name)
        await cluster.start_server("server-0")
        with pytest.raises(Unavailable, match="majority"):
            await _id(cluster)
        await cluster.start_storage("storage-0")
        await _stocked(cluster)
        assert await _id(cluster) > BLOCK_MIN

    _in_a_cluster(main, servers=1)


def test_what_a_storage_node_kept_outlives_the_loss_of_its_machine() -> None:
    async def main(cluster: MemoryCluster) -> None:
        await _id(cluster)
        for name in list(cluster.storages):
            await cluster.kill_storage(name)
            await cluster.start_storage(name)
        await cluster.kill_server("server-0")
        await cluster.ensemble.session().set(CLIENT_IDS, b"0", -1)
        await cluster.start_server("server-0")
        with pytest.raises(Unavailable, match="set back"):
            await _id(cluster)

    _in_a_cluster(main, servers=1)


def test_one_principal_gets_so_many_and_others_get_theirs() -> None:
    def identity(host: str) -> Identity:
        return Identity(f"spiffe://waltz/application/{host}", frozenset({Role.APPLICATION}))

    async def main(cluster: MemoryCluster) -> None:
        greedy = 0
        with pytest.raises(QuotaExceeded) as raised:
            while True:
                await _id(cluster, host="greedy")
                greedy += 1
        assert issuing.BURST <= greedy <= issuing.BURST + 10 * issuing.PER_S
        assert raised.value.retry_after_s > 0
        await _id(cluster, host="modest")
        await asyncio.sleep(raised.value.retry_after_s)
        await _id(cluster, host="greedy")

    _in_a_cluster(main, servers=1, identities=identity)


def test_a_client_of_another_cluster_gets_none() -> None:
    async def main(cluster: MemoryCluster) -> None:
        with pytest.raises(ClusterKeyMismatch):
            await _id(cluster, key=bytes(16))

    _in_a_cluster(main, servers=1)
