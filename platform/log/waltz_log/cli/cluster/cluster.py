"""`waltz cluster create` and `waltz cluster status`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Collection, Sequence
from dataclasses import asdict
from time import monotonic
from typing import TYPE_CHECKING
from uuid import uuid4

from waltz_log.cli.cluster.fills import describe_fill, fill_of
from waltz_log.cli.printing import WIDTH, cells, laid_out, print_data, print_line, print_result
from waltz_log.cli.watching import watched
from waltz_log.coordination.cluster import create_cluster
from waltz_log.coordination.coordinator import ZooKeeperCoordinator
from waltz_log.coordination.ensemble_root import ADVICE, ENSEMBLE_NODES, close_ensemble
from waltz_log.coordination.entries import parsed
from waltz_log.coordination.survey import CALL_TIMEOUT_S, PartitionState, ServerState, StorageState, Survey, survey
from waltz_log.core.metadata import CLUSTER, ClusterParameters
from waltz_log.core.ports import Coordinator, Network
from waltz_log.core.replica_status import ReplicaStatus
from waltz_log.core.status.server_statistics import OpenPartitionStatistics, RecoveringPartitionStatistics
from waltz_log.exit_codes import OK, UNAVAILABLE
from waltz_log.transport.grpc import GrpcNetwork

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["create", "show", "status"]

POLL_EVERY_S = 0.1
"""While waiting for a cluster to be ready."""

PATIENCE_MAX_S = 10.0
"""For one answer while waiting, and no more than is left of the wait. A node that all its clients make busy answers late; asked with the same short
patience each time, it never would."""

HOT_LOCKS_SHOWN = 4
"""In the table; JSON has more."""


async def create(
    address: str, *, name: str, partitions: int, storages: list[str], replication: int, if_missing: bool, output: str, timeout_s: float
) -> int:
    coordinator = await ZooKeeperCoordinator.connect(address, timeout_s=timeout_s, new=True)
    try:
        there = await coordinator.get(CLUSTER) if if_missing else None
        if there is not None:
            made, done = parsed(CLUSTER, there, ClusterParameters.from_bytes), "found"
        else:
            made = await create_cluster(coordinator, name=name, key=uuid4(), partitions=partitions, storages=storages, replication=replication)
            done = "created"
        await close_ensemble(coordinator)
    finally:
        await coordinator.close()
    line = f"{done} coordinator={address} name={made.name} key={made.key} partitions={made.partitions}"
    fields = {"coordinator": address, "name": made.name, "cluster_key": str(made.key), "partitions": made.partitions}
    print_result({"created": done == "created"} | fields, [line], output)
    return OK


async def status(address: str, *, output: str, wait_s: float, complete: bool, timeout_s: float, every_s: float | None = None) -> int:
    """Exit code 0 if every partition accepts appends and, with `complete`, the cluster is complete. Waits for that for at most `wait_s`."""
    coordinator = await ZooKeeperCoordinator.connect(address, timeout_s=timeout_s)
    network = GrpcNetwork()

    async def once() -> int:
        found, enough = await _survey(coordinator, network, address, wait_s, complete=complete)
        if output != "table":
            print_data(asdict(found) | {"ready": found.ready, "complete": found.complete, "missing": found.missing}, output)
        else:
            from rich.console import Console

            show(found, Console(width=None if sys.stdout.isatty() else WIDTH))
            if coordinator.protects and (open_paths := [path for path in ENSEMBLE_NODES if await coordinator.is_open(path)]):
                print_line(f"ZooKeeper is open to everyone at {', '.join(open_paths)}: {ADVICE}")
        return OK if enough else UNAVAILABLE

    try:
        return await watched(once, every_s=every_s, output=output)
    finally:
        await coordinator.close()


async def _survey(coordinator: Coordinator, network: Network, address: str, wait_s: float, *, complete: bool) -> tuple[Survey, bool]:
    """The state, and whether it is good enough, for which it waits for at most `wait_s`."""

    def enough(found: Survey) -> bool:
        return found.complete if complete else found.ready

    deadline = monotonic() + wait_s
    patience_s = CALL_TIMEOUT_S
    found = await survey(coordinator, network, address)
    while wait_s and not enough(found) and monotonic() < deadline:
        await asyncio.sleep(POLL_EVERY_S)
        left_s = deadline - monotonic()
        patience_s = max(CALL_TIMEOUT_S, min(patience_s * 1.5, PATIENCE_MAX_S, left_s))
        found = await survey(coordinator, network, address, call_timeout_s=patience_s)
    return found, enough(found)


def show(found: Survey, console: Console) -> None:
    """The survey as tables, for people."""
    console.print(*cells(f"cluster {found.name}, key {found.key}"))
    _show_partitions(console, found)
    _show_errors(console, found)
    _show_fills(console, found)
    _show_locks(console, found)
    nodes = [(f"server {server.server_id}", server.address, _answers(server, found.drained)) for server in found.servers]
    nodes += [(storage.name, storage.address or "never started", _answers(storage, found.drained)) for storage in found.storages]
    _print_rows(console, ("node", "address", "answers"), nodes)
    _show_workers(console, found)
    _show_refused(console, found)
    if found.missing:
        console.print(*cells(found.missing), style="yellow")


def _show_partitions(console: Console, found: Survey) -> None:
    columns = ("partition", "owner", "address", "generation", "session", "high-water mark", "replicas")
    rows = []
    for each in found.partitions:
        mark = "-" if each.high_water_mark is None else f"{each.high_water_mark:,}"
        held = ", ".join(f"{replica.name} {replica.status}" for replica in each.replicas)
        rows.append((each.partition, each.server_id, each.address, each.generation, each.session, mark, held))
    _print_rows(console, columns, rows)


def _print_rows(console: Console, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    console.file.write(laid_out(columns, rows, console.width, terminal=console.is_terminal))


def _answers(node: ServerState | StorageState, drained: Collection[str]) -> str:
    silent = f", but for worker {', '.join(map(str, node.silent))}" if node.silent else ""
    name = node.name if isinstance(node, StorageState) else node.address
    return (f"yes{silent}" if node.answers else "no") + (", drained" if name in drained else "")


def _show_workers(console: Console, found: Survey) -> None:
    """One line for each worker process; nothing if all nodes are one process."""
    columns, rows = ("worker", "process", "restarts", "processor time", "memory at most", "calls passed on"), []
    servers = [(f"server {server.server_id}", server.statistics.workers) for server in found.servers]
    for name, workers in [*servers, *((storage.name, storage.statistics.workers) for storage in found.storages)]:
        for each in workers:
            shown = ["-"] * 5
            if each.answers:
                passed_on = 0 if each.passed_on is None else each.passed_on.calls
                memory = f"{(each.memory_max_kib or 0) / 1024:,.0f} MiB"
                shown = [str(each.pid), str(each.restarts), f"{each.cpu_s or 0:,.1f} s", memory, f"{passed_on:,}"]
            rows.append((f"{name}/{each.worker}", *shown))
    if rows:
        _print_rows(console, columns, rows)


def _show_refused(console: Console, found: Survey) -> None:
    """One line for each value of the coordinator that a node does not use; nothing if all use all."""
    columns, rows = ("node", "value of the coordinator that it refuses", "why"), []
    servers = [(f"server {server.server_id}", server.statistics.refused_values) for server in found.servers]
    for name, refused in [*servers, *((storage.name, storage.statistics.refused_values) for storage in found.storages)]:
        for path, why in (refused or {}).items():
            rows.append((name, path, why))
    if rows:
        _print_rows(console, columns, rows)
        console.print(*cells("the nodes use what they knew before; `waltz cluster repair` writes it back"))


def _owner_statistics(each: PartitionState, found: Survey) -> OpenPartitionStatistics | RecoveringPartitionStatistics | None:
    """What the owner reports of the partition; None if none answers."""
    owner = next((server for server in found.servers if server.server_id == each.server_id), None)
    return None if owner is None else owner.statistics.partitions.get(each.partition)


def _show_errors(console: Console, found: Survey) -> None:
    """One line for each replica that is not live and whose error is known; nothing if there is none."""
    rows = [
        (each.partition, replica.name, replica.status, replica.error)
        for each in found.partitions
        for replica in each.replicas
        if replica.status is not ReplicaStatus.LIVE and replica.error is not None
    ]
    if rows:
        _print_rows(console, ("partition", "replica", "state", "last error"), rows)


def _show_fills(console: Console, found: Survey) -> None:
    """One line for each replica that is being filled; nothing if none is."""
    columns, rows = ("partition", "replica", "being filled"), []
    for each in found.partitions:
        for replica in each.replicas:
            fill = fill_of(_owner_statistics(each, found), replica.name)
            if fill is not None:
                rows.append((str(each.partition), replica.name, describe_fill(fill)))
    if rows:
        _print_rows(console, columns, rows)


def _show_locks(console: Console, found: Survey) -> None:
    """One line for each partition where transactions met; nothing if none did."""
    columns, rows = ("partition", "conflicts", "lock table full", "locks remembered", "hottest locks (conflicts)"), []
    for each in found.partitions:
        partition = _owner_statistics(each, found)
        if not isinstance(partition, OpenPartitionStatistics) or not partition.locks.conflicts:
            continue
        locks = partition.locks
        hottest = ", ".join(f"{hot.lock} ({hot.conflicts:,})" for hot in locks.hottest[:HOT_LOCKS_SHOWN])
        rows.append((str(each.partition), f"{locks.conflicts:,}", f"{locks.floor_conflicts:,}", f"{locks.entries:,}", hottest))
    if rows:
        _print_rows(console, columns, rows)
