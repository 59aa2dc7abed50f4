"""Creates a cluster in a coordinator, and grows it. Decides which storage nodes hold which partition at the start.

The node `/cluster` is created by compare-and-set, which decides concurrent creations; afterwards only its number of partitions changes, and only
upwards. If a creation or a growth died before it assigned the replicas, repeating it finishes it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from uuid import UUID

from waltz_log.coordination.client_ids import set_client_ids
from waltz_log.coordination.entries import parsed, read_entry, readable
from waltz_log.core.adoption import Adoption
from waltz_log.core.client_ids import CLIENT_ID_MAX, format_counter, parse_counter
from waltz_log.core.metadata import (
    ASSIGNMENT,
    CLIENT_IDS,
    CLUSTER,
    PARTITIONS_MAX,
    REPLICAS,
    SERVERS,
    STORAGE_NODES,
    Assignment,
    ClusterParameters,
    Ownership,
    PartitionMetadata,
    ReplicaAssignment,
    StorageNodeEntry,
    partition_path,
)
from waltz_log.core.ports import Coordinator
from waltz_log.errors import InvalidRequest

__all__ = ["adopt_cluster", "create_cluster", "expect_known", "grow_cluster", "grow_replicas", "place_replicas"]

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


def place_replicas(partitions: int, storages: Sequence[str], replication: int) -> ReplicaAssignment:
    """The numbers of replicas of any two nodes differ by at most one. Raises `InvalidRequest` if the arguments do not fit together.

    In each full round of as many partitions as there are nodes, a partition starts one node after the partition before it, which spreads a failed
    node's load over its neighbors. The last, incomplete round distributes its replicas one by one instead: one node at a time would give the nodes
    in the middle of that round up to `replication` more than those at its edges."""
    if not 1 <= partitions <= PARTITIONS_MAX:
        raise InvalidRequest(reason=f"partitions must be 1 to {PARTITIONS_MAX}, not {partitions}")
    for name in storages:
        if not _NAME.fullmatch(name):
            raise InvalidRequest(reason=f"not a name for a storage node: {name!r}, must be lower-case letters, digits, dots and dashes")
    if len(set(storages)) != len(storages):
        raise InvalidRequest(reason=f"a storage node is named twice: {', '.join(storages)}")
    if not 1 <= replication <= len(storages):
        raise InvalidRequest(reason=f"{replication} replicas do not fit on {len(storages)} storage nodes")
    nodes = len(storages)
    full_rounds = partitions - partitions % nodes
    starts = [*range(full_rounds), *(replication * each for each in range(partitions - full_rounds))]
    return ReplicaAssignment({partition: tuple(storages[(start + n) % nodes] for n in range(replication)) for partition, start in enumerate(starts)})


async def create_cluster(
    coordinator: Coordinator, *, name: str, key: UUID, partitions: int, storages: Sequence[str], replication: int
) -> ClusterParameters:
    """The new cluster's parameters. Raises `InvalidRequest` if there is one already, or if the arguments do not fit together."""
    if not _NAME.fullmatch(name):
        raise InvalidRequest(reason=f"not a name for a cluster: {name!r}, must be lower-case letters, digits, dots and dashes")
    assignment = place_replicas(partitions, storages, replication)
    parameters = ClusterParameters(name, key, partitions)
    if not await coordinator.create(CLUSTER, parameters.to_bytes()):
        node = await coordinator.get(CLUSTER)
        found = parameters if node is None else parsed(CLUSTER, node, ClusterParameters.from_bytes)
        unfinished = await coordinator.get(REPLICAS) is None and (found.name, found.partitions) == (name, partitions)
        if found.key != key and not unfinished:
            raise InvalidRequest(reason=f"there is a cluster already: name={found.name} key={found.key} partitions={found.partitions}")
        parameters = found
    await coordinator.create(CLIENT_IDS, format_counter(0))
    await coordinator.create(REPLICAS, assignment.to_bytes())
    return parameters


def expect_known(names: Iterable[str], known: Collection[str]) -> None:
    """Raises `InvalidRequest` for the first name that is no storage node's. `known`: nodes that were started, and those that replicas are assigned
    to. Otherwise replicas could be assigned to a misspelled name that no node has, or the name could pass for a node that was removed before."""
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}" if near else f"known are {', '.join(sorted(known)) or 'none'}"
            raise InvalidRequest(reason=f"no storage node of the cluster is named {name}, {hint}; a new node must be started first")


def grow_replicas(before: ReplicaAssignment, partitions: int, *, storages: Sequence[str] | None, replication: int | None) -> ReplicaAssignment:
    """The assignment with replicas for `partitions`; existing ones stay. Each new one goes to the nodes that hold fewest, in turns. `storages`: the
    nodes for new replicas, by default all that hold any; `replication`: by default that of the last partition."""
    counts = {name: 0 for held in before.replicas.values() for name in held}
    for held in before.replicas.values():
        for name in held:
            counts[name] += 1
    names = sorted(counts) if storages is None else list(storages)
    number = len(before.replicas[max(before.replicas)]) if replication is None else replication
    place_replicas(partitions, names, number)  # refuses what does not fit together
    load = {name: counts.get(name, 0) for name in names}
    found = dict(before.replicas)
    for partition in range(partitions):
        if partition in found:
            continue
        turn = {name: (at - partition) % len(names) for at, name in enumerate(names)}
        found[partition] = tuple(sorted(names, key=lambda name, turn=turn: (load[name], turn[name]))[:number])  # type: ignore[misc]
        for name in found[partition]:
            load[name] += 1
    return ReplicaAssignment(found)


async def grow_cluster(
    coordinator: Coordinator, partitions: int, *, storages: Sequence[str] | None = None, replication: int | None = None, dry_run: bool = False
) -> tuple[ClusterParameters, ReplicaAssignment]:
    """The cluster with this number of partitions, and their replicas. Existing ones stay. A second call with the same number changes nothing.
    Raises `InvalidRequest` if there is no cluster, for a lower number than before, or if the arguments do not fit together."""
    while True:
        node, held = await coordinator.get(CLUSTER, latest=True), await coordinator.get(REPLICAS)
        if node is None or held is None:
            raise InvalidRequest(reason="there is no cluster at this address: create one first")
        found = parsed(CLUSTER, node, ClusterParameters.from_bytes)
        if partitions < found.partitions:
            raise InvalidRequest(reason=f"there are {found.partitions} partitions already, and their number cannot decrease")
        before = parsed(REPLICAS, held, ReplicaAssignment.from_bytes)
        if storages is not None:
            assigned = {name for names in before.replicas.values() for name in names}
            expect_known(storages, assigned | set(await coordinator.children(STORAGE_NODES)))
        nodes = await _undrained(coordinator, before) if storages is None else storages
        assignment = grow_replicas(before, partitions, storages=nodes, replication=replication)
        wanted = replace(found, partitions=partitions)
        if dry_run:
            return wanted, assignment
        # The replicas first: a partition that is counted has them.
        if assignment != before and await coordinator.set(REPLICAS, assignment.to_bytes(), held.version) is None:
            continue
        if wanted == found or await coordinator.set(CLUSTER, wanted.to_bytes(), node.version) is not None:
            return wanted, assignment


async def _undrained(coordinator: Coordinator, held: ReplicaAssignment) -> list[str]:
    """The nodes that hold replicas and may get more."""
    node = await coordinator.get(ASSIGNMENT, latest=True)
    drained = () if node is None else parsed(ASSIGNMENT, node, Assignment.from_bytes).drained
    return sorted({name for names in held.replicas.values() for name in names} - set(drained))


CLIENT_IDS_SKIPPED = 1_000_000
"""Storage nodes know the end of the newest block of client ids that was reserved, unless their directories are older than that, or were written
before they kept it. The counter continues above so many more: ten of the largest blocks."""


async def adopt_cluster(coordinator: Coordinator, *, name: str, found: Adoption, restored: bool = False) -> ClusterParameters:
    """Creates a cluster around replicas that hold data: with their key, metadata by which recovery finds what was committed, and numbers above those
    in the log. Raises `InvalidRequest` if there is a cluster already. The cluster's own node is written last, so an interrupted run left no cluster;
    repeat it.

    `restored`: the cluster exists, with the replicas' key, and its coordinator was restored to an older state. Its partitions, owners and numbers are
    replaced, the rest (topics, subscribers, outboxes) stays as in the backup. The directories of the nodes are accepted at their next
    start, however often they were started. Raises `InvalidRequest` while log servers run. Repeat an interrupted run."""
    if not _NAME.fullmatch(name):
        raise InvalidRequest(reason=f"not a name for a cluster: {name!r}, must be lower-case letters, digits, dots and dashes")
    for node in sorted({node for names in found.replicas.values() for node in names}):
        if not _NAME.fullmatch(node):
            raise InvalidRequest(reason=f"not a name for a storage node: {node!r}, must be lower-case letters, digits, dots and dashes")
    there = await coordinator.get(CLUSTER, latest=True)
    known = None if there is None else parsed(CLUSTER, there, ClusterParameters.from_bytes)
    if restored:
        await _expect_restored(coordinator, known, found)
    elif known is not None:
        raise InvalidRequest(reason=f"there is a cluster already: name={known.name} key={known.key} partitions={known.partitions}")
    states = await _numbered_above(coordinator, found.metadata) if restored else found.metadata
    owners = Assignment({partition: Ownership(None, metadata.generation) for partition, metadata in states.items()})
    values = {partition_path(partition): metadata.to_bytes() for partition, metadata in states.items()}
    replicas = found.replicas
    if restored:
        for node in sorted({node for names in found.replicas.values() for node in names}):
            await _forget_starts(coordinator, node)
        replicas = await _replicas(coordinator, found)
    values |= {ASSIGNMENT: owners.to_bytes(), REPLICAS: ReplicaAssignment(replicas).to_bytes()}
    for path, value in values.items():
        if not await coordinator.create(path, value):
            await coordinator.set(path, value, -1)
    await set_client_ids(coordinator, await _next_client_ids(coordinator, found.client_id))
    ruled = known is not None and known.ruled
    parameters = ClusterParameters(name, found.key, len(found.replicas), _epoch_above(known, states), ruled)
    if restored and there is not None:
        if await coordinator.set(CLUSTER, parameters.to_bytes(), there.version) is None:
            raise InvalidRequest(reason="another process changed the cluster at the same time: try again")
        return parameters
    if not await coordinator.create(CLUSTER, parameters.to_bytes()):
        raise InvalidRequest(reason="another process created a cluster there at the same time")
    return parameters


def _epoch_above(known: ClusterParameters | None, states: Mapping[int, PartitionMetadata]) -> int:
    """Above every epoch before, also one that the backup does not know: servers that served an epoch opened store sessions in it, and the sessions on
    the disks of replicas only rise."""
    return max(0 if known is None else known.epoch, sum(max(0, each.session) for each in states.values())) + 1


async def _expect_restored(coordinator: Coordinator, known: ClusterParameters | None, found: Adoption) -> None:
    if known is None or known.key != found.key:
        there = "none" if known is None else f"name={known.name} key={known.key}"
        raise InvalidRequest(reason=f"the coordinator has no cluster with the key of these directories: key={found.key} found: {there}")
    if known.partitions > len(found.replicas):
        reason = f"the coordinator knows of more partitions than these directories: {known.partitions}, they have {len(found.replicas)}"
        raise InvalidRequest(reason=f"{reason}; one that has room for all must be among them")
    running = await coordinator.children(SERVERS, latest=True)
    if running:
        raise InvalidRequest(reason=f"log servers are running, stop them first: {', '.join(running)}")


async def _forget_starts(coordinator: Coordinator, name: str) -> None:
    """A directory that was started less often than recorded is refused as a copy. The ones that are adopted now are the cluster's, copy or not."""
    path = f"{STORAGE_NODES}/{name}"
    node = await coordinator.get(path, latest=True)
    if node is not None:
        entry = readable(path, node, StorageNodeEntry.from_bytes)
        if entry is None:  # it cannot be read, and the node would not start with it
            await coordinator.delete(path, node.version)
        else:
            await coordinator.set(path, replace(entry, start=0).to_bytes(), node.version)


async def _next_client_ids(coordinator: Coordinator, in_records: int) -> int:
    node = await coordinator.get(CLIENT_IDS, latest=True)
    counted = 0 if node is None else parse_counter(node.data) or 0
    return min(CLIENT_ID_MAX, max(in_records, counted) + CLIENT_IDS_SKIPPED)


async def _replicas(coordinator: Coordinator, found: Adoption) -> dict[int, tuple[str, ...]]:
    """The replicas according to the directories; for a partition that no directory holds, according to the coordinator."""
    read = readable(REPLICAS, await coordinator.get(REPLICAS, latest=True), ReplicaAssignment.from_bytes)
    known = {} if read is None else read.replicas
    return {partition: names if found.metadata[partition].replicas else known.get(partition, names) for partition, names in found.replicas.items()}


async def _numbered_above(coordinator: Coordinator, found: Mapping[int, PartitionMetadata]) -> dict[int, PartitionMetadata]:
    """With generations and session numbers that are not below those the coordinator has: owners may have opened partitions since it was set back."""
    owners = readable(ASSIGNMENT, await coordinator.get(ASSIGNMENT, latest=True), Assignment.from_bytes)
    assigned = {} if owners is None else owners.partitions
    numbered: dict[int, PartitionMetadata] = {}
    for partition, metadata in found.items():
        known = await read_entry(coordinator, partition_path(partition), PartitionMetadata.from_bytes) or metadata
        generation = max(metadata.generation, known.generation, assigned[partition].generation if partition in assigned else 0)
        numbered[partition] = replace(metadata, generation=generation, session=max(metadata.session, known.session))
    return numbered
