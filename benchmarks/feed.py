"""One client reads a feed with data from the beginning of a warm log, as transactions in Python, one partition after another. Also the server's
processor time for ten clients that follow one partition, compared with one client, while another client appends."""

from __future__ import annotations

import asyncio
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from benchmarks.load import pipelined
from benchmarks.log import PARTITIONS
from benchmarks.measurement import Measurement
from benchmarks.processor import processor_s
from benchmarks.setting import DATA_BYTES, Workload
from waltz_log.client import WaltzClient
from waltz_log.processes.local_cluster import LocalCluster

__all__ = ["run", "run_ten"]

READERS = 10
IN_FLIGHT = 1_000
READER = (sys.executable, "-m", "benchmarks.feed")


class Feeding(Protocol):
    def feed_batches(self, partition: int, after: int) -> Any: ...


def run(cluster: str, workload: Workload, conditions: Mapping[str, Any]) -> list[Measurement]:
    count, took_s = asyncio.run(_read(cluster))
    if count != workload.log:
        raise RuntimeError(f"the feed gave another number of transactions than were appended: got={count} appended={workload.log}")
    own = {**conditions, "partitions": PARTITIONS, "transactions": count, "clients": 1, "log": "warm"}
    return [Measurement("feed.data", count / took_s, "txn/s", own)]


def run_ten(directory: Path, workload: Workload, conditions: Mapping[str, Any]) -> list[Measurement]:
    """The server's processor time for the same appends, followed with data by ten clients, divided by that for one. The readers run in processes of
    their own so that the server is what is measured, and every reader gets everything."""
    with LocalCluster(directory / "ten", partitions=1, storages=3, servers=1) as cluster:
        server = cluster.processes["server-0"]
        asyncio.run(_followed(cluster.cluster, server, workload.pipelined // 10, 1))
        used = {readers: asyncio.run(_followed(cluster.cluster, server, workload.pipelined // 2, readers)) for readers in (1, READERS)}
    own = {
        **conditions,
        "transactions": workload.pipelined // 2,
        "in_flight": IN_FLIGHT,
        "one_s": round(used[1], 2),
        "ten_s": round(used[READERS], 2),
    }
    return [Measurement("feed.ten_clients_ratio", used[READERS] / used[1], "of one client", own).compared_with(3, "3")]


async def _followed(cluster: str, server: int, count: int, readers: int) -> float:
    async with WaltzClient.open(cluster) as client:
        mark = await client.high_water_mark(0)
        following = [await asyncio.create_subprocess_exec(*READER, cluster, str(mark), str(mark + count), stdout=PIPE) for _ in range(readers)]
        try:
            for each in following:
                assert each.stdout is not None
                if await each.stdout.readline() != b"ready\n":
                    raise RuntimeError("a reader did not start")
            began_s = processor_s(server)
            await pipelined(client, count, window=IN_FLIGHT)
            for each in following:
                if await each.wait() != 0:
                    raise RuntimeError("a reader did not get everything")
            return processor_s(server) - began_s
        finally:
            for each in following:
                if each.returncode is None:
                    each.kill()


async def follow(cluster: str, after: int, last: int) -> None:
    """The main function of a reader process."""
    async with WaltzClient.open(cluster) as client:
        print("ready", flush=True)
        async for batch in client.feed_batches(0, after=after):
            if batch[0].transaction_id != after + 1:
                raise RuntimeError("the feed has a gap")
            after = batch[-1].transaction_id
            if after >= last:
                return


async def _read(cluster: str) -> tuple[int, float]:
    async with WaltzClient.open(cluster) as client:
        marks = [await client.high_water_mark(partition) for partition in range(client.partitions)]
        start_s = time.perf_counter()
        counts = [await drain(client, partition, mark) for partition, mark in enumerate(marks)]
        return sum(counts), time.perf_counter() - start_s


async def drain(client: Feeding, partition: int, mark: int) -> int:
    """Reads the partition up to `mark`, checking that ids are dense and data is complete. Returns the number of transactions."""
    last = -1
    async for batch in client.feed_batches(partition, after=-1):
        if batch[0].transaction_id != last + 1 or batch[-1].transaction_id - last != len(batch) or len(batch[0].data) != DATA_BYTES:
            raise RuntimeError(f"the feed has a gap, repeats or lost data: partition={partition} after={last}")
        last = batch[-1].transaction_id
        if last >= mark:
            break
    return last + 1


if __name__ == "__main__":
    asyncio.run(follow(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
