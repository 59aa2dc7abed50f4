"""The values of the coordinator that nodes follow, and what a process does when one of them is missing, cannot be read or is older than it was.

It keeps what it knew, and reports the value as refused, in the log, in its statistics and as a metric. A process that knows nothing of a value yet
refuses what depends on it. `waltz cluster repair` writes back what nodes know. What a process knows does not outlive it, except rules and topics on
storage nodes (`coordination.remembered_values`). A process of a secure cluster asks the others when it starts (`coordination.other_nodes`).

| value | path | older means |
|---|---|---|
| rules of access | `/access` | a lower revision, or other rules of the same revision |
| topics | `/topics` | fewer topics were ever created |
| assignment | `/assignment` | a lower generation of a partition, or fewer partitions |
| servers | `/servers/<id>` | none: an entry is there while its server lives |
| subscribers | `/subscribers/<name>` | a lower mark |
| parameters | `/cluster` | a lower epoch, fewer partitions of the same epoch, or another key |
| replica assignment | `/store/assignment` | fewer partitions |
| storage nodes | `/store/nodes/<name>` | fewer starts |
| retained marks | `/store/retained/<id>` | a lower mark |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar, cast  # Any: values of all kinds

from waltz_log.coordination.entries import UNREADABLE
from waltz_log.core import metadata as paths
from waltz_log.core.metadata import Assignment, ClusterParameters, ReplicaAssignment, ServerEntry, StorageNodeEntry
from waltz_log.core.ports import Node, Values
from waltz_log.core.retention import RETAINED, Retained
from waltz_log.core.topics.catalogue import CATALOGUE, Catalogue
from waltz_log.core.topics.subscribers import SUBSCRIBERS, Subscriber
from waltz_log.errors import PermissionDenied, Unavailable
from waltz_log.loggers import get_logger
from waltz_log.security.rules import ACCESS, AccessRules

__all__ = [
    "ASSIGNMENT",
    "FOLLOWED",
    "PARAMETERS",
    "REPLICA_ASSIGNMENT",
    "RETAINED_MARKS",
    "RULES",
    "SERVER_ENTRIES",
    "STORAGE_ENTRIES",
    "SUBSCRIBER_ENTRIES",
    "TOPICS",
    "FollowedValue",
    "KnownValues",
]

log = get_logger(__name__)

T = TypeVar("T")

REASON_MAX: Final = 200
"""Characters of a reason: an error of a parser may quote the value."""

ENTRIES_MAX: Final = 10_000
"""Entries of folders that are remembered. Above it the oldest ones are forgotten; nodes and partitions of a cluster are fewer."""


@dataclass(frozen=True)
class FollowedValue(Generic[T]):
    """`path`: of the value, or of the folder of its entries. `parse` raises any error for bytes that are none. `is_older(new, known)`: whether the
    new value was replaced by the known one before, so that it must come from an earlier state of the coordinator."""

    name: str
    path: str
    parse: Callable[[bytes], T]
    is_older: Callable[[T, T], bool]


def _of_earlier_rules(new: AccessRules, known: AccessRules) -> bool:
    return new.revision < known.revision or (new.revision == known.revision and new != known)


def _of_earlier_owners(new: Assignment, known: Assignment) -> bool:
    return any(each not in new.partitions or new.partitions[each].generation < owned.generation for each, owned in known.partitions.items())


def _of_earlier_marks(new: Subscriber, known: Subscriber) -> bool:
    same = new.created_ms == known.created_ms
    return same and any(new.marks.get(partition, -1) < mark for partition, mark in known.marks.items())


RULES: Final = FollowedValue("rules of access", ACCESS, AccessRules.from_bytes, _of_earlier_rules)
TOPICS: Final = FollowedValue("topics", CATALOGUE, Catalogue.from_bytes, lambda new, known: new.epochs < known.epochs)
ASSIGNMENT: Final = FollowedValue("assignment", paths.ASSIGNMENT, Assignment.from_bytes, _of_earlier_owners)
SERVER_ENTRIES: Final = FollowedValue("servers", paths.SERVERS, ServerEntry.from_bytes, lambda new, known: False)
SUBSCRIBER_ENTRIES: Final = FollowedValue("subscribers", SUBSCRIBERS, Subscriber.from_bytes, _of_earlier_marks)
PARAMETERS: Final = FollowedValue(
    "parameters",
    paths.CLUSTER,
    ClusterParameters.from_bytes,
    lambda new, known: new.key != known.key or (new.epoch, new.partitions) < (known.epoch, known.partitions),
)
REPLICA_ASSIGNMENT: Final = FollowedValue(
    "replica assignment", paths.REPLICAS, ReplicaAssignment.from_bytes, lambda new, known: not known.replicas.keys() <= new.replicas.keys()
)
STORAGE_ENTRIES: Final = FollowedValue("storage nodes", paths.STORAGE_NODES, StorageNodeEntry.from_bytes, lambda new, known: new.start < known.start)
RETAINED_MARKS: Final = FollowedValue("retained marks", RETAINED, Retained.from_bytes, lambda new, known: new.first < known.first)

FOLLOWED: Final[Mapping[str, FollowedValue[Any]]] = MappingProxyType(
    {
        each.path: each
        for each in cast(
            "tuple[FollowedValue[Any], ...]",
            (
                RULES,
                TOPICS,
                ASSIGNMENT,
                SERVER_ENTRIES,
                SUBSCRIBER_ENTRIES,
                PARAMETERS,
                REPLICA_ASSIGNMENT,
                STORAGE_ENTRIES,
                RETAINED_MARKS,
            ),
        )
    }
)
"""By path."""


class KnownValues:
    """The known values of one process."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Any, bytes]] = {}
        """By path: the value, and the bytes that it was read from."""
        self.coordinator: Values | None = None
        """For the present session, or of the one before: while it does not answer, that is reported too."""
        self._refused: dict[str, str] = {}
        """By path, why the value that is there is not used."""
        self._expected: set[str] = set()
        """Paths of values that were there once, as this process knows from elsewhere."""

    async def get(self, coordinator: Values, kind: FollowedValue[Any], entry: str = "", *, latest: bool = False) -> Node | None:
        """The node for `accept`. Raises the errors of the coordinator; that the value is closed to this process is reported too."""
        path = f"{kind.path}/{entry}" if entry else kind.path
        try:
            return await coordinator.get(path, latest=latest)
        except PermissionDenied:
            self._judge(kind, path, "is closed to this process by its access control list")
            raise

    def accept(self, kind: FollowedValue[T], node: Node | None, entry: str = "", *, expected: bool = False) -> T | None:
        """The value to use: the one of the node, or what was known before if the node is missing, cannot be read or is older. None: nothing is known.
        `entry`: the name in the folder of the kind. `expected`: the value must be there, although this process does not know it."""
        path = f"{kind.path}/{entry}" if entry else kind.path
        known: T | None = self._known[path][0] if path in self._known else None
        if node is None:
            self._judge(kind, path, "is missing" if expected or known is not None or path in self._expected else None)
            return known
        try:
            found = kind.parse(node.data)
            older = known is not None and kind.is_older(found, known)
        except UNREADABLE as error:
            self._judge(kind, path, f"cannot be read: {type(error).__name__}: {error}")
            return known
        if older:
            self._judge(kind, path, "is older than the one that is in use")
            return known
        self._judge(kind, path, None)
        self._remember(path, found, node.data)
        return found

    def expect(self, kind: FollowedValue[T], node: Node | None, entry: str = "") -> T:
        """The same, for what nothing works without. Raises `Unavailable` if nothing is known."""
        found = self.accept(kind, node, entry, expected=True)
        if found is None:
            path = f"{kind.path}/{entry}" if entry else kind.path
            why = self._refused.get(path, "is missing")
            raise Unavailable(reason=f"{kind.name} in the coordinator: {path} {why}; `waltz cluster repair` repairs it")
        return found

    def seed(self, kind: FollowedValue[T], value: T, data: bytes) -> None:
        """What this process knows from elsewhere."""
        self._remember(kind.path, value, data)

    def learn(self, kind: FollowedValue[Any], data: bytes) -> None:
        """What another process knows: used if it is newer than what this one knows. Bytes that are no such value are reported, and not used."""
        try:
            value = kind.parse(data)
            known = self._known.get(kind.path)
            if known is None or (kind.is_older(known[0], value) and not kind.is_older(value, known[0])):
                self._remember(kind.path, value, data)
        except UNREADABLE as error:
            log.error("value of another process cannot be read", value=kind.name, reason=str(error)[:REASON_MAX])

    def expect_later(self, kind: FollowedValue[Any]) -> None:
        """The value was there once, although this process does not know it: where it is missing, it is refused."""
        self._expected.add(kind.path)

    def value(self, kind: FollowedValue[T]) -> T | None:
        """None: it is not known."""
        return self._known[kind.path][0] if kind.path in self._known else None

    def knows(self, path: str) -> bool:
        return path in self._known

    def data(self, kind: FollowedValue[Any]) -> bytes | None:
        """As the coordinator stores it; None: it is not known."""
        return self._known[kind.path][1] if kind.path in self._known else None

    def forget(self, kind: FollowedValue[Any], entry: str = "") -> None:
        """It was removed in order, so that its absence is right."""
        path = f"{kind.path}/{entry}" if entry else kind.path
        self._known.pop(path, None)
        self._judge(kind, path, None)

    def refused(self) -> dict[str, str]:
        """By path, why the value that the coordinator has is not used."""
        silent = self.coordinator is not None and not self.coordinator.reachable
        return ({"/": "does not answer"} if silent else {}) | dict(sorted(self._refused.items()))

    def values(self) -> dict[str, str]:
        """By path, what this process knows, as the coordinator stores it."""
        return {path: data.decode() for path, (_, data) in sorted(self._known.items())}

    def _remember(self, path: str, value: Any, data: bytes) -> None:
        self._known.pop(path, None)
        self._known[path] = (value, data)
        if len(self._known) > ENTRIES_MAX:
            del self._known[next(iter(self._known))]

    def _judge(self, kind: FollowedValue[Any], path: str, reason: str | None) -> None:
        before = self._refused.get(path)
        if reason is None:
            if self._refused.pop(path, None) is not None:
                log.info("value of the coordinator accepted again", value=kind.name, path=path)
            return
        reason = " ".join(reason.split())[:REASON_MAX]
        self._refused[path] = reason
        if reason != before:
            log.error("value of the coordinator refused, the known one stays in use", value=kind.name, path=path, reason=reason)
