"""Every replica is lost, and the cluster is restored from backups of different ages (decision 69)."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from waltz_log.client import ClientSettings
from waltz_log.coordination.cluster import adopt_cluster
from waltz_log.core.adoption import adopt
from waltz_log.core.metadata import STORAGE_NODES, StorageNodeEntry
from waltz_log.errors import InvalidRequest
from waltz_log.storage.offline.backup import backup
from waltz_log.storage.offline.describe import describe
from waltz_log.storage.offline.restore import restore
from waltz_log.testing.cluster import MemoryCluster
from waltz_log.testing.disk import SimulatedDisk
from waltz_log.testing.virtual_time import run_in_virtual_time

NAMES = ("storage-0", "storage-1", "storage-2")
NOW = 1_700_000_000_000


async def _append(cluster: MemoryCluster, prefix: str) -> list[bytes]:
    data = [f"{prefix} {number}".encode() for number in range(10)]
    client = await cluster.connect(ClientSettings())
    for each in data:
        await client.append(0, each)
    await client.close()
    return data


async def _log(cluster: MemoryCluster) -> list[bytes]:
    client = await cluster.connect(ClientSettings())
    found: list[bytes] = []
    last = await client.high_water_mark(0)
    async for batch in client.feed_batches(0, after=-1):
        found += [each.data for each in batch]
        if len(found) > last:
            break
    await client.close()
    return found


async def _backups(cluster: MemoryCluster, order: tuple[str, ...], *, sessions: bool) -> tuple[dict[str, SimulatedDisk], list[bytes], list[bytes]]:
    """Backs each node up, some appends after the one before and in another session. Returns the backups, what was appended before the newest of
    them, and all that was appended."""
    backups: dict[str, SimulatedDisk] = {}
    data = await _append(cluster, "first")
    newest: list[bytes] = []
    for name in order:
        await asyncio.sleep(5)  # until every replica has what was acknowledged
        newest = list(data)
        backups[name] = SimulatedDisk()
        backup(cluster.disks[name], backups[name], NOW)
        if sessions:
            await cluster.stop_server("server-0")
            await cluster.start_server("server-0")
        data += await _append(cluster, f"after {name}")
    return backups, newest, data


async def _lose_and_restore(cluster: MemoryCluster, backups: dict[str, SimulatedDisk], *, keep_session: bool) -> None:
    await cluster.stop_server("server-0")
    for name in NAMES:
        await cluster.stop_storage(name)
        if name in backups:
            cluster.disks[name] = SimulatedDisk()
            restore(backups[name], cluster.disks[name], NOW, keep_session=keep_session)


async def _adopt(cluster: MemoryCluster) -> None:
    found = adopt({name: describe(cluster.disks[name]) for name in NAMES})
    await adopt_cluster(cluster.ensemble.session(), name="test", found=found, restored=True)
    for name in NAMES:
        await cluster.start_storage(name)
    await cluster.start_server("server-0")


@pytest.mark.parametrize("sessions", [True, False])
@pytest.mark.parametrize("order", list(itertools.permutations(NAMES)))
def test_the_log_continues_from_the_newest_backup(order: tuple[str, ...], sessions: bool) -> None:
    async def main() -> None:
        cluster = MemoryCluster(servers=1, storages=3)
        await cluster.start()
        backups, newest, data = await _backups(cluster, order, sessions=sessions)
        await _lose_and_restore(cluster, backups, keep_session=True)
        await _adopt(cluster)
        found = await _log(cluster)
        assert found[: len(newest)] == newest
        assert found == data[: len(found)], "a prefix of the log, not a mixture"
        assert await _log(cluster) == found
        more = await _append(cluster, "afterwards")
        await cluster.kill_storage(order[-1])  # the older backups were filled
        assert await _log(cluster) == found + more
        await cluster.stop()

    run_in_virtual_time(main())


@pytest.mark.parametrize("intact", NAMES)
def test_what_an_intact_replica_acknowledged_is_kept(intact: str) -> None:
    async def main() -> None:
        cluster = MemoryCluster(servers=1, storages=3)
        await cluster.start()
        backups, _, data = await _backups(cluster, NAMES, sessions=True)
        await asyncio.sleep(5)
        del backups[intact]
        await _lose_and_restore(cluster, backups, keep_session=True)
        await _adopt(cluster)
        assert await _log(cluster) == data
        await cluster.stop()

    run_in_virtual_time(main())


def test_directories_that_are_marked_as_restored_are_not_adopted() -> None:
    async def main() -> None:
        cluster = MemoryCluster(servers=1, storages=3)
        await cluster.start()
        backups, _, _ = await _backups(cluster, NAMES, sessions=False)
        await _lose_and_restore(cluster, backups, keep_session=False)
        with pytest.raises(InvalidRequest, match="no session"):
            await _adopt(cluster)
        await cluster.stop()

    run_in_virtual_time(main())


def test_adoption_forgets_how_often_the_directories_were_started_and_keeps_where_the_nodes_are() -> None:
    async def main() -> None:
        cluster = MemoryCluster(servers=1, storages=3)
        await cluster.start()
        before = await _entry(cluster)
        await cluster.stop_server("server-0")
        for name in NAMES:
            await cluster.stop_storage(name)
        found = adopt({name: describe(cluster.disks[name]) for name in NAMES})
        await adopt_cluster(cluster.ensemble.session(), name="test", found=found, restored=True)
        after = await _entry(cluster)
        assert (before.start, after.start) == (1, 0)
        assert after.address == before.address
        await cluster.stop()

    run_in_virtual_time(main())


async def _entry(cluster: MemoryCluster) -> StorageNodeEntry:
    node = await cluster.ensemble.session().get(f"{STORAGE_NODES}/storage-0")
    assert node is not None
    return StorageNodeEntry.from_bytes(node.data)
