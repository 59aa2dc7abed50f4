"""Sharding over cores: two workers on two partitions against one worker, in turns; and the cost of a transaction in each role by its number of
workers. On two cores that are already busy, more processes cannot be faster; the first figure shows their cost. The second is the scaling curve: the
processor time of the busiest worker of a role limits the throughput of that role if each worker has its own core.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from math import sqrt
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

from benchmarks.cpu import Processors
from benchmarks.load import Load, pipelined, prepare
from benchmarks.measurement import Measurement
from benchmarks.setting import Workload
from waltz_log.client import WaltzClient
from waltz_log.coordination.coordinator import ZooKeeperCoordinator
from waltz_log.coordination.survey import survey
from waltz_log.core.topics.sharding import worker_of
from waltz_log.processes.local_cluster import LocalCluster
from waltz_log.transport.grpc import GrpcNetwork

__all__ = ["run"]

WINDOW = 16_000
ROUNDS = 24
"""Rounds. On a shared machine, one round varies by a tenth; the mean of this number is accurate to about 2 %."""
STORAGES = 3
CURVE = (1, 2, 4)
CURVE_PARTITIONS = 16


def run(directory: Path, workload: Workload, conditions: Mapping[str, Any]) -> Iterator[Measurement]:
    yield _against_one(directory, workload, conditions)
    for workers in CURVE:
        with _cluster(directory / f"curve_{workers}", workers, CURVE_PARTITIONS) as cluster:
            yield from asyncio.run(_by_role(cluster, workers, workload.pipelined // 4, conditions))


def _cluster(directory: Path, workers: int, partitions: int) -> LocalCluster:
    settings = {"workers": workers}
    return LocalCluster(directory, partitions=partitions, storages=STORAGES, servers=1, server_settings=settings, storage_settings=settings)


def _against_one(directory: Path, workload: Workload, conditions: Mapping[str, Any]) -> Measurement:
    """Rates of both kinds of cluster in turns, each first in every other round; those of each round are compared with each other."""
    assert worker_of(0, 2) != worker_of(1, 2), "each of the two partitions has a worker of its own"
    prepare([WINDOW])
    with ExitStack() as clusters:
        one, two = (clusters.enter_context(_cluster(directory / f"workers_{workers}", workers, 2)) for workers in (1, 2))
        rounds = [_round(one, two, workload.pipelined // 5, turned=bool(number % 2)) for number in range(ROUNDS)]
    rates = [[load.rate for load, _ in each] for each in rounds]
    ratios = [second / first for first, second in rates]
    spent_us = [[float(spent["cpu_us_per_txn"]) for _, spent in each] for each in rounds]
    told = {
        "workers": 2,
        "partitions": 2,
        "servers": 1,
        "in_flight": WINDOW,
        "rounds": ROUNDS,
        "standard_error": round(stdev(ratios) / sqrt(len(ratios)), 3),
        "median": round(median(ratios), 3),
        "ratios": f"{min(ratios):.2f} to {max(ratios):.2f}",
        "txn_per_s": round(median(second for _, second in rates)),
        "txn_per_s_of_one": round(median(first for first, _ in rates)),
        "cpu_us_per_txn": round(median(second for _, second in spent_us), 1),
        "cpu_us_per_txn_of_one": round(median(first for first, _ in spent_us), 1),
        "cpu_ratio": round(median(second / first for first, second in spent_us), 2),
        "cpu_us": rounds[-1][1][1]["cpu_us"],
        "cpu_us_of_one": rounds[-1][0][1]["cpu_us"],
    }
    return Measurement("workers.append", mean(ratios), "ratio", {**conditions, **told})


def _round(one: LocalCluster, two: LocalCluster, count: int, *, turned: bool) -> list[tuple[Load, Mapping[str, Any]]]:
    """The rates with one and with two workers, in this order, whichever ran first."""
    found = [asyncio.run(_load(cluster, count, 2)) for cluster in ((two, one) if turned else (one, two))]
    return found[::-1] if turned else found


async def _load(cluster: LocalCluster, count: int, partitions: int) -> tuple[Load, Mapping[str, Any]]:
    async with WaltzClient.open(cluster.cluster) as client:
        await pipelined(client, count // 5, window=WINDOW, partitions=range(partitions))
        processors = Processors(cluster)
        load = await pipelined(client, count, window=WINDOW, partitions=range(partitions))
    return load, processors.conditions(load.count)


async def _by_role(cluster: LocalCluster, workers: int, count: int, conditions: Mapping[str, Any]) -> list[Measurement]:
    """Processor time of a transaction in the busiest process of each role. A storage node does the work of every partition, since each has three
    replicas on three nodes."""
    async with WaltzClient.open(cluster.cluster) as client:
        await pipelined(client, count // 5, window=WINDOW, partitions=range(CURVE_PARTITIONS))
        processors, before = Processors(cluster), await _spent_s(cluster)
        load = await pipelined(client, count, window=WINDOW, partitions=range(CURVE_PARTITIONS))
        whole, after = processors.conditions(load.count), await _spent_s(cluster)
    own = {**conditions, "workers": workers, "partitions": CURVE_PARTITIONS, "in_flight": WINDOW, **whole}
    measured = []
    for role in ("server", "storage"):
        spent_us = {which: (after[which] - before[which]) * 1e6 / load.count for which in after if which[0].startswith(role)}
        busiest = max(spent_us.values())
        told = {**own, "us_of_each": ", ".join(f"{value:.1f}" for value in spent_us.values()), "txn_per_s_a_core_each": round(1e6 / busiest)}
        measured.append(Measurement(f"workers.{role}_us_{workers}", busiest, "us/txn", told))
    return measured


async def _spent_s(cluster: LocalCluster) -> dict[tuple[str, int], float]:
    """Processor time of every serving process, by node and worker."""
    coordinator = await ZooKeeperCoordinator.connect(cluster.coordinator)
    try:
        found = asdict(await survey(coordinator, GrpcNetwork(), cluster.coordinator))
    finally:
        await coordinator.close()
    nodes = {f"server-{number}": server for number, server in enumerate(found["servers"])} | {each["name"]: each for each in found["storages"]}
    told = {(name, each["worker"]): each["cpu_s"] for name, node in nodes.items() for each in node["status"].get("workers", ())}
    return told or {(name, 0): spent for name, spent in Processors(cluster).each_s().items()}
