"""Topics: the gain of acknowledging from memory instead of syncing first, and the gain of preallocated space at each sync. Each alternates with the
default, so that other load on the machine affects both. `topics.quorum_memory` is what a client sees through a whole cluster: if one machine with few
cores runs all replicas, processor time limits it more than the disk. `topics.node_quorum_memory` is a storage node's part alone, from a verified
block to its acknowledgment, because the sync happens there.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from struct import pack
from typing import Any, Literal, cast
from uuid import UUID

from benchmarks.load import Load, pipelined, prepare
from benchmarks.measurement import Measurement, percentile
from benchmarks.setting import DATA_BYTES, RECORD_BYTES, Workload
from verification.crashes.storage_model import silent_logs
from waltz_log.client import ClientSettings, WaltzClient
from waltz_log.coordination.coordinator import ZooKeeperCoordinator
from waltz_log.coordination.topics import change_catalogue
from waltz_log.core.flushing import Flushing
from waltz_log.core.formats.block import Block
from waltz_log.core.formats.columns import assign_ids
from waltz_log.core.formats.record_layout import RECORD_OVERHEAD_BYTES
from waltz_log.core.formats.records import encode_record
from waltz_log.core.ports import DiskFile
from waltz_log.core.topics.catalogue import Policies
from waltz_log.core.topics.topic_names import TopicName
from waltz_log.filesystem import FileSystemDisk, ThreadOffload
from waltz_log.processes.local_cluster import LocalCluster
from waltz_log.storage import StorageNode, StorageSettings
from waltz_log.storage.segments.segment_log import SegmentLog

__all__ = ["run"]

IN_MEMORY, ON_DISK = 0, 1
TOPIC = TopicName("bench", "memory")
WINDOW = 8
TURNS = 6
KEY = UUID(int=1)
BLOCK_RECORDS = 20
"""The size of a block when a few clients wait for their answers."""

IN_FLIGHT = 8
LEARNT_S = 30.0

SYNC_BYTES = 4096
"""The size of each append if syncs are timed. Preallocated space helps small appends."""

STEP_BYTES = 4 * 1024 * 1024
SYNC_TURNS = 10


class _Clock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


def run(directory: Path, workload: Workload, conditions: Mapping[str, Any]) -> list[Measurement]:
    with LocalCluster(directory / "durability", partitions=2, storages=3, servers=1) as cluster:
        through_cluster = asyncio.run(_through_cluster(cluster, workload, conditions))
    own = {key: value for key, value in conditions.items() if key != "replicas"}
    with silent_logs():
        memory = asyncio.run(_through_node(directory / "memory", workload, own))
        return [*through_cluster, memory, _preallocated(directory, workload, own)]


async def _through_node(directory: Path, workload: Workload, conditions: Mapping[str, Any]) -> Measurement:
    disk, policies = FileSystemDisk(directory), Policies()
    StorageNode.create(disk, _Clock(), KEY, 2)
    settings = StorageSettings(coordinator="none", name="bench", directory=directory)
    offload = ThreadOffload(settings.disk_threads)
    node = StorageNode(settings, disk, _Clock(), offload)
    await node.open(KEY)
    count = max(workload.storage_blocks // 8, 20)
    took_s: dict[int, list[float]] = {IN_MEMORY: [], ON_DISK: []}
    streams = {}
    for partition in took_s:
        store = await node.partition(partition)
        appender = await store.attach(1, IN_FLIGHT * BLOCK_RECORDS * RECORD_BYTES - 1)
        if partition == IN_MEMORY:
            appender.flushing = Flushing(policies.flush_period_ms / 1000, policies.flush_bytes)
        streams[partition] = (store, appender, _blocks(partition, TURNS * count))
    for turn in range(TURNS):
        for partition, (store, appender, blocks) in streams.items():
            part = blocks[turn * count : (turn + 1) * count]
            last = part[-1].last_transaction_id
            began_s = time.perf_counter()
            for block in part:
                await store.append(appender, block)
                await appender.wait_for_capacity()
            while last not in (appender.acknowledged, appender.received):
                await appender.changed()
            took_s[partition].append(time.perf_counter() - began_s)
    await node.close()
    offload.close()
    rate, default = (count * BLOCK_RECORDS / median(took_s[partition]) for partition in (IN_MEMORY, ON_DISK))
    own = {**conditions, "block_records": BLOCK_RECORDS, "in_flight": IN_FLIGHT, "turns": TURNS, "flush_bytes": policies.flush_bytes}
    own |= {"txn_s": round(rate), "at": "a storage node"}
    return Measurement("topics.node_quorum_memory", rate / default, "ratio", own).compared_with(1.0, f"quorum_sync, {default:,.0f} txn/s")


def _blocks(partition: int, count: int) -> Sequence[Block]:
    records = [encode_record(1, 1, partition, number, 0, os.urandom(DATA_BYTES)) for number in range(BLOCK_RECORDS)]
    lengths, joined = pack(f">{BLOCK_RECORDS}i", *map(len, records)), b"".join(records)
    firsts = range(0, count * BLOCK_RECORDS, BLOCK_RECORDS)
    return [Block(first, lengths, assign_ids(joined, lengths, first), 1_700_000_000_000 + first) for first in firsts]


async def _through_cluster(cluster: LocalCluster, workload: Workload, conditions: Mapping[str, Any]) -> list[Measurement]:
    await _make_topic(cluster.coordinator)
    prepare([WINDOW])
    count = max(workload.pipelined // 500, 100)
    found: dict[int, list[Load]] = {IN_MEMORY: [], ON_DISK: []}
    async with WaltzClient.open(cluster.cluster, ClientSettings(topics=(str(TOPIC),))) as client:
        await _until_learnt(client)
        for partition in found:
            await pipelined(client, count, window=WINDOW, partitions=(partition,))
        for _ in range(TURNS):
            for partition, loads in found.items():
                loads.append(await pipelined(client, count, window=WINDOW, partitions=(partition,)))
    rates = {partition: median(load.rate for load in loads) for partition, loads in found.items()}
    half_ms = {partition: median(percentile(load.latencies_ms, 0.5) for load in loads) for partition, loads in found.items()}
    own = {**conditions, "in_flight": WINDOW, "turns": TURNS, "count": count, "txn_s": round(rates[IN_MEMORY])}
    own |= {"p50_ms": f"{half_ms[IN_MEMORY]:.2f} and {half_ms[ON_DISK]:.2f}", "at": "a cluster of three nodes"}
    ratio = rates[IN_MEMORY] / rates[ON_DISK]
    return [Measurement("topics.quorum_memory", ratio, "ratio", own).compared_with(1.0, f"quorum_sync, {rates[ON_DISK]:,.0f} txn/s")]


async def _make_topic(address: str) -> None:
    coordinator = await ZooKeeperCoordinator.connect(address)
    try:
        policies = Policies(durability="quorum_memory")
        await change_catalogue(
            coordinator,
            lambda found: found.with_new(TOPIC, type="regular", partitions=1, pool=(IN_MEMORY,), now_ms=0, policies=policies),
        )
    finally:
        await coordinator.close()


async def _until_learnt(client: WaltzClient) -> None:
    """The owner and its replicas know the topic."""
    async with asyncio.timeout(LEARNT_S):
        while (await client.append(IN_MEMORY, b"is it?")).durability != "quorum_memory":
            await asyncio.sleep(0.1)


class _TimedFile:
    """Syncs are timed."""

    def __init__(self, file: DiskFile, took_ms: list[float]) -> None:
        self._file = file
        self._took_ms = took_ms

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def sync(self) -> None:
        began_s = time.perf_counter()
        self._file.sync()
        self._took_ms.append((time.perf_counter() - began_s) * 1000)


class _TimedDisk(FileSystemDisk):
    """`took_ms`: of the syncs of segments' data."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.took_ms: list[float] = []

    def open(self, path: str, mode: Literal["read", "write", "create"]) -> DiskFile:
        file = super().open(path, mode)
        return cast(DiskFile, _TimedFile(file, self.took_ms)) if path.endswith(".seg") else file


def _preallocated(directory: Path, workload: Workload, conditions: Mapping[str, Any]) -> Measurement:
    """Two logs append the same blocks alternately, one of them with its space preallocated in steps. A turn is some syncs long: one after the other,
    a sync would find the other's work done by the file system's journal."""
    count = max(workload.storage_blocks // 8 // SYNC_TURNS, 2)
    disks = {step: _TimedDisk(directory / f"steps-{step}") for step in (0, STEP_BYTES)}
    logs = {step: SegmentLog.open(disk, _Clock(), KEY, 0, 1 << 30, -1, preallocate_bytes=step) for step, disk in disks.items()}
    for disk in disks.values():
        disk.took_ms.clear()
    for turn in range(SYNC_TURNS):
        for log in logs.values():
            for number in range(turn * count, (turn + 1) * count):
                record = encode_record(1, 1, 0, number, 0, os.urandom(SYNC_BYTES - RECORD_OVERHEAD_BYTES), number)
                log.append([Block(number, pack(">i", len(record)), record, 1_700_000_000_000)])
    for log in logs.values():
        log.close()
    syncs = SYNC_TURNS * count
    taken, grows = (percentile(disks[step].took_ms[:syncs], 0.5) for step in (STEP_BYTES, 0))
    own = {**conditions, "bytes": SYNC_BYTES, "step_bytes": STEP_BYTES, "syncs": syncs, "turns": SYNC_TURNS, "p50_ms": round(taken, 3)}
    return Measurement("topics.prealloc_sync", taken / grows, "ratio", own).compared_with(1.0, f"files that grow, {grows:.3g} ms a sync")
