"""A client that appends like an application: a future for every transaction, a bound on the number in flight or a rate, and a write lock on each.

`offered` is an open loop: each transaction is due at a fixed time, whether or not earlier ones were answered, and its latency counts from that time.
So a stalled server is charged for everything that was due during the stall. A client that waits for answers would only have sent less.

Lock keys repeat in a cycle that is longer than the number in flight, so this client knows the last writer of a lock before it uses the lock again. A
conflict would make the figure wrong, so it raises an error.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

from benchmarks.setting import DATA_BYTES, LOCK_NAME, LOCKS
from waltz_log.client import Lock

__all__ = [
    "DATA",
    "SAMPLE_EVERY",
    "TICK_S",
    "WARM_OFFERED_S",
    "WARM_SINGLES",
    "Appending",
    "Load",
    "lock_cycle",
    "offered",
    "pipelined",
    "prepare",
    "single",
    "tick_cost_s",
]

SAMPLE_EVERY = 50
"""One latency in this number of transactions is kept."""


LOCKS_MAX = 64_000
"""Four times the maximum number in flight."""

COLLECT_AFTER = 50_000
"""The threshold of the garbage collector, as an application with this many in flight should set it. With the default of 700, each collection finds
all objects alive."""

DATA = bytes(range(DATA_BYTES))
NO_LOCKS: Sequence[tuple[Lock, ...]] = [()]

TICK_S = 0.001
"""How often an open loop checks what is due. This adds to the latencies."""

WARM_SINGLES = 50
"""Appended one by one by a client that has just connected. In a comparison, its side was idle during the runs of the others."""

WARM_OFFERED_S = 0.3
"""How long a client that has just connected gets the rate of an open loop before the part that is measured. 1 % of three seconds is 30 ms: without
this, the 99th percentile is often the latency of the first moments, in which all caches hold the data of whatever ran before."""


class Appending(Protocol):
    async def append(self, partition: int, data: bytes, *, write_locks: Sequence[Lock]) -> Any: ...

    async def append_nowait(self, partition: int, data: bytes, *, write_locks: Sequence[Lock]) -> asyncio.Future[Any]: ...


@dataclass(frozen=True)
class Load:
    """The result of a load: committed transactions, the time from the first append to the last answer, and the latencies of a sample. `ticks`: how
    often the load woke up to see what is due."""

    count: int
    took_s: float
    latencies_ms: list[float]
    ticks: int = 0

    @property
    def rate(self) -> float:
        return self.count / self.took_s


@cache
def lock_cycle(window: int) -> list[tuple[Lock]]:
    return [(Lock(LOCK_NAME, key),) for key in range(min(LOCKS_MAX, max(LOCKS, 4 * window)))]


def prepare(windows: Sequence[int]) -> None:
    """Makes the locks. Keeps the garbage collector from scanning them, and from running often, because the load's own objects are not the subject."""
    for window in windows:
        lock_cycle(window)
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER)


async def single(client: Appending, count: int) -> Load:
    """One transaction at a time, on partition 0."""
    locks = lock_cycle(1)
    latencies_ms = []
    data = bytes(DATA_BYTES)
    began_s = time.perf_counter()
    for number in range(count):
        start_s = time.perf_counter()
        await client.append(0, data, write_locks=locks[number % len(locks)])
        latencies_ms.append((time.perf_counter() - start_s) * 1000)
    return Load(count, time.perf_counter() - began_s, latencies_ms)


async def pipelined(client: Appending, count: int, *, window: int, partitions: Sequence[int] = (0,), data: bytes = DATA, locked: bool = True) -> Load:
    """`window` transactions in flight, spread evenly over the partitions."""
    locks: Sequence[tuple[Lock, ...]] = lock_cycle(window) if locked else NO_LOCKS
    keys, lanes = len(locks), len(partitions)
    flying: deque[asyncio.Future[Any]] = deque()
    latencies_ms: list[float] = []
    began_s = time.perf_counter()
    for number in range(count):
        future = await client.append_nowait(partitions[number % lanes], data, write_locks=locks[number // lanes % keys])
        if number % SAMPLE_EVERY == 0:
            future.add_done_callback(_timing(latencies_ms, time.perf_counter()))
        flying.append(future)
        if len(flying) >= window:
            await flying.popleft()
    while flying:
        await flying.popleft()
    return Load(count, time.perf_counter() - began_s, latencies_ms)


async def offered(client: Appending, count: int, *, rate: float) -> Load:
    """`count` transactions on partition 0, one due every `1 / rate` seconds."""
    locks = lock_cycle(count)
    flying: deque[asyncio.Future[Any]] = deque()
    latencies_ms: list[float] = []
    sent = ticks = 0
    began_s = time.perf_counter()
    while sent < count:
        ticks += 1
        due = min(count, 1 + int((time.perf_counter() - began_s) * rate))  # number 0 is due at once
        for number in range(sent, due):
            future = await client.append_nowait(0, DATA, write_locks=locks[number % len(locks)])
            if number % SAMPLE_EVERY == 0:
                future.add_done_callback(_timing(latencies_ms, began_s + number / rate))
            flying.append(future)
        sent = due
        # Answers are not kept, as in an application. The garbage collector would scan kept ones for a tenth of a second each time.
        while flying and flying[0].done():
            flying.popleft().result()
        await asyncio.sleep(TICK_S)
    while flying:
        await flying.popleft()
    return Load(count, time.perf_counter() - began_s, latencies_ms, ticks)


async def tick_cost_s(ticks: int) -> float:
    """Processor seconds of one tick of `offered` by itself: a timer, and the event loop that wakes up for it."""
    began_s = time.process_time()
    for _ in range(ticks):
        await asyncio.sleep(TICK_S)
    return (time.process_time() - began_s) / ticks


def _timing(latencies_ms: list[float], start_s: float) -> Callable[[asyncio.Future[Any]], None]:
    return lambda _: latencies_ms.append((time.perf_counter() - start_s) * 1000)
