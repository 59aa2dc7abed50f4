"""A keyed table that batches are merged into exactly once: the shared part of upsert and history. A `MergeRule` turns rows into a MERGE."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol  # Any: pyarrow has no types

import pyarrow as pa
from delta.tables import DeltaMergeBuilder
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from waltz_delta.base import internal
from waltz_delta.base.checkpoint_pace import with_interval
from waltz_delta.base.direct_rows import DirectRows, direct_columns
from waltz_delta.base.job_outcome import brief_errors
from waltz_delta.base.log_store import LOCAL, scheme_of
from waltz_delta.base.session import session_properties
from waltz_delta.base.table_transaction import TableTransaction
from waltz_delta.decode.row_checks import partitioned_keys
from waltz_delta.engine.allowed import TableShape, refusal_of_created, refusal_of_new
from waltz_delta.engine.arrow_merge import TABLE_BYTES_MAX, ArrowMerge, refusal_of_merge
from waltz_delta.engine.arrow_schema import arrow_schema
from waltz_delta.engine.arrow_transaction import ArrowTransaction, new_shape, with_defaults
from waltz_delta.engine.choice import EngineChoice, TableEngine
from waltz_delta.engine.folds import AT, DELETES, Fold
from waltz_delta.engine.packed_rows import collect_direct
from waltz_delta.engine.stored_rows import NotRead
from waltz_delta.engine.written_files import compression_of, table_columns
from waltz_delta.landing.append import ATTEMPTS
from waltz_delta.landing.engine_tables import create_by_engine, engine_columns
from waltz_delta.landing.key_values import refuse_unstored
from waltz_delta.landing.merge import MergedTable, MergeState
from waltz_delta.landing.merge_source import AT as APPENDED_AT
from waltz_delta.landing.merge_source import DELETED, HIDDEN, hold, mark_deletes
from waltz_delta.landing.takeover import inherit_table
from waltz_delta.marks.batch import PARTITION, ROW, TRANSACTION_ID, LostRace, Rows, Staged, land, require_columns, undecodable_in
from waltz_delta.marks.marks import BatchRange, app_id, marks_among, merge_app_id, merged_app_id, overlap, refuse_gaps
from waltz_delta.marks.restored import commit_metadata, follow_restore
from waltz_delta.settings import DeleteSettings
from waltz_delta.tables.column_names import check_columns
from waltz_delta.tables.constraints import constraints_of
from waltz_delta.tables.evolution import Evolution, fit, held_schema, stored_columns
from waltz_delta.tables.mode import Mode, check_declared, mode_app_id, refuse_superseded, with_mode
from waltz_delta.tables.table import check_layout, create_empty, is_table
from waltz_delta.tables.table_watch import TableWatch
from waltz_delta.tables.time_zone import with_zone, zone_app_id
from waltz_log.errors import InvalidRequest

__all__ = ["MergeRule", "MergeSink"]

ARROW_ROWS_MAX = 1_000_000
"""Most transactions of a batch that the driver merges: it holds their rows. Spark's executors merge a larger batch."""


RESULT_MAX: Final = "spark.driver.maxResultSize"
_OVERFLOW: Final = f"the batch has more bytes than the driver collects ({RESULT_MAX}); lower maxTransactionsPerTrigger, or raise it"


class MergeRule(Protocol):
    """How rows with the same keys become a MERGE."""

    mode: Mode

    tombstones: str | None
    """Path of the table of deleted keys, if there is one."""

    def is_arrow(self, spark: SparkSession) -> bool:
        """Whether the Arrow engine writes what the rule needs besides the table."""
        ...

    @property
    def deletes(self) -> DeleteSettings | None:
        """Which rows delete their key."""
        ...

    merges_held_rows: bool
    """Whether the MERGE's source is the held rows as they are, not computed from them."""

    def prepare(self, spark: SparkSession, visible: StructType) -> None:
        """Creates what the rule needs besides the table."""
        ...

    def table_schema(self, visible: StructType) -> StructType:
        """The table's columns: those of the rows, then the rule's own."""
        ...

    def fold(self, path: str, names: Mapping[str, str], columns: Sequence[str]) -> Fold:
        """The rule for the Arrow engine. `names`: the table's columns by their names in small letters. `columns`: those that the rows set."""
        ...

    def id_columns(self) -> Sequence[str]:
        """The columns of the table that hold transaction ids."""
        ...

    def source(self, spark: SparkSession, rows: DataFrame, *, late: bool) -> DataFrame:
        """The rows reduced to those that the MERGE needs. `late`: they come from below the marks."""
        ...

    def remember(self, spark: SparkSession, source: DataFrame) -> None:
        """Writes what must be stored outside of the table before the MERGE of `source`. Idempotent. May raise `LostRace`."""
        ...

    def living(self, spark: SparkSession, source: Any, *, late: bool) -> Any:
        """For the Arrow engine: the rows of an Arrow table without those that must not come back. May raise `LostRace`."""
        ...

    def remember_arrow(self, spark: SparkSession, source: Any) -> None:
        """`remember` by the Arrow engine, of the rows of an Arrow table. May raise `LostRace`."""
        ...

    def merge(self, spark: SparkSession, path: str, source: DataFrame, columns: Sequence[str]) -> DeltaMergeBuilder:
        """The MERGE of `source`, which is held, into these columns of the table, not executed yet. May raise `LostRace`."""
        ...


class MergeSink:
    def __init__(
        self,
        path: str,
        cluster_key: str,
        keys: Sequence[str],
        sequence: str,
        rule: MergeRule,
        *,
        partition_by: Sequence[str] = (),
        cluster_by: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        evolution: Evolution = "fail",
        attempts: int = ATTEMPTS,
        engine: EngineChoice = "auto",
        storage: Mapping[str, str] | None = None,
        former_clusters: Sequence[str] = (),
    ) -> None:
        if not keys:
            raise InvalidRequest(reason="a merge needs at least one key column")
        self.path = path
        self.cluster_key = cluster_key
        self._former_clusters = tuple(former_clusters)
        self.rule = rule
        self._keys = tuple(keys)
        self._sequence = sequence
        self._layout = {"partition_by": tuple(partition_by), "cluster_by": tuple(cluster_by)}
        self._properties = dict(properties or {})
        self._evolution: Evolution = evolution
        self._attempts = attempts
        self._table = MergedTable(path, cluster_key)
        self.engine = TableEngine(path, engine, storage or {}, self._refusal)
        self._fitted: tuple[str, StructType, list[str], dict[str, Column]] | None = None
        self._prepared = False
        self.watch = TableWatch(path)

    def prepare(self, spark: SparkSession, schema: StructType) -> None:
        """Like `DeltaAppend.prepare`, but also creates the table, since MERGE needs one."""
        visible = _visible(schema)
        require_columns(visible.fieldNames())
        for name in (*self._keys, self._sequence):
            if name not in visible.fieldNames():
                raise InvalidRequest(reason=f"there is no column {name}, only {', '.join(visible.fieldNames())}")
        made = self.rule.table_schema(visible)
        names = [name.lower() for name in made.fieldNames()]
        for name in made.fieldNames()[len(visible.fields) :]:
            if names.count(name.lower()) > 1:
                raise InvalidRequest(reason=f"the rows have a column {name}, which the table needs for its own; rename one of them")
        check_layout(made, **self._layout)
        defaults = session_properties(spark)
        self.engine.choose(spark, self.engine_refusal(made, defaults))
        table = self.engine.arrow(spark)
        if table is None:
            internal.check_versions(spark)
        if not (is_table(spark, self.path) if table is None else table.is_table()):
            check_columns(made, self._properties, merged=True)
            if table is None or self._refusal_to_create(made, defaults) is not None:
                internal.check_versions(spark)
                create_empty(spark, self.path, made, with_zone(with_mode(self._properties, self.rule.mode), spark), **self._layout)
            else:
                shape = new_shape(made, self._layout["partition_by"], self._properties, defaults)
                versions = {mode_app_id(self.rule.mode): 1, zone_app_id(spark): 1}
                create_by_engine(self.begin(spark), table, shape, versions, metadata=commit_metadata(self.cluster_key))
        judged = follow_restore(spark, self.path, self.cluster_key, lambda: self.begin(spark))
        former = check_declared(self.begin(spark), self.path, made, self.rule.mode, self.cluster_key, self._former_clusters)
        self.watch.begin(judged)
        self._fit(spark, visible)
        inherit_table(spark, self.path, former, self.cluster_key, self.rule.id_columns(), self.rule.tombstones)
        self.rule.prepare(spark, visible)
        self._prepared = True

    def engine_refusal(self, schema: StructType | None, defaults: Mapping[str, str]) -> str | None:
        """Why Spark's engine, and not the Arrow engine, merges into the table that is created with these columns; None if the Arrow engine does.
        `schema`, `defaults`: as in `DeltaAppend`. In a directory of this machine Spark creates a table that `deltalake` cannot create."""
        columns, properties = json.loads((schema or StructType()).json()), with_defaults(with_interval(self._properties), defaults)
        typed = TableShape(columns, self._layout["partition_by"] if schema is not None else (), properties)
        merged = TableShape(columns, self._layout["partition_by"], properties)
        reason = refusal_of_created(typed, self._layout["cluster_by"]) or self._refusal(merged)
        return reason if reason is not None or scheme_of(self.path) == LOCAL else self._refusal_to_create(schema or StructType(), defaults)

    def _refusal(self, shape: TableShape) -> str | None:
        return refusal_of_merge(shape, self._keys, self._sequence)

    def _refusal_to_create(self, schema: StructType, defaults: Mapping[str, str]) -> str | None:
        """Why `deltalake` does not create the table; None if it does."""
        return refusal_of_new(new_shape(schema, self._layout["partition_by"], self._properties, defaults), self._layout["cluster_by"])

    def table_schema(self, schema: StructType) -> StructType:
        """The columns of a table for rows of `schema`."""
        return self.rule.table_schema(_visible(schema))

    def begin(self, spark: SparkSession) -> TableTransaction:
        """A transaction on the table, by the engine that writes it."""
        return self.engine.begin(spark)

    def count(self, spark: SparkSession) -> int:
        """The rows of the table, from its log's statistics."""
        table = self.engine.arrow(spark)
        return int(spark.read.format("delta").load(self.path).count()) if table is None else table.count()

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        with brief_errors():
            self._land(batch, batch_id)

    def write(self, rows: DataFrame) -> None:
        """Merges a batch DataFrame by the same rule."""
        self._land(rows, None)

    def _land(self, batch: DataFrame, batch_id: int | None) -> None:
        if not self._prepared:
            self.prepare(batch.sparkSession, batch.schema)
        land(self, batch, batch_id, self._attempts)

    def stage(self, spark: SparkSession, covered: BatchRange, rows: Rows, batch_id: int | None) -> Staged | None:
        """Reads and reduces the rows that the table lacks; `commit` merges them."""
        if not covered.marks():
            return None
        transaction = self._arrow_transaction(spark, covered)
        if transaction is not None:
            try:
                return self._stage_arrow(spark, transaction, covered, rows, batch_id)
            except _TooLarge as error:
                self.engine.leave_to_spark(str(error))
        self.engine.require_spark(spark)
        state = self._table.state(spark)
        refuse_gaps(self.path, covered, state.marks)
        table = internal.TableTransaction(spark, self.path)
        refuse_superseded(table, self.path, self.cluster_key)
        self.watch.check(spark, table, covered.checkpoint)
        new = {partition: end for partition, end in covered.marks().items() if end > state.marks.get(partition, -1)}
        return self._staged(spark, state, new, rows.frame(overlap(covered, state.marks), table), late=False, table=table) if new else None

    def _arrow_transaction(self, spark: SparkSession, covered: BatchRange | None) -> ArrowTransaction | None:
        """None if Spark's engine merges this batch. Sets the marks of a MERGE of Spark's engine whose driver died before it did. `covered`: None for
        rows from below the marks."""
        transaction = self.engine.begin(spark)
        if not isinstance(transaction, ArrowTransaction):
            return None
        if not self.rule.is_arrow(spark):
            self.engine.leave_to_spark("Spark's engine writes the table of its tombstones")
            return None
        if too_large := _too_large(transaction, covered):
            self.engine.leave_to_spark(too_large)
            return None
        self.engine.report()
        refuse_superseded(transaction, self.path, self.cluster_key)
        if self._finishes(transaction):
            raise LostRace
        return transaction

    def _finishes(self, transaction: TableTransaction) -> bool:
        """Whether the marks of the last MERGE were missing, and are set now, in a version after that of the transaction."""
        started, finished = (transaction.version(name) or 0 for name in self._numbers)
        return started > finished and self._table.finish(transaction)

    @property
    def _numbers(self) -> tuple[str, str]:
        """The identifiers by which Spark's engine counts its MERGEs: started and finished. Each MERGE of the Arrow engine counts too, so that a MERGE
        of Spark's that was decided before it fails."""
        return merge_app_id(self.cluster_key), merged_app_id(self.cluster_key)

    def _stage_arrow(
        self, spark: SparkSession, transaction: ArrowTransaction, covered: BatchRange, rows: Rows, batch_id: int | None
    ) -> Staged | None:
        read = {partition: transaction.version(app_id(self.cluster_key, partition)) for partition in sorted(covered.marks())}
        marks = {partition: mark for partition, mark in read.items() if mark is not None}
        refuse_gaps(self.path, covered, marks)
        self.watch.check(spark, transaction, covered.checkpoint)
        new = {app_id(self.cluster_key, partition): end for partition, end in covered.marks().items() if end > marks.get(partition, -1)}
        if not new:
            return None
        held, batch = overlap(covered, marks), -1 if batch_id is None else batch_id
        direct = rows.direct(held, transaction)
        if direct is not None and (source := self._direct_source(spark, transaction, direct)) is not None:
            return self._folded(spark, transaction, source, new, batch)
        return self._arrow_merge(spark, transaction, rows.frame(held, transaction), new, batch)

    def _direct_source(self, spark: SparkSession, transaction: ArrowTransaction, rows: DirectRows) -> Any:
        """The rows of the batch as Arrow, as `_arrow_merge` makes them; None if Spark must convert a value or drop a column. Collects them."""
        self._columns(spark, transaction, rows.schema)  # adds those that the table lacks
        shape = transaction.shape
        assert shape is not None
        placed = direct_columns(rows.schema, held_schema(transaction.schema_text()))
        if placed is None or partitioned_keys(self._keys, shape.partition_by):
            return None
        types = arrow_schema(shape.schema)
        wanted = pa.schema([types.field(name) for name, _ in placed])
        packed = _collected_direct(rows)
        found = wanted.empty_table() if packed is None else packed.select([at for _, at in placed]).rename_columns(wanted.names).cast(wanted)
        never = pa.nulls(found.num_rows, pa.timestamp("us", "UTC"))  # only deletes ask for the time
        return found.append_column(DELETES, pa.repeat(False, found.num_rows)).append_column(AT, never)

    def _arrow_merge(self, spark: SparkSession, transaction: ArrowTransaction, rows: DataFrame, new: Mapping[str, int], batch: int) -> Staged:
        """`new`: the identifiers of the marks that the merge sets. Collects the rows. Raises `_TooLarge`."""
        columns, converted = self._columns(spark, transaction, _visible(rows.schema))
        frame = rows.withColumns(converted) if converted else rows
        shape = transaction.shape
        assert shape is not None
        frame = mark_deletes(refuse_unstored(frame, self._keys, shape.partition_by), self.rule.deletes)
        written = {name.lower() for name in columns}
        fields = StructType.fromJson(dict(shape.schema)).fields
        held = StructType([field for field in fields if field.name.lower() in written])
        flags = [f.col(DELETED).alias(DELETES), f.col(APPENDED_AT).alias(AT)]
        types = arrow_schema(shape.schema)
        wanted = pa.schema([*(types.field(field.name) for field in held.fields), (DELETES, pa.bool_()), (AT, pa.timestamp("us", "UTC"))])
        return self._folded(spark, transaction, _collected(frame.select(*table_columns(frame.schema, held), *flags)).cast(wanted), new, batch)

    def _folded(self, spark: SparkSession, transaction: ArrowTransaction, rows: Any, new: Mapping[str, int], batch: int) -> Staged:
        """`rows`: with the table's names, in its types, with `DELETES` and `AT`."""
        shape = transaction.shape
        assert shape is not None
        fields = StructType.fromJson(dict(shape.schema)).fields
        source = self.rule.living(spark, rows, late=not new)
        given = [name for name in rows.column_names if name not in (DELETES, AT)]
        fold = self.rule.fold(self.path, {field.name.lower(): field.name for field in fields}, given)
        number = max(transaction.version(name) or 0 for name in self._numbers) + 1
        merge = ArrowMerge(source, fold, compression_of(spark, shape.properties))
        return _StagedArrowMerge(self, spark, transaction, merge, {**new, **dict.fromkeys(self._numbers, number)}, batch)

    def stage_late(self, spark: SparkSession, rows: DataFrame) -> Staged:
        """Stages rows from below the marks, which are replayed: they never replace newer rows. Changes no mark."""
        transaction = self._arrow_transaction(spark, None)
        if transaction is not None:
            try:
                return self._arrow_merge(spark, transaction, rows, {}, -1)
            except _TooLarge as error:
                self.engine.leave_to_spark(str(error))
        self.engine.require_spark(spark)
        state = self._table.state(spark)
        table = internal.TableTransaction(spark, self.path)
        refuse_superseded(table, self.path, self.cluster_key)
        return self._staged(spark, state, {}, rows, late=True, table=table)

    def marks(self, spark: SparkSession) -> Mapping[int, int]:
        """The marks of the table: for each log partition, the last transaction that it holds."""
        transaction = self.begin(spark)
        return marks_among((self.begin(spark) if self._finishes(transaction) else transaction).versions(), self.cluster_key)

    def _staged(
        self, spark: SparkSession, state: MergeState, new: Mapping[int, int], rows: DataFrame, *, late: bool, table: TableTransaction
    ) -> Staged:
        columns, converted = self._columns(spark, table, _visible(rows.schema))
        storable = refuse_unstored(rows.withColumns(converted) if converted else rows, self._keys, self._layout["partition_by"])
        return _StagedMerge(self, spark, state, new, hold(self.rule.source(spark, storable, late=late)), columns, table)

    def _columns(self, spark: SparkSession, table: TableTransaction, visible: StructType) -> tuple[list[str], dict[str, Column]]:
        """The columns to write; and those that have another type in the table, as the table holds them. Reads the table's columns again only if
        they changed since the last batch, for example by a user."""
        text = table.schema_text()
        if self._fitted is None or self._fitted[:2] != (text, visible):
            names = self._fit(spark, visible)
            again = self.begin(spark) if isinstance(table, ArrowTransaction) else internal.TableTransaction(spark, self.path)
            if again.schema_text() != text:
                raise LostRace  # columns were added, here or by another writer; this transaction does not see them
            held = held_schema(text)
            kinds = {field.name.lower(): field.dataType.simpleString() for field in held.fields}
            other = [name for name in names if kinds[name.lower()] != visible[name].dataType.simpleString()]
            converted = dict(zip(other, stored_columns(held, visible, other), strict=True))
            self._fitted = (text, visible, names, converted)
        return self._fitted[2:]

    def _fit(self, spark: SparkSession, visible: StructType) -> list[str]:
        """The columns of the rows that the table has, after adding those that it lacks if they may be added."""
        made = self.rule.table_schema(visible)
        own = set(made.fieldNames()) - set(visible.fieldNames())
        needed = (*self._keys, self._sequence, PARTITION, TRANSACTION_ID, *sorted(own))
        columns = engine_columns(spark, self.path, self.engine, self._refusal)
        return [name for name in fit(columns, self.path, made, self._evolution, needed=needed) if name not in own]


class _TooLarge(Exception):
    """The batch does not fit into the driver."""


def _collected(rows: DataFrame) -> Any:
    """The rows as an Arrow table in the driver. Raises `_TooLarge`."""
    try:
        return rows.toArrow()
    except Exception as error:
        if not _overflows(error):
            raise
        raise _TooLarge(_OVERFLOW) from error


def _overflows(error: Exception) -> bool:
    """Whether the driver refused to collect that much. Undecodable data may say so too."""
    return RESULT_MAX in str(error) and undecodable_in(str(error)) is None


def _collected_direct(rows: DirectRows) -> Any:
    """`_collected` of rows that tasks make."""
    try:
        return collect_direct(rows)
    except Exception as error:
        if not _overflows(error):
            raise
        raise _TooLarge(_OVERFLOW) from error


def _too_large(table: ArrowTransaction, covered: BatchRange | None) -> str | None:
    """Why the driver does not merge this batch into this table; None if it does."""
    if covered is not None and sum(end - covered.starts.get(partition, 0) for partition, end in covered.ends.items()) > ARROW_ROWS_MAX:
        limit = "set maxTransactionsPerTrigger to at most that"
        return f"a batch has more than {ARROW_ROWS_MAX:,} transactions, which the driver does not merge; {limit}"
    files = table.files()
    if files.bytes > TABLE_BYTES_MAX:
        return f"the table has more than {TABLE_BYTES_MAX:,} bytes, into which the driver does not merge"
    if files.outside is not None:
        return f"the table has files outside of its directory, as a clone has, into which deltalake does not merge: {files.outside}"
    return None


def _visible(schema: StructType) -> StructType:
    return StructType([field for field in schema.fields if field.name not in HIDDEN])


@dataclass(frozen=True, slots=True)
class _StagedArrowMerge:
    sink: MergeSink
    spark: SparkSession
    transaction: ArrowTransaction
    merge: ArrowMerge
    versions: Mapping[str, int]
    batch: int

    def commit(self) -> None:
        """Writes the tombstones first. None for a transaction that a constraint refuses since the rows were judged: its delete would not follow."""
        metadata = commit_metadata(self.sink.cluster_key, read=self.transaction.read_version)
        if self.sink.rule.tombstones is not None:
            now = self.sink.begin(self.spark)
            if not isinstance(now, ArrowTransaction) or now.shape != self.transaction.shape:
                raise LostRace
        try:
            self.sink.rule.remember_arrow(self.spark, self.merge.source)
            committed = self.transaction.merge(self.merge, self.versions, query="waltz", batch=self.batch, metadata=metadata)
        except NotRead as error:
            self.sink.engine.refuse(str(error))
            raise LostRace from error
        except Exception as error:
            if not self.transaction.lost_to_another(error):
                raise
            raise LostRace from error
        if committed > self.transaction.read_version + 1:
            self.sink.watch.check_overtaken(self.sink.begin(self.spark), self.transaction.read_version, committed)

    def release(self) -> None:
        """Holds only memory of this process."""


@dataclass(frozen=True, slots=True)
class _StagedMerge:
    sink: MergeSink
    spark: SparkSession
    state: MergeState
    new: Mapping[int, int]
    source: DataFrame
    columns: Sequence[str]
    table: TableTransaction
    """As the rows were judged by it: the MERGE reads the table again."""

    def commit(self) -> None:
        """Writes the tombstones first, outside of `MergedTable.merge`: each commit within it carries the number, and Delta would skip tombstones if
        another driver, or one that died, had written some under the same number. None for a transaction that a constraint refuses since the rows
        were judged: its delete would not follow."""

        def build() -> DeltaMergeBuilder:
            return self.sink.rule.merge(self.spark, self.sink.path, self.source, self.columns)

        if ROW in self.source.columns and self.sink.rule.tombstones is not None and self._has_other_constraints():
            raise LostRace
        try:
            self.sink.rule.remember(self.spark, self.source)
            committed = self.sink._table.merge(self.spark, self.state, self.new, build, copied=self.sink.rule.merges_held_rows)
        except Exception as error:
            if not internal.lost_held_rows(error) and not self._has_other_constraints():
                raise
            raise LostRace from error  # an executor was lost with some of the rows, or they were judged by other rules: nothing was committed
        self.sink.watch.check_overtaken(internal.TableTransaction(self.spark, self.sink.path), self.state.version, committed)

    def _has_other_constraints(self) -> bool:
        tables = (internal.TableTransaction(self.spark, self.sink.path), self.table)
        now, before = (constraints_of(table.schema_text(), table.properties()) for table in tables)
        return now != before

    def release(self) -> None:
        internal.release_held_rows(self.source)
