"""The ports of a secure cluster: which of them speak gRPC, frames or HTTP, and what each must demand of a client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import psutil

from waltz_log.processes.local_cluster import LocalCluster

__all__ = ["HOST", "Kind", "Port", "ports_of"]

HOST: Final = "127.0.0.1"


class Kind(StrEnum):
    GRPC = "grpc"
    DIRECT = "direct"
    METRICS = "metrics"
    CONSOLE = "console"
    ZOOKEEPER = "zookeeper"


@dataclass(frozen=True, slots=True)
class Port:
    """`kind`: what it speaks inside of TLS."""

    process: str
    kind: Kind
    number: int

    def __str__(self) -> str:
        return f"{self.process} {self.kind} {self.number}"


def ports_of(cluster: LocalCluster, metrics: set[int]) -> Iterator[Port]:
    """Of all processes, whatever they listen at. `metrics`: the numbers of those that serve HTTPS."""
    named: dict[str, int] = json.loads((cluster.directory / "dev.json").read_text())["ports"]
    for name, pid in cluster.processes.items():
        process = psutil.Process(pid)
        listening = [each.laddr.port for one in (process, *process.children(recursive=True)) for each in one.net_connections("tcp") if _listens(each)]
        for number in sorted(set(listening)):
            if name == "zookeeper":
                kind = Kind.ZOOKEEPER
            elif number in metrics:
                kind = Kind.METRICS
            else:
                kind = Kind.GRPC if number == named[name] else Kind.DIRECT
            yield Port(name, kind, number)


def _listens(connection: object) -> bool:
    return getattr(connection, "status", "") == psutil.CONN_LISTEN
