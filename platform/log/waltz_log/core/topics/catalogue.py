"""The catalog of topics: names for log partitions, and what was fixed for each when it was created (Partitioned WAL; docs/guides/topics.md).

One value in the coordinator, replaced by compare-and-set, so that two creations never get the same partition and two names never share an id. What a
topic is (partitions, type, keyed, properties) never changes; its policies may. Pure: these are the values and the rules, `coordination.topics`
writes.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Final, Literal, NamedTuple, Self, get_args  # Any: JSON values

from waltz_log.core.topics.access import check_access_properties
from waltz_log.core.topics.partition_properties import PartitionProperties, check_partition_properties, properties_of, split_properties
from waltz_log.core.topics.property_limits import check_property_limits
from waltz_log.core.topics.topic_names import TopicName, name_id
from waltz_log.errors import InvalidRequest, InvalidSetting, NoSuchTopic

__all__ = ["CATALOGUE", "POLICIES", "Catalogue", "Durability", "Policies", "Topic", "TopicEpoch", "TopicType"]

CATALOGUE: Final = "/topics"
PARTITIONS_MAX: Final = 1024
"""For one topic (the layout's bound)."""
HOUR_MS: Final = 3_600_000
FLUSH_BYTES_MAX: Final = 64 * 1024 * 1024
"""The size of one sync bounds its duration, for which everything else of the partition waits."""

TopicType = Literal["regular", "compaction"]
_TYPES: Final[Mapping[str, TopicType]] = {"regular": "regular", "compaction": "compaction"}
Durability = Literal["quorum_sync", "quorum_memory"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """What may be changed after a topic is created. -1 means no bound."""

    retention_ms: int = 168 * HOUR_MS
    """Segments whose newest transaction is older are trimmed, oldest first. -1: never trimmed. At least an hour, to keep a wrong unit from losing
    data."""
    retention_bytes: int = -1
    """The oldest segments of a partition are trimmed while it holds more."""
    keep_for_subscribers: bool = True
    """Never trim what a registered subscriber has not read, whatever the other bounds say."""
    tombstone_retention_ms: int = 24 * HOUR_MS
    """How long the tombstone of a key stays in a compacted view."""
    durability: Durability = "quorum_sync"
    """`quorum_sync`: acknowledged means on the disks of a majority. `quorum_memory`: in the memory of one; what the last `flush_period_ms` or
    `flush_bytes` brought may be lost if the owner and machines of a majority die together (docs/guides/topics.md)."""
    flush_period_ms: int = 10_000
    flush_bytes: int = 1 << 20

    def __post_init__(self) -> None:
        _check("retention_ms", self.retention_ms, HOUR_MS, unbounded=True)
        _check("retention_bytes", self.retention_bytes, 0, unbounded=True)
        _check("tombstone_retention_ms", self.tombstone_retention_ms, 0)
        _check("flush_period_ms", self.flush_period_ms, 2, HOUR_MS)
        _check("flush_bytes", self.flush_bytes, 1, FLUSH_BYTES_MAX)
        if not isinstance(self.keep_for_subscribers, bool):
            raise InvalidSetting(name="keep_for_subscribers", reason=f"must be true or false, got {self.keep_for_subscribers!r}", nearest=None)
        if self.durability not in get_args(Durability):
            raise InvalidSetting.unknown(str(self.durability), get_args(Durability), what="durability")

    def changed(self, changes: Mapping[str, Any]) -> Self:
        """Raises `InvalidSetting` for an unknown policy or an invalid value."""
        for name in changes:
            if name not in POLICIES:
                raise InvalidSetting.unknown(name, POLICIES, what="policy")
        return replace(self, **changes)


POLICIES: Final = tuple(each.name for each in fields(Policies))


def _check(name: str, value: object, least: int, most: int | None = None, *, unbounded: bool = False) -> None:
    fits = isinstance(value, int) and not isinstance(value, bool) and (value >= least or (unbounded and value == -1))
    if not fits or (most is not None and isinstance(value, int) and value > most):
        hours = " (1 h)" if least == HOUR_MS else ""
        bounds = ("-1 or " if unbounded else "") + f"at least {least}{hours}" + ("" if most is None else f" and at most {most}")
        raise InvalidSetting(name=name, reason=f"must be {bounds}, got {value!r}", nearest=None)


class TopicEpoch(NamedTuple):
    """The topic that a client means when it appends to a log partition or reads it. `epoch` 0: the current topic of that name."""

    name: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Topic:
    """`partitions`: the log partition of each of the topic's. `keyed`: the data of its transactions begins with a key (`core.formats.envelope`)."""

    name: TopicName
    type: TopicType
    partitions: tuple[int, ...]
    keyed: bool
    properties: Mapping[str, str]
    policies: Policies
    created_ms: int
    partition_properties: tuple[PartitionProperties, ...] = ()
    """For ranges of the topic's partitions; they take precedence over `properties`."""
    epoch: int = 0
    """Unique for each topic, so that a deleted topic differs from the next one of its name. 0: created before epochs existed."""
    begins_at: tuple[int, ...] = ()
    """The first transaction id of the topic in each partition. Ids below it belong to an earlier user of the log partition, if there was one. Empty:
    0 everywhere."""
    keeps_existing: bool = False
    """Retention keeps what is below `begins_at`, and with it everything above. Otherwise what is below is trimmed first."""

    @property
    def identity(self) -> TopicEpoch:
        return TopicEpoch(str(self.name), self.epoch)

    def begin_of(self, partition: int) -> int:
        """The first transaction id of one of the topic's partitions."""
        return self.begins_at[partition] if self.begins_at else 0

    def properties_of(self, partition: int) -> dict[str, str]:
        """The properties of one of the topic's partitions."""
        return properties_of(self.properties, self.partition_properties, partition)

    def row(self) -> list[object]:
        """As JSON values; `Catalogue.of_rows` reads them."""
        kind = [str(self.name), self.type, list(self.partitions), self.keyed, dict(self.properties)]
        return [*kind, asdict(self.policies), self.created_ms, *_more(self)]

    def log_partition(self, partition: int) -> int:
        """Raises `InvalidRequest` for one that the topic does not have."""
        if not 0 <= partition < len(self.partitions):
            raise InvalidRequest(reason=f"{self.name} has partitions 0 to {len(self.partitions) - 1}, not {partition}")
        return self.partitions[partition]


@dataclass(frozen=True, slots=True)
class Catalogue:
    topics: Mapping[TopicName, Topic] = field(default_factory=dict)
    retired: tuple[int, ...] = ()
    """Log partitions of topics that were deleted, while their owners remove what is left there. Nothing is appended to them; once they are empty they
    are free again (`released`)."""
    pending: Mapping[TopicName, Topic] = field(default_factory=dict)
    """Topics whose log partitions are being examined: nothing is appended there until the topic is active or withdrawn
    (`coordination.topic_creation`)."""
    epochs: int = 0
    """How many epochs were assigned."""

    def find(self, name: TopicName) -> Topic:
        """Raises `NoSuchTopic`, with the nearest name there is."""
        found = self.topics.get(name)
        if found is None:
            raise NoSuchTopic.among(str(name), map(str, self.topics))
        return found

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
        log_partitions: Sequence[int] | None = None,
        keeps_existing: bool = False,
    ) -> tuple[Catalogue, Topic]:
        """The catalog with the topic, and the topic: the one there is where it is the same. `pool`: all log partitions. `log_partitions`: which of
        them, in this order; the lowest free ones by default. Whether they are empty is the caller's to know. `properties`: by name, or by range and
        name (`0-3:name`) for some of the topic's partitions (`core.topics.partition_properties`). Raises `InvalidRequest` if another topic has that
        name, if two names have the same hash, or if too few log partitions are free."""
        kind = _TYPES.get(type)
        if kind is None:
            raise InvalidSetting.unknown(type, _TYPES, what="type of topic")
        if not 1 <= partitions <= PARTITIONS_MAX:
            raise InvalidRequest(reason=f"a topic has 1 to {PARTITIONS_MAX} partitions, not {partitions}")
        whole, ranges = split_properties(properties or {})
        check_access_properties(whole)
        check_partition_properties(ranges, partitions)
        for partition in range(partitions) if ranges else (0,):
            check_property_limits(properties_of(whole, ranges, partition))
        if name.namespace.isdigit():
            raise InvalidRequest(reason=f"a namespace must have more than digits, which name the folders of log partitions: {name.namespace}")
        self._refuse_collisions(name)
        free = self.free(pool, name)
        keyed = keyed or kind == "compaction"
        chosen = tuple(free[:partitions]) if log_partitions is None else tuple(log_partitions)
        epoch = self.epochs + 1
        wanted = Topic(name, kind, chosen, keyed, whole, policies or Policies(), now_ms, ranges, epoch, keeps_existing=keeps_existing)
        found = self.topics.get(name)
        if found is not None:
            elsewhere = log_partitions is not None and found.partitions != chosen
            like = replace(wanted, partitions=found.partitions, created_ms=found.created_ms, epoch=found.epoch, begins_at=found.begins_at)
            if elsewhere or len(found.partitions) != partitions or replace(like, keeps_existing=found.keeps_existing) != found:
                raise InvalidRequest(reason=f"there is another topic of that name: {_described(found)}")
            return self, found
        if log_partitions is not None:
            self._expect_free(chosen, partitions, pool, name)
        elif len(free) < partitions:
            enough = len(set(pool)) + partitions - len(free)
            grow = f"`waltz cluster grow --partitions {enough}` adds what is missing"
            lacking = f"the topic needs {partitions} log partitions and {len(free)} are free"
            raise InvalidRequest(reason=f"{lacking}: {grow}; log_partitions={len(set(pool))}")
        return replace(self, topics={**self.topics, name: wanted}, epochs=epoch), wanted

    def free(self, pool: Collection[int], name: TopicName | None = None) -> list[int]:
        """Log partitions that no topic has, in order; those that a topic of this name is being judged for count as free."""
        there = [*self.topics.values(), *(topic for other, topic in self.pending.items() if other != name)]
        return sorted(set(pool) - {*self.retired, *(each for topic in there for each in topic.partitions)})

    def _expect_free(self, chosen: Sequence[int], partitions: int, pool: Collection[int], name: TopicName) -> None:
        if len(chosen) != partitions or len(set(chosen)) != len(chosen):
            raise InvalidRequest(reason=f"the topic needs {partitions} different log partitions, named are: {', '.join(map(str, chosen))}")
        for each in chosen:
            if each not in pool:
                raise InvalidRequest(reason=f"no such log partition: {each}, the cluster has {len(set(pool))}")
            if each in self.retired:
                raise InvalidRequest(reason=f"log partition {each} still holds data of a deleted topic; it is free when its owner has removed them")
            if each not in self.free(pool, name):
                whose = next(t for t in (*self.topics.values(), *self.pending.values()) if each in t.partitions)
                raise InvalidRequest(reason=f"log partition {each} belongs to topic {whose.name}")

    def reserved(self, name: TopicName, **about: Any) -> tuple[Catalogue, Topic]:
        """As `with_new`, but the topic is only pending: its log partitions accept no appends. It replaces an older pending topic of its name."""
        made, topic = self.with_new(name, **about)
        if made is self:
            return self, topic
        return replace(self, pending={**self.pending, name: topic}, epochs=made.epochs), topic

    def activated(self, topic: Topic, begins_at: Sequence[int]) -> tuple[Catalogue, Topic]:
        """The catalog with the pending topic as an active one. Unchanged if it is active already, after an earlier write whose response was lost.
        Raises `InvalidRequest` if it is no longer pending."""
        there = self.topics.get(topic.name)
        if there is not None and there.epoch == topic.epoch:
            return self, there
        if self.pending.get(topic.name) != topic:
            raise InvalidRequest(reason=f"another process changed {topic.name} at the same time: describe it and repeat the command")
        left = {name: each for name, each in self.pending.items() if name != topic.name}
        made = replace(topic, begins_at=tuple(begins_at) if any(begins_at) else ())
        return replace(self, topics={**self.topics, topic.name: made}, pending=left), made

    def withdrawn(self, topic: Topic) -> tuple[Catalogue, Topic]:
        """The catalog without the pending topic. Unchanged if another topic of the same name replaced it."""
        if self.pending.get(topic.name) != topic:
            return self, topic
        return replace(self, pending={name: each for name, each in self.pending.items() if name != topic.name}), topic

    def released(self, log_partition: int) -> Catalogue:
        """The catalog with an empty log partition of a deleted topic free again. Unchanged if it was not retired."""
        if log_partition not in self.retired:
            return self
        return replace(self, retired=tuple(each for each in self.retired if each != log_partition))

    def being_judged(self) -> dict[int, Topic]:
        """Pending topics by their log partitions."""
        return {each: topic for topic in self.pending.values() for each in topic.partitions}

    def with_policies(self, name: TopicName, changes: Mapping[str, object]) -> tuple[Catalogue, Topic]:
        """Raises `NoSuchTopic` for an unknown topic, `InvalidSetting` for an unknown policy."""
        found = self.find(name)
        changed = replace(found, policies=found.policies.changed(changes))
        return replace(self, topics={**self.topics, name: changed}), changed

    def without(self, name: TopicName) -> tuple[Catalogue, Topic]:
        """The catalog without the topic. Its log partitions are retired until their data is removed. A topic that is only pending is withdrawn.
        Raises `NoSuchTopic`."""
        if name not in self.topics and name in self.pending:
            return self.withdrawn(self.pending[name])
        found = self.find(name)
        left = {each: topic for each, topic in self.topics.items() if each != name}
        return replace(self, topics=left, retired=tuple(sorted({*self.retired, *found.partitions}))), found

    def _refuse_collisions(self, name: TopicName) -> None:
        for other in self.topics:
            for mine, theirs in ((name.namespace, other.namespace), (name.topic, other.topic)):
                if mine != theirs and name_id(mine) == name_id(theirs):
                    raise InvalidRequest(reason=f"{mine} has the same id as {theirs}, which exists already: choose another name")

    def rows(self) -> list[list[object]]:
        """The active topics as JSON values; `of_rows` reads them."""
        return _rows(self.topics)

    @classmethod
    def of_rows(cls, rows: Iterable[Sequence[Any]]) -> Self:
        """A catalog of active topics alone, as clients know it."""
        return cls(_topics(rows))

    def to_bytes(self) -> bytes:
        value: dict[str, object] = {"topics": _rows(self.topics), "retired": list(self.retired)}
        value |= {"pending": _rows(self.pending)} if self.pending else {}
        value |= {"epochs": self.epochs} if self.epochs else {}
        return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        found = json.loads(data)
        return cls(_topics(found["topics"]), tuple(found["retired"]), _topics(found.get("pending", ())), found.get("epochs", 0))


def _rows(topics: Mapping[TopicName, Topic]) -> list[list[object]]:
    return [topic.row() for _, topic in sorted(topics.items())]


def _topics(rows: Iterable[Sequence[Any]]) -> dict[TopicName, Topic]:
    topics = [
        Topic(TopicName.parse(name), type, tuple(partitions), keyed, properties, Policies(**policies), created_ms, **_parsed(more))
        for name, type, partitions, keyed, properties, policies, created_ms, *more in rows
    ]
    return {topic.name: topic for topic in topics}


def _more(topic: Topic) -> list[dict[str, object]]:
    """Optional fields, by name: a topic without them needs no space for them in the coordinator's megabyte."""
    found: dict[str, object] = {}
    if topic.partition_properties:
        found["partition_properties"] = [each.to_json() for each in topic.partition_properties]
    if topic.epoch:
        found["epoch"] = topic.epoch
    if topic.begins_at:
        found["begins_at"] = list(topic.begins_at)
    if topic.keeps_existing:
        found["keeps_existing"] = True
    return [found] if found else []


def _parsed(more: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    found = more[0] if more else {}
    return {
        "partition_properties": tuple(map(PartitionProperties.from_json, found.get("partition_properties", ()))),
        "epoch": found.get("epoch", 0),
        "begins_at": tuple(found.get("begins_at", ())),
        "keeps_existing": found.get("keeps_existing", False),
    }


def _described(topic: Topic) -> str:
    text = f"type={topic.type} partitions={len(topic.partitions)} keyed={topic.keyed} properties={dict(topic.properties)}"
    text += "".join(f" {each.first}-{each.last}:properties={dict(each.properties)}" for each in topic.partition_properties)
    changed = {name: value for name, value in asdict(topic.policies).items() if value != asdict(Policies())[name]}
    return text + "".join(f" {name}={value}" for name, value in changed.items())
