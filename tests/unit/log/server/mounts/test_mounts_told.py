"""Mounts that are not to be: who asks a partition that is being given away, and who comes late for a client that is already mounted again."""

from __future__ import annotations

import asyncio

import pytest

from waltz_log.errors import Fenced, NotOwner
from waltz_log.server.partition import partition as partitions
from waltz_log.testing.cluster import MemoryCluster
from waltz_log.testing.virtual_time import run_in_virtual_time
from waltz_log.transport import methods
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.methods import MountStream


async def _mount(cluster: MemoryCluster, client_id: int = 0, mount_sequence: int = 0) -> MountStream:
    server, _ = cluster.servers["server-0"]
    stream = cluster.network.connect(server.address).open(methods.MOUNT)
    request = pb.MountRequest(
        protocol_version=2, cluster_key=cluster.key.bytes, client_high_water_mark=-1, client_id=client_id, mount_sequence=mount_sequence
    )
    await stream.send(pb.ClientMessage(mount=request))
    return stream


async def _owned(cluster: MemoryCluster) -> None:
    server, _ = cluster.servers["server-0"]
    while 0 not in server._partitions:
        await asyncio.sleep(0.01)


def test_a_waiter_for_a_partition_to_open_gets_an_error_as_soon_as_it_is_reassigned() -> None:
    async def scenario() -> None:
        cluster = MemoryCluster(servers=1, settings={"mount_wait_s": 30.0})
        await cluster.start()
        for name in ("storage-1", "storage-2"):
            await cluster.stop_storage(name)  # so it does not open
        await cluster.kill_server("server-0")
        await cluster.start_server("server-0")
        await _owned(cluster)
        waiting = await _mount(cluster)
        cluster._settings["preferred_partitions"] = (0,)
        began = asyncio.get_running_loop().time()
        await cluster.start_server("server-1")
        with pytest.raises(NotOwner):
            await waiting.receive()
        assert asyncio.get_running_loop().time() - began < 1.0
        await cluster.stop()

    run_in_virtual_time(scenario())


def test_a_connection_that_comes_late_does_not_replace_a_newer_one_however_many_clients_came_between(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(partitions, "CLIENTS_REMEMBERED_MAX", 2)
        cluster = MemoryCluster(servers=1)
        await cluster.start()
        await _owned(cluster)
        newer = await _mount(cluster, client_id=1, mount_sequence=5)
        assert await newer.receive() is not None
        for client_id in (2, 3, 4):
            other = await _mount(cluster, client_id=client_id, mount_sequence=1)
            assert await other.receive() is not None
        late = await _mount(cluster, client_id=1, mount_sequence=4)
        with pytest.raises(Fenced, match="newer=5"):
            await late.receive()
        await newer.send(pb.ClientMessage(flush=pb.FlushRequest(flush_id=1)))
        answer = await newer.receive()
        assert answer is not None
        assert answer.flushed.flush_id == 1
        await cluster.stop()

    run_in_virtual_time(scenario())
