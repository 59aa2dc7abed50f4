"""A node of another cluster is refused by its key, whichever side meets it."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest

from waltz_log.client import ClientSettings, WaltzClient
from waltz_log.coordination.survey import survey
from waltz_log.core import metadata as paths
from waltz_log.core.metadata import StorageNodeEntry
from waltz_log.core.ports import Channel, Listener, Network, Service
from waltz_log.errors import ClusterKeyMismatch, Unavailable
from waltz_log.statistics import to_json
from waltz_log.storage import StorageNode
from waltz_log.storage.integrity.peers import PeerReplicas
from waltz_log.testing.cluster import MemoryCluster
from waltz_log.testing.disk import SimulatedDisk
from waltz_log.testing.virtual_time import run_in_virtual_time
from waltz_log.transport import methods
from waltz_log.transport import waltz_pb2 as pb

OTHER = UUID(int=7)


async def _cluster() -> MemoryCluster:
    cluster = MemoryCluster(servers=1)
    await cluster.start()
    client = await cluster.connect()
    await client.append(0, b"x")
    await client.close()
    return cluster


def _server_address(cluster: MemoryCluster) -> str:
    ((server, _),) = cluster.servers.values()
    return server.address


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        (methods.BOUND, pb.BoundRequest(cluster_key=OTHER.bytes)),
        (methods.RESOLVE, pb.ResolveRequest(cluster_key=OTHER.bytes, client_id=1, first_sequence=1, last_sequence=1, since=-1)),
        (methods.TRANSACTIONS, pb.TransactionRequest(cluster_key=OTHER.bytes, first_transaction_id=0, count=1)),
    ],
    ids=["bound", "resolve", "transactions"],
)
def test_a_server_refuses_calls_for_another_cluster(method: Any, request_: Any) -> None:
    async def scenario() -> None:
        cluster = await _cluster()
        with pytest.raises(ClusterKeyMismatch) as refused:
            await cluster.network.connect(_server_address(cluster)).call(method, request_, timeout_s=5)
        assert refused.value.facts == {"where": "the request"}
        assert str(cluster.key) not in str(refused.value)
        assert cluster.key.hex not in str(refused.value)
        await cluster.stop()

    run_in_virtual_time(scenario())


class _Moved:
    """A network whose addresses belong to another cluster from some moment on."""

    def __init__(self, network: Network) -> None:
        self.network = network

    def connect(self, address: str) -> Channel:
        return self.network.connect(address)

    async def serve(self, address: str, service: Service) -> Listener:
        return await self.network.serve(address, service)


def test_a_client_of_another_cluster_is_refused_and_appends_and_reads_nothing() -> None:
    """The addresses that it knows belong to this cluster now."""

    async def scenario() -> None:
        cluster, foreign = await _cluster(), MemoryCluster(servers=1)
        foreign.key = OTHER
        await foreign.start()
        assert _server_address(foreign) == _server_address(cluster)
        moved = _Moved(foreign.network)
        stranger = await WaltzClient.connect_over(foreign.seeds, moved, ClientSettings(retry_base_s=0.01, append_timeout_s=2))
        moved.network = cluster.network
        with pytest.raises(ClusterKeyMismatch):
            await stranger.append(0, b"y")
        with pytest.raises(ClusterKeyMismatch):
            await stranger.high_water_mark(0)
        with pytest.raises(ClusterKeyMismatch):
            await anext(stranger.feed(0))
        await stranger.close()
        await foreign.stop()
        client = await cluster.connect()
        assert await client.high_water_mark(0) == 0
        await client.close()
        await cluster.stop()

    run_in_virtual_time(scenario())


def test_a_storage_node_of_another_cluster_is_no_replica_and_no_source_of_repair_and_is_not_seen() -> None:
    async def scenario() -> None:
        cluster = await _cluster()
        foreign = MemoryCluster(servers=1)
        foreign.key, foreign.network, foreign.ensemble = OTHER, cluster.network, type(cluster.ensemble)()
        disk = SimulatedDisk()
        StorageNode.create(disk, foreign.clock, OTHER, 1)
        foreign.disks["foreign-0"] = disk
        await foreign.start_storage("foreign-0")
        address = foreign.storages["foreign-0"][1].address
        # A node of the other cluster has the address that the coordinator knows for storage-2.
        await cluster.stop_storage("storage-2")
        session = cluster.ensemble.session()
        await session.set(f"{paths.STORAGE_NODES}/storage-2", StorageNodeEntry(address, 1).to_bytes(), -1)
        client = await cluster.connect()
        for number in range(20):
            await client.append(0, bytes([number]))
            await asyncio.sleep(0.02)
        ((server, _),) = cluster.servers.values()
        reported = to_json(server.statistics())["partitions"]["0"]["replicas"]["storage-2"]
        assert "cluster" in reported["error"]
        for key in (cluster.key, OTHER):
            assert not any(text in reported["error"] for text in (str(key), key.hex)), "no key is for a caller that lacks it"
        assert foreign.storages["foreign-0"][0].statistics().partitions == ()
        seen = await survey(session, cluster.network, "memory")
        assert {each.name: each.answers for each in seen.storages} == {"storage-0": True, "storage-1": True, "storage-2": False}

        async def peers(_: int) -> list[str]:
            return [address]

        with pytest.raises(Unavailable, match="cluster key mismatch"):
            async for _ in PeerReplicas(cluster.network, peers).read(cluster.key, 0, 1, 0, 0):
                pass
        await client.close()
        await foreign.stop()
        await cluster.stop()

    run_in_virtual_time(scenario())
