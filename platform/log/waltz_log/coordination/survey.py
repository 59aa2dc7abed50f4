"""The present state of a cluster: read from the coordinator and requested from every node, as one frozen value.

Only reads. A node that does not answer is a finding, not an error.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Protocol  # Any: JSON values

from waltz_log.coordination.entries import parsed, readable
from waltz_log.core import metadata as paths
from waltz_log.core.metadata import Assignment, ClusterParameters, Ownership, PartitionMetadata, ReplicaAssignment, ServerEntry, StorageNodeEntry
from waltz_log.core.ports import CallMethod, Network, Request, Response, Values
from waltz_log.core.replica_status import ReplicaStatus, can_commit, surveyed_status
from waltz_log.core.status.server_statistics import OpenPartitionStatistics, RecoveringPartitionStatistics, ReplicaStatistics, ServerStatistics
from waltz_log.core.status.storage_statistics import NodeStatistics
from waltz_log.core.status.worker_statistics import WorkerStatistics
from waltz_log.core.topics.sharding import worker_of
from waltz_log.errors import ClusterUnavailable, ProtocolViolation, WaltzError
from waltz_log.loggers import get_logger
from waltz_log.statistics import from_json
from waltz_log.transport import methods
from waltz_log.transport import waltz_pb2 as pb

__all__ = ["CALL_TIMEOUT_S", "PartitionState", "ServerState", "StorageState", "Survey", "SurveyedReplica", "survey"]

log = get_logger(__name__)

CALL_TIMEOUT_S = 2.0
"""For one request to one node; all nodes are asked at once."""


class Ask(Protocol):
    """Calls a method at an address; None if no answer came in time."""

    async def __call__(self, address: str, method: CallMethod[Request, Response], request: Request) -> Response | None: ...


@dataclass(frozen=True)
class SurveyedReplica:
    """`status`: one word (`core.replica_status`). `acknowledged`: the last transaction that counts; None if no owner reports it. `error`: the last
    one of the owner with this replica, or why the storage node serves nothing of the partition."""

    name: str
    status: ReplicaStatus
    acknowledged: int | None
    error: str | None


@dataclass(frozen=True)
class PartitionState:
    """`high_water_mark` is None if no owner answers for it. `replicas`: those assigned, and others that the owner's session still has.
    `accepts_appends`: an append can be committed now. `unserved`: why no owner answers for it; None if one does."""

    partition: int
    server_id: int | None
    address: str | None
    generation: int
    session: int
    high_water_mark: int | None
    replicas: tuple[SurveyedReplica, ...]
    accepts_appends: bool
    unserved: str | None = None


@dataclass(frozen=True)
class ServerState:
    """`status`: the server's answer as JSON, empty if it does not answer. `statistics`: the same, parsed by this version."""

    server_id: int
    address: str
    answers: bool
    status: dict[str, Any]

    @cached_property
    def statistics(self) -> ServerStatistics:
        return from_json(ServerStatistics, self.status, unknown="ignore", missing="empty")

    @property
    def silent(self) -> list[int]:
        """Workers that do not answer, of a server that does."""
        return _silent(self.statistics.workers)


@dataclass(frozen=True)
class StorageState:
    """`address` None: the node has never been started. `status`, `statistics`: as those of `ServerState`."""

    name: str
    address: str | None
    answers: bool
    status: dict[str, Any]

    @cached_property
    def statistics(self) -> NodeStatistics:
        return from_json(NodeStatistics, self.status, unknown="ignore", missing="empty")

    @cached_property
    def failed(self) -> Mapping[int, str]:
        """By partition, why the node serves nothing of it, as the partition itself says."""
        return {each.partition: each.failed for each in self.statistics.partitions if each.failed is not None}

    @cached_property
    def silent(self) -> list[int]:
        """Workers that do not answer, of a node that does."""
        return _silent(self.statistics.workers)


@dataclass(frozen=True)
class Survey:
    name: str
    key: str
    partitions: tuple[PartitionState, ...]
    servers: tuple[ServerState, ...]
    storages: tuple[StorageState, ...]
    drained: tuple[str, ...] = ()
    """Servers, by address, and storage nodes, by name, that an operator drained."""

    @property
    def ready(self) -> bool:
        """Every partition has an owner that serves it and a majority of replicas that can accept appends."""
        return all(each.accepts_appends for each in self.partitions)

    @cached_property
    def expected_storages(self) -> tuple[StorageState, ...]:
        """Those that the cluster waits for: all but drained ones without a replica, which may be gone."""
        holding = {replica.name for each in self.partitions for replica in each.replicas}
        return tuple(node for node in self.storages if node.name in holding or node.name not in self.drained)

    @property
    def complete(self) -> bool:
        """Ready, every node of the cluster answers, with all its workers, and every replica counts towards the majority of its partition. A drained
        storage node without a replica does not count."""
        nodes: tuple[ServerState | StorageState, ...] = (*self.servers, *self.expected_storages)
        whole = all(replica.status.counts for each in self.partitions for replica in each.replicas)
        return self.ready and whole and all(node.answers and not node.silent for node in nodes)

    @property
    def missing(self) -> str:
        """Why it is not complete, in words; empty if it is."""
        parts = [
            ("partitions without an owner", [f"{each.partition} ({each.unserved})" for each in self.partitions if each.high_water_mark is None]),
            ("partitions without a majority that can take appends", [_short_of(each) for each in self.partitions if _lacks_majority(each)]),
            ("replicas that do not count", [_short_of(each) for each in self.partitions if not _lacks_majority(each) and _is_short(each)]),
            ("servers that do not answer", [each.address for each in self.servers if not each.answers]),
            ("storage nodes that do not answer", [each.name for each in self.expected_storages if not each.answers]),
            ("workers that do not answer", [f"{each.address}/{worker}" for each in self.servers for worker in each.silent]),
            ("storage workers that do not answer", [f"{each.name}/{worker}" for each in self.expected_storages for worker in each.silent]),
        ]
        return "; ".join(f"{what}: {', '.join(names)}" for what, names in parts if names)


def _lacks_majority(state: PartitionState) -> bool:
    return state.high_water_mark is not None and not state.accepts_appends


def _is_short(state: PartitionState) -> bool:
    """Whether a replica of a node that answers does not count. Those of the other nodes are missing with their nodes."""
    silent = (ReplicaStatus.UNREACHABLE, ReplicaStatus.NEVER_STARTED)
    return state.high_water_mark is not None and any(not each.status.counts and each.status not in silent for each in state.replicas)


def _short_of(state: PartitionState) -> str:
    return f"{state.partition} ({', '.join(f'{each.name} {each.status}' for each in state.replicas if not each.status.counts)})"


def _silent(workers: Iterable[WorkerStatistics]) -> list[int]:
    return [each.worker for each in workers if not each.answers]


async def survey(coordinator: Values, network: Network, address: str, *, call_timeout_s: float = CALL_TIMEOUT_S) -> Survey:
    """A node that takes longer than `call_timeout_s` counts as one that does not answer. Raises `ClusterUnavailable` if the address has no
    cluster."""
    ask = partial(_ask, network, call_timeout_s)
    node = await coordinator.get(paths.CLUSTER)
    if node is None:
        raise ClusterUnavailable(address=address, reason="no cluster there, `waltz cluster create` makes one")
    cluster = parsed(paths.CLUSTER, node, ClusterParameters.from_bytes)
    assignment_node, replicas_node, server_names, storage_names = await asyncio.gather(
        coordinator.get(paths.ASSIGNMENT),
        coordinator.get(paths.REPLICAS),
        coordinator.children(paths.SERVERS),
        coordinator.children(paths.STORAGE_NODES),
    )
    assignment = parsed(paths.ASSIGNMENT, assignment_node, Assignment.from_bytes) if assignment_node else Assignment()
    replicas = parsed(paths.REPLICAS, replicas_node, ReplicaAssignment.from_bytes).replicas if replicas_node else {}
    names = sorted({name for held in replicas.values() for name in held} | set(storage_names))
    server_nodes, storage_nodes = await asyncio.gather(
        _read_all(coordinator, paths.SERVERS, server_names), _read_all(coordinator, paths.STORAGE_NODES, names)
    )
    of_servers = (readable(f"{paths.SERVERS}/{name}", each, ServerEntry.from_bytes) for name, each in zip(server_names, server_nodes, strict=True))
    entries = [each for each in of_servers if each is not None]
    of_storages = zip(names, storage_nodes, strict=True)
    nodes = [readable(f"{paths.STORAGE_NODES}/{name}", each, StorageNodeEntry.from_bytes) for name, each in of_storages]
    bounds, servers, storages, metadata = await asyncio.gather(  # the nodes answer while the coordinator does
        _bounds(ask, cluster, assignment),
        asyncio.gather(*(_server(ask, cluster, entry) for entry in entries)),
        asyncio.gather(*(_storage(ask, cluster, name, entry) for name, entry in zip(names, nodes, strict=True))),
        asyncio.gather(*(coordinator.get(paths.partition_path(partition)) for partition in range(cluster.partitions))),
    )
    by_id = {server.server_id: server for server in servers}
    by_name = {storage.name: storage for storage in storages}
    states = []
    for partition in range(cluster.partitions):
        owned, found = assignment.partitions.get(partition), metadata[partition]
        kept = readable(paths.partition_path(partition), found, PartitionMetadata.from_bytes)
        owner = by_id.get(owned.server_id) if owned and owned.server_id is not None else None
        session = _session_of(owner, partition)
        assigned = replicas.get(partition, ())
        shown = tuple(
            _replica(by_name.get(name) or StorageState(name, None, False, {}), partition, session.get(name))
            for name in (*assigned, *sorted(session.keys() - set(assigned)))
        )
        counted = {name for name, reported in session.items() if reported.counts}
        deciding = [each.status for each in shown if not session or each.name in counted]
        states.append(
            PartitionState(
                partition,
                owned.server_id if owned else None,
                assignment.address_of(partition),
                owned.generation if owned else -1,
                kept.session if kept else _reported_session(owner, partition),
                bounds.get(partition),
                shown,
                can_commit(served=partition in bounds, replicas=deciding),
                None if partition in bounds else _unserved_reason(owned, owner, partition),
            )
        )
    return Survey(cluster.name, str(cluster.key), tuple(states), tuple(servers), tuple(storages), assignment.drained)


def _unserved_reason(assigned: Ownership | None, owner: ServerState | None, partition: int) -> str:
    if assigned is None or assigned.server_id is None:
        return "assigned to no server"
    server = f"server {assigned.server_id}"
    if owner is None:
        return f"assigned to {server}, which is not in the cluster"
    if not owner.answers:
        return f"{server} does not answer"
    found = owner.statistics.partitions.get(partition)
    if isinstance(found, RecoveringPartitionStatistics):
        return f"{server} recovers it: {found.error or 'waiting for replicas'}"
    return f"{server} has not opened it" if found is None else f"{server} has just opened it"


def _reported_session(owner: ServerState | None, partition: int) -> int:
    """-1: no owner reports one."""
    found = None if owner is None else owner.statistics.partitions.get(partition)
    return found.session if isinstance(found, OpenPartitionStatistics) else -1


def _session_of(owner: ServerState | None, partition: int) -> Mapping[str, ReplicaStatistics]:
    """The owner's statistics of each replica in its session; empty if no owner answers."""
    found = None if owner is None else owner.statistics.partitions.get(partition)
    return found.replicas if isinstance(found, OpenPartitionStatistics) else {}


def _replica(storage: StorageState, partition: int, reported: ReplicaStatistics | None) -> SurveyedReplica:
    node = storage.statistics
    workers = node.workers
    answers = storage.answers and (not workers or worker_of(partition, len(workers)) not in storage.silent)
    stopped, reason = _stopped(storage, partition)
    status = surveyed_status(
        started=storage.address is not None,
        answers=answers,
        stopped=stopped,
        owner=None if reported is None else reported.state,
        repairing=partition in node.repairing,
    )
    error = reason or _corruption(node, partition) or (None if reported is None else reported.error)
    return SurveyedReplica(storage.name, status, None if reported is None else reported.acknowledged, error)


def _stopped(storage: StorageState, partition: int) -> tuple[ReplicaStatus | None, str | None]:
    """Why the storage node serves nothing of the partition: the word and the reason. Neither where it serves it."""
    node = storage.statistics
    reason = node.stopped.get(partition)
    if reason is not None:
        return (ReplicaStatus.CORRUPT if partition in node.corrupt else ReplicaStatus.FAILED), reason
    failed = storage.failed.get(partition)
    return (None, None) if failed is None else (ReplicaStatus.FAILED, failed)


def _corruption(node: NodeStatistics, partition: int) -> str | None:
    """What the node says of the first corrupt segment of the partition."""
    damaged = {} if node.scrub is None else node.scrub.damaged
    return next((f"corrupt segment {name}: {damaged[name]}" for name in sorted(damaged) if name.startswith(f"{partition}/")), None)


async def _read_all(coordinator: Values, folder: str, names: Iterable[str]) -> list[Any]:
    return await asyncio.gather(*(coordinator.get(f"{folder}/{name}") for name in names))


async def _ask(network: Network, timeout_s: float, address: str, method: CallMethod[Request, Response], request: Request) -> Response | None:
    channel = network.connect(address)
    try:
        return await channel.call(method, request, timeout_s=timeout_s)
    except WaltzError:
        return None
    finally:
        await channel.close()


async def _bounds(ask: Ask, cluster: ClusterParameters, assignment: Assignment) -> dict[int, int]:
    owned: dict[str, list[int]] = {}
    for partition in range(cluster.partitions):
        address = assignment.address_of(partition)
        if address is not None:
            owned.setdefault(address, []).append(partition)
    requests = [(address, pb.BoundRequest(partitions=numbers, cluster_key=cluster.key.bytes)) for address, numbers in owned.items()]
    answers = await asyncio.gather(*(ask(address, methods.BOUND, request) for address, request in requests))
    return {bound.partition: bound.high_water_mark for answer in answers if answer is not None for bound in answer.bounds}


async def _server(ask: Ask, cluster: ClusterParameters, entry: ServerEntry) -> ServerState:
    found = _status(cluster, await ask(entry.address, methods.SERVER_STATUS, pb.ServerStatusRequest()))
    state = ServerState(entry.server_id, entry.address, found is not None, found or {})
    return state if _readable(state) else replace(state, answers=False, status={})


async def _storage(ask: Ask, cluster: ClusterParameters, name: str, entry: StorageNodeEntry | None) -> StorageState:
    found = _status(cluster, await ask(entry.address, methods.STORAGE_STATUS, pb.StorageStatusRequest())) if entry else None
    state = StorageState(name, entry.address if entry else None, found is not None, found or {})
    return state if _readable(state) else replace(state, answers=False, status={})


def _readable(state: ServerState | StorageState) -> bool:
    """A node whose answer this version cannot read counts as one that does not answer."""
    try:
        return state.statistics is not None
    except ProtocolViolation as error:
        log.warning("status of a node cannot be read", address=state.address, error=str(error))
        return False


def _status(cluster: ClusterParameters, answer: pb.ServerStatusResponse | pb.StorageStatusResponse | None) -> dict[str, Any] | None:
    """None also where a node of another cluster has the address by now."""
    if answer is None:
        return None
    status = dict(json.loads(answer.json)) if answer.json else {}
    return status if status.get("cluster_key", str(cluster.key)) == str(cluster.key) else None
