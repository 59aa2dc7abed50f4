"""The options of `format("waltz")` and their meaning. Any other option is refused.

`OPTIONS` is the list; `docs/reference/spark.md` shows it as a table, and a test compares the two. Names are case-insensitive, because Spark passes
them in lower case. Pure: opens no connection. For the syntax of positions and times see `positions`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias
from uuid import UUID

from pyspark_waltz.decode.settings import DecodeSettings
from pyspark_waltz.decode.times import time_zone
from pyspark_waltz.foreign_options import refuse_foreign
from pyspark_waltz.naming import Wanted, parse_topic_pattern, parse_topics
from pyspark_waltz.positions import (
    EARLIEST,
    LATEST,
    Positions,
    Times,
    backward,
    iso_time,
    parse_partitions,
    parse_positions,
    parse_time,
    parse_times,
)
from waltz_log.core.topics.access import check_principal
from waltz_log.core.topics.catalogue import Catalogue
from waltz_log.errors import InvalidSetting

__all__ = ["EARLIEST", "LATEST", "NO_LIMITS", "OPTIONS", "Limits", "Option", "Positions", "SourceOptions", "Times"]

Use: TypeAlias = Literal["stream", "batch", "metadata"]

MAX_RECORDS_PER_PARTITION: Final = 250_000
"""Half a second of one core: long enough that the start of a task costs little, short enough that one log partition keeps several cores busy."""

FETCH_TIMEOUT_MS: Final = 60_000
"""Long enough for a change of owner and a restart of a storage node."""

MAX_TRIGGER_DELAY_MS: Final = 15 * 60_000
"""As in Spark's source for Kafka."""


class Option(NamedTuple):
    name: str
    default: str
    uses: frozenset[Use]
    meaning: str


_DATA: Final = frozenset[Use](("stream", "batch"))
_STREAM: Final = frozenset[Use](("stream",))
_BATCH: Final = frozenset[Use](("batch",))
_ALL: Final = frozenset[Use](("stream", "batch", "metadata"))

OPTIONS: Final = (
    Option("cluster", "required", _ALL, "log servers of the cluster, `host:port[,host:port]`; one that answers is enough"),
    Option("clusterKey", "any", _ALL, "key of the cluster, as `waltz cluster status` shows it; an address of another cluster is refused"),
    Option(
        "mode",
        "`data`",
        _ALL,
        "`metadata`: one row for each log partition, with its marks, owner and replicas; `ranges`: one for each task, for sinks",
    ),
    Option("partitions", "all", _ALL, "log partitions to read, as `0-3,7`; with `topic` or `topicPattern`, only those of the topics"),
    Option("topic", "none", _ALL, "topics to read, `namespace/name`, separated by commas; adds the columns `topic` and `key`"),
    Option("topicPattern", "none", _ALL, "the same for all topics whose whole name matches this regular expression, also later ones"),
    Option("compacted", "`false`", _BATCH, "reads the newest value of each key of compaction topics, and then the log (see Topics)"),
    Option("includeMetadata", "`false`", _DATA, "adds the columns `client_id`, `generation`, `sequence`, `checksum`"),
    Option("columns", "none", _DATA, "decodes JSON to these columns, as SQL; `data` and `problem` are of what does not decode (see Decoding)"),
    Option("decode", "none", _DATA, 'further settings of decoding, as in a pipeline: JSON `{"timestamp_unit": "ms"}`'),
    Option(
        "undecodable",
        "`keep`",
        _DATA,
        "with `columns`: `fail` ends the query at data that does not decode, and omits `data` and `problem`",
    ),
    Option("timeZone", "`UTC`", _DATA, "with `columns`: the time zone of times without an offset"),
    Option("startingTransactionIds", "`earliest`", _DATA, 'where to start: `earliest`, `latest`, or JSON `{"0": 17, "1": -2, "2": -1}`'),
    Option("startingTimestamp", "none", _DATA, "starts at the first transaction that was appended then or later"),
    Option("startingTransactionIdsByTimestamp", "none", _DATA, 'the same for single partitions: JSON `{"0": 1700000000000}`'),
    Option(
        "startingTransactionIdsByTimestampStrategy", "`error`", _DATA, "if a partition has nothing that new: `error`, or `latest` to start at its end"
    ),
    Option(
        "endingTransactionIds", "`latest`; a stream: no end", _DATA, "where to end: `latest` (not for a stream), or JSON of the first ids *not* read"
    ),
    Option("endingTimestamp", "none", _DATA, "ends before the first transaction that was appended then or later; if there is none, at the latest"),
    Option("endingTransactionIdsByTimestamp", "none", _DATA, 'the same for single partitions: JSON `{"0": 1700000000000}`'),
    Option("filterPushdown", "`false`", _BATCH, "accepts filters from Spark; use such a DataFrame for one query only (see Filters)"),
    Option("maxTransactionsPerTrigger", "no limit", _STREAM, "maximum number of transactions in a micro-batch, shared in proportion to the backlogs"),
    Option("maxBytesPerTrigger", "no limit", _STREAM, "maximum stored bytes in a micro-batch (data and 40 bytes each), as `64m` (see Micro-batches)"),
    Option("minTransactionsPerTrigger", "none", _STREAM, "transactions that a micro-batch waits for, at most `maxTriggerDelay`"),
    Option("maxTriggerDelay", "`15m`", _STREAM, "longest wait for `minTransactionsPerTrigger`, as `500ms`, `30s`, `15m`, `1h`"),
    Option("principal", "none", _DATA, "the reader's name, for topics that restrict who may read"),
    Option("failOnDataLoss", "`true`", _DATA, "fails if transactions were trimmed before they were read; `false` continues without them"),
    Option("minPartitions", "none", _DATA, "minimum number of tasks, for which ranges are divided, if there are as many rows"),
    Option("maxRecordsPerPartition", f"`{MAX_RECORDS_PER_PARTITION}`", _DATA, "maximum rows of one task; longer ranges are divided evenly"),
    Option("fetchTimeoutMs", f"`{FETCH_TIMEOUT_MS}`", _ALL, "how long to wait for an answer of a replica (executors) or an owner (driver)"),
)

_NAMES = tuple(option.name for option in OPTIONS)
_KNOWN = {option.name.lower(): option for option in OPTIONS}
_FROM_SPARK = frozenset({"checkpointlocation", "queryname", "outputmode"})
"""Spark's own options, which a source receives when a caller passes the same dict of options to reader and writer. They have no meaning here."""

_NOT_A_STREAM = (
    "is for batch reads only: compaction continues, so a first batch that runs again after a crash could not read the same rows; read the "
    "marks, then the view in a batch, and start the stream above the marks"
)
_NOT_COMPACTED = "cannot be combined with compacted=true: a compacted view has one start and one end, and does not record which client appended"


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a micro-batch. None: no limit. `delay_ms` bounds the wait for `min_rows`."""

    max_rows: int | None = None
    max_bytes: int | None = None
    min_rows: int | None = None
    delay_ms: int = MAX_TRIGGER_DELAY_MS


ANY_OTHER: Final = -1
"""Represents the partitions that the JSON does not name, also in messages."""

FROM_THE_EARLIEST: Final = Positions(EARLIEST)
TO_THE_LATEST: Final = Positions(LATEST)
NO_LIMITS: Final = Limits()


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """`starting` gives the start of each partition; for a partition that it does not name, `starting_times` does. The same for `ending`."""

    cluster: str
    cluster_key: UUID | None = None
    partitions: tuple[int, ...] | None = None
    starting: Positions = FROM_THE_EARLIEST
    starting_times: Times | None = None
    ending: Positions = TO_THE_LATEST
    ending_times: Times | None = None
    limits: Limits = NO_LIMITS
    fail_on_data_loss: bool = True
    min_partitions: int | None = None
    max_records_per_partition: int = MAX_RECORDS_PER_PARTITION
    fetch_timeout_ms: int = FETCH_TIMEOUT_MS
    include_metadata: bool = False
    filter_pushdown: bool = False
    topics: tuple[str, ...] | None = None
    topic_pattern: str | None = None
    compacted: bool = False
    principal: str = ""
    metadata_mode: bool = False
    ranges_mode: bool = False
    decode: DecodeSettings | None = None
    keep_undecodable: bool = True
    time_zone: str = "UTC"
    named: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        """Raises `InvalidSetting` for the first option that is unknown, missing or unusable."""
        values = _known(options)
        if not values.get("cluster", "").strip():
            raise InvalidSetting(name="cluster", reason="is required: the addresses of log servers, host:port[,host:port]", nearest=None)
        partitions = parse_partitions(values["partitions"]) if "partitions" in values else None
        starting = parse_positions("startingTransactionIds", values.get("startingTransactionIds", "earliest"), default=EARLIEST)
        ending = parse_positions("endingTransactionIds", values.get("endingTransactionIds", "latest"), default=LATEST)
        strategy = _word(values, "startingTransactionIdsByTimestampStrategy", ("error", "latest"))
        starting_times = _times(values, "starting", otherwise=EARLIEST, strict=strategy == "error")
        if starting_times is None and "startingTransactionIdsByTimestampStrategy" in values:
            raise InvalidSetting(
                name="startingTransactionIdsByTimestampStrategy", reason="does nothing without a timestamp to start at", nearest=None
            )
        mode = _word(values, "mode", ("data", "metadata", "ranges"))
        found = cls(
            cluster=values["cluster"].strip(),
            cluster_key=_key(values),
            partitions=partitions,
            starting=starting,
            starting_times=starting_times,
            ending=ending,
            ending_times=_times(values, "ending", otherwise=LATEST, strict=False),
            limits=_limits(values),
            fail_on_data_loss=_truth(values, "failOnDataLoss", default=True),
            min_partitions=_count(values, "minPartitions"),
            max_records_per_partition=_count(values, "maxRecordsPerPartition") or MAX_RECORDS_PER_PARTITION,
            fetch_timeout_ms=_count(values, "fetchTimeoutMs") or FETCH_TIMEOUT_MS,
            include_metadata=_truth(values, "includeMetadata", default=False),
            filter_pushdown=_truth(values, "filterPushdown", default=False),
            topics=parse_topics(values["topic"]) if "topic" in values else None,
            topic_pattern=parse_topic_pattern(values["topicPattern"]) if "topicPattern" in values else None,
            compacted=_truth(values, "compacted", default=False),
            principal=check_principal(values["principal"].strip()) if "principal" in values else "",
            metadata_mode=mode == "metadata",
            ranges_mode=mode == "ranges",
            decode=_decoding(values),
            keep_undecodable=_word(values, "undecodable", ("keep", "fail")) == "keep",
            time_zone=values.get("timeZone", "UTC").strip(),
            named=frozenset(values),
        )
        found._check_partitions()
        found._check_order()
        found._check_topics()
        found._check_decoding()
        found._check_ranges()
        found._check_named_topics()
        return found

    def _check_topics(self) -> None:
        if {"topic", "topicPattern"} <= self.named:
            raise InvalidSetting(name="topicPattern", reason="cannot be together with topic", nearest=None)
        if self.compacted and not self.by_topic:
            raise InvalidSetting(name="compacted", reason="needs topic or topicPattern: only a topic has a compacted view", nearest=None)
        if self.compacted:
            for name in sorted(self.named):
                if name.startswith(("starting", "ending")) or (name == "includeMetadata" and self.include_metadata):
                    raise InvalidSetting(name=name, reason=_NOT_COMPACTED, nearest=None)
                if name == "filterPushdown" and self.filter_pushdown:
                    raise InvalidSetting(name=name, reason="saves nothing with compacted=true: a view is read whole", nearest=None)

    def _check_decoding(self) -> None:
        if self.decode is None:
            for name in ("decode", "undecodable", "timeZone"):
                if name in self.named:
                    raise InvalidSetting(name=name, reason="does nothing without columns", nearest=None)
            return
        time_zone(self.time_zone, "timeZone")
        if self.compacted:
            raise InvalidSetting(name="columns", reason="cannot be combined with compacted=true: a tombstone is not JSON", nearest=None)
        if self.filter_pushdown:
            raise InvalidSetting(name="columns", reason="cannot be combined with filterPushdown: filters know the log's columns only", nearest=None)

    def _check_ranges(self) -> None:
        if self.ranges_mode:
            for name, given in (("columns", self.decode is not None), ("filterPushdown", self.filter_pushdown)):
                if given:
                    raise InvalidSetting(name=name, reason="does nothing with mode=ranges: its rows hold no transactions", nearest=None)

    def _check_named_topics(self) -> None:
        """Refuses a topic in JSON that the options never read. Whether the topic exists is checked later."""
        for name, said in self._said():
            for topic in said.topics if said is not None else ():
                if not self.by_topic:
                    raise InvalidSetting(name=name, reason=f"names topic {topic}, which needs topic or topicPattern", nearest=None)
                if self.topics is not None and topic not in self.topics:
                    raise InvalidSetting.unknown(topic, self.topics, what=f"topic of those read, named by {name}")
                if self.topic_pattern is not None and re.fullmatch(self.topic_pattern, topic) is None:
                    raise InvalidSetting(name=name, reason=f"names topic {topic}, which topicPattern does not match", nearest=None)

    def _said(self) -> tuple[tuple[str, Positions | Times | None], ...]:
        return (
            ("startingTransactionIds", self.starting),
            ("endingTransactionIds", self.ending),
            ("startingTransactionIdsByTimestamp", self.starting_times),
            ("endingTransactionIdsByTimestamp", self.ending_times),
        )

    def wanted_partitions(self, catalogue: Callable[[], Catalogue]) -> tuple[int, ...] | None:
        """The log partitions that are selected now; None: all. `catalogue` is called if topics are read. Raises `NoSuchTopic`."""
        if not self.by_topic:
            return self.partitions
        found = Wanted(self.topics, self.topic_pattern).partitions(catalogue(), {})
        return tuple(partition for partition in found if self.partitions is None or partition in self.partitions)

    @property
    def by_topic(self) -> bool:
        """Whether rows have the columns of topic and key."""
        return self.topics is not None or self.topic_pattern is not None

    def _check_partitions(self) -> None:
        for name, said in self._said():
            given = said.given if isinstance(said, Positions) else said.given_ms if said is not None else {}
            outside = sorted(set(given) - set(self.partitions)) if self.partitions is not None else []
            if outside:
                raise InvalidSetting(name=name, reason=f"names partition {outside[0]}, which option partitions leaves out", nearest=None)

    def _check_order(self) -> None:
        """Refuses an end before its start, as far as the options alone show it."""
        for partition, end in self.ending.given.items():
            start = self.starting.given.get(partition, EARLIEST)
            if 0 <= end < start:
                raise backward("endingTransactionIds", partition, start, end)
        if self.starting_times is not None and self.ending_times is not None:
            starts, ends = self.starting_times, self.ending_times
            by_id = {*self.starting.given, *self.ending.given}
            for partition in (ANY_OTHER, *sorted({*starts.given_ms, *ends.given_ms} - by_id)):
                start_ms, end_ms = starts.of(partition), ends.of(partition)
                if start_ms is not None and end_ms is not None and end_ms < start_ms:
                    raise backward(ends.option, partition, iso_time(start_ms), iso_time(end_ms))

    def fixed_bounds(self, partitions: Iterable[int]) -> frozenset[int]:
        """The partitions for which the options name both a start and an end, other than the earliest and the latest of the log."""
        starts, ends = (self.starting, self.starting_times), (self.ending, self.ending_times)
        return frozenset(
            partition
            for partition in partitions
            if all(said.of(partition) >= 0 or (times is not None and times.of(partition) is not None) for said, times in (starts, ends))
        )

    @property
    def bounded(self) -> bool:
        """Whether an end was given."""
        return "endingTransactionIds" in self.named or self.ending_times is not None

    def check_use(self, use: Literal["stream", "batch"]) -> None:
        """Refuses an option that has no effect in this use."""
        if self.metadata_mode and use == "stream":
            raise InvalidSetting(name="mode", reason="cannot be metadata in a stream: that is for batch reads only", nearest=None)
        if self.compacted and use == "stream":
            raise InvalidSetting(name="compacted", reason=_NOT_A_STREAM, nearest=None)
        actual: Use = "metadata" if self.metadata_mode else use
        for option in OPTIONS:
            if option.name in self.named and actual not in option.uses:
                reason = "does nothing with mode=metadata" if self.metadata_mode else f"is for {', '.join(sorted(option.uses))} reads only"
                raise InvalidSetting(name=option.name, reason=reason, nearest=None)
        if use == "stream" and "endingTransactionIds" in self.named and not (self.ending.given or self.ending.topics):
            raise InvalidSetting(name="endingTransactionIds", reason="cannot be latest in a stream; give JSON, or a trigger that ends", nearest=None)


def _decoding(values: Mapping[str, str]) -> DecodeSettings | None:
    if "columns" not in values:
        return None
    try:
        given = json.loads(values.get("decode", "{}"))
    except ValueError:
        given = None
    if not isinstance(given, dict):
        raise InvalidSetting(name="decode", reason='must be JSON of decode settings, such as {"timestamp_unit": "ms"}', nearest=None)
    for name in ("format", "columns", "undecodable"):
        if name in given:
            reason = "is an option of the source" if name == "undecodable" else "the source decodes JSON to the option columns"
            raise InvalidSetting(name="decode", reason=f"cannot set {name}: {reason}", nearest=None)
    try:
        return DecodeSettings(format="json", columns=values["columns"], **given)
    except InvalidSetting as error:
        raise InvalidSetting(name=f"decode.{error.name}", reason=error.reason, nearest=error.nearest) from None


def _known(options: Mapping[str, str]) -> dict[str, str]:
    values: dict[str, str] = {}
    for key, value in sorted(options.items()):
        lower = key.lower()
        if lower in _KNOWN:
            values[_KNOWN[lower].name] = value
        elif lower not in _FROM_SPARK:
            refuse_foreign(key)
            raise InvalidSetting.unknown(key, _NAMES, what="option of the source")
    return values


def _times(values: Mapping[str, str], side: Literal["starting", "ending"], *, otherwise: int, strict: bool) -> Times | None:
    """The most specific option applies: an id for a partition, then a time for it, then the time for all. A word for all and a time for all exclude
    each other."""
    everywhere, each, ids = f"{side}Timestamp", f"{side}TransactionIdsByTimestamp", f"{side}TransactionIds"
    if everywhere not in values and each not in values:
        return None
    if values.get(ids, "{").strip()[:1] != "{":
        name = everywhere if everywhere in values else each
        raise InvalidSetting(name=name, reason=f"cannot be together with {ids}={values[ids].strip()}; JSON of ids can", nearest=None)
    found = parse_times(each, values.get(each, "{}"), otherwise=otherwise, strict=strict)
    if everywhere not in values:
        return found
    return Times(everywhere, parse_time(everywhere, values[everywhere]), found.given_ms, otherwise, strict, found.topics)


def _limits(values: Mapping[str, str]) -> Limits:
    found = Limits(
        _count(values, "maxTransactionsPerTrigger"),
        _measured(values, "maxBytesPerTrigger", r"(\d+)\s*([kmg]?)b?", {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}, "bytes as in 64m"),
        _count(values, "minTransactionsPerTrigger"),
        _measured(
            values,
            "maxTriggerDelay",
            r"(\d+)\s*(ms|s|m|min|h)",
            {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000},
            "a time as in 500ms, 30s, 15m",
        )
        or MAX_TRIGGER_DELAY_MS,
    )
    if "maxTriggerDelay" in values and found.min_rows is None:
        raise InvalidSetting(name="maxTriggerDelay", reason="does nothing without minTransactionsPerTrigger", nearest=None)
    if found.min_rows is not None and found.max_rows is not None and found.min_rows > found.max_rows:
        raise InvalidSetting(name="minTransactionsPerTrigger", reason=f"is above maxTransactionsPerTrigger={found.max_rows}", nearest=None)
    return found


def _measured(values: Mapping[str, str], name: str, form: str, units: Mapping[str, int], wanted: str) -> int | None:
    if name not in values:
        return None
    matched = re.fullmatch(form, values[name].strip().lower())
    if matched is None or int(matched[1]) < 1:
        raise InvalidSetting(name=name, reason=f"must be {wanted}, above 0, got {values[name]!r}", nearest=None)
    return int(matched[1]) * units[matched[2]]


def _count(values: Mapping[str, str], name: str) -> int | None:
    if name not in values:
        return None
    text = values[name].strip()
    if not text.isdecimal() or int(text) < 1:
        raise InvalidSetting(name=name, reason=f"must be a whole number above 0, got {values[name]!r}", nearest=None)
    return int(text)


def _truth(values: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = values.get(name, str(default)).strip().lower()
    if text not in ("true", "false"):
        raise InvalidSetting(name=name, reason=f"must be true or false, got {values[name]!r}", nearest=None)
    return text == "true"


def _key(values: Mapping[str, str]) -> UUID | None:
    text = values.get("clusterKey")
    try:
        return None if text is None else UUID(text.strip())
    except ValueError:
        raise InvalidSetting(name="clusterKey", reason=f"must be a key as `waltz cluster status` shows it, got {text!r}", nearest=None) from None


def _word(values: Mapping[str, str], name: str, known: tuple[str, ...]) -> str:
    """The first of the known words if the option is not given."""
    text = values.get(name, known[0]).strip().lower()
    if text not in known:
        raise InvalidSetting(name=name, reason=f"must be {' or '.join(known)}, got {values[name]!r}", nearest=None)
    return text
