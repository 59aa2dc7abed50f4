"""Topics: what acknowledging from memory gains over the disks of a majority, and what space that was taken beforehand gains at each sync.

Both are measured against the default beside them, in turns, so that both meet the machine's good and bad moments. Appends go through a whole
cluster, to two partitions of it: one belongs to a topic of `quorum_memory`, the other to none.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from struct import pack
from typing import Any, Literal, cast
from uuid import UUID

from benchmarks.load import pipelined, prepare
from benchmarks.measurement import Measurement, percentile
from benchmarks.setting import Workload
from waltz_log.client import WaltzClient
from waltz_log.core.block import RECORD_OVERHEAD_BYTES, Block
from waltz_log.core.catalogue import Policies
from waltz_log.core.ports import DiskFile
from waltz_log.core.records import encode_record
from waltz_log.core.topic_names import TopicName
from waltz_log.filesystem import FileSystemDisk
from waltz_log.storage.segment_log import SegmentLog
from waltz_log.testing.local import LocalCluster
from waltz_log.zookeeper.coordinator import ZooKeeperCoordinator
from waltz_log.zookeeper.topics import change_catalogue

__all__ = ["run"]

IN_MEMORY, ON_DISK = 0, 1
WINDOW = 64
TURNS = 6
LEARNT_S = 30.0

SYNC_BYTES = 4096
"""Of each append where syncs are timed: small ones are those that space taken beforehand is for."""

STEP_BYTES = 4 * 1024 * 1024


class _Clock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


def run(directory: Path, workload: Workload, conditions: Mapping[str, Any]) -> list[Measurement]:
    with LocalCluster(directory / "durability", partitions=2, storages=3, servers=1) as cluster:
        memory = asyncio.run(_in_memory(cluster, workload, conditions))
    own = {key: value for key, value in conditions.items() if key not in ("replicas", "bytes")}
    return [memory, _preallocated(directory, workload, own)]


async def _in_memory(cluster: LocalCluster, workload: Workload, conditions: Mapping[str, Any]) -> Measurement:
    await _make_topic(cluster.cluster)
    prepare([1, WINDOW])
    count = max(workload.pipelined // 50, 200)
    rates: dict[int, list[float]] = {IN_MEMORY: [], ON_DISK: []}
    half_ms: dict[int, list[float]] = {IN_MEMORY: [], ON_DISK: []}
    async with WaltzClient.open(cluster.cluster) as client:
        await _until_learnt(client)
        for partition in rates:
            await pipelined(client, count, window=WINDOW, partitions=(partition,))
        for _ in range(TURNS):
            for partition in rates:
                load = await pipelined(client, count, window=WINDOW, partitions=(partition,))
                rates[partition].append(load.rate)
                half_ms[partition].append(percentile(load.latencies_ms, 0.5))
    rate, default = median(rates[IN_MEMORY]), median(rates[ON_DISK])
    policies = Policies()
    own = {**conditions, "in_flight": WINDOW, "transactions": count, "turns": TURNS, "fsync": f"every {policies.flush_bytes} B"}
    own |= {"p50_ms": round(median(half_ms[IN_MEMORY]), 2), "p50_ms_on_disk": round(median(half_ms[ON_DISK]), 2), "txn_s": round(rate)}
    return Measurement("topics.quorum_memory", rate / default, "ratio", own).compared_with(1.0, f"quorum_sync, {default:,.0f} txn/s")


async def _make_topic(address: str) -> None:
    coordinator = await ZooKeeperCoordinator.connect(address)
    try:
        policies = Policies(durability="quorum_memory")
        wanted = TopicName("bench", "memory")
        await change_catalogue(
            coordinator,
            lambda found: found.with_new(wanted, type="regular", partitions=1, pool=(IN_MEMORY,), now_ms=0, policies=policies),
        )
    finally:
        await coordinator.close()


async def _until_learnt(client: WaltzClient) -> None:
    """The owner has heard of the topic, and its replicas too."""
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
    """Two partitions' logs take the same blocks in turns, one of them with its space taken in steps beforehand."""
    count = max(workload.storage_blocks // 4, 20)
    disks = {step: _TimedDisk(directory / f"steps-{step}") for step in (0, STEP_BYTES)}
    logs = {step: SegmentLog.open(disk, _Clock(), UUID(int=1), 0, 1 << 30, -1, preallocate_bytes=step) for step, disk in disks.items()}
    for disk in disks.values():
        disk.took_ms.clear()
    for number in range(count):
        record = encode_record(1, 1, 0, number, 0, os.urandom(SYNC_BYTES - RECORD_OVERHEAD_BYTES), number)
        block = Block(number, pack(">i", len(record)), record, 1_700_000_000_000)
        for step in (0, STEP_BYTES) if number % 2 else (STEP_BYTES, 0):
            logs[step].append([block])
    for log in logs.values():
        log.close()
    taken, grows = (percentile(disks[step].took_ms[:count], 0.5) for step in (STEP_BYTES, 0))
    own = {**conditions, "bytes": SYNC_BYTES, "step_bytes": STEP_BYTES, "syncs": count, "p50_ms": round(taken, 3)}
    return Measurement("topics.prealloc_sync", taken / grows, "ratio", own).compared_with(1.0, f"files that grow, {grows:.3g} ms a sync")
