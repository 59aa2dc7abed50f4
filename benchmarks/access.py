"""The cost of access rules and quotas: processor time of appends with many rules, and with a quota that charges every append, compared with appends
without either. All of them alternate in one cluster over mutual TLS. `access.append` counts all processes, `access.server` and `access.quotas` the
log server alone.

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
"""Rules of other principals. The rule that permits the load comes last."""

KNOWN_S = 1.0
"""The time in which every node applies a change."""


QUOTA = {"principal": "spiffe://waltz/application/charged", "transactions_per_s": 1e9, "bytes_per_s": 1e12}
"""So high that every append is charged and none is refused."""

CASES = ("none", "rules", "quotas")


def run(directory: Path, workload: Workload, conditions: Mapping[str, Any]) -> list[Measurement]:
    with LocalCluster(directory, partitions=2, storages=3, servers=1, secure=True, server_settings={"quotas": [QUOTA]}) as cluster:
        return asyncio.run(_measure(cluster, workload, conditions))


def _rules() -> AccessRules:
    others = [Rule(principal=f"spiffe://waltz/application/a{each}", operations=(Operation.READ,), resource=f"shop/t{each}") for each in range(RULES)]
    mine = Rule(principal="spiffe://waltz/application/*", operations=(Operation.APPEND,), resource="log")
    return AccessRules(rules=(*others, mine))


async def _measure(cluster: LocalCluster, workload: Workload, conditions: Mapping[str, Any]) -> list[Measurement]:
    count, rounds = workload.pipelined // 2, list[dict[str, tuple[float, float]]]()
    plain, charged = (cluster.certificate("application", name) for name in ("bench", "charged"))
    prepare([IN_FLIGHT])
    coordinator = await ZooKeeperCoordinator.connect(cluster.coordinator, tls=cluster.certificate("operator", "bench"))
    try:
        async with (
            WaltzClient.open(cluster.cluster, ClientSettings(tls=plain)) as uncharged,
            WaltzClient.open(cluster.cluster, ClientSettings(tls=charged)) as charging,
        ):
            # Each partition has its own client, because two clients would conflict on its locks.
            clients = {"none": (uncharged, (0,)), "rules": (uncharged, (0,)), "quotas": (charging, (1,))}
            for client, partitions in (clients["none"], clients["quotas"]):
                await pipelined(client, count // 2, window=IN_FLIGHT, partitions=partitions)
            for number in range(ROUNDS):
                used = dict[str, tuple[float, float]]()
                first = number % len(CASES)
                for name in (*CASES[first:], *CASES[:first]):
                    wanted = _rules() if name == "rules" else AccessRules(enforced=False)
                    await change_rules(coordinator, lambda _, wanted=wanted: wanted)  # type: ignore[misc]
                    await asyncio.sleep(KNOWN_S)
                    before = _processor_s(cluster)
                    client, partitions = clients[name]
                    await pipelined(client, count, window=IN_FLIGHT, partitions=partitions)
                    server_us, all_us = ((after - was) / count * 1e6 for was, after in zip(before, _processor_s(cluster), strict=True))
                    used[name] = server_us, all_us
                rounds.append(used)
    finally:
        await coordinator.close()
    shown = {**conditions, "in_flight": IN_FLIGHT, "of": "processor us/txn"}

    def compared(name: str, case: str, part: int, **more: Any) -> Measurement:
        return in_turns(name, [(used[case][part], used["none"][part]) for used in rounds], "neither", {**shown, **more})

    return [
        compared("access.append", "rules", 1, rules=RULES + 1),
        compared("access.server", "rules", 0, rules=RULES + 1),
        compared("access.quotas", "quotas", 0),
    ]


def _processor_s(cluster: LocalCluster) -> tuple[float, float]:
    """Of the log server, and of all processes but ZooKeeper."""
    nodes = {name: processor_s(pid) for name, pid in cluster.processes.items() if name != "zookeeper"}
    return nodes[cluster.server_names[0]], sum(nodes.values()) + time.process_time()
