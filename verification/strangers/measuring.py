"""Appends of one client without and with strangers at all ports of nodes and console, their memory meanwhile, and whether the console answers."""

from __future__ import annotations

import http.client
import json
import ssl
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import psutil

from verification.console import console_of
from waltz_log.client import ClientSettings, SyncWaltzClient
from waltz_log.errors import WaltzError
from waltz_log.processes.local_cluster import LocalCluster

__all__ = ["GROWTH_BYTES_MAX", "SLOWER_MAX", "Measured", "measure"]

SLOWER_MAX: Final = 2.0
"""Times the p99 without strangers."""

P99_FLOOR_S: Final = 0.01
"""A p99 below this depends more on the machine than on the node, so the p99 with strangers is compared with this value."""

GROWTH_BYTES_MAX: Final = 512 << 20
"""Of one node: 2,048 connections of gRPC that wait in a handshake, at up to 128 KiB each, twice over for what is not returned to the system."""

PAUSE_S: Final = 0.002
"""The pause between two appends. The client measures latency, not throughput."""

PAGE_S: Final = 10.0
"""The deadline of a request to the console, with all attempts of its browser."""


@dataclass(frozen=True, slots=True)
class Measured:
    """`made`: connections of strangers, of which `open_most` were open at once. `failed`: appends that did not succeed. `pages`: requests to the
    console among strangers, each in a new connection. `pages_failed`: those without an answer in time."""

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
    pages: int
    pages_failed: int

    @property
    def slower(self) -> float:
        return max(self.p99_s, P99_FLOOR_S) / max(self.p99_alone_s, P99_FLOOR_S)

    @property
    def passed(self) -> bool:
        return (
            not self.failed
            and self.pages > 0
            and not self.pages_failed
            and self.made > 0
            and self.slower <= SLOWER_MAX
            and self.growth_bytes <= GROWTH_BYTES_MAX
        )


def measure(cluster: LocalCluster, connections: int, seconds: float) -> Measured:
    """Measures for this time without strangers and for the same time with them."""
    settings = ClientSettings(tls=cluster.certificate("application", "strangers") if cluster.secure else None)
    with console_of(cluster) as console, SyncWaltzClient(cluster.cluster, settings) as client, ThreadPoolExecutor(1) as browser:
        pids = [console.pid, *(pid for name, pid in cluster.processes.items() if name != "zookeeper")]
        processes = [psutil.Process(pid) for pid in pids]
        listening = {each.laddr for one in processes for each in one.net_connections("tcp") if each.status == "LISTEN"}
        addresses = sorted(f"{each.ip}:{each.port}" for each in listening)
        _append(client, 1.0)
        alone, failed_alone = _append(client, seconds)
        before = [each.memory_info().rss for each in processes]
        command = [sys.executable, "-m", "verification.strangers.attack", "--connections", str(connections), "--seconds", str(seconds)]
        with subprocess.Popen([*command, *addresses], stdout=subprocess.PIPE, text=True) as attack:
            try:
                opening = browser.submit(_open_pages, console.port, _browser(cluster), seconds - 1)
                among, failed = _append(client, seconds - 1)
                growth = max(each.memory_info().rss - was for each, was in zip(processes, before, strict=True))
                pages, pages_failed = opening.result()
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
        pages=pages,
        pages_failed=pages_failed,
    )


def _browser(cluster: LocalCluster) -> ssl.SSLContext | None:
    if not cluster.secure:
        return None
    tls = cluster.certificate("operator", "browser")
    context = ssl.create_default_context(cafile=str(tls.authorities))
    context.load_cert_chain(tls.certificate, tls.key)
    return context


def _open_pages(port: int, context: ssl.SSLContext | None, seconds: float) -> tuple[int, int]:
    """The number of requests, and how many of them failed."""
    pages, failed, until = 0, 0, time.monotonic() + seconds
    while time.monotonic() < until:
        pages += 1
        failed += not _opens(port, context)
        time.sleep(0.1)
    return pages, failed


def _opens(port: int, context: ssl.SSLContext | None) -> bool:
    """Whether the page opens in time. A browser tries again if its connection ends before an answer."""
    until = time.monotonic() + PAGE_S
    while time.monotonic() < until:
        if context is None:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PAGE_S)
        else:
            connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=PAGE_S, context=context)
        try:
            connection.request("GET", "/livez")
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            time.sleep(0.05)
        finally:
            connection.close()
    return False


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
