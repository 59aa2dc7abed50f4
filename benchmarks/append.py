"""Appends: one in flight, a thousand, sixteen thousand, over four partitions, and under few locks; acknowledged on disk at a majority."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import hot_locks
from benchmarks.floor import BLOCK_BYTES, pipelined_floor, single_floor_ms
from benchmarks.load import Load, lock_cycle, pipelined, single
from benchmarks.measurement import Measurement, percentile
from benchmarks.setting import DATA_BYTES, Workload
from waltz_log.client import WaltzClient
from waltz_log.core.block import RECORD_OVERHEAD_BYTES
from waltz_log.testing.local import LocalCluster

__all__ = ["run"]

RECORD_BYTES = DATA_BYTES + RECORD_OVERHEAD_BYTES
CASES = (("append.pipelined", 16_000, 1), ("append.pipelined_1000", 1_000, 1), ("append.pipelined_4p", 16_000, 4))


def run(directory: Path, workload: Workload, conditions: Mapping[str, Any]) -> list[Measurement]:
    with LocalCluster(directory / "append", partitions=4, storages=3, servers=2) as cluster:
        return asyncio.run(_measure(cluster.cluster, directory, workload, conditions))


async def _measure(cluster: str, directory: Path, workload: Workload, conditions: Mapping[str, Any]) -> list[Measurement]:
    found = []
    async with WaltzClient.open(cluster) as client:
        await single(client, workload.single // 10)
        one = await single(client, workload.single)
    floor_ms = single_floor_ms(directory, record_bytes=RECORD_BYTES, replicas=3, count=workload.single // 2)
    measured = _one_figure(one, "append.single_p50_ms", percentile(one.latencies_ms, 0.5), conditions)
    found.append(measured.compared_with(floor_ms, f"write+fdatasync of {RECORD_BYTES} B to 3 files in turn, {floor_ms:.3g} ms"))
    found.append(_one_figure(one, "append.single_p99_ms", percentile(one.latencies_ms, 0.99), conditions))
    floor = pipelined_floor(directory, record_bytes=RECORD_BYTES, replicas=3, count=workload.pipelined // 2)
    for name, window, partitions in CASES:
        async with WaltzClient.open(cluster) as client:
            spread = range(partitions)
            await pipelined(client, workload.pipelined // 10, window=window, partitions=spread)
            load = await pipelined(client, workload.pipelined, window=window, partitions=spread)
        own = {
            **conditions,
            "in_flight": window,
            "partitions": partitions,
            "transactions": load.count,
            "locks": f"1 write of {len(lock_cycle(window))}",
            "p50_ms": round(percentile(load.latencies_ms, 0.5), 1),
            "p99_ms": round(percentile(load.latencies_ms, 0.99), 1),
        }
        measured = Measurement(name, load.rate, "txn/s", own)
        found.append(measured.compared_with(floor, f"write+fdatasync of {BLOCK_BYTES >> 10} KiB blocks to 3 files in turn, {floor:,.0f} txn/s"))
    found.append(await hot_locks.measure(cluster, workload, conditions))
    return found


def _one_figure(load: Load, name: str, value: float, conditions: Mapping[str, Any]) -> Measurement:
    own = {**conditions, "in_flight": 1, "partitions": 1, "transactions": load.count, "locks": f"1 write of {len(lock_cycle(1))}"}
    return Measurement(name, value, "ms", own)
