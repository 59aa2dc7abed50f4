"""Corruption in the stored data of one replica of a living cluster: found while clients append, repaired from the others, and gone."""

from __future__ import annotations

import asyncio
import random

from verification.crashes.storage_model import silent_logs
from waltz_log.client import ClientSettings
from waltz_log.coordination.survey import survey
from waltz_log.core.ports import Coordinator
from waltz_log.errors import CorruptData
from waltz_log.processes.storage import peer_addresses
from waltz_log.storage.integrity.peers import PeerReplicas
from waltz_log.testing.cluster import MemoryCluster
from waltz_log.testing.virtual_time import run_in_virtual_time

SETTINGS = ClientSettings(retry_base_s=0.01, retry_cap_s=0.1, request_timeout_s=3.0)
STORAGE = {"segment_bytes": 4096, "scrub_bytes_per_s": 20_000, "scrub_pause_s": 5.0}


def start_scrubs(cluster: MemoryCluster) -> None:
    coordinator: Coordinator = cluster.ensemble.session()
    for name, (node, _) in cluster.storages.items():  # a second call starts those that came since

        async def find(partition: int, name: str = name) -> list[str]:
            return await peer_addresses(coordinator, name, partition)

        node.start_scrub(PeerReplicas(cluster.network, find))


def corrupt_byte(cluster: MemoryCluster, name: str, path: str, offset: int) -> None:
    content = bytearray(cluster.disks[name].content(path))
    content[offset] ^= 0x20
    cluster.disks[name].replace(path, bytes(content))


def data(cluster: MemoryCluster, name: str) -> dict[str, bytes]:
    disk = cluster.disks[name]
    return {path: disk.content(f"0/{path}") for path in disk.list("0") if path.endswith((".seg", ".idx"))}


def records(found: dict[str, bytes]) -> bytes:
    return b"".join(content[128:] for path, content in sorted(found.items()) if path.endswith(".seg"))


async def _run(seed: int) -> None:
    rng = random.Random(seed)
    cluster = MemoryCluster(servers=1, storage_settings=STORAGE)
    await cluster.start()
    client = await cluster.connect(SETTINGS, seed=seed)
    for _ in range(150):
        await client.append(0, rng.randbytes(100), timeout_s=30)
    start_scrubs(cluster)
    appending = asyncio.ensure_future(_append_on(client.append, rng))
    whole = data(cluster, "storage-0")
    closed = sorted(path for path in whole if path.endswith(".seg"))[:-1]
    for name, path in (("storage-0", closed[1]), ("storage-1", closed[2]), ("storage-2", closed[1].replace("seg", "idx"))):
        corrupt_byte(cluster, name, f"0/{path}", rng.randrange(128, len(whole[path])))
    async with asyncio.timeout(300):
        while sum(_repaired(cluster, name) for name in cluster.storages) < 3:
            await asyncio.sleep(1)
    await appending
    for path in closed:
        for kind in ("seg", "idx"):
            assert data(cluster, "storage-0")[path.replace("seg", kind)] == whole[path.replace("seg", kind)]
    async with asyncio.timeout(60):
        while len({records(data(cluster, name)) for name in cluster.storages}) > 1:
            await asyncio.sleep(0.1)
    assert all(not node.statistics().scrub.damaged for node, _ in cluster.storages.values())  # type: ignore[union-attr]
    await client.close()
    await cluster.stop()


async def _append_on(append: object, rng: random.Random) -> None:
    assert callable(append)
    for _ in range(60):
        await append(0, rng.randbytes(100), timeout_s=30)
        await asyncio.sleep(0.1)


def _repaired(cluster: MemoryCluster, name: str) -> int:
    reported = cluster.storages[name][0].statistics().scrub
    assert reported is not None
    return reported.repaired


def test_corruption_is_repaired_while_appends_go_on_and_replicas_are_the_same_again() -> None:
    for seed in range(2):
        run_in_virtual_time(_run(seed))


async def _never_spreads() -> None:
    """A replica that catches up from a corrupt one gets nothing from there."""
    cluster = MemoryCluster(servers=1, storage_settings=STORAGE | {"scrub_bytes_per_s": 0})
    await cluster.start()
    client = await cluster.connect(SETTINGS)
    await cluster.kill_storage("storage-2")
    for number in range(120):
        await client.append(0, b"%d" % number * 30, timeout_s=30)
    path = f"0/{sorted(path for path in data(cluster, 'storage-0') if path.endswith('.seg'))[1]}"
    corrupt_byte(cluster, "storage-0", path, 700)
    await cluster.start_storage("storage-2")
    good = records(data(cluster, "storage-1"))
    async with asyncio.timeout(60):
        while records(data(cluster, "storage-2")) != good:
            await asyncio.sleep(0.1)
    corrupted = data(cluster, "storage-0")[path.removeprefix("0/")]
    assert corrupted != data(cluster, "storage-1")[path.removeprefix("0/")], "nobody mends what is not scrubbed"
    node = cluster.storages["storage-0"][0]
    store = await node.partition(0)
    try:
        async for _ in store.read(0, -1, 0, 119, 1 << 20):
            pass
        raise AssertionError("corrupt data was served")
    except CorruptData:
        pass
    await client.close()
    await cluster.stop()


def test_corruption_never_spreads() -> None:
    run_in_virtual_time(_never_spreads())


async def _known(cluster: MemoryCluster) -> dict[str, str]:
    found = await survey(cluster.ensemble.session(), cluster.network, "memory/test")
    return {replica.name: str(replica.status) for replica in found.partitions[0].replicas}


async def _until_known(cluster: MemoryCluster, *statuses: str, within_s: float = 60) -> None:
    async with asyncio.timeout(within_s):
        while tuple((await _known(cluster)).values()) != statuses:
            await asyncio.sleep(0.1)


async def _found_before_the_peers_are_up() -> None:
    """Everything is restarted, the corrupt node first and alone: it finds the corruption when no replica can help."""
    cluster = MemoryCluster(servers=1, storage_settings=STORAGE | {"scrub_bytes_per_s": 1 << 30, "scrub_pause_s": 86_400.0})
    await cluster.start()
    client = await cluster.connect(SETTINGS)
    for number in range(120):
        await client.append(0, b"%d" % number * 30, timeout_s=30)
    whole = records(data(cluster, "storage-1"))
    path = f"0/{sorted(path for path in data(cluster, 'storage-0') if path.endswith('.seg'))[1]}"
    for name in list(cluster.storages):
        await cluster.stop_storage(name)
    corrupt_byte(cluster, "storage-0", path, 700)
    await cluster.start_storage("storage-0")
    start_scrubs(cluster)
    node = cluster.storages["storage-0"][0]
    async with asyncio.timeout(60):
        while (reported := node.statistics().scrub) is None or not reported.damaged_segments:
            await asyncio.sleep(0.1)
    for name in ("storage-1", "storage-2"):
        await cluster.start_storage(name)
    await client.append(0, b"goes on meanwhile", timeout_s=60)
    await _until_known(cluster, "repairing", "live", "live")
    # The next pass is a day away.
    await _until_known(cluster, "live", "live", "live", within_s=600)
    assert node.statistics().repairing == ()
    assert records(data(cluster, "storage-0")).startswith(whole)
    await client.close()
    await cluster.stop()


def test_corruption_found_before_the_peers_are_up_is_repaired_within_minutes_and_never_called_live() -> None:
    with silent_logs():
        run_in_virtual_time(_found_before_the_peers_are_up())


async def _read_hits_it() -> None:
    """A new replica is filled; the first source that the owner chooses is corrupt. It gets all from the other, and the corrupt one repairs itself."""
    cluster = MemoryCluster(servers=1, storage_settings=STORAGE | {"scrub_bytes_per_s": 0})
    await cluster.start()
    client = await cluster.connect(SETTINGS)
    await cluster.kill_storage("storage-2")
    for number in range(120):
        await client.append(0, b"%d" % number * 30, timeout_s=30)
    whole = records(data(cluster, "storage-1"))
    path = f"0/{sorted(path for path in data(cluster, 'storage-0') if path.endswith('.seg'))[1]}"
    corrupt_byte(cluster, "storage-0", path, 700)
    await client.close()
    await cluster.kill_server("server-0")
    await cluster.start_storage("storage-2")
    await cluster.start_server("server-0")  # recovers: the replica that lacks everything copies in the session that is being opened
    async with asyncio.timeout(60):
        while records(data(cluster, "storage-2")) != whole:
            await asyncio.sleep(0.1)
    await _until_known(cluster, "repairing", "live", "live")  # nothing repairs it yet
    start_scrubs(cluster)
    await _until_known(cluster, "live", "live", "live")
    assert records(data(cluster, "storage-0")) == whole
    reported = cluster.storages["storage-0"][0].statistics().scrub
    assert reported is not None
    assert (reported.passes, reported.repaired) == (0, 1)
    await cluster.stop()


def test_a_read_that_hits_corruption_has_it_repaired_and_copies_come_from_elsewhere() -> None:
    with silent_logs():
        run_in_virtual_time(_read_hits_it())
