"""Administrative actions, as a node sees them: changes of what only commands write in the coordinator. They go to the audit log.

A watch reports that a value changed, and not each of several changes that follow each other at once: the lines say what is different afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final  # values of several types, distinguished where they are compared

from waltz_log.core.metadata import ASSIGNMENT, CLUSTER, REPLICAS, Assignment, ClusterParameters, ReplicaAssignment
from waltz_log.core.ports import Coordinator
from waltz_log.core.topics.catalogue import CATALOGUE, Catalogue
from waltz_log.security.audit import acted

__all__ = ["Action", "changes", "follow_administration"]

Action = tuple[str, dict[str, Any]]
"""An event, and its facts."""

READERS: Final[Mapping[str, Callable[[bytes], Any]]] = {
    CLUSTER: ClusterParameters.from_bytes,
    REPLICAS: ReplicaAssignment.from_bytes,
    ASSIGNMENT: Assignment.from_bytes,
    CATALOGUE: Catalogue.from_bytes,
}


async def follow_administration(coordinator: Coordinator) -> None:
    """Records what changes from now on, until cancelled."""
    await asyncio.gather(*(_follow(coordinator, path) for path in READERS))


async def _follow(coordinator: Coordinator, path: str) -> None:
    node = await coordinator.get(path)
    while True:
        await coordinator.wait_changed(path, None if node is None else node.version)
        before, node = node, await coordinator.get(path)
        for event, facts in changes(path, None if before is None else before.data, None if node is None else node.data):
            acted(event, **facts)


def changes(path: str, before: bytes | None, after: bytes | None) -> Iterator[Action]:
    """What was done to the value at a path of `READERS`. None: there is none."""
    if after is None:
        return
    one, other = (None if data is None else READERS[path](data) for data in (before, after))
    if isinstance(other, ClusterParameters):
        if one is not None and one.partitions != other.partitions:
            yield "cluster grown", {"partitions": other.partitions, "before": one.partitions}
    elif isinstance(other, ReplicaAssignment):
        known = {} if one is None else one.replicas
        for partition, names in sorted(other.replicas.items()):
            if partition in known and known[partition] != names:
                yield "replicas changed", {"partition": partition, "replicas": ",".join(names), "before": ",".join(known[partition])}
    elif isinstance(other, Assignment):
        yield from _placed(Assignment() if one is None else one, other)
    elif isinstance(other, Catalogue):
        yield from _topics(Catalogue() if one is None else one, other)


def _placed(one: Assignment, other: Assignment) -> Iterator[Action]:
    if one.drained != other.drained:
        yield "nodes drained", {"nodes": ",".join(other.drained), "before": ",".join(one.drained)}
    for partition in sorted({*one.moved, *other.moved}):
        if one.moved.get(partition) != other.moved.get(partition):
            yield "owner moved", {"partition": partition, "server": other.moved.get(partition), "before": one.moved.get(partition)}


def _topics(one: Catalogue, other: Catalogue) -> Iterator[Action]:
    for name in sorted({*one.topics, *other.topics}):
        old, new = one.topics.get(name), other.topics.get(name)
        if new is None:
            yield "topic deleted", {"topic": str(name)}
        elif old is None or old.epoch != new.epoch:
            yield "topic created", {"topic": str(name), "partitions": len(new.partitions)}
        elif old.policies != new.policies:
            yield "topic changed", {"topic": str(name), "policies": str(new.policies)}
