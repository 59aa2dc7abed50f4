"""Appends of one client without and with strangers at all ports of the nodes, and the memory of the nodes meanwhile."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Final

import psutil

from waltz_log.client import ClientSettings, SyncWaltzClient
from waltz_log.errors import WaltzError
from waltz_log.processes.local_cluster import LocalCluster

__all__ = ["GROWTH_BYTES_MAX", "SLOWER_MAX", "Measured", "measure"]

SLOWER_MAX: Final = 2.0
"""Times the p99 without strangers."""

P99_FLOOR_S: Final = 0.01
"""A p99 below this says more about the machine than about the node: what strangers add is compared with it."""

GROWTH_BYTES_MAX: Final = 512 << 20
"""Of one node: 2,048 connections of gRPC that wait in a handshake, at up to 128 KiB each, twice over for what is not returned to the system."""

PAUSE_S: Final = 0.002
"""Between two appends: the client measures latency, not how much the machine can do."""


@dataclass(frozen=True, slots=True)
class Measured:
    """`made`: connections of strangers, of which `open_most` were open at once. `failed`: appends that did not succeed."""

    ports: int
    appends: int
    failed: int
    made: int
    open_most: int
    p50_alone_s: float
    p99_alone_s: float
    p50_s: float
    p99_s: float
    growth_bytes: int

    @property
    def slower(self) -> float:
        return max(self.p99_s, P99_FLOOR_S) / max(self.p99_alone_s, P99_FLOOR_S)

    @property
    def passed(self) -> bool:
        return not self.failed and self.made > 0 and self.slower <= SLOWER_MAX and self.growth_bytes <= GROWTH_BYTES_MAX


def measure(cluster: LocalCluster, connections: int, seconds: float) -> Measured:
    """For so long without and so long with strangers."""
    nodes = [psutil.Process(pid) for name, pid in cluster.processes.items() if name != "zookeeper"]
    addresses = sorted({f"{each.laddr.ip}:{each.laddr.port}" for node in nodes for each in node.net_connections("tcp") if each.status == "LISTEN"})
    settings = ClientSettings(tls=cluster.certificate("application", "strangers") if cluster.secure else None)
    with SyncWaltzClient(cluster.cluster, settings) as client:
        _append(client, 1.0)
        alone, failed_alone = _append(client, seconds)
        before = [node.memory_info().rss for node in nodes]
        command = [sys.executable, "-m", "verification.strangers.attack", "--connections", str(connections), "--seconds", str(seconds)]
        with subprocess.Popen([*command, *addresses], stdout=subprocess.PIPE, text=True) as attack:
            try:
                among, failed = _append(client, seconds - 1)
                growth = max(node.memory_info().rss - was for node, was in zip(nodes, before, strict=True))
                said, _ = attack.communicate(timeout=30 + seconds)
            finally:
                attack.kill()
    reported = json.loads(said)
    return Measured(
        ports=len(addresses),
        appends=len(alone) + len(among),
        failed=failed_alone + failed,
        made=reported["made"],
        open_most=reported["open_most"],
        p50_alone_s=_part(alone, 0.5),
        p99_alone_s=_part(alone, 0.99),
        p50_s=_part(among, 0.5),
        p99_s=_part(among, 0.99),
        growth_bytes=growth,
    )


def _append(client: SyncWaltzClient, seconds: float) -> tuple[list[float], int]:
    """The duration of each append, and how many failed."""
    durations, failed, until = list[float](), 0, time.monotonic() + seconds
    while (began := time.monotonic()) < until:
        try:
            client.append(len(durations) % 4, b"among strangers")
        except WaltzError:
            failed += 1
        durations.append(time.monotonic() - began)
        time.sleep(PAUSE_S)
    return durations, failed


def _part(values: list[float], part: float) -> float:
    return round(sorted(values)[int(part * (len(values) - 1))], 5)
