"""An appending client as an application would be one: a future for every transaction, a bound on those in flight or a rate, a write lock on each.

`offered` is an open loop: each transaction has a time at which it is due, whether or not those before it were answered, and its latency counts from
then. A server that stalls is charged for everything that was due meanwhile; a client that waits for answers would only have sent less.

Lock keys go round in a cycle that is longer than what can be in flight, so no lock meets itself before this client has learnt of the last writer; a
conflict would be a false figure and raises.
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

__all__ = ["DATA", "SAMPLE_EVERY", "TICK_S", "Appending", "Load", "lock_cycle", "offered", "pipelined", "prepare", "single"]

SAMPLE_EVERY = 50
"""Every so many transactions one latency is kept."""


LOCKS_MAX = 64_000
"""Four times what is in flight at most."""

COLLECT_AFTER = 50_000
"""Objects that a collection waits for, as an application with this many in flight should say: each is alive when the default of 700 scans it."""

DATA = bytes(range(DATA_BYTES))
NO_LOCKS: Sequence[tuple[Lock, ...]] = [()]

TICK_S = 0.001
"""How often an open loop checks what is due: its own share of the latencies."""


class Appending(Protocol):
    async def append(self, partition: int, data: bytes, *, write_locks: Sequence[Lock]) -> Any: ...

    async def append_nowait(self, partition: int, data: bytes, *, write_locks: Sequence[Lock]) -> asyncio.Future[Any]: ...


@dataclass(frozen=True)
class Load:
    """What a load did: transactions committed, the time from the first append to the last answer, latencies of a sample."""

    count: int
    took_s: float
    latencies_ms: list[float]

    @property
    def rate(self) -> float:
        return self.count / self.took_s


@cache
def lock_cycle(window: int) -> list[tuple[Lock]]:
    return [(Lock(LOCK_NAME, key),) for key in range(min(LOCKS_MAX, max(LOCKS, 4 * window)))]


def prepare(windows: Sequence[int]) -> None:
    """Makes the locks and keeps the garbage collector from scanning them, and from scanning often at what is in flight: what is measured is not the
    walk over the load's own objects."""
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
    sent = 0
    began_s = time.perf_counter()
    while sent < count:
        due = min(count, 1 + int((time.perf_counter() - began_s) * rate))  # number 0 is due at once
        for number in range(sent, due):
            future = await client.append_nowait(0, DATA, write_locks=locks[number % len(locks)])
            if number % SAMPLE_EVERY == 0:
                future.add_done_callback(_timing(latencies_ms, began_s + number / rate))
            flying.append(future)
        sent = due
        # An application keeps no answers either. Kept ones would be walked over by the garbage collector, for a tenth of a second at a time.
        while flying and flying[0].done():
            flying.popleft().result()
        await asyncio.sleep(TICK_S)
    while flying:
        await flying.popleft()
    return Load(count, time.perf_counter() - began_s, latencies_ms)


def _timing(latencies_ms: list[float], start_s: float) -> Callable[[asyncio.Future[Any]], None]:
    return lambda _: latencies_ms.append((time.perf_counter() - start_s) * 1000)
