"""What goes wrong when, as a pure function of a seed: the outages of the original's smoke test at a chosen rate, and processes that are stopped.

The original (Java Waltz, `SmokeTest`): ZooKeeper down for 5 s every 80 s; each of three servers for 10 s every 40, 60 and 100 s; each of three
storage nodes for 10 s every 60, 100 and 120 s. Here each outage begins with SIGKILL; between them a process is stopped (SIGSTOP) and goes on later.
Outages of different processes overlap as they like: at times there is no server, or no majority of the storage nodes.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

__all__ = ["Outage", "outages"]

ZOOKEEPER_EVERY_S, ZOOKEEPER_DOWN_S = (80.0,), 5.0
SERVERS_EVERY_S, SERVER_DOWN_S = (40.0, 60.0, 100.0), 10.0
STORAGES_EVERY_S, STORAGE_DOWN_S = (60.0, 100.0, 120.0), 10.0

STOPPED_EVERY_S = 30.0
STOPPED_S = (0.5, 6.0)
"""Shorter and longer than coordinator sessions last."""

JITTER = 0.2
"""The variation of periods. Without it, the same outages would always overlap."""


@dataclass(frozen=True, slots=True, order=True)
class Outage:
    """`killed`: the process is started again after `lasts_s`; `stopped`: it continues then."""

    at_s: float
    name: str
    kind: Literal["killed", "stopped"]
    lasts_s: float


def outages(seed: int, *, servers: Sequence[str], storages: Sequence[str], rate: float, pace: float = 1.0) -> Iterator[Outage]:
    """Outages without end, in the order of time. `rate`: how much more often than in the original. `pace`: a factor for everything, also for shorter
    outages, for a short run."""
    sources = [
        *_repeated(seed, ["zookeeper"], ZOOKEEPER_EVERY_S, ZOOKEEPER_DOWN_S, rate, pace),
        *_repeated(seed, servers, SERVERS_EVERY_S, SERVER_DOWN_S, rate, pace),
        *_repeated(seed, storages, STORAGES_EVERY_S, STORAGE_DOWN_S, rate, pace),
        _stopped(seed, ["zookeeper", *servers, *storages], rate, pace),
    ]
    return heapq.merge(*sources)


def _repeated(seed: int, names: Sequence[str], every_s: Sequence[float], down_s: float, rate: float, pace: float) -> list[Iterator[Outage]]:
    return [_killed(seed, name, every_s[place % len(every_s)] / rate / pace, down_s / pace) for place, name in enumerate(names)]


def _killed(seed: int, name: str, period_s: float, down_s: float) -> Iterator[Outage]:
    rng = Random(f"{name} is killed {seed}")
    at_s = period_s * rng.uniform(0.3, 1.0)
    while True:
        yield Outage(at_s, name, "killed", down_s)
        at_s += max(period_s * rng.uniform(1 - JITTER, 1 + JITTER), down_s + period_s * JITTER)


def _stopped(seed: int, names: Sequence[str], rate: float, pace: float) -> Iterator[Outage]:
    rng = Random(f"stopped {seed}")
    period_s = STOPPED_EVERY_S / rate / pace
    at_s = 0.0
    while True:
        at_s += period_s * rng.uniform(1 - JITTER, 1 + JITTER)
        yield Outage(at_s, rng.choice(names), "stopped", rng.uniform(*STOPPED_S) / pace)
