"""Making a cluster in a coordinator, and reading what it is. Decides which storage nodes hold which partition at the start.

The node `/cluster` is made by compare-and-set and decides who made the cluster; it is never changed. A creation that died between it and the
replica assignment is finished by repeating it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from uuid import UUID

from waltz_log.core.adoption import Adoption
from waltz_log.core.metadata import (
    ASSIGNMENT,
    CLIENT_IDS,
    CLUSTER,
    REPLICAS,
    Assignment,
    ClusterParameters,
    Ownership,
    ReplicaAssignment,
    partition_path,
)
from waltz_log.core.ports import Coordinator
from waltz_log.errors import InvalidRequest

__all__ = ["PARTITIONS_MAX", "adopt_cluster", "create_cluster", "place_replicas"]

PARTITIONS_MAX = 4096
"""The assignment of all partitions is one ZooKeeper node, which holds 1 MB."""

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


def place_replicas(partitions: int, storages: Sequence[str], replication: int) -> ReplicaAssignment:
    """Round robin: each node holds as many partitions as any other, give or take one. Raises `InvalidRequest` where it cannot be."""
    if not 1 <= partitions <= PARTITIONS_MAX:
        raise InvalidRequest(reason=f"partitions must be 1 to {PARTITIONS_MAX}, not {partitions}")
    for name in storages:
        if not _NAME.fullmatch(name):
            raise InvalidRequest(reason=f"not a name for a storage node: {name!r}, wanted lower-case letters, digits, dots and dashes")
    if len(set(storages)) != len(storages):
        raise InvalidRequest(reason=f"a storage node is named twice: {', '.join(storages)}")
    if not 1 <= replication <= len(storages):
        raise InvalidRequest(reason=f"{replication} replicas do not fit on {len(storages)} storage nodes")
    return ReplicaAssignment(
        {partition: tuple(storages[(partition + n) % len(storages)] for n in range(replication)) for partition in range(partitions)}
    )


async def create_cluster(
    coordinator: Coordinator, *, name: str, key: UUID, partitions: int, storages: Sequence[str], replication: int
) -> ClusterParameters:
    """The new cluster's parameters. Raises `InvalidRequest` where there is one already, or where the arguments do not fit together."""
    if not _NAME.fullmatch(name):
        raise InvalidRequest(reason=f"not a name for a cluster: {name!r}, wanted lower-case letters, digits, dots and dashes")
    assignment = place_replicas(partitions, storages, replication)
    parameters = ClusterParameters(name, key, partitions)
    if not await coordinator.create(CLUSTER, parameters.to_bytes()):
        node = await coordinator.get(CLUSTER)
        found = parameters if node is None else ClusterParameters.from_bytes(node.data)
        unfinished = await coordinator.get(REPLICAS) is None and (found.name, found.partitions) == (name, partitions)
        if found.key != key and not unfinished:
            raise InvalidRequest(reason=f"there is a cluster already: name={found.name} key={found.key} partitions={found.partitions}")
        parameters = found
    await coordinator.create(REPLICAS, assignment.to_bytes())
    return parameters


async def adopt_cluster(coordinator: Coordinator, *, name: str, found: Adoption) -> ClusterParameters:
    """A new cluster around replicas that hold data: their key, metadata by which recovery finds what was committed, and numbers that go on above
    those in the log. Raises `InvalidRequest` where there is a cluster already. Everything else is written before the cluster's own node, so that one
    that was cut short is none, and is repeated."""
    if not _NAME.fullmatch(name):
        raise InvalidRequest(reason=f"not a name for a cluster: {name!r}, wanted lower-case letters, digits, dots and dashes")
    for node in sorted({node for names in found.replicas.values() for node in names}):
        if not _NAME.fullmatch(node):
            raise InvalidRequest(reason=f"not a name for a storage node: {node!r}, wanted lower-case letters, digits, dots and dashes")
    there = await coordinator.get(CLUSTER)
    if there is not None:
        known = ClusterParameters.from_bytes(there.data)
        raise InvalidRequest(reason=f"there is a cluster already: name={known.name} key={known.key} partitions={known.partitions}")
    owners = Assignment({partition: Ownership(None, metadata.generation) for partition, metadata in found.metadata.items()})
    values = {partition_path(partition): metadata.to_bytes() for partition, metadata in found.metadata.items()}
    values |= {ASSIGNMENT: owners.to_bytes(), CLIENT_IDS: b"%d" % found.client_id, REPLICAS: ReplicaAssignment(found.replicas).to_bytes()}
    for path, value in values.items():
        if not await coordinator.create(path, value):
            await coordinator.set(path, value, -1)
    parameters = ClusterParameters(name, found.key, len(found.replicas))
    if not await coordinator.create(CLUSTER, parameters.to_bytes()):
        raise InvalidRequest(reason="somebody else made a cluster there at the same time")
    return parameters
