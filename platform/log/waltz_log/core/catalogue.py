"""Which topics there are: names over log partitions, and what was agreed for each when it was made (seeds/partitioned_wal.md; docs/topics.md).

One value in the coordinator, replaced by compare-and-set, so that two creations never get the same partition and two names never share an id. What a
topic is (partitions, type, keyed, properties) never changes; its policies may. Pure: these are the values and the rules, `zookeeper.topics` writes.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Final, Literal, Self, get_args

from waltz_log.core.access import check_access_properties
from waltz_log.core.partition_properties import PartitionProperties, check_partition_properties, properties_of, split_properties
from waltz_log.core.topic_names import TopicName, name_id
from waltz_log.errors import InvalidRequest, InvalidSetting, NoSuchTopic

__all__ = ["CATALOGUE", "POLICIES", "Catalogue", "Durability", "Policies", "Topic", "TopicType"]

CATALOGUE: Final = "/topics"
PARTITIONS_MAX: Final = 1024
"""Of one topic (the layout's bound)."""
HOUR_MS: Final = 3_600_000
FLUSH_BYTES_MAX: Final = 64 * 1024 * 1024
"""What one sync has to write bounds how long it takes, and with it how long everything else of the partition waits."""

TopicType = Literal["regular", "compaction"]
_TYPES: Final[Mapping[str, TopicType]] = {"regular": "regular", "compaction": "compaction"}
Durability = Literal["quorum_sync", "quorum_memory"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """What may be changed while a topic lives. A number that stands for no bound is -1."""

    retention_ms: int = 168 * HOUR_MS
    """Segments whose newest transaction is older go, from the oldest on. -1: kept for ever. At least an hour, so that a wrong unit loses nothing."""
    retention_bytes: int = -1
    """The oldest segments of a partition go while it holds more."""
    keep_for_subscribers: bool = True
    """Nothing goes that a registered subscriber has not read, whatever the other bounds say."""
    tombstone_retention_ms: int = 24 * HOUR_MS
    """How long the end of a key stays in a compacted view."""
    durability: Durability = "quorum_sync"
    """`quorum_sync`: acknowledged means on the disks of a majority. `quorum_memory`: in the memory of one; what the last `flush_period_ms` or
    `flush_bytes` brought may be lost if the owner and machines of a majority die together (docs/topics.md)."""
    flush_period_ms: int = 10_000
    flush_bytes: int = 1 << 20

    def __post_init__(self) -> None:
        _check("retention_ms", self.retention_ms, HOUR_MS, unbounded=True)
        _check("retention_bytes", self.retention_bytes, 0, unbounded=True)
        _check("tombstone_retention_ms", self.tombstone_retention_ms, 0)
        _check("flush_period_ms", self.flush_period_ms, 2, HOUR_MS)
        _check("flush_bytes", self.flush_bytes, 1, FLUSH_BYTES_MAX)
        if not isinstance(self.keep_for_subscribers, bool):
            raise InvalidSetting(name="keep_for_subscribers", reason=f"wants true or false, got {self.keep_for_subscribers!r}", nearest=None)
        if self.durability not in get_args(Durability):
            raise InvalidSetting.unknown(str(self.durability), get_args(Durability), what="durability")

    def changed(self, changes: Mapping[str, Any]) -> Self:
        """Raises `InvalidSetting` for a policy that there is not, or a value it cannot have."""
        for name in changes:
            if name not in POLICIES:
                raise InvalidSetting.unknown(name, POLICIES, what="policy")
        return replace(self, **changes)


POLICIES: Final = tuple(each.name for each in fields(Policies))


def _check(name: str, value: object, least: int, most: int | None = None, *, unbounded: bool = False) -> None:
    fits = isinstance(value, int) and not isinstance(value, bool) and (value >= least or (unbounded and value == -1))
    if not fits or (most is not None and isinstance(value, int) and value > most):
        told = f"at least {least}" + (", or -1 for no bound" if unbounded else "") + ("" if most is None else f", at most {most}")
        raise InvalidSetting(name=name, reason=f"wants a whole number, {told}, got {value!r}", nearest=None)


@dataclass(frozen=True, slots=True)
class Topic:
    """`partitions`: the log partition of each of the topic's. `keyed`: the data of its transactions begins with a key (`core.envelope`)."""

    name: TopicName
    type: TopicType
    partitions: tuple[int, ...]
    keyed: bool
    properties: Mapping[str, str]
    policies: Policies
    created_ms: int
    partition_properties: tuple[PartitionProperties, ...] = ()
    """Of ranges of the topic's partitions; they take precedence over `properties`."""

    def properties_of(self, partition: int) -> dict[str, str]:
        """The properties of one of the topic's partitions."""
        return properties_of(self.properties, self.partition_properties, partition)

    def log_partition(self, partition: int) -> int:
        """Raises `InvalidRequest` for one that the topic does not have."""
        if not 0 <= partition < len(self.partitions):
            raise InvalidRequest(reason=f"{self.name} has partitions 0 to {len(self.partitions) - 1}, not {partition}")
        return self.partitions[partition]


@dataclass(frozen=True, slots=True)
class Catalogue:
    topics: Mapping[TopicName, Topic] = field(default_factory=dict)
    retired: tuple[int, ...] = ()
    """Log partitions of topics that were deleted. Not used again: somebody may still read there what was another topic's."""

    def find(self, name: TopicName) -> Topic:
        """Raises `NoSuchTopic`, with the nearest name there is."""
        found = self.topics.get(name)
        if found is None:
            raise NoSuchTopic.among(str(name), map(str, self.topics))
        return found

    def owner_of(self, log_partition: int) -> tuple[Topic, int] | None:
        """The topic that a log partition belongs to, and as which of its partitions."""
        for topic in self.topics.values():
            if log_partition in topic.partitions:
                return topic, topic.partitions.index(log_partition)
        return None

    def with_new(
        self,
        name: TopicName,
        *,
        type: str,
        partitions: int,
        pool: Collection[int],
        now_ms: int,
        keyed: bool = False,
        properties: Mapping[str, str] | None = None,
        policies: Policies | None = None,
    ) -> tuple[Catalogue, Topic]:
        """The catalogue with the topic, and the topic: the one there is where it is the same. `pool`: all log partitions. `properties`: by name, or
        by range and name (`0-3:name`) for some of the topic's partitions (`core.partition_properties`). Raises `InvalidRequest`
        where there is another of that name, where the hash of a name is that of another one, or where too few log partitions are free."""
        kind = _TYPES.get(type)
        if kind is None:
            raise InvalidSetting.unknown(type, _TYPES, what="type of topic")
        if not 1 <= partitions <= PARTITIONS_MAX:
            raise InvalidRequest(reason=f"a topic has 1 to {PARTITIONS_MAX} partitions, not {partitions}")
        whole, ranges = split_properties(properties or {})
        check_access_properties(whole)
        check_partition_properties(ranges, partitions)
        if name.namespace.isdigit():
            raise InvalidRequest(reason=f"a namespace of digits alone has the folder of a log partition: {name.namespace}")
        self._refuse_collisions(name)
        used = {*self.retired, *(each for topic in self.topics.values() for each in topic.partitions)}
        free = sorted(set(pool) - used)
        keyed = keyed or kind == "compaction"
        wanted = Topic(name, kind, tuple(free[:partitions]), keyed, whole, policies or Policies(), now_ms, ranges)
        found = self.topics.get(name)
        if found is not None:
            if len(found.partitions) != partitions or replace(found, partitions=wanted.partitions, created_ms=now_ms) != wanted:
                raise InvalidRequest(reason=f"there is another topic of that name: {_described(found)}")
            return self, found
        if len(free) < partitions:
            enough = len(set(pool)) + partitions - len(free)
            grow = f"`waltz cluster grow --partitions {enough}` adds what is missing"
            raise InvalidRequest(reason=f"{partitions} log partitions are wanted and {len(free)} are free: {grow}; log_partitions={len(set(pool))}")
        return replace(self, topics={**self.topics, name: wanted}), wanted

    def with_policies(self, name: TopicName, changes: Mapping[str, Any]) -> tuple[Catalogue, Topic]:
        """Raises `NoSuchTopic` for a topic, `InvalidSetting` for a policy that there is not."""
        found = self.find(name)
        changed = replace(found, policies=found.policies.changed(changes))
        return replace(self, topics={**self.topics, name: changed}), changed

    def without(self, name: TopicName) -> tuple[Catalogue, Topic]:
        """Its log partitions retire: what is in them would be the next topic's. Raises `NoSuchTopic` where there is none of that name."""
        found = self.find(name)
        left = {each: topic for each, topic in self.topics.items() if each != name}
        return Catalogue(left, tuple(sorted({*self.retired, *found.partitions}))), found

    def _refuse_collisions(self, name: TopicName) -> None:
        for other in self.topics:
            for mine, theirs in ((name.namespace, other.namespace), (name.topic, other.topic)):
                if mine != theirs and name_id(mine) == name_id(theirs):
                    raise InvalidRequest(reason=f"the id of {mine} is that of {theirs}, which stands in the catalogue: choose another name")

    def to_bytes(self) -> bytes:
        value = [
            [str(t.name), t.type, list(t.partitions), t.keyed, dict(t.properties), asdict(t.policies), t.created_ms, *_more(t)]
            for _, t in sorted(self.topics.items())
        ]
        return json.dumps({"topics": value, "retired": list(self.retired)}, separators=(",", ":"), sort_keys=True).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        found = json.loads(data)
        topics = [
            Topic(TopicName.parse(name), type, tuple(partitions), keyed, properties, Policies(**policies), created_ms, **_parsed(more))
            for name, type, partitions, keyed, properties, policies, created_ms, *more in found["topics"]
        ]
        return cls({topic.name: topic for topic in topics}, tuple(found["retired"]))


def _more(topic: Topic) -> list[dict[str, Any]]:
    """What few topics have, by name, so that a topic without it takes no more of the coordinator's megabyte than before."""
    return [{"partition_properties": [each.to_json() for each in topic.partition_properties]}] if topic.partition_properties else []


def _parsed(more: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    found = more[0] if more else {}
    return {"partition_properties": tuple(map(PartitionProperties.from_json, found.get("partition_properties", ())))}


def _described(topic: Topic) -> str:
    told = f"type={topic.type} partitions={len(topic.partitions)} keyed={topic.keyed} properties={dict(topic.properties)}"
    told += "".join(f" {each.first}-{each.last}:properties={dict(each.properties)}" for each in topic.partition_properties)
    changed = {name: value for name, value in asdict(topic.policies).items() if value != asdict(Policies())[name]}
    return told + "".join(f" {name}={value}" for name, value in changed.items())
