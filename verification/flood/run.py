"""Principals without rights flood real nodes with denied calls, and the audit trail of every earlier denied call is read afterwards."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final  # Any: lines of JSON

from waltz_log.client import ClientSettings, SyncWaltzClient
from waltz_log.errors import PermissionDenied, WaltzError
from waltz_log.processes.local_cluster import LocalCluster
from waltz_log.security.audit_log import AuditSettings
from waltz_log.security.settings import TlsSettings
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.grpc import GrpcNetwork
from waltz_log.transport.methods import LOCATE, TRANSACTIONS

__all__ = ["EARLIER", "FLOODING", "FLOOD_BYTES_MIN", "Flooded", "audited", "flood"]

EARLIER: Final = 8
"""Principals that are denied before the flood, each of them `CALLS` times at both nodes."""
CALLS: Final = 3

FLOODING: Final = 3

MIB: Final = 1024 * 1024
FLOOD_BYTES_MIN: Final = 3 * MIB
"""Of lines that a flood would write if nothing limited them: more than the files hold, which are as small as the settings permit."""

LONG: Final = "é" * 110
"""Of the name of a topic, of which each character is six bytes in the audit log."""

DENIED_MIN: Final = FLOOD_BYTES_MIN // (len(LONG) * 6) + 1
"""The fewest denied calls whose lines have `FLOOD_BYTES_MIN`."""

TIMEOUT_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class Flooded:
    """`denied`: calls of the flood that were denied; `other`: errors of calls that ended otherwise, by their type. `lost`: earlier calls that a node
    has no trace of. `uncounted`: calls of the flood that are in no count. `bytes`: of all files of one node, the most."""

    denied: int
    other: Mapping[str, int]
    lost: list[str]
    uncounted: int
    bytes: int
    ended: list[str] = field(default_factory=list)

    @property
    def faults(self) -> list[str]:
        found = [*self.lost, *(f"{name} ended" for name in self.ended)]
        if self.denied < DENIED_MIN:
            found.append(f"{self.denied} denied calls are no flood")
        if self.uncounted:
            found.append(f"{self.uncounted} denied calls of the flood are in no count")
        if self.bytes > 4 * MIB:
            found.append(f"the audit files of a node have {self.bytes} bytes")
        return found


def audited(directory: Path, workers: int) -> dict[str, Any]:
    """Settings of a cluster of one log server and one storage node, with the smallest audit files that the settings permit."""
    of_node = {name: AuditSettings(file=directory / f"{name}.jsonl", bytes_max=MIB, files_max=1) for name in ("server", "storage")}
    return {f"{name}_settings": {"workers": workers, "audit": each.model_dump(mode="json")} for name, each in of_node.items()}


def flood(cluster: LocalCluster, audit: Path, seconds: float, calls_per_s: float) -> Flooded:
    """`audit`: the directory of `audited`. `calls_per_s`: of each principal of the flood."""
    command = [
        sys.executable,
        "-P",
        "-m",
        "waltz_log.cli",
        "access",
        "grant",
        cluster.coordinator,
        "spiffe://waltz/application/honest",
        "read",
        "log",
    ]
    subprocess.run(command, env=cluster.environment("operator"), check=True, stdout=subprocess.DEVNULL)
    with SyncWaltzClient(cluster.cluster, ClientSettings(tls=cluster.certificate("operator", "run"))) as client:
        key = client.parameters.key.bytes
    earlier = asyncio.run(_call_earlier(cluster, key))
    outcomes = asyncio.run(_flood(cluster, key, seconds, calls_per_s))
    denied = outcomes.pop(PermissionDenied.__name__, 0)
    ended = sorted(cluster.ended)
    for name in ("server-0", "storage-0"):
        cluster.stop(name)  # what is due is written
    kept = {node: _kept(audit, node) for node in ("server", "storage")}
    counted = sum(each["count"] for node in kept.values() for each in node if "/flood-" in str(each.get("principal")))
    return Flooded(denied, dict(outcomes), _lost(audit, kept, earlier), max(0, denied - counted), max(_bytes(audit, node) for node in kept), ended)


class _Stranger:
    """A client whose certificate no rule names."""

    def __init__(self, cluster: LocalCluster, key: bytes, name: str) -> None:
        tls: TlsSettings = cluster.certificate("application", name)
        self._key = key
        network = GrpcNetwork(tls=tls)
        self._channels = {node: network.connect(cluster.addresses[f"{node}-0"]) for node in ("server", "storage")}

    async def call(self, node: str, partition: int, topic: str) -> str:
        """The type of the error, or of the answer."""
        channel = self._channels[node]
        answer: object
        try:
            if node == "server":
                request = pb.TransactionRequest(cluster_key=self._key, partition=partition, count=1, topic=topic)
                answer = await channel.call(TRANSACTIONS, request, timeout_s=TIMEOUT_S)
            else:
                located = pb.LocateRequest(cluster_key=self._key, partition=partition, last_transaction_id=-1)
                answer = await channel.call(LOCATE, located, timeout_s=TIMEOUT_S)
            return type(answer).__name__
        except WaltzError as error:
            return type(error).__name__

    async def close(self) -> None:
        for each in self._channels.values():
            await each.close()


async def _call_earlier(cluster: LocalCluster, key: bytes) -> list[str]:
    """The principals. Raises `AssertionError` if a call is not denied."""
    for number in range(EARLIER):
        stranger = _Stranger(cluster, key, f"earlier-{number}")
        for call in range(CALLS):
            for node in ("server", "storage"):
                outcome = await stranger.call(node, call % cluster.partitions, f"evidence/call-{call}")
                assert outcome == PermissionDenied.__name__, outcome
        await stranger.close()
    return [f"spiffe://waltz/application/earlier-{number}" for number in range(EARLIER)]


async def _flood(cluster: LocalCluster, key: bytes, seconds: float, calls_per_s: float) -> Counter[str]:
    outcomes: Counter[str] = Counter()
    began_s = time.monotonic()

    def goes_on() -> bool:
        """On a busy machine the flood lasts longer, up to four times."""
        lasted_s = time.monotonic() - began_s
        return lasted_s < seconds or (outcomes[PermissionDenied.__name__] < DENIED_MIN and lasted_s < 4 * seconds)

    async def one(number: int) -> None:
        stranger = _Stranger(cluster, key, f"flood-{number}")
        call = 0
        began = time.monotonic()
        while goes_on():
            call += 1
            node = "storage" if call % 4 == 0 else "server"
            outcomes[await stranger.call(node, call % cluster.partitions, f"flood/{call}{LONG}")] += 1
            await asyncio.sleep(max(0.0, began + call / calls_per_s - time.monotonic()))
        await stranger.close()

    await asyncio.gather(*(one(number) for number in range(FLOODING)))
    return outcomes


def _files(audit: Path, node: str) -> list[Path]:
    """Of each worker, and those that were renamed."""
    return [each for each in sorted(audit.glob(f"{node}.jsonl*")) if each.is_file()]


def _kept(audit: Path, node: str) -> list[dict[str, Any]]:
    """What is kept of each principal, by each worker."""
    paths = sorted(each for each in audit.glob(f"{node}.jsonl*.denied/*.json") if each.name != "budget.json")
    return [json.loads(each.read_text()) for each in paths]


def _lost(audit: Path, kept: Mapping[str, list[dict[str, Any]]], earlier: list[str]) -> list[str]:
    """Each call is a line, and one of the first calls of its principal."""
    lost = []
    for node, principals in kept.items():
        lines = [json.loads(line) for path in _files(audit, node) for line in path.read_text().splitlines()]
        for principal in earlier:
            in_lines = sum(each.get("principal") == principal for each in lines)
            in_folder = sum(len(each["first_calls"]) for each in principals if each.get("principal") == principal)
            if (in_lines, in_folder) != (CALLS, CALLS):
                lost.append(f"{principal} was denied {CALLS} times by the {node}, of which {in_lines} are lines and {in_folder} are kept")
    return lost


def _bytes(audit: Path, node: str) -> int:
    return sum(each.stat().st_size for each in _files(audit, node)) + sum(each.stat().st_size for each in audit.glob(f"{node}.jsonl*.denied/*"))
