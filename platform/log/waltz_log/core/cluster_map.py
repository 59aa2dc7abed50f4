"""What clients know about a cluster, and how it changes on its way to them (docs/internals/cluster_map.md). Pure.

The map consists of sources. A source is one node of the coordinator, with the number of the change that wrote it as version, and named items with
JSON values. The coordinator numbers the changes of all its nodes in one order, so the state of a source with a higher version is newer, whichever
server read it. Servers read their sources at different moments, so versions are compared for each source and never summed up in one number.

| source | node | items |
|---|---|---|
| `cluster` | `/cluster` | `parameters` |
| `assignment` | `/assignment` | an owner for each partition (`p/3`), each server's addresses (`s/7`) and name (`n/7`) |
| `replicas` | `/store/assignment` | the storage nodes of each partition (`p/3`) |
| `node/<name>` | `/store/nodes/<name>` | `entry` |
| `topics` | `/topics` | a topic for each name, of those that the follower may see |
| `rights` | `/access` | none: the version of the rules by which topics were chosen |

A `Register` keeps a source as a server knows it, and the difference to each earlier version that it remembers. A `ClusterMap` is what a client knows;
it never goes back. The epoch stands above all versions: it rises when an operator has adopted a coordinator that was restored from a backup, which
turns its numbers back. Until then, the coordinator may give a number again, to another change. A follower therefore states with each version the
fingerprint of its items. A server that knew other items at this version, or does not know, sends the whole source.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Final

from waltz_log.core.metadata import Assignment, ClusterParameters, ReplicaAssignment, StorageNodeEntry
from waltz_log.core.topics.catalogue import Catalogue
from waltz_log.errors import ProtocolViolation, WaltzError

__all__ = [
    "ASSIGNMENT_SOURCE",
    "CLUSTER_SOURCE",
    "EVERYTHING",
    "NODE_SOURCE",
    "REPLICAS_SOURCE",
    "RIGHTS_SOURCE",
    "TOPICS_SOURCE",
    "ClusterMap",
    "MapPart",
    "Register",
    "assignment_items",
    "chunks",
    "fingerprint",
    "is_behind",
    "node_source",
    "parameters_items",
    "replicas_items",
    "topic_items",
]

CLUSTER_SOURCE: Final = "cluster"
ASSIGNMENT_SOURCE: Final = "assignment"
REPLICAS_SOURCE: Final = "replicas"
TOPICS_SOURCE: Final = "topics"
RIGHTS_SOURCE: Final = "rights"
NODE_SOURCE: Final = "node/"

EVERYTHING: Final = -1
"""The base of a part that replaces all items of its source."""

REMOVED_MAX: Final = 4096
"""Removals that a register remembers: the topics and partitions of a large change. A follower that is further behind gets everything."""

KNOWN_MAX: Final = 1024
"""Versions of which a register remembers the fingerprint. A follower that is further behind gets everything."""

ITEM_BYTES: Final = 16
"""What an item costs in a message besides its name and value."""


@dataclass(frozen=True, slots=True)
class MapPart:
    """What changed in a source from version `base` to `version`; all of it if the base is `EVERYTHING`."""

    source: str
    base: int
    version: int
    items: Mapping[str, bytes] = field(default_factory=dict)
    removed: tuple[str, ...] = ()


def node_source(name: str) -> str:
    """The source of a storage node's entry."""
    return NODE_SOURCE + name


def fingerprint(items: Mapping[str, bytes]) -> int:
    """64 bits, the same for the same items in any order."""
    return sum(map(_fingerprint_of, items.items())) & _MASK


_MASK: Final = (1 << 64) - 1


def _fingerprint_of(item: tuple[str, bytes]) -> int:
    name, value = item
    return int.from_bytes(blake2b(name.encode() + b"\0" + value, digest_size=8).digest())


def is_behind(own: Mapping[str, int], own_epoch: int, stated: Mapping[str, int], stated_epoch: int) -> bool:
    """Whether a server with its `own` versions knows an older state of any source than a follower that states these."""
    if stated_epoch != own_epoch:
        return stated_epoch > own_epoch
    return any(version > own.get(source, -1) for source, version in stated.items() if source in own or not source.startswith(NODE_SOURCE))


# ---- a source as a server knows it -----------------------------------------------------------------------------------------------------------------


class Register:
    """One source. `part_since` is what a follower lacks that has a version."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.version = -1
        self.items: dict[str, bytes] = {}
        self._changed: dict[str, int] = {}
        self._removed: dict[str, int] = {}
        self._floor = 0
        """The first version to which the difference is known."""
        self._fingerprint = 0
        self._known: deque[tuple[int, int]] = deque(maxlen=KNOWN_MAX)
        """Versions with their fingerprints, the newest last."""

    def update(self, version: int, items: Mapping[str, bytes]) -> bool:
        """The state that was read at this version. Returns whether it is newer than the known one; an older state changes nothing."""
        if version <= self.version:
            return False
        if self.version < 0:
            self._floor = version
        for name in self.items.keys() - items.keys():
            self._fingerprint -= _fingerprint_of((name, self.items[name]))
            self._changed.pop(name, None)
            self._removed[name] = version
        for name, value in items.items():
            before = self.items.get(name)
            if before != value:
                self._fingerprint += _fingerprint_of((name, value)) - (0 if before is None else _fingerprint_of((name, before)))
                self._changed[name] = version
                self._removed.pop(name, None)
        self.version, self.items = version, dict(items)
        self._known.append((version, self._fingerprint & _MASK))
        self._forget()
        return True

    def knew(self, version: int, fingerprint: int) -> bool:
        """Whether the items with this fingerprint were the source's at this version. False also where that is not known any more."""
        return (version, fingerprint) in self._known

    def reset(self, items: Mapping[str, bytes]) -> None:
        """Other items at the same version: what the follower may see changed. No earlier state is comparable."""
        self.items = dict(items)
        self._changed.clear()
        self._removed.clear()
        self._floor = self.version
        self._fingerprint = fingerprint(items)
        self._known.clear()
        self._known.append((self.version, self._fingerprint))

    def _forget(self) -> None:
        while len(self._removed) > REMOVED_MAX:
            name = next(iter(self._removed))  # removals are in the order of their versions, but for names that were there again
            self._floor = max(self._floor, self._removed.pop(name))

    def part_since(self, version: int | None) -> MapPart | None:
        """None: the follower lacks nothing."""
        if version == self.version:
            return None
        if version is None or not self._floor <= version < self.version:
            return MapPart(self.source, EVERYTHING, self.version, dict(self.items))
        items = {name: self.items[name] for name, changed in self._changed.items() if changed > version}
        removed = tuple(name for name, at in self._removed.items() if at > version)
        return MapPart(self.source, version, self.version, items, removed)


def chunks(parts: Iterable[MapPart], bytes_max: int) -> list[list[MapPart]]:
    """The parts in messages of about this size, which the follower applies together. A large part is split: its pieces have the same base and
    version, and follow each other."""
    found: list[list[MapPart]] = [[]]
    size = 0
    for part in parts:
        piece: dict[str, bytes] = {}
        removed: list[str] = []

        def finish(part: MapPart = part) -> None:
            nonlocal piece, removed
            found[-1].append(replace(part, items=piece, removed=tuple(removed)))
            piece, removed = {}, []

        for name, value in (*part.items.items(), *((name, None) for name in part.removed)):
            cost = len(name) + ITEM_BYTES + (0 if value is None else len(value))
            if size and size + cost > bytes_max:
                finish()
                found.append([])
                size = 0
            size += cost
            if value is None:
                removed.append(name)
            else:
                piece[name] = value
        finish()
    return found


# ---- the map as a client knows it ------------------------------------------------------------------------------------------------------------------


def _joined(parts: Sequence[MapPart]) -> dict[str, MapPart]:
    """By source, the pieces put together. Raises `ProtocolViolation` for pieces that do not belong together."""
    found: dict[str, MapPart] = {}
    for part in parts:
        before = found.get(part.source)
        if before is None:
            found[part.source] = part
        elif (before.base, before.version) != (part.base, part.version):
            raise ProtocolViolation(reason=f"pieces of the map's source {part.source} differ in their versions")
        else:
            found[part.source] = replace(before, items={**before.items, **part.items}, removed=(*before.removed, *part.removed))
    return found


class ClusterMap:
    """`apply` all parts of one answer together; the properties are what they say."""

    def __init__(self) -> None:
        self.epoch = -1
        self._versions: dict[str, int] = {}
        self._items: dict[str, dict[str, bytes]] = {}
        self._values: dict[str, object] = {}

    @property
    def versions(self) -> Mapping[str, int]:
        """To state when following again. Those of storage nodes that hold no partition any more are not among them."""
        return self._versions

    def fingerprints(self) -> dict[str, int]:
        """The fingerprints of each source, to state with its version."""
        return {source: fingerprint(items) for source, items in self._items.items()}

    def holds(self, epoch: int, versions: Mapping[str, int]) -> bool:
        """Whether the map is as new as these versions."""
        if epoch != self.epoch:
            return epoch < self.epoch
        return all(self._versions.get(source, -1) >= version for source, version in versions.items())

    def apply(self, epoch: int, parts: Sequence[MapPart]) -> set[str]:
        """Returns the sources that changed. Parts of an older state, or of an earlier epoch, change nothing. Raises `ProtocolViolation`, and changes
        nothing, if a difference begins above what is known: a change was lost on the way, so everything must be read again. The same for values that
        cannot be read."""
        if epoch < self.epoch:
            return set()
        versions, items = (self._versions, self._items) if epoch == self.epoch else ({}, {})
        changed: dict[str, tuple[int, dict[str, bytes]]] = {}
        for source, part in _joined(parts).items():
            known = versions.get(source, -1)
            if part.version < known:
                continue
            if part.base == EVERYTHING:
                changed[source] = part.version, dict(part.items)
                continue
            if part.base > known:
                raise ProtocolViolation(reason=f"changes of the map's source {source} are missing: known={known} base={part.base}")
            if part.version > known:
                left = {name: value for name, value in items[source].items() if name not in part.removed}
                changed[source] = part.version, {**left, **part.items}
        parsed = {source: _parsed(source, values) for source, (_, values) in changed.items()}
        if epoch > self.epoch:
            self.epoch, self._versions, self._items, self._values = epoch, {}, {}, {}
        for source, (version, values) in changed.items():
            self._versions[source], self._items[source], self._values[source] = version, values, parsed[source]
        if REPLICAS_SOURCE in changed:
            self._drop_nodes()
        return set(changed)

    def _drop_nodes(self) -> None:
        """Storage nodes that hold no partition any more: servers send nothing more about them."""
        held = {node_source(name) for names in self.replicas.replicas.values() for name in names}
        for source in [each for each in self._versions if each.startswith(NODE_SOURCE) and each not in held]:
            del self._versions[source], self._items[source], self._values[source]

    @property
    def parameters(self) -> ClusterParameters:
        """Raises `ProtocolViolation` if nothing was applied yet."""
        found = self._values.get(CLUSTER_SOURCE)
        if not isinstance(found, ClusterParameters):
            raise ProtocolViolation(reason="the map has no parameters of a cluster")
        return found

    @property
    def assignment(self) -> Assignment:
        """Owners and their addresses; the rest of an assignment is not for clients."""
        found = self._values.get(ASSIGNMENT_SOURCE)
        return found if isinstance(found, Assignment) else Assignment()

    @property
    def replicas(self) -> ReplicaAssignment:
        """The names of the storage nodes that hold each partition."""
        found = self._values.get(REPLICAS_SOURCE)
        return found if isinstance(found, ReplicaAssignment) else ReplicaAssignment({})

    @property
    def catalogue(self) -> Catalogue:
        """The topics that this client may see."""
        found = self._values.get(TOPICS_SOURCE)
        return found if isinstance(found, Catalogue) else Catalogue()

    def node(self, name: str) -> StorageNodeEntry | None:
        """A storage node that holds a partition; None: it never registered."""
        found = self._values.get(node_source(name))
        return found if isinstance(found, StorageNodeEntry) else None


# ---- items -----------------------------------------------------------------------------------------------------------------------------------------


def _dump(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def _partition(name: str) -> int:
    kind, _, number = name.partition("/")
    if kind != "p":
        raise ValueError(f"not a partition: {name}")
    return int(number)


def parameters_items(found: ClusterParameters) -> dict[str, bytes]:
    return {"parameters": found.to_bytes()}


def assignment_items(found: Assignment) -> dict[str, bytes]:
    """What clients need of it. Servers that own nothing are included: any of them answers."""
    fields = json.loads(found.to_bytes())
    workers, principals = fields.get("workers", {}), fields.get("principals", {})
    items = {f"p/{partition}": _dump(owned) for partition, owned in fields["partitions"].items()}
    servers = ((server, [address, workers.get(server, []), principals.get(server, "")]) for server, address in fields["addresses"].items())
    return items | {f"s/{server}": _dump(facts) for server, facts in servers}


def _assignment_of(items: Mapping[str, bytes]) -> Assignment:
    fields: dict[str, dict[str, object]] = {"partitions": {}, "addresses": {}, "workers": {}, "principals": {}}
    for name, value in items.items():
        kind, _, number = name.partition("/")
        if kind == "s":
            fields["addresses"][number], own, principal = json.loads(value)
            if own:
                fields["workers"][number] = own
            if principal:
                fields["principals"][number] = principal
        else:
            fields["partitions"][str(_partition(name))] = json.loads(value)
    return Assignment.from_bytes(_dump(fields))


def replicas_items(found: ReplicaAssignment) -> dict[str, bytes]:
    return {f"p/{partition}": _dump(list(names)) for partition, names in found.replicas.items()}


def topic_items(catalogue: Catalogue) -> dict[str, bytes]:
    """Every active topic by its name."""
    return {str(row[0]): _dump(row) for row in catalogue.rows()}


def _parameters_of(items: Mapping[str, bytes]) -> ClusterParameters:
    return ClusterParameters.from_bytes(items["parameters"])


def _replicas_of(items: Mapping[str, bytes]) -> ReplicaAssignment:
    return ReplicaAssignment({_partition(name): tuple(map(str, json.loads(value))) for name, value in items.items()})


def _catalogue_of(items: Mapping[str, bytes]) -> Catalogue:
    return Catalogue.of_rows(json.loads(value) for value in items.values())


def _node_of(items: Mapping[str, bytes]) -> StorageNodeEntry | None:
    return StorageNodeEntry.from_bytes(items["entry"]) if items else None


_PARSERS: Final[Mapping[str, Callable[[Mapping[str, bytes]], object]]] = {
    CLUSTER_SOURCE: _parameters_of,
    ASSIGNMENT_SOURCE: _assignment_of,
    REPLICAS_SOURCE: _replicas_of,
    TOPICS_SOURCE: _catalogue_of,
}


def _parsed(source: str, items: Mapping[str, bytes]) -> object:
    """None for a source without a value, or one that a later version sends."""
    parse = _node_of if source.startswith(NODE_SOURCE) else _PARSERS.get(source)
    try:
        return None if parse is None else parse(items)
    except (ValueError, KeyError, TypeError, AttributeError, WaltzError) as error:
        raise ProtocolViolation(reason=f"the map's source {source} cannot be read: {type(error).__name__}: {error}") from None
