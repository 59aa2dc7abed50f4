"""The client's processor time for an append, without the network: building it, packing it into a frame, and settling it.

`python -m benchmarks.client_append` prints nanoseconds for each transaction, the best of some rounds. To compare two versions, run the file of this
version in both checkouts, in turns.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import sys
import time
from itertools import pairwise
from typing import Any, cast

from benchmarks.load import lock_cycle
from benchmarks.setting import DATA_BYTES
from waltz_log.client.append.producer import Producer
from waltz_log.client.base.settings import ClientSettings
from waltz_log.client.client import WaltzClient

__all__ = ["main"]

COUNT = 16_000
ROUNDS = 12


class _NoOwners:
    """Nothing is sent. The client only needs the number of partitions."""

    def __init__(self) -> None:
        self.parameters = type("Parameters", (), {"partitions": 1})()

    def on_topics(self, _: object) -> None:
        """There are none."""


def _client() -> tuple[WaltzClient, Producer]:
    settings = ClientSettings()
    rng = random.Random(1)
    owners = cast(Any, _NoOwners())
    client = WaltzClient(owners, settings, rng)
    producer = client._producers.by_key[0] = Producer(0, 1, owners, settings, rng)
    return client, producer


async def _round(client: WaltzClient, producer: Producer, *, awaited: bool) -> dict[str, float]:
    """Nanoseconds of processor time for each transaction."""
    locks, data, window = lock_cycle(COUNT), bytes(DATA_BYTES), producer.window
    futures = []
    times = [time.process_time_ns()]
    for number in range(COUNT):
        futures.append(await client.append_nowait(0, data, write_locks=locks[number]))
    times.append(time.process_time_ns())
    waits = asyncio.gather(*(asyncio.create_task(_wait(future)) for future in futures)) if awaited else None
    await asyncio.sleep(0)
    times.append(time.process_time_ns())
    while window.pack(1, 1, -1, 0.0) is not None:
        pass
    times.append(time.process_time_ns())
    for frame in list(window.frames):
        window.commit(frame.first_sequence, frame.left, frame.first_sequence, 1)
    times.append(time.process_time_ns())
    if waits is not None:
        await waits
    else:
        for future in futures:
            await future
    del futures[:]
    times.append(time.process_time_ns())
    append, starts, pack, settle, told = ((after - before) / COUNT for before, after in pairwise(times))
    return {"append": append, "pack": pack, "settle": settle, "wait": starts + told, "all": append + pack + settle + starts + told}


async def _wait(future: asyncio.Future[Any]) -> None:
    await future


async def _measure() -> dict[str, float]:
    client, producer = _client()
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000)
    found: dict[str, float] = {}
    for _ in range(ROUNDS):
        for awaited in (False, True):
            for name, value in (await _round(client, producer, awaited=awaited)).items():
                name = f"{name} by a task each" if awaited else name
                found[name] = min(value, found.get(name, value))
    return found


def main() -> int:
    print(json.dumps({name: round(value) for name, value in asyncio.run(_measure()).items()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
