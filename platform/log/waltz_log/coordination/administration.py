"""Administrative actions, as a node sees them: changes of what only commands write in the coordinator. They go to the audit log.

A watch reports that a value changed, and not each of several changes that follow each other at once: the lines say what is different afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final  # values of several types, distinguished where they are compared

from waltz_log.coordination.access import rule_changes
from waltz_log.coordination.entries import UNREADABLE
from waltz_log.core.metadata import ASSIGNMENT, CLUSTER, REPLICAS, Assignment, ClusterParameters, ReplicaAssignment
from waltz_log.core.ports import Coordinator
from waltz_log.core.topics.catalogue import CATALOGUE, Catalogue
from waltz_log.loggers import get_logger
from waltz_log.security.audit_log import acted
from waltz_log.security.rules import ACCESS, AccessRules

__all__ = ["PATHS", "Action", "AdministrationAudit", "changes"]

log = get_logger(__name__)

Action = tuple[str, dict[str, Any]]
"""An event, and its facts."""


class AdministrationAudit:
    """The administration audit of one process. It outlives the sessions of its coordinator, and records at the beginning of a session what changed
    since the one before. `rules`: also of changes of the rules of access, for a process that does not enforce them itself."""

    def __init__(self, *, rules: bool = False) -> None:
        self._paths = (*PATHS, ACCESS) if rules else PATHS
        self._seen: dict[str, bytes | None] = {}
        """By path, the last value."""

    async def follow(self, coordinator: Coordinator) -> None:
        """Records what changes, until cancelled. Raises `ClusterUnavailable` when the session ends."""
        await asyncio.gather(*(self._follow(coordinator, path) for path in self._paths))

    async def _follow(self, coordinator: Coordinator, path: str) -> None:
        node = await coordinator.get(path, latest=True)  # a member that is behind would show an older value than the session before
        while True:
            data = None if node is None else node.data
            try:
                actions = list(changes(path, self._seen[path], data)) if path in self._seen else []
            except UNREADABLE as error:
                log.error("administrative action not recorded, the value cannot be read", path=path, reason=str(error))
            else:
                for event, facts in actions:
                    acted(event, **facts)
                self._seen[path] = data
            await coordinator.wait_changed(path, None if node is None else node.version)
            node = await coordinator.get(path)


def changes(path: str, before: bytes | None, after: bytes | None) -> Iterator[Action]:
    """What was done to the value at one of `PATHS`, or to the rules of access. None: there is none."""
    if after is not None:
        yield from _CHANGES[path](before, after)


def _grown(before: bytes | None, after: bytes) -> Iterator[Action]:
    other = ClusterParameters.from_bytes(after)
    one = other if before is None else ClusterParameters.from_bytes(before)
    if one.partitions != other.partitions:
        yield "cluster grown", {"partitions": other.partitions, "before": one.partitions}


def _replicas(before: bytes | None, after: bytes) -> Iterator[Action]:
    known = {} if before is None else ReplicaAssignment.from_bytes(before).replicas
    for partition, names in sorted(ReplicaAssignment.from_bytes(after).replicas.items()):
        if partition in known and known[partition] != names:
            yield "replicas changed", {"partition": partition, "replicas": ",".join(names), "before": ",".join(known[partition])}


def _placed(before: bytes | None, after: bytes) -> Iterator[Action]:
    one, other = Assignment() if before is None else Assignment.from_bytes(before), Assignment.from_bytes(after)
    if one.drained != other.drained:
        yield "nodes drained", {"nodes": ",".join(other.drained), "before": ",".join(one.drained)}
    for partition in sorted({*one.moved, *other.moved}):
        if one.moved.get(partition) != other.moved.get(partition):
            yield "owner moved", {"partition": partition, "server": other.moved.get(partition), "before": one.moved.get(partition)}


def _topics(before: bytes | None, after: bytes) -> Iterator[Action]:
    one, other = Catalogue() if before is None else Catalogue.from_bytes(before), Catalogue.from_bytes(after)
    for name in sorted({*one.topics, *other.topics}):
        old, new = one.topics.get(name), other.topics.get(name)
        if new is None:
            yield "topic deleted", {"topic": str(name)}
        elif old is None or old.epoch != new.epoch:
            yield "topic created", {"topic": str(name), "partitions": len(new.partitions)}
        elif old.policies != new.policies:
            yield "topic changed", {"topic": str(name), "policies": str(new.policies)}


def _rules(before: bytes | None, after: bytes) -> Iterator[Action]:
    yield from rule_changes(None if before is None else AccessRules.from_bytes(before), AccessRules.from_bytes(after))


_CHANGES: Final[Mapping[str, Callable[[bytes | None, bytes], Iterator[Action]]]] = {
    CLUSTER: _grown,
    REPLICAS: _replicas,
    ASSIGNMENT: _placed,
    CATALOGUE: _topics,
    ACCESS: _rules,
}
PATHS: Final = tuple(path for path in _CHANGES if path != ACCESS)
"""What only commands write."""
