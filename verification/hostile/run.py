"""An honest client and a hostile one at a cluster over mutual TLS: what became of the honest client's appends, what the nodes cost meanwhile, and
which attacks achieved anything."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from statistics import median
from typing import Any, Final  # Any: the lines of JSON that the two clients print

import psutil
from pydantic import TypeAdapter

from verification.hostile.attacker import ATTACKS
from verification.hostile.honest import FOREIGN, PARTITIONS, Honest, Outcomes, body
from verification.hostile.probes import ProbedCluster, Probes
from verification.hostile.prying import NAMESPACE
from verification.hostile.target import Target
from waltz_log.client import ClientSettings, SyncWaltzClient
from waltz_log.errors import WaltzError
from waltz_log.processes.local_cluster import LocalCluster
from waltz_log.server.base.settings import ServerSettings

__all__ = ["GROWTH_BYTES_MAX", "P99_FLOOR_S", "SLOWER_MAX", "Attacked", "attack", "compare", "grant"]

SLOWER_MAX: Final = 2.0
P99_FLOOR_S: Final = 0.02
"""A p99 below this depends more on the machine, which the two clients share with the cluster, than on the nodes."""

GROWTH_BYTES_MAX: Final = 512 << 20
"""Of one process, beside its memory before the attack: what a principal may hold it may hold at each worker."""

LATE_GROWTH_BYTES_MAX: Final = 96 << 20
"""Between the first and the last third of the attack, each in the middle: single attacks hold some hundred MiB for seconds, and give them back. Not
of ZooKeeper, which keeps its last 500 requests that write, within the heap that it is given: only `GROWTH_BYTES_MAX` is its limit."""

STEADY_S: Final = 300.0
"""A shorter attack ends before the allocator has what the attacks use, and says nothing of growth."""

FILLED: Final = 2
"""The log partition whose records fill a server's caches before a long attack. The honest client alone fills them in the course of it."""

FILL_BYTES: Final = sum(ServerSettings.model_fields[name].default for name in ("transaction_cache_bytes", "feed_cache_bytes"))
FILL_RECORD_BYTES: Final = 1024
FILL_ROWS: Final = 8192

SETTLED_S: Final = 1.0
"""After a turn of the attack what it held is gone."""

SAMPLE_S: Final = 1.0
ZOOKEEPER: Final = "zookeeper"
FILES: Final = {"certificate", "key", "authorities"}


@dataclass(frozen=True, slots=True)
class Attacked:
    """`wrong`: receipts whose transaction is not the one that was appended, or that no feed can read. `growth_bytes`: the most that a process grew.
    `late_growth_bytes`: by how much the last third of the attack was above the first third, in the middle; 0 for a short one. `achieved`: by attack
    (`Outcome`); `errors`: with which attacks ended. `alive`: by node, the probes that were answered in time; `not_alive`: the others."""

    appends: int
    committed: int
    failed: list[str]
    wrong: list[str]
    breaches: list[str]
    tried: dict[str, int]
    achieved: dict[str, int]
    errors: dict[str, int]
    alive: dict[str, int]
    not_alive: list[str]
    longest_probe_s: float
    turns_s: list[tuple[float, float]]
    """The p99 of each turn of the attack, and of the time alone after it; after the last turn there is none, so of that before it."""
    p50_alone_s: float
    p99_alone_s: float
    p50_s: float
    p99_s: float
    growth_bytes: int
    late_growth_bytes: int
    memory_mib: dict[str, list[int]] = field(default_factory=dict)
    """By process: before the attack, and the median and the most in each third of it."""
    ended: list[str] = field(default_factory=list)

    @property
    def slower(self) -> float:
        """In the middle of the turns."""
        return median(max(among, P99_FLOOR_S) / max(alone, P99_FLOOR_S) for among, alone in self.turns_s)

    @property
    def faults(self) -> list[str]:
        """What must not be, apart from latency."""
        found = [*self.failed, *self.wrong, *self.breaches, *(f"{name} ended" for name in self.ended)]
        found += [f"{name} achieved nothing, so the run says nothing of it" for name in ATTACKS if not self.achieved.get(name)]
        found += [f"no probe of {name} was answered" for name, answered in self.alive.items() if not answered]
        found += self.not_alive[:20]
        if not self.alive:
            found.append("no node was probed")
        if self.committed != self.appends:
            found.append(f"{self.appends - self.committed} appends are not committed")
        if self.growth_bytes > GROWTH_BYTES_MAX:
            found.append(f"a process grew by {self.growth_bytes >> 20} MiB")
        if self.late_growth_bytes > LATE_GROWTH_BYTES_MAX:
            found.append(f"memory is not flat: a process grew by another {self.late_growth_bytes >> 20} MiB")
        return found

    @property
    def summary(self) -> list[str]:
        """The measurements that a verdict compares, and what it makes of them."""
        lines = [
            f"p99 {self.p99_alone_s} s alone and {self.p99_s} s under attack; in the middle of {len(self.turns_s)} turns {self.slower:.2f} times "
            f"as long, at most {SLOWER_MAX}; a p99 below {P99_FLOOR_S} s counts as {P99_FLOOR_S} s",
            f"probes answered {sum(self.alive.values())}, failed {len(self.not_alive)}, longest {self.longest_probe_s:.2f} s",
            f"memory of a process may grow by {GROWTH_BYTES_MAX >> 20} MiB; late growth, which an attack of {STEADY_S:.0f} s or more has, is at most "
            f"{LATE_GROWTH_BYTES_MAX >> 20} MiB, but for {ZOOKEEPER}",
        ]
        for name, (before, *thirds) in self.memory_mib.items():
            medians, peak = thirds[::2], max(thirds[1::2], default=before)
            late = medians[-1] - medians[0] if medians else 0
            lines.append(f"memory of {name}: {before} MiB before, peak {peak} MiB (+{peak - before}), late growth {late:+} MiB")
        return lines


def grant(cluster: LocalCluster) -> None:
    """The rules: both may append to and read the shared partitions, and the honest client all. The hostile one manages topics of its own."""
    for name, operations, resource in (
        ("honest", "append,read", "log"),
        ("hostile", "append,read", f"log:0-{max(PARTITIONS)}"),
        ("hostile", "append,read,manage", f"{NAMESPACE}/*"),
    ):
        command = [sys.executable, "-P", "-m", "waltz_log.cli", "access", "grant", cluster.coordinator]
        subprocess.run([*command, f"spiffe://waltz/application/{name}", operations, resource], env=cluster.environment("operator"), check=True)


def attack(cluster: ProbedCluster, appends: int, seconds: float, alone_s: float) -> Attacked:
    """Appends at a steady rate, alone first and then under attack for the rest of the time, with pauses."""
    outcomes_file = cluster.directory / "honest.json"
    certificates = {name: cluster.certificate("application", name).model_dump(mode="json", include=FILES) for name in ("honest", "hostile")}
    if seconds >= STEADY_S:
        _fill_caches(cluster)
    nodes = _processes(cluster)
    plan = Honest(cluster.cluster, certificates["honest"], appends, appends / seconds, str(outcomes_file))
    with _child("honest") as honest:
        started = time.monotonic()
        _say(honest, TypeAdapter(Honest).dump_json(plan).decode())
        victim = _line(honest)["client_id"]
        time.sleep(alone_s)
        before = _memory(nodes)
        with _child("attacker") as attacker, Probes(cluster.probes) as probes:
            left = max(1.0, started + seconds - time.monotonic())
            _say(attacker, json.dumps(certificates["hostile"]))
            _say(attacker, TypeAdapter(Target).dump_json(_target(cluster, nodes, victim, left)).decode())
            samples = _sample(honest, nodes)
            reported = _line(attacker)
        honest.wait(60)
    outcomes = TypeAdapter(Outcomes).validate_json(outcomes_file.read_bytes())
    among, alone = _latencies(outcomes, reported["turns"])
    all_among, all_alone = (sorted(chain.from_iterable(parts)) for parts in (among, alone))
    third = max(1, len(samples) // 3)
    steady = len(samples) * SAMPLE_S >= STEADY_S
    ours = [name for name in nodes if name != ZOOKEEPER]
    late = [median(each[name] for each in samples[-third:]) - median(each[name] for each in samples[:third]) if steady else 0 for name in ours]
    return Attacked(
        appends=appends,
        committed=sum(each >= 0 for each in outcomes.ids),
        failed=outcomes.failed[:20],
        wrong=_wrong(cluster, outcomes),
        breaches=sorted(set(reported["breaches"])),
        tried=dict(reported["tried"]),
        achieved=dict(reported["achieved"]),
        errors=dict(reported["failed"]),
        alive=dict(probes.answered),
        not_alive=probes.failed,
        longest_probe_s=round(probes.longest_s, 3),
        turns_s=[(_part(each, 0.99), _part(beside, 0.99)) for each, beside in zip(among, alone, strict=True) if each],
        p50_alone_s=_part(all_alone, 0.5),
        p99_alone_s=_part(all_alone, 0.99),
        p50_s=_part(all_among, 0.5),
        p99_s=_part(all_among, 0.99),
        growth_bytes=max(each[name] - before[name] for each in samples for name in nodes),
        late_growth_bytes=int(max(late)),
        memory_mib={name: _mib(before[name], [each[name] for each in samples], third) for name in nodes},
        ended=sorted(cluster.ended),
    )


def _latencies(outcomes: Outcomes, turns: Sequence[tuple[float, float]]) -> tuple[list[list[float]], list[list[float]]]:
    """Of the appends that began in each turn of the attack; and in the pause after it or, if there was none, the last time alone before it."""

    def between(begin: float, end: float) -> list[float]:
        return [latency for began, latency in zip(outcomes.began_s, outcomes.latencies_s, strict=True) if begin <= began < end]

    among, alone = [], [between(0.0, turns[0][0])]
    for (begin, end), following in pairwise([*turns, (turns[-1][1], 0.0)]):
        among.append(between(begin, end))
        alone.append(between(end + SETTLED_S, following[0]) or alone[-1])
    return among, alone[1:]


def _fill_caches(cluster: LocalCluster) -> None:
    """What a server holds with full caches is no growth."""
    data = bytes(FILL_RECORD_BYTES)
    with SyncWaltzClient(cluster.cluster, ClientSettings(tls=cluster.certificate("application", "honest"))) as client:
        for _ in range(-(-FILL_BYTES // (FILL_ROWS * FILL_RECORD_BYTES))):
            receipt = client.append_bulk(FILLED, [data] * FILL_ROWS)
            receipt.raise_failed()
        last = receipt.transaction_id(FILL_ROWS - 1)
        for transaction in client.feed(FILLED, after=-1):
            if transaction.transaction_id == last:
                break


def _mib(before: int, among: Sequence[int], third: int) -> list[int]:
    parts = [among[:third], among[third : 2 * third], among[2 * third :]]
    return [value >> 20 for value in (before, *(each for part in parts if part for each in (int(median(part)), max(part))))]


def _child(module: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-m", f"verification.hostile.{module}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _say(child: subprocess.Popen[str], line: str) -> None:
    assert child.stdin is not None
    child.stdin.write(line + "\n")
    child.stdin.flush()


def _line(child: subprocess.Popen[str]) -> dict[str, Any]:
    assert child.stdout is not None
    text = child.stdout.readline()
    if not text:
        raise RuntimeError(f"a client ended with exit code {child.wait()}")
    return dict(json.loads(text))


def _target(cluster: ProbedCluster, nodes: dict[str, psutil.Process], victim: int, seconds: float) -> Target:
    listening = {each.laddr for one in nodes.values() for each in one.net_connections("tcp") if each.status == "LISTEN"}
    on_the_machine = set(cluster.probes.values())
    settings = ClientSettings(tls=cluster.certificate("operator", "run"))
    with SyncWaltzClient(cluster.cluster, settings) as client:
        key = client.parameters.key.hex
    addresses = cluster.addresses
    return Target(
        cluster=cluster.cluster,
        cluster_key=key,
        servers=tuple(addresses[name] for name in cluster.server_names),
        storages=tuple(addresses[name] for name in cluster.storage_names),
        ports=tuple(sorted({f"{each.ip}:{each.port}" for each in listening} - on_the_machine)),
        zookeeper=f"{addresses['zookeeper']}/waltz/dev",
        shared=PARTITIONS,
        foreign=FOREIGN,
        victim=victim,
        seconds=seconds,
    )


def _processes(cluster: LocalCluster) -> dict[str, psutil.Process]:
    """By the name of the node; a worker has a number behind it."""
    found: dict[str, psutil.Process] = {}
    for name, pid in cluster.processes.items():
        found[name] = process = psutil.Process(pid)
        found |= {f"{name} worker {number}": each for number, each in enumerate(process.children(recursive=True))}
    return found


def _memory(nodes: dict[str, psutil.Process]) -> dict[str, int]:
    """Of each process; 0: it has ended."""
    found = {}
    for name, process in nodes.items():
        try:
            found[name] = process.memory_info().rss
        except psutil.NoSuchProcess:
            found[name] = 0
    return found


def _sample(until: subprocess.Popen[str], nodes: dict[str, psutil.Process]) -> list[dict[str, int]]:
    samples = [_memory(nodes)]
    while until.poll() is None:
        time.sleep(SAMPLE_S)
        samples.append(_memory(nodes))
    return samples


def _wrong(cluster: LocalCluster, outcomes: Outcomes) -> list[str]:
    try:
        with SyncWaltzClient(cluster.cluster, ClientSettings(tls=cluster.certificate("operator", "run"))) as client:
            return compare(client, outcomes)[:20]
    except (WaltzError, ValueError) as error:  # ValueError: what the coordinator holds is not a number any more
        return [f"the log cannot be read: {error}"]


def compare(client: SyncWaltzClient, outcomes: Outcomes) -> list[str]:
    """Reads the shared partitions from the beginning, and compares each receipt with what is there."""
    expected: dict[int, dict[int, int]] = {partition: {} for partition in PARTITIONS}
    for number, transaction_id in enumerate(outcomes.ids):
        if transaction_id >= 0:
            expected[PARTITIONS[number % len(PARTITIONS)]][transaction_id] = number
    return [each for partition, numbers in expected.items() for each in _compared(client, partition, numbers)]


def _compared(client: SyncWaltzClient, partition: int, numbers: dict[int, int]) -> list[str]:
    """`numbers`: of the partition's appends, by the transaction id in their receipts."""
    found: list[str] = []
    mark = client.high_water_mark(partition)
    try:
        for transaction in client.feed(partition, after=-1):
            number = numbers.pop(transaction.transaction_id, -1)
            if number >= 0 and transaction.data != body(number):
                found.append(f"append {number} has the receipt {transaction.transaction_id}, where {transaction.data[:40]!r} is")
            if transaction.transaction_id >= mark:
                break
    except WaltzError as error:
        found.append(f"partition {partition} cannot be read: {error}")
    if numbers:
        found.append(f"partition {partition} lacks {len(numbers)} transactions with a receipt")
    return found


def _part(values: Sequence[float], part: float) -> float:
    return round(sorted(values)[int(part * (len(values) - 1))], 5) if values else 0.0
