"""Metrics of a cluster with a hundred partitions: the duration of a scrape, and how much scrapes slow appends. The same load runs with and without
scrapes, in turns. A scrape requests the log server and each storage node, as Prometheus does.
"""

from __future__ import annotations

import asyncio
import http.client
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.load import pipelined, prepare
from benchmarks.measurement import Measurement, in_turns, percentile
from benchmarks.setting import Workload
from waltz_log.client import WaltzClient
from waltz_log.processes.local_cluster import LocalCluster

__all__ = ["run"]

PARTITIONS = 100
WINDOW = 16_000
ROUNDS = 7
SCRAPES = 30
INTERVAL_S = 5.0
"""The interval of scrapes during appends: the shorter one of the two in conf/monitoring, a third of the other one, which is the usual interval of
Prometheus."""

TIMEOUT_S = 30.0


def run(directory: Path, workload: Workload, conditions: Mapping[str, Any]) -> list[Measurement]:
    with LocalCluster(directory / "metrics", partitions=PARTITIONS, storages=3, servers=1, http=True) as cluster:
        return asyncio.run(_measure(cluster, workload, {**conditions, "partitions": PARTITIONS}))


async def _measure(cluster: LocalCluster, workload: Workload, conditions: Mapping[str, Any]) -> list[Measurement]:
    count = max(10_000, workload.pipelined)  # at full length, some ten seconds: two or three scrapes
    prepare([WINDOW])
    server, *storages = cluster.http_addresses.values()
    busy_s: list[float] = []
    rounds = []
    async with WaltzClient.open(cluster.cluster) as client:
        await pipelined(client, count // 5, window=WINDOW, partitions=range(PARTITIONS))
        for number in range(ROUNDS):
            rates = {}
            for scraped in (number % 2 == 0, number % 2 == 1):  # which comes first alternates
                with _scraping([server, *storages] if scraped else [], busy_s):
                    rates[scraped] = (await pipelined(client, count, window=WINDOW, partitions=range(PARTITIONS))).rate
            rounds.append((rates[True], rates[False]))
    idle_s = [await asyncio.to_thread(_scrape, server) for _ in range(SCRAPES)]
    own = {**conditions, "in_flight": WINDOW, "transactions": count, "interval_s": INTERVAL_S, "endpoints": 1 + len(storages)}
    scrape = {"scrapes": SCRAPES, "p99_ms": round(1000 * percentile(idle_s, 0.99), 1), "during_appends_ms": round(1000 * median(busy_s), 1)}
    return [
        in_turns("metrics.append", rounds, "no_scrapes", own),
        Measurement("metrics.scrape_ms", 1000 * median(idle_s), "ms", {**conditions, **scrape}),
    ]


@contextmanager
def _scraping(addresses: Sequence[str], durations_s: list[float]) -> Iterator[None]:
    """Scrapes in a thread, each address once in the interval; `durations_s` collects those of the first one's."""
    ended = threading.Event()

    def scrape() -> None:
        while not ended.is_set():
            began_s = time.monotonic()
            found_s = [_scrape(address) for address in addresses]
            durations_s.extend(found_s[:1])
            ended.wait(INTERVAL_S - (time.monotonic() - began_s))

    thread = threading.Thread(target=scrape)
    if addresses:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        if addresses:
            thread.join()


def _scrape(address: str) -> float:
    """Seconds from the request to the last byte."""
    began_s = time.perf_counter()
    connection = http.client.HTTPConnection(address, timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        if answer.status != 200 or b"waltz_ready" not in answer.read():
            raise RuntimeError(f"a scrape failed: address={address} status={answer.status}")
    finally:
        connection.close()
    return time.perf_counter() - began_s
