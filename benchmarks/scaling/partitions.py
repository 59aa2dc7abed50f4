"""`make bench-scale`: 1,000 partitions and 200 clients on one log server and three storage nodes, each of which holds a replica of every partition.

Each client appends to five partitions of its own. At 20,000 transactions per second it appends bursts of 100, to one of its partitions after the
other: 200 bursts a second, each of them a block or two. Memory is resident memory; processor time is that of one process as a share of one core.

`status.s` is `waltz cluster status` while one storage node is down. `scale.open_s` counts from the start of the processes of a new cluster until
every partition accepts appends. `scale.handover_s`: a server that owns half of the partitions is asked to stop, until the other one serves all of
them. `scale.failover_s`: the server that owns all of them is killed while another one waits, until that one serves all; it includes the session
timeout of 15 s.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from benchmarks.load import DATA
from benchmarks.measurement import Measurement, percentile
from benchmarks.processor import processor_s
from benchmarks.running import run_measurements
from benchmarks.setting import machine_conditions
from waltz_log.client import WaltzClient
from waltz_log.coordination.coordinator import ZooKeeperCoordinator
from waltz_log.coordination.survey import Survey, survey
from waltz_log.errors import WaltzError
from waltz_log.processes.local_cluster import LocalCluster
from waltz_log.transport.grpc import GrpcNetwork

__all__ = ["main", "measure"]

RATE = 20_000
BURST = 100
SESSION_TIMEOUT_S = 15.0
"""Two cores that open 1,000 partitions for 200 clients can be silent for longer than the default of 6 s."""
READY_S = 300.0
APPEND_TIMEOUT_S = 120.0


async def _surveyed(cluster: LocalCluster) -> Survey:
    coordinator = await ZooKeeperCoordinator.connect(cluster.coordinator)
    try:
        return await survey(coordinator, GrpcNetwork(), cluster.coordinator)
    finally:
        await coordinator.close()


async def _until_ready(cluster: LocalCluster, servers: int) -> None:
    """Waits until every partition accepts appends and this number of servers answer."""
    deadline_s = time.monotonic() + READY_S
    missing = "nothing answered"
    while time.monotonic() < deadline_s:
        with suppress(WaltzError):  # while ZooKeeper or a node starts
            found = await _surveyed(cluster)
            if found.ready and sum(each.answers for each in found.servers) == servers:
                return
            missing = found.missing
        await asyncio.sleep(0.2)
    raise RuntimeError(f"the cluster was not ready within {READY_S:.0f} s: {missing}")


class Nodes:
    """Memory and processor time of the serving processes."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.pids = {name: pid for name, pid in cluster.processes.items() if name != "zookeeper"}

    def mb(self) -> dict[str, float]:
        return {name: psutil.Process(pid).memory_info().rss / 1e6 for name, pid in self.pids.items()}

    async def busy(self, while_: Any) -> tuple[dict[str, float], Any]:
        """The processor time of each process as a share of one core while `awaited` runs, and the result of `awaited`."""
        before, began_s = {name: processor_s(pid) for name, pid in self.pids.items()}, time.perf_counter()
        result = await while_
        took_s = time.perf_counter() - began_s
        return {name: (processor_s(pid) - before[name]) / took_s for name, pid in self.pids.items()}, result


def _of(role: str, values: Mapping[str, float]) -> float:
    """The largest value of that role."""
    return max(value for name, value in values.items() if name.startswith(role))


async def _offer(clients: Sequence[WaltzClient], each: int, rate: int, seconds: float) -> tuple[float, list[float]]:
    """Transactions answered per second, and the time of bursts from when they were due, in milliseconds."""
    per_s = rate / BURST / len(clients)
    latencies_ms: list[float] = []
    answered = 0

    async def run(number: int, client: WaltzClient, began_s: float) -> None:
        nonlocal answered
        for burst in range(int(seconds * per_s)):
            due_s = began_s + (burst + number / len(clients)) / per_s
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
            partition = number * each + burst % each
            await asyncio.gather(*[await client.append_nowait(partition, DATA) for _ in range(BURST)])
            answered += BURST
            latencies_ms.append((time.perf_counter() - due_s) * 1000)

    began_s = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number, client in enumerate(clients):
            group.create_task(run(number, client, began_s))
    return answered / (time.perf_counter() - began_s), latencies_ms


async def _measure(cluster: LocalCluster, partitions: int, count: int, seconds: float, conditions: Mapping[str, Any]) -> list[Measurement]:
    began_s = time.perf_counter()
    await asyncio.to_thread(cluster.open)
    await _until_ready(cluster, 2)
    open_s = time.perf_counter() - began_s
    handover_s = await _gone(cluster, "server-1", kill=False)
    nodes = Nodes(cluster)
    owned_mb = nodes.mb()
    idle_alone, _ = await nodes.busy(asyncio.sleep(seconds))
    each = partitions // count
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(WaltzClient.open(cluster.cluster)) for _ in range(count)]
        mounting_s = time.perf_counter()
        room = asyncio.Semaphore(50)

        async def mount(client: WaltzClient, partition: int) -> None:
            async with room:
                await client.append(partition, DATA, timeout_s=APPEND_TIMEOUT_S)

        await asyncio.gather(*(mount(clients[number // each], number) for number in range(each * count)))
        mounting_s = time.perf_counter() - mounting_s
        mounted_mb = nodes.mb()
        idle, _ = await nodes.busy(asyncio.sleep(seconds))
        busy, (rate, latencies_ms) = await nodes.busy(_offer(clients, each, RATE, seconds))
        loaded_mb = nodes.mb()
    cluster.start("server-1")
    await _until_ready(cluster, 2)
    failover_s = await _gone(cluster, "server-0", kill=True)
    own = {**conditions, "partitions": partitions, "clients": count, "servers": 1, "storages": 3}
    offered = {"offered_per_s": RATE, "reached_per_s": round(rate), "burst": BURST}
    offered |= {"burst_p50_ms": round(percentile(latencies_ms, 0.5), 1), "burst_p99_ms": round(percentile(latencies_ms, 0.99), 1)}
    found = []
    for role in ("server", "storage"):
        memory = {"owned_mb": round(_of(role, owned_mb)), "mounted_mb": round(_of(role, mounted_mb))}
        found.append(Measurement(f"scale.{role}_mb", _of(role, loaded_mb), "MB", {**own, **offered, **memory}))
        clientless = {"without_clients": round(_of(role, idle_alone), 3)}
        found.append(Measurement(f"scale.{role}_idle", _of(role, idle), "cores", {**own, **clientless, "seconds": seconds}))
        found.append(Measurement(f"scale.{role}_at_20k", _of(role, busy), "cores", {**own, **offered, "seconds": seconds}))
    found.append(Measurement("scale.mount_s", mounting_s, "s", {**own, "mounts": each * count, "at_once": 50}))
    found.append(Measurement("scale.open_s", open_s, "s", {**own, "servers": 2}))
    found.append(Measurement("scale.handover_s", handover_s, "s", {**own, "servers": 2, "partitions_moved": "about half"}))
    status_s, own_status = await _status(cluster)
    found.append(Measurement("status.s", status_s, "s", {**own, **own_status}))
    found.append(Measurement("scale.failover_s", failover_s, "s", {**own, "servers": 2, "session_timeout_s": SESSION_TIMEOUT_S}))
    return found


STATUS_ROUNDS = 7


async def _status(cluster: LocalCluster) -> tuple[float, dict[str, Any]]:
    """The median seconds of `waltz cluster status`, with the start of Python, while a storage node is down."""
    await asyncio.to_thread(cluster.kill, "storage-2")
    took_s = []
    for _ in range(STATUS_ROUNDS):
        began_s = time.perf_counter()
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "waltz_log.cli", "cluster", "status", cluster.coordinator, stdout=asyncio.subprocess.PIPE
        )
        shown, _ = await process.communicate()
        took_s.append(time.perf_counter() - began_s)
        if b"storage-2 unreachable" not in shown:
            raise RuntimeError("the status does not show the node that is down")
    return median(took_s), {"down": "storage-2, killed", "rounds": STATUS_ROUNDS, "slowest_s": round(max(took_s), 2)}


async def _gone(cluster: LocalCluster, name: str, *, kill: bool) -> float:
    """Seconds from the signal until all partitions are served again, without this server."""
    began_s = time.perf_counter()
    ending = asyncio.ensure_future(asyncio.to_thread(cluster.kill if kill else cluster.stop, name))
    if kill:
        await ending
    await _until_ready(cluster, 1)
    took_s = time.perf_counter() - began_s
    await ending
    return took_s


def measure(directory: Path, partitions: int, clients: int, seconds: float, *, quick: bool) -> list[Measurement]:
    cluster = LocalCluster(directory / "scale", partitions=partitions, storages=3, servers=2, session_timeout_s=SESSION_TIMEOUT_S)
    try:
        return asyncio.run(_measure(cluster, partitions, clients, seconds, machine_conditions(quick=quick)))
    finally:
        cluster.close()


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scaling.partitions", description="Many partitions and clients on one node of each kind."
    )
    parser.add_argument("--partitions", type=int, default=1_000)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--quick", action="store_true", help="40 partitions and 8 clients: shows that everything runs, the figures mean nothing")
    arguments = parser.parse_args()
    partitions, clients, seconds = (40, 8, 2.0) if arguments.quick else (arguments.partitions, arguments.clients, 10.0)
    found = run_measurements("bench-scale", lambda directory: measure(directory, partitions, clients, seconds, quick=arguments.quick))
    return found if isinstance(found, int) else 0


if __name__ == "__main__":
    sys.exit(main())
