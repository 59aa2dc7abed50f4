"""A log with transactions for all benchmarks that read: four partitions on three replicas, filled once and warm in the page cache."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.load import pipelined
from benchmarks.setting import Workload
from waltz_log.client import WaltzClient
from waltz_log.processes.local_cluster import LocalCluster

__all__ = ["PARTITIONS", "filled_log"]

PARTITIONS = 4
WINDOW = 8_000


@contextmanager
def filled_log(directory: Path, workload: Workload) -> Iterator[str]:
    """The connection string of a cluster that holds `workload.log` transactions."""
    with LocalCluster(directory / "log", partitions=PARTITIONS, storages=3, servers=2) as cluster:
        asyncio.run(_fill(cluster.cluster, workload.log))
        yield cluster.cluster


async def _fill(cluster: str, count: int) -> None:
    async with WaltzClient.open(cluster) as client:
        await pipelined(client, count, window=WINDOW, partitions=range(PARTITIONS))
