"""Appends: one in flight, a thousand, sixteen thousand, over four partitions, in bulk, at a rate, and under few locks; acknowledged on disk at a
majority. Also alternates with the same data path without the platform."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import against_bare, bulk, hot_locks
from benchmarks.cpu import Processors
from benchmarks.floor import BLOCK_BYTES, pipelined_floor, single_floor_ms
from benchmarks.load import Load, lock_cycle, offered, pipelined, prepare, single
from benchmarks.measurement import Measurement, percentile
from benchmarks.setting import RECORD_BYTES, Workload
from waltz_log.client import WaltzClient
from waltz_log.processes.local_cluster import LocalCluster

__all__ = ["run"]

CASES = (
    ("append.in_flight_8", 8, 1),
    ("append.in_flight_64", 64, 1),
    ("append.pipelined_1000", 1_000, 1),
    ("append.pipelined", 16_000, 1),
    ("append.pipelined_4p", 16_000, 4),
)
ROUND_TRIPS = 2_500
"""The number of appends if few are in flight. Each waits for a round trip, so this many are enough."""
FLOOR_FROM = 1_000
"""With fewer in flight than this, round trips limit the rate, not writes."""
SHARES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 0.999)
"""The points of a latency distribution, for the chart in the report."""
OFFERED_PER_S = (20_000, 50_000, 100_000)
OFFERED_S = 10
"""The longest time for each rate, all rounds together. A short run has fewer transactions."""
OFFERED_ROUNDS = 5
"""The median round counts: one pause of the machine determines the 99th percentile of a run of some seconds."""


def run(directory: Path, workload: Workload, conditions: Mapping[str, Any]) -> list[Measurement]:
    with LocalCluster(directory / "append", partitions=4, storages=3, servers=2) as cluster:
        return asyncio.run(_measure(cluster, directory, workload, conditions))


async def _measure(cluster: LocalCluster, directory: Path, workload: Workload, conditions: Mapping[str, Any]) -> list[Measurement]:
    prepare([1, workload.pipelined, *(window for _, window, _ in CASES)])
    processors = Processors(cluster)
    found = await _single(cluster, processors, directory, workload, conditions)
    floor = pipelined_floor(directory, record_bytes=RECORD_BYTES, replicas=3, count=workload.pipelined // 2)
    for name, window, partitions in CASES:
        async with WaltzClient.open(cluster.cluster) as client:
            spread = range(partitions)
            count = min(workload.pipelined, window * ROUND_TRIPS)
            await pipelined(client, count // 10, window=window, partitions=spread)
            processors.start()
            load = await pipelined(client, count, window=window, partitions=spread)
        own = {**conditions, "in_flight": window, "partitions": partitions, "locks": f"1 write of {len(lock_cycle(window))}"}
        measured = Measurement(name, load.rate, "txn/s", {**own, **_facts(load), **processors.conditions(load.count)})
        if window < FLOOR_FROM:
            found.append(measured)
            continue
        found.append(measured.compared_with(floor, f"write+fdatasync of {BLOCK_BYTES >> 10} KiB blocks to 3 files in turn, {floor:,.0f} txn/s"))
    found += await bulk.measure(cluster, processors, workload, conditions)
    for rate in OFFERED_PER_S:
        found.append(await _offered(cluster, processors, rate, workload, conditions))
    found.append(await hot_locks.measure(cluster.cluster, workload, conditions))
    found += await against_bare.measure(cluster.cluster, directory, workload, conditions)
    return found


async def _single(
    cluster: LocalCluster, processors: Processors, directory: Path, workload: Workload, conditions: Mapping[str, Any]
) -> list[Measurement]:
    async with WaltzClient.open(cluster.cluster) as client:
        await single(client, workload.single // 10)
        processors.start()
        one = await single(client, workload.single)
    own = {**conditions, "in_flight": 1, "partitions": 1, "transactions": one.count, "locks": f"1 write of {len(lock_cycle(1))}"}
    own |= processors.conditions(one.count)
    floors_ms = single_floor_ms(directory, record_bytes=RECORD_BYTES, replicas=3, majority=2, count=workload.single)
    half_ms, slow_ms = (percentile(floors_ms, share) for share in (0.5, 0.99))
    disk = f"write+fdatasync of {RECORD_BYTES} B to 3 files at once, the 2nd of them"
    half = Measurement("append.single_p50_ms", percentile(one.latencies_ms, 0.5), "ms", own)
    slow = Measurement("append.single_p99_ms", percentile(one.latencies_ms, 0.99), "ms", own | {"percentiles_ms": _percentiles(one)})
    return [
        half.compared_with(half_ms, f"{disk}, {half_ms:.3g} ms"),
        slow.compared_with(slow_ms, f"p99 of {disk}, {slow_ms:.3g} ms"),
        Measurement("append.in_flight_1", one.rate, "txn/s", own),
    ]


async def _offered(cluster: LocalCluster, processors: Processors, rate: int, workload: Workload, conditions: Mapping[str, Any]) -> Measurement:
    each = min(workload.pipelined, rate * OFFERED_S) // OFFERED_ROUNDS
    async with WaltzClient.open(cluster.cluster) as client:
        await offered(client, each, rate=rate)
        processors.start()
        rounds = [await offered(client, each, rate=rate) for _ in range(OFFERED_ROUNDS)]
    slow_ms = [percentile(load.latencies_ms, 0.99) for load in rounds]
    own = {**conditions, "offered_per_s": rate, "reached_per_s": round(median(load.rate for load in rounds)), "partitions": 1}
    own |= {"rounds": OFFERED_ROUNDS, "p99_ms_of_rounds": f"{min(slow_ms):.3g} to {max(slow_ms):.3g}", "transactions": OFFERED_ROUNDS * each}
    own |= {**processors.conditions(OFFERED_ROUNDS * each), "percentiles_ms": _percentiles(*rounds)}
    return Measurement(f"append.p99_ms_at_{rate // 1000}k", median(slow_ms), "ms", own)


def _percentiles(*rounds: Load) -> dict[str, float]:
    """Of the median round at each point."""
    return {f"{share:g}": round(median(percentile(load.latencies_ms, share) for load in rounds), 3) for share in SHARES}


def _facts(load: Load) -> dict[str, Any]:
    return {
        "transactions": load.count,
        "p50_ms": round(percentile(load.latencies_ms, 0.5), 1),
        "p99_ms": round(percentile(load.latencies_ms, 0.99), 1),
    }
