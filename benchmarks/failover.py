"""How long appends stop when a process ends: the owner is killed, the owner is asked to stop, or one storage node of three is killed.

One client on one partition. Fail-over is measured with an append that begins after the process has ended, so that the next owner orders it. The gap
is measured with the answers to a steady load. The worst of several rounds counts.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.measurement import Measurement
from benchmarks.setting import DATA_BYTES, Workload
from waltz_log.client import WaltzClient
from waltz_log.client.inspection.inspect import ClusterInspector
from waltz_log.errors import WaltzError
from waltz_log.processes.local_cluster import LocalCluster
from waltz_log.transport import methods
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.grpc import GrpcNetwork

__all__ = ["longest_gap_s", "run"]

SESSION_TIMEOUT_S = 4.0
ROUNDS = 3
APPENDERS = 4
STEADY_S = 1.0
"""Seconds of load before a node is killed, and after that."""

APPEND_TIMEOUT_S = 60.0


def run(directory: Path, workload: Workload, conditions: Mapping[str, Any]) -> list[Measurement]:
    rounds = ROUNDS if workload.single >= 1000 else 1
    with LocalCluster(directory / "failover", partitions=1, storages=3, servers=2, session_timeout_s=SESSION_TIMEOUT_S) as cluster:
        return asyncio.run(_measure(cluster, rounds, {**conditions, "rounds": rounds, "session_timeout_s": SESSION_TIMEOUT_S}))


async def _measure(cluster: LocalCluster, rounds: int, conditions: Mapping[str, Any]) -> list[Measurement]:
    async with WaltzClient.open(cluster.cluster) as client:
        await _append(client)
        with ClusterInspector(cluster.cluster) as seen:
            killed = [await _owner_gone(cluster, seen, client, kill=True) for _ in range(rounds)]
            stopped = [await _owner_gone(cluster, seen, client, kill=False) for _ in range(rounds)]
            address = seen.owners()[0]
            assert address is not None, "ready was said"
            gaps = [await _storage_gone(cluster, client, address, name) for name in cluster.storage_names[:rounds]]
    steady_ms = round(1000 * max(before for before, _ in gaps), 1)
    return [
        Measurement("failover.kill_s", max(killed), "s", {**conditions, "all_s": [round(each, 2) for each in killed]}).compared_with(
            SESSION_TIMEOUT_S + 1, "session timeout + 1 s"
        ),
        Measurement("failover.term_s", max(stopped), "s", {**conditions, "all_s": [round(each, 2) for each in stopped]}).compared_with(1.0, "1 s"),
        Measurement(
            "failover.storage_gap_ms", 1000 * max(after for _, after in gaps), "ms", {**conditions, "longest_gap_before_ms": steady_ms}
        ).compared_with(200, "200 ms"),
    ]


async def _append(client: WaltzClient) -> None:
    await client.append(0, bytes(DATA_BYTES), timeout_s=APPEND_TIMEOUT_S)


async def _owner_gone(cluster: LocalCluster, seen: ClusterInspector, client: WaltzClient, *, kill: bool) -> float:
    """Seconds from the end of the owner to the answer of an append that begins then. If the owner is asked to stop: seconds from the signal to the
    first answer of its successor."""
    owner = _owner(cluster, seen)
    assert owner is not None, "ready was said"
    if kill:
        await asyncio.to_thread(cluster.kill, owner)
        began_s = time.perf_counter()
        await _append(client)
        took_s = time.perf_counter() - began_s
    else:
        began_s = time.perf_counter()
        stopping = asyncio.ensure_future(asyncio.to_thread(cluster.stop, owner))
        while _owner(cluster, seen) in (owner, None):
            await asyncio.sleep(0.005)
        await _append(client)
        took_s = time.perf_counter() - began_s
        await stopping
    cluster.start(owner)
    await asyncio.to_thread(cluster.wait_ready)
    return took_s


def _owner(cluster: LocalCluster, seen: ClusterInspector) -> str | None:
    """The process that owns the partition, as it is assigned."""
    address = seen.owners()[0]
    ports = json.loads((cluster.directory / "dev.json").read_text())["ports"]
    return next((name for name in cluster.server_names if address is not None and address.endswith(f":{ports[name]}")), None)


async def _all_live(cluster: LocalCluster, owner: str) -> None:
    """Returns when every replica follows the owner: removing one then leaves a majority."""
    channel = GrpcNetwork().connect(owner)
    try:
        async with asyncio.timeout(APPEND_TIMEOUT_S):
            while True:
                answer = await channel.call(methods.SERVER_STATUS, pb.ServerStatusRequest(), timeout_s=10.0)
                replicas = json.loads(answer.json)["partitions"]["0"].get("replicas", {})
                if [name for name, each in replicas.items() if each["state"] == "live"] == list(cluster.storage_names):
                    return
                await asyncio.sleep(0.05)
    finally:
        await channel.close()


async def _storage_gone(cluster: LocalCluster, client: WaltzClient, owner: str, name: str) -> tuple[float, float]:
    """The longest time without an answer before a storage node is killed, and after that."""
    answered_s: list[float] = []

    async def appending() -> None:
        while True:
            await _append(client)
            answered_s.append(time.perf_counter())

    await _all_live(cluster, owner)
    appenders = [asyncio.ensure_future(appending()) for _ in range(APPENDERS)]
    try:
        await asyncio.sleep(STEADY_S)
        killed_s = time.perf_counter()
        await asyncio.to_thread(cluster.kill, name)
        await asyncio.sleep(STEADY_S)
    finally:
        for each in appenders:
            each.cancel()
        for result in await asyncio.gather(*appenders, return_exceptions=True):
            if isinstance(result, WaltzError):
                raise result
    cluster.start(name)
    await asyncio.to_thread(cluster.wait_ready)
    before = [when for when in answered_s if when <= killed_s]
    after = [when for when in answered_s if when > killed_s]
    return longest_gap_s(before), longest_gap_s([*before[-1:], *after, time.perf_counter() if not after else after[-1]])


def longest_gap_s(times_s: Sequence[float]) -> float:
    return max((later - earlier for earlier, later in pairwise(times_s)), default=0.0)
