"""The data source `waltz` as Spark sees it: options, schema, and the two readers over the planner.

Spark pickles a source into planner processes and a reader's `read` into workers, so nothing here connects before it is used, and neither gRPC nor
the client is imported at the top: workers import this module before they fork.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import BinaryType, IntegerType, LongType, StructField, StructType, TimestampType

from pyspark_waltz.cluster import LogView
from pyspark_waltz.offsets import Extent, Offset, batch_starts, checked_starts, cut, initial_offset, latest_offset, resolve
from pyspark_waltz.options import SourceOptions

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["SCHEMA", "DefaultSource", "LogRange"]

SCHEMA = StructType(
    [
        StructField("partition", IntegerType()),
        StructField("transaction_id", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("header", IntegerType()),
        StructField("data", BinaryType()),
    ]
)


@dataclass(frozen=True)
class LogRange(InputPartition):
    """One task: everything an executor needs to read ids `first` to `last` of a partition without asking anybody but storage nodes."""

    partition: int
    first: int
    last: int
    session: int
    cluster_key: bytes
    replicas: tuple[str, ...]
    fetch_timeout_ms: int
    fail_on_data_loss: bool


def _connect(cluster: str, timeout_s: float) -> AbstractContextManager[Any]:
    from waltz_log.client.inspect import ClusterInspector

    return ClusterInspector(cluster, timeout_s=timeout_s)


class DefaultSource(DataSource):
    """Found by its module's name (`pyspark_…`), without registration, wherever the package is installed."""

    connect = staticmethod(_connect)
    """How the driver reaches the cluster. A subclass may bring another way (tests do)."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self.parsed = SourceOptions.parse(dict(options))

    @classmethod
    def name(cls) -> str:
        return "waltz"

    def schema(self) -> StructType:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        self.parsed.check_use("batch")
        return _BatchReader(self)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        self.parsed.check_use("stream")
        return _StreamReader(self)


def _plan(options: SourceOptions, view: LogView, starts: dict[int, int], ends: dict[int, int]) -> list[LogRange]:
    """The tasks for a batch, each bound to a session and its replicas."""
    moved = {partition: end for partition, end in ends.items() if end > starts[partition]}
    if not moved:
        return []
    extents, locations = view.cover(moved)
    checked = checked_starts({p: starts[p] for p in moved}, moved, extents, fail_on_data_loss=options.fail_on_data_loss)
    key = view.cluster_key.bytes
    ranges = []
    for number, span in enumerate(cut(checked, moved, min_partitions=options.min_partitions, max_records=options.max_records_per_partition)):
        location = locations[span.partition]
        # Neighbouring ranges begin at different replicas, so that the reading is spread over them.
        shift = (span.partition + number) % max(1, len(location.replicas))
        replicas = location.replicas[shift:] + location.replicas[:shift]
        ranges.append(
            LogRange(span.partition, span.first, span.last, location.session, key, replicas, options.fetch_timeout_ms, options.fail_on_data_loss)
        )
    return ranges


def _read(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    from pyspark_waltz.ranges import read_range

    return read_range(partition) if isinstance(partition, LogRange) else iter(())


class _BatchReader(DataSourceReader):
    """Bounds are fixed when Spark plans the query; each action plans anew."""

    def __init__(self, source: DefaultSource) -> None:
        self._source = source

    def partitions(self) -> Sequence[InputPartition]:
        options = self._source.parsed
        view = LogView(options, self._source.connect)
        try:
            extents = view.extents()
            starts = resolve(options.starting, extents, option="startingTransactionIds")
            ends = resolve(options.ending, extents, option="endingTransactionIds")
            return _plan(options, view, starts, {partition: max(end, starts[partition]) for partition, end in ends.items()})
        finally:
            view.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition)


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives in one planner process on the driver for as long as the query runs; copies of it travel to workers for `read` alone."""

    def __init__(self, source: DefaultSource) -> None:
        self._source = source
        self._view: LogView | None = None
        self._target: dict[int, Extent] | None = None

    def initialOffset(self) -> dict[str, Any]:
        return initial_offset(self._source.parsed.starting, self._log().extents()).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        limit = self._source.parsed.max_transactions_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        extents = self._target if self._target is not None else self._log().extents()
        return latest_offset(Offset.from_json(start), extents, limit.max_rows if isinstance(limit, ReadMaxRows) else None).to_json()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._log().extents()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        known = self._log().known_extents()
        return Offset({partition: extent.next for partition, extent in known.items()}).to_json() if known else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        until = Offset.from_json(end)
        return _plan(self._source.parsed, self._log(), batch_starts(Offset.from_json(start), until), dict(until.next))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition)

    def stop(self) -> None:
        if self._view is not None:
            self._view.close()

    def _log(self) -> LogView:
        if self._view is None:
            self._view = LogView(self._source.parsed, self._source.connect)
        return self._view
