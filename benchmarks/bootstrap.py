"""Clients that follow the cluster: the memory of a server for each follower, the time in which a change of half of the owners reaches all of
them, and how long a new client needs to connect; once without TLS and once with it. The followers are streams of gRPC, each on a connection of its
own, in this one process. With TLS they are clients of several principals.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.measurement import Measurement
from waltz_log.client import ClientSettings, WaltzClient
from waltz_log.core.ports import Channel, Receiver
from waltz_log.processes.local_cluster import LocalCluster
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.grpc import GrpcNetwork
from waltz_log.transport.methods import FOLLOW

__all__ = ["run"]

PARTITIONS = 1000
CONNECTS = 20
PRINCIPALS = 20


def run(directory: Path, conditions: Mapping[str, Any], *, quick: bool) -> list[Measurement]:
    count = 200 if quick else 2000
    partitions = PARTITIONS // 20 if quick else PARTITIONS
    own = {key: value for key, value in conditions.items() if key != "replicas"} | {"followers": count, "partitions": partitions}
    found: list[Measurement] = []
    for name, secure in (("bootstrap.", False), ("bootstrap.tls_", True)):
        with LocalCluster(directory / f"bootstrap-{secure}", partitions=partitions, storages=1, servers=2, secure=secure) as cluster:
            each_kib, spread_s, connect_ms = asyncio.run(_measure(cluster, count, secure=secure))
        found += [
            Measurement(f"{name}follower_kib", each_kib, "KiB", own),
            Measurement(f"{name}change_spread_s", spread_s, "s", own),
            Measurement(f"{name}connect_ms", connect_ms, "ms", own),
        ]
    return found


def _resident_kib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1])


async def _measure(cluster: LocalCluster, count: int, *, secure: bool) -> tuple[float, float, float]:
    tls = [cluster.certificate("application", f"follower-{number}") if secure else None for number in range(PRINCIPALS)]
    connects_ms = []
    for _ in range(CONNECTS):
        began_s = time.perf_counter()
        client = await WaltzClient.connect(cluster.cluster, ClientSettings(tls=tls[0]))
        connects_ms.append((time.perf_counter() - began_s) * 1000)
        await client.close()
    networks, pid = [GrpcNetwork(tls=each) for each in tls], cluster.processes["server-0"]
    before_kib = _resident_kib(pid)
    channels: list[Channel] = []
    streams: list[Receiver[pb.FollowResponse]] = []
    for number in range(count):
        channels.append(networks[number % PRINCIPALS].connect(cluster.addresses["server-0"]))
        streams.append(channels[-1].read(FOLLOW, pb.FollowRequest()))
        await streams[-1].receive()
    each_kib = max(0, _resident_kib(pid) - before_kib) / count
    waits = [asyncio.create_task(_changed(stream)) for stream in streams]
    cluster.kill("server-1")  # what it owned moves to the other
    reached_s = await asyncio.gather(*waits)
    for stream, channel in zip(streams, channels, strict=True):
        await stream.cancel()
        await channel.close()
    return each_kib, max(reached_s) - min(reached_s), median(connects_ms)


async def _changed(stream: Receiver[pb.FollowResponse]) -> float:
    while True:
        message = await stream.receive()
        if message is not None and any(part.source == "assignment" for part in message.parts):
            return time.monotonic()
