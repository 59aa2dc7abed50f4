"""A fence, or a token of a session, that no owner explains: it ends a session at most, and closes no partition for good (decision 35)."""

from __future__ import annotations

import asyncio

import pytest

from waltz_log.core.metadata import CLUSTER, STORAGE_NODES, ClusterParameters, PartitionMetadata, StorageNodeEntry, partition_path
from waltz_log.server.replication.fence_evidence import FENCE_PASSED_MAX
from waltz_log.statistics import to_json
from waltz_log.testing.cluster import MemoryCluster
from waltz_log.testing.virtual_time import run_in_virtual_time
from waltz_log.transport import methods
from waltz_log.transport import waltz_pb2 as pb

STRANGER = 16 * b"x"


async def _metadata(cluster: MemoryCluster) -> PartitionMetadata:
    node = await cluster.ensemble.session().get(partition_path(0))
    assert node is not None
    return PartitionMetadata.from_bytes(node.data)


async def _open(cluster: MemoryCluster, name: str, session: int, token: bytes = STRANGER) -> None:
    """As any caller that reaches the storage node can."""
    coordinator = cluster.ensemble.session()
    entry, parameters = await coordinator.get(f"{STORAGE_NODES}/{name}"), await coordinator.get(CLUSTER)
    assert entry is not None
    assert parameters is not None
    channel = cluster.network.connect(StorageNodeEntry.from_bytes(entry.data).address_for(0))
    key = ClusterParameters.from_bytes(parameters.data).key.bytes
    request = pb.OpenRequest(cluster_key=key, partition=0, session=session, partitions=1, owner_token=token)
    await channel.call(methods.OPEN, request, timeout_s=1)
    await channel.close()


async def _all_live(cluster: MemoryCluster, names: list[str]) -> None:
    async with asyncio.timeout(60):
        while True:
            found = to_json(cluster.servers["server-0"][0].statistics())["partitions"]["0"]
            if found["state"] == "open" and all(found["replicas"][name]["state"] == "live" for name in names):
                return
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("flipped", [1 << 1, 1 << 20, 1 << 61])
@pytest.mark.parametrize("storages", [1, 3])
@pytest.mark.parametrize("opening", [False, True])
def test_a_bare_open_of_a_newer_session_on_one_replica_closes_nothing(storages: int, flipped: int, opening: bool) -> None:
    async def main() -> None:
        cluster = MemoryCluster(servers=1, storages=storages)
        await cluster.start()
        names = sorted(cluster.storages)
        client = await cluster.connect()
        await client.append(0, b"a")
        before = await _metadata(cluster)
        if opening:
            await cluster.stop_server("server-0")
        await _open(cluster, names[-1], before.session | flipped)
        if opening:
            await cluster.start_server("server-0")
        assert (await client.append(0, b"b", timeout_s=60)).transaction_id == 1
        await _all_live(cluster, names)
        after = await _metadata(cluster)
        assert after.newer_session is None
        assert after.session > before.session | flipped
        await client.close()
        await cluster.stop()

    run_in_virtual_time(main())


def test_a_replica_with_a_fence_that_no_session_number_passes_counts_as_failed() -> None:
    async def main() -> None:
        cluster = MemoryCluster(servers=1, storages=3)
        await cluster.start()
        client = await cluster.connect()
        await client.append(0, b"a")
        await _open(cluster, "storage-2", FENCE_PASSED_MAX)
        assert (await client.append(0, b"b", timeout_s=60)).transaction_id == 1
        await asyncio.sleep(30)
        assert (await client.append(0, b"c", timeout_s=60)).transaction_id == 2
        after = await _metadata(cluster)
        assert after.newer_session is None
        assert after.session < 100
        await client.close()
        await cluster.stop()

    run_in_virtual_time(main())


@pytest.mark.parametrize("storages", [1, 3])
def test_another_token_for_the_owners_session_closes_nothing(storages: int) -> None:
    async def main() -> None:
        cluster = MemoryCluster(servers=1, storages=storages)
        await cluster.start()
        names = sorted(cluster.storages)
        client = await cluster.connect()
        await client.append(0, b"a")
        before = await _metadata(cluster)
        await cluster.kill_storage(names[-1])
        await cluster.start_storage(names[-1])  # it knows no token now
        await _open(cluster, names[-1], before.session)
        assert (await client.append(0, b"b", timeout_s=60)).transaction_id == 1
        await _all_live(cluster, names)
        after = await _metadata(cluster)
        assert after.newer_session is None
        assert after.session == before.session + 1
        await client.close()
        await cluster.stop()

    run_in_virtual_time(main())
