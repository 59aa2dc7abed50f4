"""What a transaction costs each role, as four numbers: a part of each transaction, a part of each block however small it is, more of a large block,
and a part of each KiB. A block here is what a replica writes and syncs together: under load, often two blocks of the log, which share wakeups,
messages and a sync. A block of `LARGE_BLOCK_TRANSACTIONS` or more has the full price of a large block, because vectorized code handles it. Smaller
blocks of n transactions have the share sqrt(n / LARGE_BLOCK_TRANSACTIONS) of that price. A loop handles small blocks, and each transaction costs more
there.

Pure. The numbers are fitted to measured runs, by relative errors; `Plan` says from them how many nodes a rate needs and which resource runs out
first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["Cost", "Model", "Node", "Plan", "Run", "fitted", "large_share", "plan"]

KIB = 1024
CLIENT, SERVER, STORAGE, NETWORK, DISK = "client", "server", "storage", "network", "disk"
"""What is measured: processor time in us per transaction of each role (all storage nodes together), bytes on the network and on all disks."""

MEASURED = (CLIENT, SERVER, STORAGE, NETWORK, DISK)

LARGE_BLOCK_TRANSACTIONS = 448
"""In three measurements, each number from 448 to 1,000 fitted equally well."""


@dataclass(frozen=True)
class Run:
    """One measured run. `block_transactions`: how many transactions a replica wrote and synced together on average; `spent`: by `MEASURED`, per
    transaction."""

    name: str
    block_transactions: float
    data_bytes: int
    spent: Mapping[str, float]


@dataclass(frozen=True)
class Cost:
    per_transaction: float
    per_block: float
    per_kib: float
    per_large_block: float = 0.0

    def of(self, block_transactions: float, data_bytes: int) -> float:
        """Per transaction."""
        prices = (self.per_transaction, self.per_block, self.per_kib, self.per_large_block)
        return sum(price * part for price, part in zip(prices, _parts(block_transactions, data_bytes), strict=True))


Model = Mapping[str, Cost]


def large_share(block_transactions: float) -> float:
    """The share of the price of a large block that a block has."""
    return min(1.0, math.sqrt(block_transactions / LARGE_BLOCK_TRANSACTIONS))


def fitted(runs: Sequence[Run]) -> Model:
    """Least squares of relative errors. A part that would be negative is left out, because costs are not negative."""
    columns = np.array([_parts(run.block_transactions, run.data_bytes) for run in runs])
    return {what: Cost(*_fit(columns, np.array([run.spent[what] for run in runs]))) for what in MEASURED}


def _parts(block_transactions: float, data_bytes: int) -> tuple[float, float, float, float]:
    """How much of each price of `Cost` a transaction pays."""
    return 1.0, 1.0 / block_transactions, data_bytes / KIB, large_share(block_transactions) / block_transactions


def _fit(columns: np.ndarray, values: np.ndarray) -> list[float]:
    kept = [0, 1, 2, 3]
    while True:
        weighted = columns[:, kept] / values[:, None]
        found, *_ = np.linalg.lstsq(weighted, np.ones(len(values)), rcond=None)
        negative = [place for place, value in zip(kept, found, strict=True) if value < 0]
        if not negative:
            break
        kept.remove(min(negative, key=lambda place: found[kept.index(place)]))
    parts = [0.0, 0.0, 0.0, 0.0]
    for place, value in zip(kept, found, strict=True):
        parts[place] = float(value)
    return parts


# ---- larger clusters -------------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Node:
    """One machine. `busy`: the share that may be used, so that the others can carry the load of a lost machine."""

    cores: int = 8
    network_bytes_s: float = 1.25e9
    disk_bytes_s: float = 1.0e9
    busy: float = 0.6


@dataclass(frozen=True)
class Plan:
    """`servers` and `storages`: nodes of each role; `clients`: cores of applications. `bottleneck`: what makes the most nodes necessary."""

    rate: float
    clients: float
    servers: int
    storages: int
    bottleneck: str


def plan(model: Model, rate: float, *, block_transactions: float, data_bytes: int, replicas: int = 3, node: Node | None = None) -> Plan:
    """The network's bytes: each transaction reaches a server once, and leaves it for each replica."""
    node = node or Node()
    cost = {what: each.of(block_transactions, data_bytes) for what, each in model.items()}
    hops = replicas + 1
    in_bytes = cost[NETWORK] / hops
    needs = {
        "server: processor": rate * cost[SERVER] / 1e6 / node.cores,
        "server: network": rate * in_bytes * replicas / node.network_bytes_s,  # out; full duplex
        "storage: processor": rate * cost[STORAGE] / 1e6 / node.cores,
        "storage: network": rate * in_bytes * replicas / node.network_bytes_s,
        "storage: disk": rate * cost[DISK] / node.disk_bytes_s,
    }
    needed = {what: value / node.busy for what, value in needs.items()}

    def nodes(role: str) -> int:
        return math.ceil(max(value for what, value in needed.items() if what.startswith(role)))

    bottleneck = max(needed, key=lambda what: needed[what])
    return Plan(rate, rate * cost[CLIENT] / 1e6, nodes("server"), max(nodes("storage"), replicas), bottleneck)
