"""Bulk appends: batches of 200 B rows to one partition, without locks and with one write lock on each row, as Arrow arrays and as Python bytes.

Acknowledged on disk at a majority. The next call starts while the previous one is answered, so that the window is never empty between two batches.
Lock keys repeat only after all of them were used. A conflict would make the figure wrong, so it raises an error.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from benchmarks.cpu import Processors
from benchmarks.measurement import Measurement
from benchmarks.setting import DATA_BYTES, LOCK_NAME, Workload
from waltz_log.client import BulkColumns, WaltzClient
from waltz_log.processes.local_cluster import LocalCluster

__all__ = ["BATCH_ROWS", "batches", "measure", "rate"]

BATCH_ROWS = 20_000
CALLS_AT_ONCE = 2


async def measure(cluster: LocalCluster, processors: Processors, workload: Workload, conditions: Mapping[str, Any]) -> list[Measurement]:
    """The figure is the rate with Arrow arrays. The rate with bytes is in the conditions."""
    found = []
    for name, locked in (("append.bulk", False), ("append.bulk_locks", True)):
        of_bytes = await rate(cluster.cluster, batches(workload.pipelined, arrow=False, locked=locked))
        of_arrow = batches(workload.pipelined, arrow=True, locked=locked)
        processors.start()
        reached = await rate(cluster.cluster, of_arrow)
        own = {**conditions, "partitions": 1, "batch_rows": BATCH_ROWS, "bytes_txn_s": round(of_bytes), "locks": "1 write each" if locked else "none"}
        found.append(Measurement(name, reached, "txn/s", {**own, **processors.conditions(workload.pipelined)}))
    return found


def batches(count: int, *, arrow: bool, locked: bool) -> list[BulkColumns]:
    """Batches of `BATCH_ROWS` rows, `count` rows in total."""
    data = [bytes(range(DATA_BYTES))] * min(count, BATCH_ROWS)
    column: Any = pa.array(data, pa.binary()) if arrow else data
    found = []
    for start in range(0, count, len(data)):
        keys: Any = [[str(number)] for number in range(start, start + len(data))] if locked else None
        found.append(BulkColumns(column, write_locks=pa.array(keys) if arrow and locked else keys, lock_name=LOCK_NAME))
    return found


async def rate(cluster: str, source: list[BulkColumns]) -> float:
    """Transactions a second on the cluster of this connection string, after a tenth of them to warm up."""
    async with WaltzClient.open(cluster) as client:
        for batch in source[: max(1, len(source) // 10)]:
            (await client.append_bulk(0, batch)).raise_failed()
        room, rows = asyncio.Semaphore(CALLS_AT_ONCE), sum(map(len, source))
        began_s = time.perf_counter()

        async def append(batch: BulkColumns) -> None:
            async with room:
                (await client.append_bulk(0, batch)).raise_failed()

        async with asyncio.TaskGroup() as group:
            for batch in source:
                group.create_task(append(batch))
        return rows / (time.perf_counter() - began_s)
