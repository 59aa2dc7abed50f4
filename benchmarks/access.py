"""What rules of access cost: processor time of appends with many rules beside appends with none, in turns, in one cluster over mutual TLS.

A mount is judged when it is made and when the rules change, so the rules change before each round and the mounts stay."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.load import pipelined, prepare
from benchmarks.measurement import Measurement, in_turns
from benchmarks.processor import processor_s
from benchmarks.setting import Workload
from waltz_log.client import ClientSettings, WaltzClient
from waltz_log.coordination.access import change_rules
from waltz_log.coordination.coordinator import ZooKeeperCoordinator
from waltz_log.processes.local_cluster import LocalCluster
from waltz_log.security.rules import AccessRules, Operation, Rule

__all__ = ["run"]

ROUNDS = 6
IN_FLIGHT = 16_000
RULES = 500
"""Of other principals. The one that permits the load is the last of them."""

KNOWN_S = 1.0
"""The time in which every node follows a change."""


def run(directory: Path, workload: Workload, conditions: Mapping[str, Any]) -> list[Measurement]:
    with LocalCluster(directory, partitions=1, storages=3, servers=1, secure=True) as cluster:
        return asyncio.run(_measure(cluster, workload, conditions))


def _rules() -> AccessRules:
    others = [Rule(principal=f"spiffe://waltz/application/a{each}", operations=(Operation.READ,), resource=f"shop/t{each}") for each in range(RULES)]
    mine = Rule(principal="spiffe://waltz/application/bench", operations=(Operation.APPEND,), resource="log")
    return AccessRules(rules=(*others, mine))


async def _measure(cluster: LocalCluster, workload: Workload, conditions: Mapping[str, Any]) -> list[Measurement]:
    count, rounds = workload.pipelined // 2, list[tuple[float, float]]()
    tls = cluster.certificate("application", "bench")
    nodes = [pid for name, pid in cluster.processes.items() if name != "zookeeper"]
    prepare([IN_FLIGHT])
    coordinator = await ZooKeeperCoordinator.connect(cluster.cluster, tls=cluster.certificate("operator", "bench"))
    try:
        async with WaltzClient.open(cluster.cluster, ClientSettings(tls=tls)) as client:
            await pipelined(client, count // 2, window=IN_FLIGHT)
            for number in range(ROUNDS):
                used: dict[str, float] = {}
                for name in ("rules", "none") if number % 2 else ("none", "rules"):
                    wanted = _rules() if name == "rules" else AccessRules(enforced=False)
                    await change_rules(coordinator, lambda _, wanted=wanted: wanted)  # type: ignore[misc]
                    await asyncio.sleep(KNOWN_S)
                    before_s = sum(map(processor_s, nodes)) + time.process_time()
                    await pipelined(client, count, window=IN_FLIGHT)
                    used[name] = (sum(map(processor_s, nodes)) + time.process_time() - before_s) / count * 1e6
                rounds.append((used["rules"], used["none"]))
    finally:
        await coordinator.close()
    return [in_turns("access.append", rounds, "no_rules", {**conditions, "in_flight": IN_FLIGHT, "rules": RULES + 1, "of": "processor us/txn"})]
