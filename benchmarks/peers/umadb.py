"""`make bench-umadb [ROUNDS=5]`: conditional appends beside UmaDB, an event store in Rust, in turns, with equal numbers of callers.

Each caller appends one record of 200 bytes under a condition and waits for the answer. The platform's callers are tasks of one asyncio client, and
the condition is a write lock; UmaDB's are threads with a client each, and the condition is that no event with the caller's tag was appended after the
last one. Every caller has keys of its own, so no append conflicts; a conflict raises. UmaDB is one node that syncs; the platform answers when two of
three replicas have synced.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.load import DATA, Load, prepare
from benchmarks.measurement import Measurement, percentile
from benchmarks.peers.kafka_cluster import free_ports
from benchmarks.peers.rounds import Case, compared
from benchmarks.running import run_measurements
from benchmarks.setting import machine_conditions
from waltz_log.client import Lock, WaltzClient
from waltz_log.processes import launch
from waltz_log.processes.local_cluster import LocalCluster

__all__ = ["main", "measure"]

CALLERS = (1, 16, 64)
APPENDS = {1: 800, 16: 6_000, 64: 12_000}
"""Appends of all callers together in a round, which takes about a second."""

READY_S = 30.0
EVENT = "paid"
RATE, P50_MS, P99_MS = range(3)


def on_platform(cluster: str, callers: int, count: int) -> Load:
    async def run() -> Load:
        latencies_ms: list[float] = []

        async def caller(client: WaltzClient, number: int) -> None:
            locks = (Lock("account", str(number)),)
            for _ in range(count // callers):
                start_s = time.perf_counter()
                await client.append(0, DATA, write_locks=locks)
                latencies_ms.append((time.perf_counter() - start_s) * 1000)

        async with WaltzClient.open(cluster) as client:
            await client.append(0, DATA)
            began_s = time.perf_counter()
            await asyncio.gather(*(caller(client, number) for number in range(callers)))
            return Load(len(latencies_ms), time.perf_counter() - began_s, latencies_ms)

    return asyncio.run(run())


def on_umadb(clients: Sequence[Any], positions: dict[int, int], callers: int, count: int) -> Load:
    """`positions`: of each caller's last event, kept from round to round."""
    import umadb

    latencies_ms: list[float] = []
    failed: list[Exception] = []

    def caller(number: int) -> None:
        tag = f"account:{number}"
        query = umadb.Query([umadb.QueryItem(types=[EVENT], tags=[tag])])
        client = clients[number]
        try:
            for _ in range(count // callers):
                start_s = time.perf_counter()
                condition = umadb.AppendCondition(query, after=positions.get(number))
                positions[number] = client.append([umadb.Event(EVENT, DATA, tags=[tag])], condition)
                latencies_ms.append((time.perf_counter() - start_s) * 1000)
        except Exception as error:  # a failure of any caller invalidates the figure, so it is raised below
            failed.append(error)

    threads = [threading.Thread(target=caller, args=(number,)) for number in range(callers)]
    began_s = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise RuntimeError(f"UmaDB refused an append: {failed[0]}")
    return Load(len(latencies_ms), time.perf_counter() - began_s, latencies_ms)


@contextmanager
def umadb_server(directory: Path) -> Iterator[str]:
    """The address of a server with an empty database; it ends with the context, and with this process."""
    directory.mkdir(parents=True)
    (port,) = free_ports(1)
    program = Path(sys.executable).with_name("umadb")
    server = (sys.executable, str(program), "--listen", f"127.0.0.1:{port}", "--db-path", str(directory / "uma.db"))
    command = [sys.executable, "-I", "-S", launch.__file__, str(os.getpid()), *server]
    with (directory / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def _connected(address: str, count: int) -> list[Any]:
    import umadb

    deadline_s = time.monotonic() + READY_S
    while True:
        try:
            umadb.Client(address).head()
            return [umadb.Client(address) for _ in range(count)]
        except Exception as error:  # the package has no class for "not reachable yet"
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"UmaDB did not come up within {READY_S:.0f} s: {error}") from None
            time.sleep(0.1)


def _figures(load: Load) -> Sequence[float]:
    return [percentile(load.latencies_ms, 0.5), percentile(load.latencies_ms, 0.99), load.rate]


def measure(directory: Path, rounds: int, share: float, *, quick: bool) -> list[Measurement]:
    prepare([1])
    own = {
        "platform_durability": "fdatasync at 2 of 3 replicas",
        "umadb_durability": "one node, synced",
        "locks": "1 write each; UmaDB: an append condition on one tag",
    }
    with ExitStack() as stack:
        platform = stack.enter_context(LocalCluster(directory / "platform", partitions=1, storages=3, servers=1))
        clients = _connected(stack.enter_context(umadb_server(directory / "umadb")), max(CALLERS))
        positions: dict[int, int] = {}
        latency, rate = [], []
        for callers in CALLERS:
            count = max(callers * 2, int(APPENDS[callers] * share))
            ours, theirs = partial(on_platform, platform.cluster, callers, count), partial(on_umadb, clients, positions, callers, count)
            conditions = {**own, "callers": callers, "count": count}

            def p50(run: Any) -> Sequence[float]:
                return _figures(run())[:2]

            def per_s(run: Any) -> Sequence[float]:
                return _figures(run())[2:]

            names = [f"umadb.p50_ms_{callers}", f"umadb.p99_ms_{callers}"]
            latency.append(Case(names, "ms", partial(p50, ours), {"UmaDB": partial(p50, theirs)}, conditions, lower=True))
            rate.append(Case([f"umadb.append_{callers}"], "txn/s", partial(per_s, ours), {"UmaDB": partial(per_s, theirs)}, conditions))
        return compared([*rate, *latency], rounds, machine_conditions(quick=quick))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.umadb", description="Conditional appends of the platform and UmaDB in turns.")
    parser.add_argument("--rounds", type=int, default=5, help="that count, after three that warm up")
    parser.add_argument("--quick", action="store_true", help="a twentieth of the work: shows that everything runs, the figures mean nothing")
    arguments = parser.parse_args()
    share = 0.05 if arguments.quick else 1.0
    found = run_measurements("bench-umadb", lambda directory: measure(directory, arguments.rounds, share, quick=arguments.quick))
    return found if isinstance(found, int) else 0


if __name__ == "__main__":
    sys.exit(main())
