"""How the speed of the machine varies during a load: the client's processor time in short windows, relative to what the cost model says for the work.

On a shared machine, other programs use the same caches and the physical cores under the virtual ones. For tenths of a second, everything then needs a
third more processor time. The machine does not report it, and a loop that fits in registers does not show it. But it decides the highest
percentiles: the queue that builds up delays later work too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

from benchmarks.scaling.costs import Cost
from waltz_log.client import WaltzClient

__all__ = ["Slowness", "Window", "sampled", "slowness", "without"]

WINDOW_S = 0.02
"""Long enough for some blocks, and short against an episode: 50 ms hide
short episodes, and simulated 99th percentiles are 2 to 4 % lower."""

SPARSE = 0.5
"""A window with a smaller share of the usual work says nothing about the speed: it is the beginning or the end of the load."""


@dataclass(frozen=True)
class Window:
    """What a client did in `WINDOW_S`, or longer if its event loop was busy. `end_s`: since the start of the load."""

    end_s: float
    spent_s: float
    """Processor time."""
    transactions: float
    """A transaction counts half when the client queues it and half when it is answered, because the client works as long on both."""
    frames: int


Slowness = Sequence[tuple[float, float]]
"""Pairs: the end of a window, in milliseconds from the start of the load, and the factor on all processor time in it. After the last one it is 1."""


@asynccontextmanager
async def sampled(client: WaltzClient) -> AsyncIterator[list[Window]]:
    """The windows of what the client does in the meantime."""
    found: list[Window] = []
    sampling = asyncio.ensure_future(_sample(client, found))
    try:
        yield found
    finally:
        sampling.cancel()
        await asyncio.gather(sampling, return_exceptions=True)


async def _sample(client: WaltzClient, found: list[Window]) -> None:
    began_s, before = time.perf_counter(), _done(client)
    while True:
        await asyncio.sleep(WINDOW_S)
        now = _done(client)
        spent_s, transactions, frames = (after - earlier for after, earlier in zip(now, before, strict=True))
        found.append(Window(time.perf_counter() - began_s, spent_s, transactions, int(frames)))
        before = now


def _done(client: WaltzClient) -> tuple[float, float, int]:
    """Processor seconds of this process, transactions, and frames, since the start."""
    partitions = client.statistics().partitions.values()
    return time.process_time(), sum(each.appended + each.pending / 2 for each in partitions), sum(each.frames for each in partitions)


def without(windows: Sequence[Window], busy: float) -> list[Window]:
    """Without what the load itself does besides transactions: it keeps this share of a processor busy in all windows."""
    lasted_s = (end_s - start_s for start_s, end_s in pairwise([0.0, *(each.end_s for each in windows)]))
    return [replace(each, spent_s=max(0.0, each.spent_s - busy * each_s)) for each, each_s in zip(windows, lasted_s, strict=True)]


def slowness(windows: Sequence[Window], cost: Cost, data_bytes: int) -> Slowness:
    """The factor in each window of one load, relative to the cost model. `cost`: of the client."""
    usual = median([each.transactions for each in windows] or [0])

    def factor(each: Window) -> float:
        if not each.transactions or each.transactions < SPARSE * usual:
            return 1.0
        return each.spent_s * 1e6 / (each.transactions * cost.of(each.transactions / max(1, each.frames), data_bytes))

    return [(each.end_s * 1000, factor(each)) for each in windows]
