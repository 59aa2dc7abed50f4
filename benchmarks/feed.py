"""One client reads a feed with data from the beginning of a warm log, as transactions in Python, one partition after another."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any, Protocol

from benchmarks.log import PARTITIONS
from benchmarks.measurement import Measurement
from benchmarks.setting import DATA_BYTES, Workload
from waltz_log.client import WaltzClient

__all__ = ["run"]


class Feeding(Protocol):
    def feed_batches(self, partition: int, after: int) -> Any: ...


def run(cluster: str, workload: Workload, conditions: Mapping[str, Any]) -> list[Measurement]:
    count, took_s = asyncio.run(_read(cluster))
    if count != workload.log:
        raise RuntimeError(f"the feed gave another number of transactions than were appended: got={count} appended={workload.log}")
    own = {**conditions, "partitions": PARTITIONS, "transactions": count, "clients": 1, "log": "warm"}
    return [Measurement("feed.data", count / took_s, "txn/s", own)]


async def _read(cluster: str) -> tuple[int, float]:
    async with WaltzClient.open(cluster) as client:
        marks = [await client.high_water_mark(partition) for partition in range(client.partitions)]
        start_s = time.perf_counter()
        counts = [await drain(client, partition, mark) for partition, mark in enumerate(marks)]
        return sum(counts), time.perf_counter() - start_s


async def drain(client: Feeding, partition: int, mark: int) -> int:
    """Reads the partition up to `mark`, checking that ids are dense and data whole; returns how many there were."""
    last = -1
    async for batch in client.feed_batches(partition, after=-1):
        if batch[0].transaction_id != last + 1 or batch[-1].transaction_id - last != len(batch) or len(batch[0].data) != DATA_BYTES:
            raise RuntimeError(f"the feed has a gap, repeats or lost data: partition={partition} after={last}")
        last = batch[-1].transaction_id
        if last >= mark:
            break
    return last + 1
