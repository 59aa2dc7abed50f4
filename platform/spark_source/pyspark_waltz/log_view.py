"""The driver's view of the log: the selected partitions, how far each reaches, in which store session, and which storage nodes hold its replicas.

Asks the inspector again after a failure, within a time limit, so that a change of owner or a restarted coordinator does not end a streaming query.
Never reads transactions. A bound may be old, which is harmless (a committed id stays committed). An offset from the checkpoint may therefore be ahead
of a bound for a moment; `cover` waits for a bound that reaches it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias  # Any: the client is imported on first use
from uuid import UUID

from pyspark_waltz.naming import TopicOf, TopicPartition, Wanted, naming_topic
from pyspark_waltz.offsets import Extent
from pyspark_waltz.options import SourceOptions
from pyspark_waltz.planner import Range, Size
from waltz_log.core.topics.catalogue import Catalogue
from waltz_log.errors import InvalidSetting, NotAllowed, OutOfRange, PermissionDenied, WaltzError

if TYPE_CHECKING:
    from waltz_log.client.inspection.inspect import ClusterInspector

__all__ = ["CONNECT_TIMEOUT_S", "Connect", "Inspector", "Location", "LogView", "connect_timeout_s", "inspect_cluster"]

CONNECT_TIMEOUT_S = 8.0
"""Without a cluster at the address, the error comes within ten seconds, including the start of Python, unless `fetchTimeoutMs` is given."""

REPLICAS_AGE_S = 5.0
"""How long the addresses of replicas are cached: short compared with an executor's timeout, long compared with a trigger."""

NO_TOPICS: Mapping[int, TopicOf] = {}

PAUSE_S = 0.2
"""Before a cluster that has just failed to answer is asked again."""


def connect_timeout_s(options: SourceOptions) -> float:
    """For the first connection of a driver."""
    return options.fetch_timeout_ms / 1000 if "fetchTimeoutMs" in options.named else CONNECT_TIMEOUT_S


class _Parameters(Protocol):
    @property
    def key(self) -> UUID: ...
    @property
    def partitions(self) -> int: ...


class _Bound(Protocol):
    @property
    def generation(self) -> int: ...
    @property
    def session(self) -> int: ...
    @property
    def high_water_mark(self) -> int: ...
    @property
    def first_transaction_id(self) -> int: ...


class Inspector(Protocol):
    """The part of `waltz_log.client.inspection.inspect.ClusterInspector` that is used here."""

    @property
    def parameters(self) -> _Parameters: ...
    def bounds(self, partitions: Iterable[int] | None = None) -> Mapping[int, _Bound]: ...
    def replicas(self) -> Mapping[int, list[str]]: ...
    def owners(self) -> Mapping[int, str | None]: ...
    def locate(self, questions: Mapping[int, Any]) -> Mapping[int, Any]: ...
    def catalogue(self) -> Catalogue: ...
    def view_ends(self, sessions: Mapping[int, int], principal: str) -> Mapping[int, Mapping[str, int]]: ...


Connect: TypeAlias = Callable[[SourceOptions], AbstractContextManager[Any]]
"""From the address, the key and the timeout in the options to an `Inspector`, as a context manager."""


def inspect_cluster(options: SourceOptions) -> ClusterInspector:
    """Raises `ClusterUnavailable`, `ClusterKeyMismatch`."""
    from waltz_log.client.inspection.inspect import ClusterInspector

    return ClusterInspector(options.cluster, connect_timeout_s(options), options.cluster_key)


@dataclass(frozen=True, slots=True)
class Location:
    """Where the committed ids of a partition can be read: replicas that became clean in `session` or later."""

    session: int
    replicas: tuple[str, ...]


class LogView:
    """Connects on first use. `close` may be called at any time, also twice."""

    def __init__(self, options: SourceOptions, connect: Connect, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._connect = connect
        self._monotonic = monotonic
        self._patience_s = options.fetch_timeout_ms / 1000
        self._manager: AbstractContextManager[Any] | None = None
        self._inspector: Inspector | None = None
        self._connected_before = False
        self._bounds: dict[int, _Bound] = {}
        self._partitions: tuple[int, ...] | None = None
        self._wanted = Wanted(options.topics, options.topic_pattern) if options.by_topic else None
        self._topics: dict[int, TopicPartition] = {}
        self._key: UUID | None = None
        self._replicas: dict[int, list[str]] | None = None
        self._replicas_s = 0.0

    @property
    def cluster_key(self) -> UUID:
        if self._key is None:
            self._ask(lambda inspector: None)
        assert self._key is not None
        return self._key

    def extents(self, known: Mapping[int, TopicOf] = NO_TOPICS) -> dict[int, Extent]:
        """The current extent of every selected partition. `known`: the topics of partitions that were read before. Raises `NoSuchTopic`."""
        self._find_topics(known)
        self._bounds = dict(self._ask(lambda inspector: inspector.bounds(self._partitions)))
        return self._extents()

    @property
    def topics(self) -> Mapping[int, TopicPartition]:
        """The topics of the selected partitions, from the catalog at the time of the last `extents`; empty if no topics are read."""
        return self._topics

    def _find_topics(self, known: Mapping[int, TopicOf]) -> None:
        if self._wanted is not None:
            found = self._wanted.partitions(self._ask(lambda inspector: inspector.catalogue()), known)
            chosen = self._options.partitions
            self._topics = {partition: topic for partition, topic in found.items() if chosen is None or partition in chosen}
            self._partitions = tuple(self._topics)

    def known_extents(self) -> dict[int, Extent]:
        """The extents of the last request; sends none."""
        return self._extents()

    def cover(self, ends: Mapping[int, int]) -> tuple[dict[int, Extent], dict[int, Location]]:
        """Extents and locations that reach the given ends (ids that are not read). Raises `OutOfRange` if the log does not reach them in time."""
        deadline = self._monotonic() + self._patience_s
        while True:
            short = [p for p, end in ends.items() if p not in self._bounds or self._bounds[p].high_water_mark + 1 < end]
            if not short:
                break
            self._bounds |= dict(self._ask(lambda inspector, short=tuple(short): inspector.bounds(short)))  # type: ignore[misc]
            behind = [p for p in short if p not in self._bounds or self._bounds[p].high_water_mark + 1 < ends[p]]
            if behind and self._monotonic() >= deadline:
                partition = behind[0]
                bound = self._bounds.get(partition)
                first, last = (bound.first_transaction_id, bound.high_water_mark) if bound is not None else (0, -1)
                raise OutOfRange(partition=partition, asked=ends[partition] - 1, first=first, last=last)
            if behind:
                time.sleep(PAUSE_S)
        replicas = self.replicas()
        locations = {p: Location(self._bounds[p].session, tuple(replicas.get(p, ()))) for p in ends}
        return {p: extent for p, extent in self._extents().items() if p in ends}, locations

    def replicas(self) -> Mapping[int, list[str]]:
        """The storage nodes of each partition, requested again every few seconds. They rarely change, and executors have the other replicas if one is
        gone."""
        now = self._monotonic()
        if self._replicas is None or now - self._replicas_s >= REPLICAS_AGE_S:
            self._replicas, self._replicas_s = dict(self._ask(lambda inspector: inspector.replicas())), now
        return self._replicas

    def owners(self) -> dict[int, str | None]:
        """The owner of every selected partition."""
        self._find_topics(NO_TOPICS)
        owners = self._ask(lambda inspector: inspector.owners())
        return {p: owner for p, owner in sorted(owners.items()) if self._partitions is None or p in self._partitions}

    def bounds_of(self, partitions: Iterable[int]) -> Mapping[int, _Bound]:
        asked = tuple(partitions)
        return dict(self._ask(lambda inspector: inspector.bounds(asked))) if asked else {}

    def view_ends(self, partitions: Iterable[int]) -> dict[int, dict[str, int]]:
        """For each partition, the id at which the compacted view ends at each replica that has one: the log continues with that id."""
        sessions = {p: self._bounds[p].session for p in partitions}
        if not sessions:
            return {}
        found = self._ask(lambda inspector: inspector.view_ends(sessions, self._options.principal))
        return {p: dict(ends) for p, ends in found.items()}

    def positions_at(self, times_ms: Mapping[int, int]) -> dict[int, int]:
        """The first transaction of each partition that was appended at its time or later; the next id if none is committed yet. As of the last
        `extents`."""
        if not times_ms:
            return {}
        found = self._locate({p: {"times_ms": (time_ms,)} for p, time_ms in times_ms.items()})
        return {p: place.positions[0] for p, place in found.items()}

    def past_ends(self, partitions: Iterable[int], times_ms: Sequence[int]) -> dict[int, tuple[int, ...]]:
        """For each partition, the first transaction that was appended at each time or later: its end just before. At most 64 times, in milliseconds
        since 1970, as of the last `extents`. Raises `Unavailable`."""
        return {p: place.positions for p, place in self._locate({p: {"times_ms": tuple(times_ms)} for p in partitions}).items()}

    def measure(self, ranges: Mapping[int, Range]) -> dict[int, Size]:
        """The bytes on disk of ranges of the log. A part that was trimmed meanwhile is included with 0 bytes: reading it reports the loss."""
        left, found = dict(ranges), {}
        while left:
            try:
                places = self._locate({p: {"first": r.first, "last": r.last, "max_bytes": r.max_bytes} for p, r in left.items()})
            except OutOfRange as error:
                found[error.partition] = Size(0, min(left.pop(error.partition).last, error.first - 1))
                continue
            return found | {p: Size(place.bytes, place.last_within) for p, place in places.items()}
        return found

    def _locate(self, asked: Mapping[int, Mapping[str, Any]]) -> Mapping[int, Any]:
        from waltz_log.transport.locating import Question

        questions = {p: Question(self._bounds[p].session, self._bounds[p].high_water_mark, **about) for p, about in asked.items()}
        found: Mapping[int, Any] = self._ask(lambda inspector: inspector.locate(questions))
        return found

    def close(self) -> None:
        manager, self._manager, self._inspector = self._manager, None, None
        self._replicas = None
        if manager is not None:
            manager.__exit__(None, None, None)

    def _extents(self) -> dict[int, Extent]:
        return {p: Extent(max(bound.first_transaction_id, self._begin_of(p)), bound.high_water_mark + 1) for p, bound in sorted(self._bounds.items())}

    def _begin_of(self, partition: int) -> int:
        """The first id of the topic that the partition belongs to; lower ids are not the topic's."""
        return self._topics[partition].begins_at if partition in self._topics else 0

    def _open(self) -> Inspector:
        if self._inspector is None:
            self._manager = self._connect(self._options)
            inspector: Inspector = self._manager.__enter__()
            self._inspector = inspector
            parameters = inspector.parameters
            if self._key is not None and parameters.key != self._key:
                raise InvalidSetting(name="cluster", reason=f"has become another one at the same address, {self._options.cluster}", nearest=None)
            chosen = self._options.partitions
            if chosen is not None and chosen[-1] >= parameters.partitions:
                raise InvalidSetting(
                    name="partitions", reason=f"names partition {chosen[-1]}, the cluster has 0 to {parameters.partitions - 1}", nearest=None
                )
            self._key = parameters.key
            if self._wanted is None:
                self._partitions = chosen
            self._connected_before = True
            return inspector
        return self._inspector

    def _ask(self, question: Callable[[Inspector], Any]) -> Any:
        """The answer, with retries after errors that pass. If the cluster was never reached, it fails at once: the address is wrong or no cluster
        runs there."""
        deadline = self._monotonic() + self._patience_s
        while True:
            try:
                return question(self._open())
            except PermissionDenied as error:
                self.close()
                raise self._naming_topic(error) from None
            except WaltzError as error:
                self.close()
                if not error.retriable or not self._connected_before or self._monotonic() >= deadline:
                    raise
                time.sleep(PAUSE_S)

    def _naming_topic(self, error: PermissionDenied) -> NotAllowed:
        number = error.resource.removeprefix("log:")
        found = self._topics.get(int(number)) if number.isdecimal() else None
        return naming_topic(error, None if found is None else found.topic)
