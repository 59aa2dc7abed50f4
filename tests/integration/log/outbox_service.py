"""A service with an outbox, to be killed: `python outbox_service.py CLUSTER DIRECTORY ACCEPTED LIFE KILL_AFTER_FRAMES`.

Submits intents without end, in small groups over two partitions, some as calls that count under a lock, and notes each accepted one in a file. With
KILL_AFTER_FRAMES it kills itself that many frames later, between the sending and the answer: the frame is on its way, and the answer is never read.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

from waltz_log.client import ClientSettings, Intent, Lock, Outbox, OutboxSettings, Transaction, TransactionContext
from waltz_log.client.owners.seeds import NamedServers
from waltz_log.filesystem import FileSystemDisk, ThreadOffload
from waltz_log.testing.held_network import HeldNetwork
from waltz_log.transport.grpc import GrpcNetwork

CLIENT = ClientSettings(retry_cap_s=0.2, request_timeout_s=3.0, stall_timeout_s=3.0)
PENDING_MAX = 400


class WallClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


async def serve(cluster: str, directory: Path, accepted: Path, life: str, kill_after_frames: int) -> None:
    network = HeldNetwork(GrpcNetwork())

    settings = OutboxSettings(bytes_max=8 * 1024 * 1024, file_bytes=256 * 1024, retry_cap_s=0.3, attempts_max=10_000, when_full="block")
    outbox = Outbox(FileSystemDisk(directory), ThreadOffload(1), WallClock(), NamedServers(cluster), network, settings, CLIENT)
    counts: dict[int, int] = {}

    def apply(transactions: list[Transaction]) -> None:
        for transaction in transactions:
            event = json.loads(transaction.data)
            if "count" in event:
                counts[event["key"]] = event["count"]

    @outbox.handler("count")
    def count(tx: TransactionContext, arguments: Any) -> None:
        key = arguments["key"]
        data = json.dumps({"value": arguments["value"], "key": key, "count": counts.get(key, 0) + 1}).encode()
        tx.append(data, write_locks=[Lock("key", key)])

    outbox.follow(0, apply)
    await outbox.start()
    watching = asyncio.create_task(kill_between(network, kill_after_frames)) if kill_after_frames else None
    rng = random.Random(life)
    number = 0
    with accepted.open("a") as notes:
        while watching is None or not watching.done():
            values, intents = [], []
            for _ in range(rng.randrange(1, 20)):
                number += 1
                values.append(f"{life}-{number}")
                if rng.random() < 0.05:
                    intents.append(Intent.call("count", {"key": rng.randrange(5), "value": values[-1]}, 0))
                else:
                    intents.append(Intent.data(rng.randrange(2), json.dumps({"value": values[-1]}).encode()))
            await outbox.submit(intents)
            notes.write("".join(f"{value}\n" for value in values))
            notes.flush()
            while outbox.statistics().depth > PENDING_MAX:
                await asyncio.sleep(0.01)


async def kill_between(network: HeldNetwork, frames: int) -> None:
    """From the frame on nothing that the owner answers is read; when it had time to be committed, this process dies."""
    while network.sent < frames - 1:
        await asyncio.sleep(0)
    network.hold_answers = True
    while network.sent < frames:
        await asyncio.sleep(0)
    await asyncio.sleep(0.1)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4], int(sys.argv[5])))
