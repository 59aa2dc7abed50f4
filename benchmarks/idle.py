"""Topics: the cost of a thousand idle partitions for a storage node: memory, and the time to open them all.

The node is a process of its own. Its partitions hold a few transactions each, from a run before, so that the node finds what it would find in an idle
cluster. Then an owner opens a session and a stream on each, and nothing more happens.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from struct import pack
from typing import Any
from uuid import UUID

import psutil
import structlog

from benchmarks.measurement import Measurement
from benchmarks.setting import DATA_BYTES, Workload
from verification.crashes.storage_model import silent_logs
from waltz_log.core.formats.block import Block
from waltz_log.core.formats.records import encode_record
from waltz_log.filesystem import FileSystemDisk, ThreadOffload
from waltz_log.storage import StorageNode, StorageSettings
from waltz_log.transport import methods
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.grpc import GrpcNetwork

__all__ = ["run"]

KEY = UUID(int=1)
SESSION = 1
TRANSACTIONS = 10
"""Transactions in each partition."""

TOGETHER = 50
"""Calls that the owner has under way at once."""

CALL_S = 30.0


class _Clock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


def run(directory: Path, workload: Workload, conditions: Mapping[str, Any]) -> list[Measurement]:
    partitions = max(20, workload.pipelined // 500)
    place = directory / "idle"
    with silent_logs():
        asyncio.run(_fill(place, partitions))
    command = [sys.executable, "-m", "benchmarks.idle", str(place)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).resolve().parent.parent)
    try:
        told = _said(child)
        told |= asyncio.run(_own(child, told["address"], partitions))
    finally:
        child.kill()
        child.wait()
    own = {key: value for key, value in conditions.items() if key not in ("replicas", "bytes")}
    own |= {
        "partitions": partitions,
        "transactions_each": TRANSACTIONS,
        "open_s": round(told["open_s"], 2),
        "sessions_s": round(told["sessions_s"], 1),
    }
    own |= {"empty_mb": round(told["empty_mb"]), "opened_mb": round(told["opened_mb"]), "open_files": told["open_files"]}
    return [Measurement("topics.idle_mb", told["owned_mb"], "MB", own)]


def _node(place: Path, offload: ThreadOffload) -> StorageNode:
    settings = StorageSettings(coordinator="none", name="idle", directory=place)
    return StorageNode(settings, FileSystemDisk(place), _Clock(), offload)


async def _fill(place: Path, partitions: int) -> None:
    StorageNode.create(FileSystemDisk(place), _Clock(), KEY, partitions)
    offload = ThreadOffload(4)
    node = _node(place, offload)
    await node.open(KEY)
    room = asyncio.Semaphore(TOGETHER)

    async def fill(partition: int) -> None:
        async with room:
            store = await node.partition(partition)
            appender = await store.attach(SESSION, 1 << 20)
            records = [encode_record(1, 1, partition, n, 0, bytes(DATA_BYTES), n) for n in range(TRANSACTIONS)]
            block = Block(0, pack(f">{len(records)}i", *map(len, records)), b"".join(records), 1_700_000_000_000)
            await store.append(appender, block)
            while appender.acknowledged is None:
                await appender.changed()

    await asyncio.gather(*(fill(partition) for partition in range(partitions)))
    await node.close()
    offload.close()


def _said(child: subprocess.Popen[str]) -> dict[str, Any]:
    assert child.stdout is not None
    found: dict[str, Any] = json.loads(child.stdout.readline())
    return found


def _asked(child: subprocess.Popen[str]) -> dict[str, Any]:
    assert child.stdin is not None
    child.stdin.write("\n")
    child.stdin.flush()
    return _said(child)


async def _own(child: subprocess.Popen[str], address: str, partitions: int) -> dict[str, Any]:
    """What the node reports when an owner has a session and a stream on each partition, and the time until then."""
    network = GrpcNetwork()
    channel = network.connect(address)
    room = asyncio.Semaphore(TOGETHER)
    began_s = time.perf_counter()

    async def own(partition: int) -> None:
        async with room:
            opening = pb.OpenRequest(cluster_key=KEY.bytes, partition=partition, session=SESSION + 1)
            answer = await channel.call(methods.OPEN, opening, timeout_s=CALL_S)
            if answer.last_transaction_id != TRANSACTIONS - 1:
                raise RuntimeError(f"a partition holds other than was appended: partition={partition} last={answer.last_transaction_id}")
            stream = channel.open(methods.REPLICATE)
            streams.append(stream)
            replicate = pb.ReplicateOpen(cluster_key=KEY.bytes, partition=partition, session=SESSION + 1)
            await stream.send(pb.ReplicateRequest(open=replicate))

    streams: list[Any] = []
    await asyncio.gather(*(own(partition) for partition in range(partitions)))
    took_s = time.perf_counter() - began_s
    told = await asyncio.to_thread(_asked, child)
    for stream in streams:
        await stream.cancel()
    await channel.close()
    return told | {"sessions_s": took_s}


# ---- the node's process ----------------------------------------------------------------------------------------------------------------------------


def _mb() -> float:
    return float(psutil.Process(os.getpid()).memory_info().rss) / 1e6


async def _serve(place: Path) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    offload = ThreadOffload(4)
    node = _node(place, offload)
    empty_mb = _mb()
    began_s = time.perf_counter()
    await node.open(KEY)
    listener = await GrpcNetwork().serve("127.0.0.1:0", node.service())
    opened = {"address": listener.address, "open_s": time.perf_counter() - began_s, "empty_mb": empty_mb, "opened_mb": _mb()}
    print(json.dumps(opened), flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    print(json.dumps({"owned_mb": _mb(), "open_files": node.statistics().open_files}), flush=True)


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1])))
