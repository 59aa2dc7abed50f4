"""An appending client as an application would be one: a future for every transaction, a bound on those in flight, a write lock on each.

Lock keys go round in a cycle that is longer than what can be in flight, so no lock meets itself before this client has learnt of the last writer; a
conflict would be a false figure and raises.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from benchmarks.setting import DATA_BYTES, LOCK_NAME, LOCKS
from waltz_log.client import Lock

__all__ = ["Appending", "Load", "lock_cycle", "pipelined", "single"]

SAMPLE_EVERY = 50
"""Every so many transactions one latency is kept."""


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


def lock_cycle(window: int) -> list[tuple[Lock]]:
    return [(Lock(LOCK_NAME, key),) for key in range(max(LOCKS, 4 * window))]


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


async def pipelined(client: Appending, count: int, *, window: int, partitions: Sequence[int] = (0,)) -> Load:
    """`window` transactions in flight, spread evenly over the partitions."""
    locks = lock_cycle(window)
    keys, lanes = len(locks), len(partitions)
    data = bytes(range(DATA_BYTES))
    flying: deque[asyncio.Future[Any]] = deque()
    latencies_ms: list[float] = []
    began_s = time.perf_counter()
    for number in range(count):
        future = await client.append_nowait(partitions[number % lanes], data, write_locks=locks[number // lanes % keys])
        if number % SAMPLE_EVERY == 0:
            future.add_done_callback(_timing(latencies_ms))
        flying.append(future)
        if len(flying) >= window:
            await flying.popleft()
    while flying:
        await flying.popleft()
    return Load(count, time.perf_counter() - began_s, latencies_ms)


def _timing(latencies_ms: list[float]) -> Callable[[asyncio.Future[Any]], None]:
    start_s = time.perf_counter()
    return lambda _: latencies_ms.append((time.perf_counter() - start_s) * 1000)
