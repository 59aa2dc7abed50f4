"""Offline recovery: a partition filled from another node's directory, which then takes part in its cluster again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import UUID

import pytest

from verification.crashes.storage_model import FixedClock
from waltz_log.cli.storage.storage_copies import copy_one_partition
from waltz_log.errors import ClusterKeyMismatch, InvalidSetting
from waltz_log.filesystem import FileSystemDisk
from waltz_log.storage import StorageNode
from waltz_log.storage.control.storage_directory import read_directory
from waltz_log.storage.integrity.verify_directory import verify_directory
from waltz_log.storage.offline.partition_copy import copy_partition
from waltz_log.testing.cluster import MemoryCluster
from waltz_log.testing.disk import SimulatedDisk
from waltz_log.testing.virtual_time import run_in_virtual_time


def test_a_node_that_was_filled_offline_copies_only_the_rest_and_holds_the_same() -> None:
    async def scenario() -> None:
        cluster = MemoryCluster(servers=1, settings={"checkpoint_transactions": 50}, storage_settings={"segment_bytes": 4096})
        await cluster.start()
        client = await cluster.connect()
        for number in range(200):
            await client.append(0, b"%d" % number)
        await cluster.stop_storage("storage-2")
        behind = cluster.disks["storage-2"]
        for number in range(200, 400):
            await client.append(0, b"%d" % number)
        clean = read_directory(cluster.disks["storage-0"]).known_good(0)
        assert clean >= 300
        before = read_directory(behind).known_good(0)
        done = copy_partition(cluster.disks["storage-0"], behind, 0, cluster.clock)
        assert (done.kept, done.last) == (before, clean)
        again = copy_partition(cluster.disks["storage-1"], behind, 0, cluster.clock)
        assert (again.kept, again.last) == (clean, clean)
        entry = read_directory(behind).entries[0]
        assert entry.mark is not None
        assert entry.mark.session < -1, "it would vote with what it may have forgotten"
        reports = list(verify_directory(behind))
        assert [report.findings for report in reports if report.findings] == []
        assert max(report.last_transaction_id for report in reports) == clean
        await cluster.start_storage("storage-2")
        async with asyncio.timeout(30):
            while cluster.storages["storage-2"][0].statistics().partitions[0].last_transaction_id != 399:
                await asyncio.sleep(0.1)
        written = cluster.storages["storage-2"][0].statistics().partitions[0].transactions_written
        assert written == 399 - clean, "more was copied than was missing"
        await client.close()
        await cluster.stop()

    run_in_virtual_time(scenario())


def test_transactions_not_known_to_be_clean_are_truncated_and_count_as_lost() -> None:
    async def scenario() -> None:
        cluster = MemoryCluster(servers=1)
        await cluster.start()
        client = await cluster.connect()
        for number in range(20):
            await client.append(0, b"%d" % number)
        await cluster.stop_storage("storage-2")
        await cluster.stop_server("server-0")
        await cluster.start_server("server-0")
        await client.append(0, b"20", timeout_s=30)
        await client.close()
        await cluster.stop()
        target = cluster.disks["storage-2"]
        done = copy_partition(cluster.disks["storage-0"], target, 0, cluster.clock)
        assert (done.kept, done.last) == (-1, 19)
        assert [report.last_transaction_id for report in verify_directory(target)] == [19]
        # Two that voted are left, and the one that was cut counts as absent: nothing is lost.
        for name in ("storage-0", "storage-2", "storage-1"):
            await cluster.start_storage(name)
        await cluster.start_server("server-0")
        client = await cluster.connect()
        assert (await client.append(0, b"on", timeout_s=30)).transaction_id == 21
        await client.close()
        await cluster.stop()

    run_in_virtual_time(scenario())


def test_a_source_that_is_not_known_to_be_clean_any_further_costs_the_target_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def scenario() -> None:
        cluster = MemoryCluster(servers=1)
        await cluster.start()
        client = await cluster.connect()
        for number in range(20):
            await client.append(0, b"%d" % number)
        await client.close()
        await cluster.stop()
        target = cluster.disks["storage-2"]
        before = read_directory(target)
        done = copy_partition(cluster.disks["storage-0"], target, 0, cluster.clock)
        assert (done.kept, done.last) == (-1, -1)
        assert [report.last_transaction_id for report in verify_directory(target)] == [19]
        assert read_directory(target).entries == before.entries

    run_in_virtual_time(scenario())
    StorageNode.create(FileSystemDisk(tmp_path / "node"), FixedClock(), UUID(int=1), 2)
    (tmp_path / "link").symlink_to(tmp_path / "node")
    with pytest.raises(InvalidSetting, match="is the source itself"):
        copy_one_partition(tmp_path / "node", tmp_path / "link", 0, 0)
    StorageNode.create(FileSystemDisk(tmp_path / "other"), FixedClock(), UUID(int=1), 2)
    assert copy_one_partition(tmp_path / "node", tmp_path / "other", 0, 0) == 0
    assert "nothing to copy" in capsys.readouterr().out


def test_other_clusters_running_nodes_and_unknown_partitions_are_refused() -> None:
    class Clock:
        def now_ms(self) -> int:
            return 1

    source, target, other = SimulatedDisk(), SimulatedDisk(), SimulatedDisk()
    for disk, key in ((source, UUID(int=1)), (target, UUID(int=1)), (other, UUID(int=2))):
        StorageNode.create(disk, Clock(), key, 2)
    with pytest.raises(ClusterKeyMismatch):
        copy_partition(source, other, 0, Clock())
    with pytest.raises(InvalidSetting, match="one of the 2"):
        copy_partition(source, target, 2, Clock())
    target.lock()
    with pytest.raises(InvalidSetting, match="in use"):
        copy_partition(source, target, 0, Clock())
