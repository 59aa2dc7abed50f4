"""`make bench-costs`: measures the cost of a transaction by role and the parts of its latency. Models are fitted to some runs and checked against
others.

Three syncing replicas, one partition, a write lock on each transaction. `costs.*` are the parts of the cost model and how far it is from the runs
that it was not fitted to; the command fails where that is more than `WITHIN`, unless other programs kept the machine busy. The client's part leaves
out what the ticks of an open loop cost by themselves: they belong to the load. `queueing.*` are the simulated percentiles of open loops beside the
measured ones.

Each run is made `ROUNDS` times. The model is fitted to the median of each value. Latencies are simulated for each round, and the median of the ratios
to those measured in the same round counts. Bytes on the network are those of the loopback device, so other traffic of the machine counts too:
nothing else should run.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from benchmarks.cpu import Processors
from benchmarks.floor import BLOCK_BYTES, single_floor_ms
from benchmarks.load import DATA, WARM_OFFERED_S, WARM_SINGLES, Load, offered, pipelined, prepare, single, tick_cost_s
from benchmarks.measurement import Measurement, percentile
from benchmarks.running import run_measurements, screen
from benchmarks.scaling.costs import MEASURED, Model, Run, fitted, plan
from benchmarks.scaling.queueing import Service, simulate, with_single_latency
from benchmarks.scaling.speeds import Window, sampled, slowness, without
from benchmarks.setting import DATA_BYTES, RECORD_BYTES, machine_conditions
from waltz_log.client import ClientSettings, WaltzClient
from waltz_log.client.append.pending_append import FRAME_OVERHEAD_BYTES
from waltz_log.client.append.rows import LOCK_BYTES
from waltz_log.coordination.coordinator import ZooKeeperCoordinator
from waltz_log.coordination.survey import survey
from waltz_log.processes.local_cluster import LocalCluster
from waltz_log.transport.grpc import GrpcNetwork

__all__ = ["main", "measure"]

WITHIN = 0.15
WITHIN_LATENCY = 0.25
HELD = 0.97
"""The share of an offered rate that was reached, the time for the last answers included."""
QUIET_BELOW = 0.2
"""Processors that other programs may use. If they use more, the measured costs and latencies are not those of the platform."""
RATES = (20_000, 50_000, 100_000)
ROUNDS = 15
"""The speed of a shared machine changes from second to second. Many short rounds sample it more often than a few long ones."""
PLANNED_PER_S = (1_000_000, 10_000_000)
WINDOW = 16_000
FULL = f"{WINDOW:,} in flight"
MIB = 1024 * 1024
FRAME_RECORD_BYTES = DATA_BYTES + FRAME_OVERHEAD_BYTES + LOCK_BYTES
"""The size of a transaction of these runs in a client's window and frames."""

SYNCS = 200
TICKS = 300
"""In each round: measured once, they were three times as long as usual in one of eight runs."""

LoadOf = Callable[[WaltzClient], Awaitable[Load]]


@dataclass(frozen=True)
class Wanted:
    """`fits`: the models are fitted to this run; otherwise they are checked against it."""

    name: str
    data_bytes: int
    fits: bool
    load: LoadOf
    warm_up: LoadOf = lambda client: single(client, WARM_SINGLES)


def wanted(share: float) -> list[Wanted]:
    def windowed(count: int, window: int, size: int = DATA_BYTES) -> LoadOf:
        data = (DATA * (size // DATA_BYTES + 1))[:size]
        return lambda client: pipelined(client, max(2 * window, int(count * share)), window=window, data=data)

    def at(rate: int, fits: bool) -> Wanted:
        def during(seconds: float) -> LoadOf:
            return lambda client: offered(client, int(rate * seconds * share), rate=rate)

        return Wanted(f"{rate:,} per second", DATA_BYTES, fits, during(2.5), during(WARM_OFFERED_S))

    def one_by_one(count: int) -> LoadOf:
        return lambda client: single(client, max(50, int(count * share)))

    return [
        Wanted("1 in flight", DATA_BYTES, True, one_by_one(1_500)),
        Wanted("32 in flight", DATA_BYTES, True, windowed(30_000, 32)),
        Wanted("128 in flight", DATA_BYTES, False, windowed(60_000, 128)),
        Wanted("512 in flight", DATA_BYTES, True, windowed(120_000, 512)),
        Wanted(FULL, DATA_BYTES, True, windowed(300_000, WINDOW)),
        Wanted("4,000 in flight, 1 KiB", 1024, True, windowed(160_000, 4_000, 1024)),
        Wanted("8,000 in flight, 512 B", 512, False, windowed(240_000, 8_000, 512)),
        at(20_000, True),
        at(50_000, False),
        at(100_000, True),
    ]


@dataclass(frozen=True)
class Counters:
    """Since the start of the machine: bytes on the loopback device, bytes that the storage nodes gave to their disks, and busy seconds of all
    processors. Read immediately before and after a load, so that nothing else is counted."""

    network: int
    disk: int
    busy_s: float

    @classmethod
    def read(cls, cluster: LocalCluster) -> Counters:
        pids = cluster.processes
        disk = sum(psutil.Process(pids[name]).io_counters().write_bytes for name in cluster.storage_names)
        busy = psutil.cpu_times()
        return cls(psutil.net_io_counters(pernic=True)["lo"].bytes_sent, disk, sum(busy) - busy.idle - busy.iowait)


async def _write_rounds(cluster: LocalCluster) -> float:
    """Since the start, the mean of the replicas."""
    coordinator = await ZooKeeperCoordinator.connect(cluster.coordinator)
    try:
        found = await survey(coordinator, GrpcNetwork(), cluster.coordinator)
    finally:
        await coordinator.close()
    rounds = sum(each.write_rounds for node in found.storages if node.statistics is not None for each in node.statistics.partitions)
    return rounds / len(cluster.storage_names)


@dataclass(frozen=True)
class Syncs:
    """The median time until two of three files that are written at once are synced: of a record, and of a block of `BLOCK_BYTES`."""

    record_ms: float
    block_ms: float

    @classmethod
    def measured(cls, directory: Path) -> Syncs:
        def half_ms(size: int) -> float:
            return percentile(single_floor_ms(directory, record_bytes=size, replicas=3, majority=2, count=SYNCS), 0.5)

        return cls(half_ms(RECORD_BYTES), half_ms(BLOCK_BYTES))


@dataclass(frozen=True)
class Made:
    run: Run
    count: int
    latencies_ms: Sequence[float]
    """Of a sample."""
    rate: float
    """Transactions per second."""
    others: float
    """Processors that other programs used meanwhile."""
    windows: Sequence[Window]
    """Of what the client did, without the ticks of an open loop."""


async def _made(cluster: LocalCluster, each: Wanted, tick_s: float = 0.0) -> Made:
    """`tick_s`: the processor time of a tick of the load by itself."""
    async with WaltzClient.open(cluster.cluster) as client:
        await each.warm_up(client)
        rounds = await _write_rounds(cluster)
        processors, before = Processors(cluster), Counters.read(cluster)
        async with sampled(client) as windows:
            load = await each.load(client)
        spent_us, after = processors.spent_us(load.count), Counters.read(cluster)
        rounds = await _write_rounds(cluster) - rounds
    spent = {**spent_us, "network": (after.network - before.network) / load.count, "disk": (after.disk - before.disk) / load.count}
    ticks_s = load.ticks * tick_s
    spent["client"] -= ticks_s * 1e6 / load.count
    run = Run(each.name, load.count / max(1.0, rounds), each.data_bytes, spent)
    others = (after.busy_s - before.busy_s - sum(spent_us.values()) * load.count / 1e6) / load.took_s
    return Made(run, load.count, load.latencies_ms, load.rate, max(0.0, others), without(windows, ticks_s / load.took_s))


def middle(runs: Sequence[Run]) -> Run:
    """The median of each value over the rounds of one load: other load on the machine affects only some rounds."""
    spent = {what: median(each.spent[what] for each in runs) for what in runs[0].spent}
    return Run(runs[0].name, median(each.block_transactions for each in runs), runs[0].data_bytes, spent)


def measure(directory: Path, share: float, conditions: Mapping[str, Any]) -> list[Measurement]:
    prepare([1, WINDOW, max(RATES)])
    loads = wanted(share)
    ticks_s, rounds = [], []
    with LocalCluster(directory / "costs", partitions=1, storages=3, servers=1) as cluster:
        asyncio.run(_made(cluster, loads[4]))  # warms up
        for _ in range(ROUNDS):
            ticks_s.append(asyncio.run(tick_cost_s(max(100, int(TICKS * share)))))
            rounds.append([asyncio.run(_made(cluster, each, ticks_s[-1])) for each in loads])
    tick_s = median(ticks_s)
    syncs = Syncs.measured(directory)
    others = median(each.others for made in rounds for each in made)
    runs = [middle([each.run for each in same]) for same in zip(*rounds, strict=True)]
    checked = {each.name for each in loads if not each.fits}
    model = fitted([run for run in runs if run.name not in checked])
    measured = {**conditions, "others_processors": round(others, 2), "tick_us": round(tick_s * 1e6, 1)}
    return [*_costs(model, runs, checked, measured), *_plans(model, runs, measured), *_queueing(model, rounds, syncs, tick_s, measured)]


def _full(runs: Sequence[Run]) -> Run:
    """The run with the largest blocks of `DATA_BYTES`."""
    return next(run for run in runs if run.name == FULL)


def _costs(model: Model, runs: list[Run], checked: Collection[str], conditions: Mapping[str, Any]) -> list[Measurement]:
    """`checked`: the names of the runs that the model was not fitted to."""
    found, full = [], _full(runs)
    for what in MEASURED:
        cost = model[what]
        errors = {run.name: cost.of(run.block_transactions, run.data_bytes) / run.spent[what] - 1 for run in runs}
        unit = "us/txn" if what in ("client", "server", "storage") else "bytes/txn"
        own = {key: round(value, 3) for key, value in asdict(cost).items()}
        own |= {f"measured, {run.name}": f"{run.spent[what]:.4g} of {run.block_transactions:.4g} a block" for run in runs}
        own |= {"errors": {name: f"{error:+.0%}" for name, error in errors.items()}, "within": round(max(abs(errors[name]) for name in checked), 3)}
        value = cost.of(full.block_transactions, DATA_BYTES)
        found.append(Measurement(f"costs.{what}", value, unit, {**conditions, **own}))
    worst = max(float(each.conditions["within"]) for each in found)
    found.append(Measurement("costs.within", worst, "share", {**conditions, "allowed": WITHIN, "of": [each.name for each in found]}))
    return found


def _plans(model: Model, runs: list[Run], conditions: Mapping[str, Any]) -> list[Measurement]:
    found, full = [], _full(runs)
    for rate in PLANNED_PER_S:
        planned = plan(model, rate, block_transactions=full.block_transactions, data_bytes=DATA_BYTES)
        own = {key: value for key, value in conditions.items() if key not in ("cores", "load_at_start")} | asdict(planned)
        own |= {"node": "8 cores, 10 Gbit/s, 1 GB/s of disk, 60 % used", "block_transactions": round(full.block_transactions)}
        found.append(Measurement(f"costs.nodes_{rate // 1_000_000}m", planned.servers + planned.storages, "nodes", own))
    return found


# ---- the simulation --------------------------------------------------------------------------------------------------------------------------------


def service_of(model: Model, syncs: Syncs, singles_ms: Sequence[float], tick_s: float) -> Service:
    """From processor times by role, and times of a sync. `singles_ms`: with one transaction in flight."""
    per_ms = {
        role: (model[role].per_block / 1000, model[role].of(1e9, DATA_BYTES) / 1000, model[role].per_large_block / 1000)
        for role in ("client", "server", "storage")
    }
    service = Service(
        client_block=per_ms["client"][0],
        client_transaction=per_ms["client"][1],
        server_block=per_ms["server"][0],
        server_transaction=per_ms["server"][1],
        storage_block=per_ms["storage"][0] / 3,
        storage_transaction=per_ms["storage"][1] / 3,
        sync=syncs.record_ms,
        sync_transaction=max(0.0, syncs.block_ms - syncs.record_ms) * RECORD_BYTES / BLOCK_BYTES,
        frame_transactions=MIB // FRAME_RECORD_BYTES,
        linger=ClientSettings().linger_ms,
        overlap_transactions=ClientSettings().overlap_bytes // FRAME_RECORD_BYTES,
        client_large=per_ms["client"][2],
        server_large=per_ms["server"][2],
        storage_large=per_ms["storage"][2] / 3,
        tick=tick_s * 1000,
    )
    return with_single_latency(service, percentile(singles_ms, 0.5))


def delayed(service: Service, singles_ms: Sequence[float]) -> Service:
    """The service with the delays of these transactions, each of which was alone in flight: how much later than their median some of them are."""
    half_ms = percentile(singles_ms, 0.5)
    delays_ms = [max(0.0, each - half_ms) for each in singles_ms]
    return replace(service, delays_ms=delays_ms, delay_every_ms=sum(singles_ms) / len(singles_ms))


def _queueing(model: Model, rounds: Sequence[Sequence[Made]], syncs: Syncs, tick_s: float, conditions: Mapping[str, Any]) -> list[Measurement]:
    by_name = {same[0].run.name: same for same in zip(*rounds, strict=True)}
    singles = [each.latencies_ms for each in by_name["1 in flight"]]
    service = service_of(model, syncs, [latency for of_round in singles for latency in of_round], tick_s)
    found = []
    for rate in RATES:
        made = by_name[f"{rate:,} per second"]
        simulated = []
        for seed, (each, singles_ms) in enumerate(zip(made, singles, strict=True)):
            there = replace(delayed(service, singles_ms), slowness=slowness(each.windows, model["client"], DATA_BYTES))
            simulated.append(simulate(there, rate_per_s=rate, count=each.count, seed=seed))
        own = {"offered_per_s": rate, "count": made[0].count, "rounds": len(made), "allowed": WITHIN_LATENCY}
        own |= {"held": round(median(each.rate for each in made) / rate, 3)}
        own |= {"round_transactions": round(sum(each.transactions for each in simulated) / sum(each.rounds for each in simulated))}
        own |= {"measured_round_transactions": round(median(each.run.block_transactions for each in made))}
        for name, quantile in (("p50", 0.5), ("p99", 0.99)):
            pairs = [
                (percentile(simulation.latencies_ms, quantile), percentile(each.latencies_ms, quantile))
                for simulation, each in zip(simulated, made, strict=True)
            ]
            found.append(_compared(f"queueing.{name}_ms_at_{rate // 1000}k", pairs, {**conditions, **own}))
    return found


def _compared(name: str, pairs: Sequence[tuple[float, float]], conditions: Mapping[str, Any]) -> Measurement:
    """`pairs`: the simulated and the measured percentile of each round."""
    ratios = [simulated / measured for simulated, measured in pairs]
    measured_ms = median(measured for _, measured in pairs)
    own = {"measured_ms": round(measured_ms, 3), "errors": f"{min(ratios) - 1:+.0%} to {max(ratios) - 1:+.0%}"}
    value_ms = median(simulated for simulated, _ in pairs)
    return Measurement(name, value_ms, "ms", {**conditions, **own}, median(ratios), "measured, in the same round")


def _misses(each: Measurement) -> bool:
    """The latency at a rate that the machine sustained. A load above the capacity has no stable latency, because the queue keeps growing."""
    held = float(each.conditions.get("held", 0.0)) > HELD
    return each.name.startswith("queueing.") and held and each.ratio is not None and abs(each.ratio - 1) > WITHIN_LATENCY


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scaling.cost_runs", description="The cost model and the simulation, measured and checked."
    )
    parser.add_argument("--quick", action="store_true", help="a twentieth of the work: shows that everything runs, the figures mean nothing")
    arguments = parser.parse_args()
    share, conditions = 0.05 if arguments.quick else 1.0, machine_conditions(quick=arguments.quick)
    found = run_measurements("bench-costs", lambda directory: measure(directory, share, conditions))
    if isinstance(found, int):
        return found
    others = float(found[0].conditions["others_processors"])
    if others > QUIET_BELOW:
        screen().print(f"not judged: other programs used {others:.1f} processors of this machine meanwhile", highlight=False)
        return 0
    missed = [each.name for each in found if each.name == "costs.within" and each.value > WITHIN]
    missed += [each.name for each in found if _misses(each)]
    if missed:
        screen().print(f"outside of what the models allow: {', '.join(missed)}", highlight=False)
    return 1 if missed and not arguments.quick else 0


if __name__ == "__main__":
    sys.exit(main())
