"""The client's processor time for a bulk append, without the network: checking it, packing it into frames, and settling it.

`python -m benchmarks.client_bulk` prints nanoseconds for each transaction of 200 B, the best of some rounds. To compare two versions, run the file of
this version in both checkouts, in turns: it also measures a version without columns, which appends drafts where locks are wanted.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import sys
import time
from collections.abc import Callable
from typing import Any, cast

import pyarrow as pa

from benchmarks.client_append import _NoOwners
from benchmarks.setting import DATA_BYTES, LOCK_NAME
from waltz_log import client as names
from waltz_log.client import Draft, Lock
from waltz_log.client.append.producer import Producer
from waltz_log.client.base.settings import ClientSettings
from waltz_log.client.client import WaltzClient

__all__ = ["main"]

COUNT = 32_000
"""Fits into the window, so nothing waits for an answer."""

ROUNDS = 12


def _sources() -> dict[str, Callable[[], Any]]:
    rng = random.Random(1)
    bodies = [rng.randbytes(DATA_BYTES) for _ in range(COUNT)]
    keys = [[str(number)] for number in range(COUNT)]
    batch = pa.RecordBatch.from_pydict({"data": pa.array(bodies, pa.binary())})
    found: dict[str, Callable[[], Any]] = {"bytes": lambda: bodies, "iterator of bytes": lambda: iter(bodies), "arrow": lambda: batch}
    columns = getattr(names, "BulkColumns", None)
    if columns is None:
        drafts = [Draft(body, 0, [Lock(LOCK_NAME, key)]) for body, (key,) in zip(bodies, keys, strict=True)]
        return {**found, "bytes, a lock each": lambda: drafts, "arrow, a lock each": lambda: drafts}
    listed, array = columns(bodies, write_locks=keys, lock_name=LOCK_NAME), pa.array(keys)
    arrow = columns(batch.column(0), write_locks=array, lock_name=LOCK_NAME)
    return {**found, "bytes, a lock each": lambda: listed, "arrow, a lock each": lambda: arrow}


async def _round(client: WaltzClient, producer: Producer, source: Any) -> float:
    """Nanoseconds of processor time for each transaction."""
    window, mark = producer.window, producer.window.known_mark
    start = time.process_time_ns()
    bulk = client.bulk(0)
    await bulk.enqueue(source)
    messages = []
    while (message := window.pack(1, 1, -1, 0.0)) is not None:
        messages.append(message)
    for frame in list(window.frames):
        window.commit(frame.first_sequence, frame.left, mark + frame.first_sequence, 1)
    receipt = await bulk.finish()
    took = time.process_time_ns() - start
    assert receipt.committed == COUNT
    return took / COUNT


async def _measure() -> dict[str, float]:
    settings, rng, owners = ClientSettings(), random.Random(1), cast(Any, _NoOwners())
    client = WaltzClient(owners, settings, rng)
    producer = client._producers.by_key[0] = Producer(0, 1, owners, settings, rng)
    sources = _sources()
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000)
    found: dict[str, float] = {}
    for _ in range(ROUNDS):
        for name, source in sources.items():
            value = await _round(client, producer, source())
            found[name] = min(value, found.get(name, value))
    return found


def main() -> int:
    print(json.dumps({name: round(value) for name, value in asyncio.run(_measure()).items()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
