"""How fast a replica that was offline catches up: the time from the start of its process until it has acknowledged the whole log, without appends.

The log is written while the node is down, and is far larger than what the owner keeps in memory, so that most of it is read from a peer.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.load import pipelined
from benchmarks.measurement import Measurement
from benchmarks.processor import processor_s
from benchmarks.setting import DATA_BYTES, RECORD_BYTES, Workload
from waltz_log.client import WaltzClient
from waltz_log.client.inspection.inspect import ClusterInspector
from waltz_log.core.ports import Channel
from waltz_log.processes.local_cluster import LocalCluster
from waltz_log.transport import methods
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.grpc import GrpcNetwork

__all__ = ["run"]

WINDOW = 8_000
NODE = "storage-2"
CACHE_BYTES = 16 * 1024 * 1024
POLL_EVERY_S = 0.01
TIMEOUT_S = 240.0


def run(directory: Path, workload: Workload, conditions: Mapping[str, Any]) -> list[Measurement]:
    settings = {"transaction_cache_bytes": CACHE_BYTES}
    with LocalCluster(directory / "catch-up", partitions=1, storages=3, servers=1, server_settings=settings) as cluster:
        return asyncio.run(_measure(cluster, workload, conditions))


async def _measure(cluster: LocalCluster, workload: Workload, conditions: Mapping[str, Any]) -> list[Measurement]:
    async with WaltzClient.open(cluster.cluster) as client:
        await client.append(0, bytes(DATA_BYTES))
        cluster.kill(NODE)
        load = await pipelined(client, workload.log // 2, window=WINDOW)
        mark = await client.high_water_mark(0)
    with ClusterInspector(cluster.cluster) as seen:
        address = seen.owners()[0]
    assert address is not None
    channel = GrpcNetwork().connect(address)
    try:
        began_s = time.perf_counter()
        cluster.start(NODE)
        first_s, first = await _when_at(channel, 1)
        before = {name: processor_s(pid) for name, pid in cluster.processes.items() if name != "zookeeper"}
        ended_s, last = await _when_at(channel, mark)
        used = {name: round(processor_s(cluster.processes[name]) - began, 2) for name, began in before.items()}
    finally:
        await channel.close()
    record_mb = RECORD_BYTES / 1e6
    own = {**conditions, "transactions": load.count, "processor_s": used, "memory_of_owner_mb": CACHE_BYTES >> 20}
    own |= {"until_first_s": round(first_s - began_s, 2), "mb_s_after_first": round((last - first) * record_mb / (ended_s - first_s), 1)}
    return [Measurement("catch_up.mb_s", last * record_mb / (ended_s - began_s), "MB/s", own).compared_with(100, "100 MB/s")]


async def _when_at(channel: Channel, mark: int) -> tuple[float, int]:
    """The time at which the owner reports that the node has this transaction, and the last transaction that the node has then."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline_s:
        answer = await channel.call(methods.SERVER_STATUS, pb.ServerStatusRequest(), timeout_s=10.0)
        held = json.loads(answer.json)["partitions"]["0"].get("replicas", {}).get(NODE, {}).get("holds", -1)
        if held >= mark:
            return time.perf_counter(), held
        await asyncio.sleep(POLL_EVERY_S)
    raise RuntimeError(f"the replica did not catch up: held={held} mark={mark}")
