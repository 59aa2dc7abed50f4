"""The web console of a cluster with 100 partitions and 10 million transactions: the time to load its pages, and how much a live tail slows appends.
The console is a separate process, as an operator starts it. The same load runs with and without a live tail in turns; the console runs in both. A
round begins when the tail has shown its first rows, and lasts seconds, because the subject is a tail that stays open.
"""

from __future__ import annotations

import asyncio
import http.client
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.load import pipelined, prepare
from benchmarks.measurement import Measurement
from benchmarks.setting import FULL, Workload
from waltz_log.client import WaltzClient
from waltz_log.processes.local_cluster import LocalCluster

__all__ = ["run"]

PARTITIONS = 100
WINDOW = 16_000
ROUNDS = 7
ROUND_S = 4.0
"""Seconds of a round with the full workload, with the tail and again without it."""

WARM_UP = 10_000
"""Transactions before each round."""

LOADS = 15
"""Of each page."""

TIMEOUT_S = 60.0
PAGES = {
    "overview": "/",
    "partitions": "/partitions",
    "partition": "/partitions/7",
    "transactions": "/transactions",
    "transactions_of_one": "/transactions?partition=7",
    "transaction": "/transactions/7/1",
    "search": "/transactions?text=nowhere-to-be-found",
    "conflicts": "/conflicts",
    "topics": "/topics",
    "nodes": "/nodes",
}


def run(directory: Path, workload: Workload, conditions: Mapping[str, Any]) -> list[Measurement]:
    with LocalCluster(directory / "console", partitions=PARTITIONS, storages=3, servers=2) as cluster, _console(cluster.coordinator) as address:
        return asyncio.run(_measure(cluster, address, workload, {**conditions, "partitions": PARTITIONS}))


async def _measure(cluster: LocalCluster, address: str, workload: Workload, conditions: Mapping[str, Any]) -> list[Measurement]:
    total, count = 5 * workload.log, max(10_000, workload.pipelined // 2)
    prepare([WINDOW])
    async with WaltzClient.open(cluster.cluster) as client:
        await pipelined(client, total, window=WINDOW, partitions=range(PARTITIONS))
        moment = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S")
        places = {**PAGES, "until_time": f"/transactions?time={moment}"}
        speed = (await pipelined(client, count, window=WINDOW, partitions=range(PARTITIONS))).rate
        pages = {name: await asyncio.to_thread(_load, address, path) for name, path in places.items()}
        tail_cost = await _tail_cost(client, address, int(speed * ROUND_S * workload.pipelined / FULL.pipelined), conditions)
    own = {**conditions, "transactions": total, "loads": LOADS, **{f"{name}_ms": round(1000 * each, 1) for name, each in pages.items()}}
    return [Measurement("console.page_ms", 1000 * max(pages.values()), "ms", own), tail_cost]


async def _tail_cost(client: WaltzClient, address: str, count: int, conditions: Mapping[str, Any]) -> Measurement:
    """`count`: transactions of a round."""
    rounds = []
    for number in range(ROUNDS):
        rates = {}
        for tailed in (number % 2 == 0, number % 2 == 1):  # which comes first alternates
            with _tailing(address) if tailed else nullcontext(None) as first_rows:
                await _warm_up(client, first_rows)
                rates[tailed] = (await pipelined(client, count, window=WINDOW, partitions=range(PARTITIONS))).rate
        rounds.append(rates[True] / rates[False])
    spread = {"rounds": ROUNDS, "transactions": count, "in_flight": WINDOW, "ratios": f"{min(rounds):.3f} to {max(rounds):.3f}"}
    return Measurement("console.tail_cost", max(0.0, 100 * (1 - median(rounds))), "%", {**conditions, **spread})


def _load(address: str, path: str) -> float:
    """The median seconds from the request to the last byte."""
    found_s = []
    for _ in range(LOADS):
        began_s = time.perf_counter()
        connection = http.client.HTTPConnection(address, timeout=TIMEOUT_S)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            body = answer.read()
        finally:
            connection.close()
        found_s.append(time.perf_counter() - began_s)
        if answer.status != 200 or b"</html>" not in body:
            raise RuntimeError(f"a page failed: path={path} status={answer.status}")
    return median(found_s)


@contextmanager
def _console(cluster: str) -> Iterator[str]:
    command = [sys.executable, "-m", "waltz_log.cli", "console", cluster, "--listen", "127.0.0.1:0", "--log-level", "error"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            found = re.search(r"url=http://([^/]+)/", process.stdout.readline())
            if found is None:
                raise RuntimeError("the console did not start")
            yield found[1]
        finally:
            process.terminate()


async def _warm_up(client: WaltzClient, first_rows: threading.Event | None) -> None:
    """Appends until a tail shows rows. Without a tail, appends as many as a tail needs at least. Raises `RuntimeError` if the tail shows nothing."""
    until_s = time.monotonic() + TIMEOUT_S
    while True:
        await pipelined(client, WARM_UP, window=WINDOW, partitions=range(PARTITIONS))
        if first_rows is None or first_rows.is_set():
            return
        if time.monotonic() > until_s:
            raise RuntimeError("the live tail showed nothing")
        await asyncio.sleep(0.1)


@contextmanager
def _tailing(address: str) -> Iterator[threading.Event]:
    """A live tail of the whole log, which a thread reads. The event is set when it has shown rows."""
    connection = http.client.HTTPConnection(address, timeout=TIMEOUT_S)
    connection.request("GET", "/transactions/tail")
    answer = connection.getresponse()
    if answer.status != 200:
        raise RuntimeError(f"no live tail: status={answer.status}")
    ended, first_rows = threading.Event(), threading.Event()

    def follow() -> None:
        while not ended.is_set():
            part = answer.read1(1 << 20)  # few calls: the thread shares its processor with the load
            if not part:
                return
            if b"event: rows" in part:
                first_rows.set()

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield first_rows
    finally:
        ended.set()
        thread.join()
        connection.close()
