"""The outbox: intents accepted on the local disk and forwarded to the log, end to end; compared with the same data appended directly.

Data in submits of 500, eight submitters at once, one partition. `outbox.forward` counts an intent when the log has it: journal add, attempt, append
at a majority, journal delete. `submit` alone is what a service waits for. `outbox.drain` measures intents that waited on disk while the cluster could
not be reached and are forwarded without concurrent submits. It counts from the first outcome.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.cpu import Processors
from benchmarks.load import pipelined
from benchmarks.measurement import Measurement, percentile
from benchmarks.setting import DATA_BYTES, Workload
from waltz_log.client import ClientSettings, Intent, Outbox, OutboxSettings, WaltzClient
from waltz_log.processes.local_cluster import LocalCluster

__all__ = ["run"]

SUBMIT = 500
SUBMITTERS = 8
WINDOW = 16_000
SETTINGS = OutboxSettings(bytes_max=64 * 1024 * 1024)
DRAINED = 100_000
"""As many as fit into `bytes_max`."""
UNREACHABLE = "127.0.0.1:9/nothing"


def run(directory: Path, workload: Workload, conditions: Mapping[str, Any]) -> list[Measurement]:
    with LocalCluster(directory / "outbox", partitions=1, storages=3, servers=1) as cluster:
        return asyncio.run(_measure(cluster, directory / "outbox", workload, conditions))


async def _measure(cluster: LocalCluster, directory: Path, workload: Workload, conditions: Mapping[str, Any]) -> list[Measurement]:
    count = workload.pipelined // 2 // SUBMIT * SUBMIT
    processors = Processors(cluster)
    async with WaltzClient.open(cluster.cluster, ClientSettings(close_timeout_s=60)) as client:
        await pipelined(client, count // 10, window=WINDOW, partitions=range(1))
        direct = await pipelined(client, count, window=WINDOW, partitions=range(1))
    async with Outbox.open(directory / "forward", cluster.cluster, SETTINGS) as outbox:
        await _forward(outbox, count // 10)
        processors.start()
        seconds, submits_ms = await _forward(outbox, count)
        spent = processors.conditions(count)
    own = {
        **conditions,
        "partitions": 1,
        "intents": count,
        "per_submit": SUBMIT,
        "submitters": SUBMITTERS,
        "submit_p50_ms": round(percentile(submits_ms, 0.5), 1),
        "submit_p99_ms": round(percentile(submits_ms, 0.99), 1),
        **spent,
    }
    forwarded = Measurement("outbox.forward", count / seconds, "intents/s", own)
    return [
        forwarded.compared_with(direct.rate, f"appended directly, {direct.rate:,.0f} txn/s"),
        await _drain(cluster, directory / "drain", min(count, DRAINED), processors, conditions),
    ]


async def _drain(cluster: LocalCluster, directory: Path, count: int, processors: Processors, conditions: Mapping[str, Any]) -> Measurement:
    async with Outbox.open(directory, UNREACHABLE, SETTINGS) as outbox:
        for _ in range(count // SUBMIT):
            await outbox.submit([Intent.data(0, bytes(DATA_BYTES)) for _ in range(SUBMIT)])
    async with Outbox.open(directory, cluster.cluster, SETTINGS) as outbox:
        while not (before := outbox.statistics().forwarded):
            await asyncio.sleep(0.001)
        processors.start()
        began_s = time.perf_counter()
        await outbox.flush()
        seconds, count = time.perf_counter() - began_s, outbox.statistics().forwarded - before
    return Measurement(
        "outbox.drain", count / seconds, "intents/s", {**conditions, "partitions": 1, "intents": count, **processors.conditions(count)}
    )


async def _forward(outbox: Outbox, count: int) -> tuple[float, list[float]]:
    """The time until the log has all of them, and the time of each submit."""
    data = bytes(DATA_BYTES)
    submits_ms: list[float] = []

    async def submit() -> None:
        for _ in range(count // SUBMIT // SUBMITTERS):
            began = time.perf_counter()
            await outbox.submit([Intent.data(0, data) for _ in range(SUBMIT)])
            submits_ms.append(1000 * (time.perf_counter() - began))

    began = time.perf_counter()
    await asyncio.gather(*(submit() for _ in range(SUBMITTERS)))
    await outbox.flush()
    return time.perf_counter() - began, submits_ms
