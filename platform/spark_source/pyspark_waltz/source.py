"""The data source `waltz` for Spark: options, schema, and the readers around the planner.

Spark pickles a source into planner processes and a reader's `read` into workers. So nothing connects before its first use, and neither gRPC nor the
client is imported at the top: workers import this module before they fork.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING  # Any: tests connect to another inspector

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows, ReadMinRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from pyspark_waltz import catalog_tables
from pyspark_waltz.decoded_reads import Decoding, declared, decoded_schema
from pyspark_waltz.filters import Pushed, asked_for, push
from pyspark_waltz.intervals import Intervals
from pyspark_waltz.log_view import Connect, LogView, inspect_cluster
from pyspark_waltz.metadata_rows import MetadataReader
from pyspark_waltz.naming import TopicOf
from pyspark_waltz.offsets import BEHIND, Extent, Offset, batch_starts, by_name, checked_starts
from pyspark_waltz.options import NO_LIMITS, SourceOptions
from pyspark_waltz.planner import Span, capped, cut, latest_offset, refuse_backward, resolve, times_needed, view_end
from pyspark_waltz.positions import LATEST, Positions, Times
from pyspark_waltz.range_rows import range_row, ranges_schema, transactions
from pyspark_waltz.schema import METADATA_SCHEMA, SCHEMA, schema_of
from pyspark_waltz.tasks import LogRange, ViewRange
from pyspark_waltz.worker_heap import task_begins
from waltz_log.core.cluster_address import parse_servers
from waltz_log.errors import InvalidSetting

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["SCHEMA", "DefaultSource"]


class DefaultSource(DataSource):
    """The data source of `format("waltz")`. PySpark finds it by the package's name (`pyspark_…`), without registration, if the package is
    installed. Spark calls its methods; queries set its options (docs/reference/spark.md)."""

    connect: Connect = staticmethod(inspect_cluster)
    """How the driver reaches the cluster. A subclass may replace it (tests do), with its own form of address (`check_address`)."""

    check_address: Callable[[str], object] = staticmethod(parse_servers)
    """Raises `InvalidSetting` for an address that `connect` could never use, before anything is connected."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._given = catalog_tables.plain(dict(options))
        self._table = catalog_tables.of_a_table(dict(options))
        self._parsed = self._parse(self._given) if self._table or "cluster" in map(str.lower, self._given) else None
        self.decoding: Decoding | None = None

    @classmethod
    def name(cls) -> str:
        """The name of the format: `waltz`."""
        return "waltz"

    @property
    def parsed(self) -> SourceOptions:
        """The options. Raises `InvalidSetting` if the address of the cluster is missing: for a query of a table, Spark creates the source without
        it."""
        if self._parsed is None:
            self._parsed = self._parse(self._given)
        return self._parsed

    def _parse(self, options: Mapping[str, str]) -> SourceOptions:
        found = SourceOptions.parse(options)
        self.check_address(found.cluster)
        return found

    def schema(self) -> StructType | str:
        """The columns of a read: `SCHEMA`, with the columns that `includeMetadata` or topics add, or `METADATA_SCHEMA` with `mode=metadata`,
        `ranges_schema` with `mode=ranges`. With `columns`, those of `decoded_reads`."""
        if self.parsed.ranges_mode and self._table:
            raise InvalidSetting(name="mode", reason="cannot be ranges for a table: a query would read no transactions", nearest=None)
        log = self.log_columns()
        if self.parsed.ranges_mode:
            return ranges_schema(log)
        if self._table:
            if self.parsed.decode is not None:
                raise InvalidSetting(name="columns", reason="cannot be an option of a table: create a view over a read with columns", nearest=None)
            return catalog_tables.remember(log, self._given)
        if self.parsed.decode is None:
            return log
        return decoded_schema(log, self.parsed.decode.columns or "", keep=self.parsed.keep_undecodable)

    def log_columns(self) -> StructType:
        """The columns of transactions, or of the metadata, without decoding."""
        if self.parsed.metadata_mode:
            return METADATA_SCHEMA
        return schema_of(include_metadata=self.parsed.include_metadata, by_topic=self.parsed.by_topic)

    def _adopt(self, schema: StructType) -> None:
        """Parses the options of the read. For a table they are in its schema."""
        self._parsed = self._parse(catalog_tables.options_of(schema, self._given))
        settings = self._parsed.decode
        if settings is not None:
            keep = self._parsed.keep_undecodable
            columns = declared(schema, self.log_columns(), settings.columns or "", keep=keep)
            self.decoding = Decoding(columns, settings, self._parsed.time_zone, keep)
            self.decoding.check()

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reads the log once, or the metadata of its partitions. Raises `InvalidSetting` for options of streams."""
        self._adopt(schema)
        self.parsed.check_use("batch")
        if self.parsed.metadata_mode:
            return MetadataReader(self.parsed, self.connect)
        # Spark 4.2 reuses the tasks planned with one query's filters for later queries of the DataFrame, which then miss rows: off by default.
        return _FilteringReader(self) if self.parsed.filter_pushdown and asked_for() else _BatchReader(self)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Reads the log as a stream. Raises `InvalidSetting` for options of batch reads."""
        self._adopt(schema)
        self.parsed.check_use("stream")
        return _StreamReader(self)


def _plan(options: SourceOptions, view: LogView, spans: Iterable[Span], pushed: Pushed, topics: Mapping[int, TopicOf]) -> list[LogRange]:
    """The tasks for a batch, each bound to a session and its replicas. `topics`: the topic of each partition, if topics are read."""
    spans = [span for span in spans if span.last >= span.first]
    if not spans:
        return []
    ends: dict[int, int] = {}
    for span in spans:
        ends[span.partition] = max(ends.get(span.partition, 0), span.last + 1)
    extents, locations = view.cover(ends)
    held = [_still_there(span, extents, options) for span in spans]
    key = view.cluster_key.bytes
    ranges = []
    for number, span in enumerate(cut(held, min_partitions=options.min_partitions, max_records=options.max_records_per_partition)):
        location = locations[span.partition]
        # Neighboring ranges begin at different replicas, to spread the reads over them.
        shift = (span.partition + number) % max(1, len(location.replicas))
        ranges.append(
            LogRange(
                partition=span.partition,
                first=span.first,
                last=span.last,
                session=location.session,
                cluster_key=key,
                replicas=location.replicas[shift:] + location.replicas[:shift],
                fetch_timeout_ms=options.fetch_timeout_ms,
                fail_on_data_loss=options.fail_on_data_loss,
                include_metadata=options.include_metadata,
                tests=pushed.tests,
                topic=topics.get(span.partition),
                principal=options.principal,
            )
        )
    return ranges


def _plan_compacted(options: SourceOptions, view: LogView, extents: Mapping[int, Extent]) -> list[InputPartition]:
    """Tasks for the views, and for the log from where each view ends. Raises `InvalidSetting` for a topic without views."""
    for found in view.topics.values():
        if not found.compaction:
            raise InvalidSetting(name="compacted", reason=f"cannot be used: {found.topic.name} is not a compaction topic", nearest=None)
    ends = view.view_ends(extents)
    tasks: list[InputPartition] = []
    begins = {partition: view_end(ends.get(partition, {}), extent, partition) for partition, extent in extents.items()}
    _, locations = view.cover(dict.fromkeys(begins, 0))
    for partition, begin in begins.items():
        if begin.replicas:
            tasks.append(
                ViewRange(
                    partition=partition,
                    end=begin.end,
                    log_end=max(begin.end, extents[partition].next),
                    session=locations[partition].session,
                    cluster_key=view.cluster_key.bytes,
                    replicas=begin.replicas,
                    fetch_timeout_ms=options.fetch_timeout_ms,
                    topic=view.topics[partition].topic,
                    principal=options.principal,
                )
            )
    spans = [Span(partition, begin.end, extents[partition].next - 1) for partition, begin in begins.items()]
    return [*tasks, *_plan(options, view, spans, Pushed(), _names(view))]


def _still_there(span: Span, extents: Mapping[int, Extent], options: SourceOptions) -> Span:
    p = span.partition
    checked = checked_starts({p: span.first}, {p: span.last + 1}, extents, fail_on_data_loss=options.fail_on_data_loss)
    return Span(p, checked[p], span.last)


def _read(partition: InputPartition, source: DefaultSource) -> Iterator[pa.RecordBatch]:
    task_begins()
    if source.parsed.ranges_mode:  # a read without tasks gets one of Spark's own
        return iter((range_row(partition),) if isinstance(partition, LogRange | ViewRange) else ())
    found = transactions(partition)
    return found if source.decoding is None else source.decoding.decoded(found)


def _names(view: LogView) -> dict[int, TopicOf]:
    return {partition: found.topic for partition, found in view.topics.items()}


def _begin(options: SourceOptions, view: LogView, extents: Mapping[int, Extent]) -> dict[int, int]:
    """Where each partition begins."""
    starting = options.starting.in_log("startingTransactionIds", _places(view))
    times = options.starting_times.in_log(_places(view)) if options.starting_times is not None else None
    at_times = view.positions_at(times_needed(starting, times, extents))
    return resolve(starting, extents, option="startingTransactionIds", times=times, at_times=at_times)


def _ends(options: SourceOptions, view: LogView, *, strict: bool) -> tuple[Positions, Times | None]:
    """Where each partition is to end, by log partition. `strict`: the topics must exist."""
    times = options.ending_times.in_log(_places(view), strict=strict) if options.ending_times is not None else None
    return options.ending.in_log("endingTransactionIds", _places(view), strict=strict), times


def _places(view: LogView) -> dict[int, tuple[str, int]]:
    return {partition: (found.topic.name, found.number) for partition, found in view.topics.items()}


# ---- batch -------------------------------------------------------------------------------------------------------------------------------------


class _BatchReader(DataSourceReader):
    """Spark fixes the bounds when it plans the first query of a DataFrame, and keeps them for later queries."""

    def __init__(self, source: DefaultSource) -> None:
        self._source = source
        self._pushed = Pushed()

    def partitions(self) -> Sequence[InputPartition]:
        options, pushed = self._source.parsed, self._pushed
        view = LogView(options, self._source.connect)
        try:
            extents = view.extents()
            if options.compacted:
                return _plan_compacted(options, view, extents)
            starts = _begin(options, view, extents)
            ending, times = _ends(options, view, strict=True)
            at_times = view.positions_at(times_needed(ending, times, extents))
            ends = resolve(ending, extents, option="endingTransactionIds", times=times, at_times=at_times)
            refuse_backward(options.fixed_bounds(extents), starts, ends)
            if pushed.nothing:
                return []
            wanted = {p: (starts[p], ends[p] - 1) for p in extents if p in pushed.of("partition")}
            wanted = self._between_times(view, wanted)
            ids = pushed.of("transaction_id")
            spans = [Span(p, *span) for p, bounds in sorted(wanted.items()) for span in (Intervals.of([bounds]) & ids).spans]
            return _plan(options, view, spans, pushed, _names(view))
        finally:
            view.close()

    def _between_times(self, view: LogView, wanted: dict[int, tuple[int, int]]) -> dict[int, tuple[int, int]]:
        """The ranges without transactions appended before or after the times that a filter accepts."""
        from_ms, until_ms = self._pushed.from_ms, self._pushed.until_ms
        froms = view.positions_at(dict.fromkeys(wanted, from_ms)) if from_ms is not None else {}
        untils = view.positions_at(dict.fromkeys(wanted, until_ms)) if until_ms is not None else {}
        return {p: (max(low, froms.get(p, low)), min(high, untils.get(p, high + 1) - 1)) for p, (low, high) in wanted.items()}

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition, self._source)


class _FilteringReader(_BatchReader):
    """For the process in which Spark pushes filters."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self._pushed, left = push(filters, self._source.log_columns().names)
        return left


# ---- stream ------------------------------------------------------------------------------------------------------------------------------------


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Runs in one planner process on the driver as long as the query runs; workers receive copies only for `read`."""

    def __init__(self, source: DefaultSource) -> None:
        self._source = source
        self._view: LogView | None = None
        self._target: dict[int, Extent] | None = None
        self._ends: dict[int, int] = {}
        self._last_batch_s: float | None = None
        self._reached: dict[int, int] = {}

    def initialOffset(self) -> dict[str, object]:
        log = self._log()
        starts = _begin(self._source.parsed, log, log.extents())
        return Offset(starts, initial=True, cluster=str(log.cluster_key), topics=_names(log)).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """A limit that Spark knows; `latestOffset` applies the others."""
        limits = self._source.parsed.limits
        if limits.max_rows is not None:
            return ReadMaxRows(limits.max_rows)
        if limits.max_bytes is not None:
            return ReadMaxBytes(limits.max_bytes)
        return ReadMinRows(limits.min_rows) if limits.min_rows is not None else ReadAllAvailable()

    def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:
        # With a trigger that runs once, Spark asks for all available data: apply no limit.
        limits = NO_LIMITS if isinstance(limit, ReadAllAvailable) else self._source.parsed.limits
        log, begin = self._log(), Offset.from_json(start)
        now_s = time.monotonic()
        if self._last_batch_s is None:
            self._last_batch_s = now_s
        if self._target is None:
            extents = self._until_ends(log.extents(begin.topics))
        else:
            if not begin.topics.keys() <= self._target.keys():  # deleted topics are still read to their end
                self._target = self._until_ends(log.extents(begin.topics)) | self._target
            extents = self._target
        begin.expect_cluster(str(log.cluster_key))
        self._expect_reached(log, begin)
        # The query ends at the present end of the log, so it waits for no further rows.
        waited_ms = None if self._target is not None else (now_s - self._last_batch_s) * 1000
        end = latest_offset(begin, extents, limits, measure=log.measure, waited_ms=waited_ms)
        self._reached = dict(end.next)
        if end is not begin:
            self._last_batch_s = now_s
        return start if end is begin else replace(end, topics={**begin.topics, **_names(log)}).to_json()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._until_ends(self._log().extents())

    def reportLatestOffset(self) -> dict[str, object] | None:
        """The value of `sources[].latestOffset` in the query's progress: the end of the log, and how far the batch is behind it. A source in Python
        cannot add metrics there."""
        known = self._log().known_extents()
        if not known:
            return None
        behind = {partition: max(0, extent.next - self._reached.get(partition, extent.first)) for partition, extent in known.items()}
        return Offset({partition: extent.next for partition, extent in known.items()}).to_json() | {BEHIND: by_name(behind)}

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> Sequence[InputPartition]:
        log, until = self._log(), Offset.from_json(end)
        until.expect_cluster(str(log.cluster_key))
        starts = batch_starts(Offset.from_json(start), until)
        spans = [Span(p, at, until.next[p] - 1) for p, at in sorted(starts.items())]
        return _plan(self._source.parsed, log, spans, Pushed(), until.topics)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition, self._source)

    def stop(self) -> None:
        if self._view is not None:
            self._view.close()

    def _expect_reached(self, log: LogView, begin: Offset) -> None:
        """Raises `OutOfRange` if the log ends before what the query has read already. Waits first, because a bound may be old for a moment. Over a
        log that was reset, the query would not advance and later read other transactions under ids that it had passed."""
        known = log.known_extents()
        ahead = {partition: at for partition, at in begin.next.items() if partition in known and at > known[partition].next}
        if ahead:
            log.cover(ahead)

    def _until_ends(self, extents: dict[int, Extent]) -> dict[int, Extent]:
        """The log up to the end of the query. The end at a time is known once a transaction as new is committed, and then stays the same."""
        options = self._source.parsed
        if not options.bounded:
            return extents
        ending, times = _ends(options, self._log(), strict=False)
        self._ends |= {p: end for p, end in ending.given.items() if end != LATEST}
        open_ = [p for p in extents if p not in self._ends]
        asked = times_needed(ending, times, open_)
        for partition, at in self._log().positions_at(asked).items():
            if at < extents[partition].next:
                self._ends[partition] = at
        return capped(extents, self._ends)

    def _log(self) -> LogView:
        if self._view is None:
            self._view = LogView(self._source.parsed, self._source.connect)
        return self._view
