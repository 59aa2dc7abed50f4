"""Appends micro-batches to a Delta table exactly once, even after the loss of a driver, an executor or the checkpoint.

One commit holds the rows and one transaction identifier per log partition. The marks are read before it through the same optimistic transaction. If a
second writer of the same partitions commits first, our commit fails; we read the marks again and drop the rows that the table now holds.

Invariant: a row of partition p is in the table exactly if its id is at or below the table's mark of p (and no filter dropped it).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import StructType

from waltz_delta.base import internal
from waltz_delta.base.checkpoint_pace import with_interval
from waltz_delta.base.direct_rows import DirectRows, direct_columns
from waltz_delta.base.job_outcome import brief_errors
from waltz_delta.base.session import session_properties
from waltz_delta.base.table_transaction import TableTransaction
from waltz_delta.engine.allowed import refusal_of_new
from waltz_delta.engine.arrow_transaction import ArrowTransaction, new_shape, with_defaults
from waltz_delta.engine.choice import EngineChoice, TableEngine
from waltz_delta.landing.engine_tables import engine_columns
from waltz_delta.landing.takeover import inherit_table
from waltz_delta.marks.batch import PARTITION, TRANSACTION_ID, LostRace, Rows, Staged, land, require_columns
from waltz_delta.marks.marks import BatchRange, app_id, marks_among, overlap, refuse_gaps
from waltz_delta.marks.restored import commit_metadata, follow_restore
from waltz_delta.tables.column_names import check_columns
from waltz_delta.tables.evolution import Evolution, fit, held_schema, stored_columns
from waltz_delta.tables.mode import check_declared, refuse_superseded, with_mode
from waltz_delta.tables.table import check_layout, create_empty, is_table, reserve
from waltz_delta.tables.table_watch import TableWatch
from waltz_delta.tables.time_zone import with_zone, zone_app_id

__all__ = ["ATTEMPTS", "DeltaAppend"]

ATTEMPTS = 8
"""Each lost race means that another writer committed; two drivers on one table finish in two attempts."""


class DeltaAppend:
    """Adds every row of the log to a table, exactly once: `rows.writeStream.foreachBatch(DeltaAppend(path, cluster_key)).start()`, and `write(rows)`
    for a batch DataFrame.

    The rows keep the source's columns `partition` and `transaction_id`. `partition_by`, `cluster_by` and `properties` apply when the first batch
    creates the table. `evolution`: what happens to columns that the table lacks. `attempts`: how often a batch is tried while other writers commit
    to the table. `engine` and `storage`: as in `TargetSettings`. `former_clusters`: keys of clusters whose tables this one inherits."""

    def __init__(
        self,
        path: str,
        cluster_key: str,
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
        self.path = path
        self.cluster_key = cluster_key
        self._former_clusters = tuple(former_clusters)
        self._partition_by = tuple(partition_by)
        self._cluster_by = tuple(cluster_by)
        self._properties = dict(properties or {})
        self._evolution: Evolution = evolution
        self._attempts = attempts
        self.engine = TableEngine(path, engine, storage or {})
        self._fitted: tuple[str, StructType, list[Column]] | None = None
        self._prepared = False
        self.watch = TableWatch(path)

    def prepare(self, spark: SparkSession, schema: StructType) -> None:
        """Raises before the first batch if the sink can never work here: `UnsupportedDelta`, `NotADeltaTable`, `SchemaMismatch`, `InvalidRequest`."""
        require_columns(schema.fieldNames())
        check_layout(schema, self._partition_by, self._cluster_by)
        self.engine.choose(spark, self.engine_refusal(schema, session_properties(spark)))
        table = self.engine.arrow(spark)
        if table is None:
            internal.check_versions(spark)
        if is_table(spark, self.path) if table is None else table.is_table():
            judged = follow_restore(spark, self.path, self.cluster_key, lambda: self.begin(spark))
            former = check_declared(self.begin(spark), self.path, schema, "append", self.cluster_key, self._former_clusters)
            self._fit(spark, schema)
            inherit_table(spark, self.path, former, self.cluster_key, (TRANSACTION_ID,))
            self.watch.begin(judged)
        else:
            check_columns(schema, self._properties, merged=False)
            if table is not None:
                table.reserve()
            elif self._cluster_by:
                create_empty(spark, self.path, schema, self._properties_of_new(spark), cluster_by=self._cluster_by)
            else:
                reserve(spark, self.path)
        self._prepared = True

    def engine_refusal(self, schema: StructType | None, defaults: Mapping[str, str]) -> str | None:
        """Why Spark's engine, and not the Arrow engine, creates the table with these columns; None if the Arrow engine does. `schema`: None if it is
        not known, and then only the rest is judged. `defaults`: properties of every table that the session creates."""
        partition_by = self._partition_by if schema is not None else ()
        return refusal_of_new(new_shape(schema or StructType(), partition_by, self._properties, defaults), self._cluster_by)

    def begin(self, spark: SparkSession) -> TableTransaction:
        """A transaction on the table, by the engine that writes it."""
        return self.engine.begin(spark)

    def count(self, spark: SparkSession) -> int:
        """The rows of the table, from its log's statistics."""
        table = self.engine.arrow(spark)
        return int(spark.read.format("delta").load(self.path).count()) if table is None else table.count()

    def table_schema(self, schema: StructType) -> StructType:
        """The columns of a table for rows of `schema`: the same ones."""
        return schema

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        with brief_errors():
            self._land(batch, batch_id)

    def write(self, rows: DataFrame) -> None:
        """Writes a batch DataFrame by the same rule; no row that the table holds is written again."""
        self._land(rows, None)

    def _land(self, batch: DataFrame, batch_id: int | None) -> None:
        if not self._prepared:
            self.prepare(batch.sparkSession, batch.schema)
        land(self, batch, batch_id, self._attempts)

    def stage(self, spark: SparkSession, covered: BatchRange, rows: Rows, batch_id: int | None) -> Staged | None:
        """Writes the files of the rows that the table lacks; `commit` adds them to the table."""
        ends = covered.marks()
        if not ends:
            return None
        transaction = self.begin(spark)
        refuse_superseded(transaction, self.path, self.cluster_key)
        names = {app_id(self.cluster_key, p): transaction.version(app_id(self.cluster_key, p)) for p in sorted(ends)}
        marks = marks_among({name: mark for name, mark in names.items() if mark is not None}, self.cluster_key)
        refuse_gaps(self.path, covered, marks)
        self.watch.check(spark, transaction, covered.checkpoint)
        versions = {app_id(self.cluster_key, p): end for p, end in ends.items() if end > marks.get(p, -1)}
        if not versions:
            return None
        held = overlap(covered, marks)
        properties = {} if transaction.exists else self._properties_of_new(spark)
        direct = self._direct(spark, transaction, rows.direct(held, transaction))
        frame = rows.frame(held, transaction) if direct is None else None
        if frame is not None and transaction.exists:
            frame = frame.select(*self._columns(spark, transaction, frame.schema))
        try:
            if direct is not None:
                written = direct[0].write_direct(direct[1], properties=properties)
            else:
                assert frame is not None, "what tasks do not make by themselves, Spark does"
                written = transaction.write(frame, partition_by=self._partition_by, properties=properties)
        except Exception as error:
            if not transaction.lost_to_another(error):
                raise
            raise LostRace from error
        if not transaction.exists and self.engine.arrow(spark) is not None:
            versions[zone_app_id(spark)] = 1
        batch = -1 if batch_id is None else batch_id
        return _StagedAppend(self, spark, transaction, written, versions, batch)

    def _direct(self, spark: SparkSession, transaction: TableTransaction, rows: DirectRows | None) -> tuple[ArrowTransaction, DirectRows] | None:
        """The rows and the transaction that writes them without Spark; None if Spark must sort them or convert a value."""
        if rows is None or not isinstance(transaction, ArrowTransaction):
            return None
        if transaction.shape is None:
            return None if self._partition_by else (transaction, rows)
        self._columns(spark, transaction, rows.schema)  # adds those that the table lacks
        held = held_schema(transaction.schema_text())
        return None if transaction.shape.partition_by or direct_columns(rows.schema, held) is None else (transaction, rows)

    def stage_late(self, spark: SparkSession, rows: DataFrame) -> Staged | None:
        """Stages rows from below the marks, which are replayed: of each transaction only the rows that the table lacks. None if it lacks none.
        Changes no mark; a second replay at the same time loses the race."""
        transaction = self.begin(spark)
        refuse_superseded(transaction, self.path, self.cluster_key)
        number = transaction.version(f"waltz:{self.cluster_key}:replayed") or 0
        there = transaction.rows(spark, [PARTITION, TRANSACTION_ID]).distinct()
        missing = rows.join(there, [PARTITION, TRANSACTION_ID], "left_anti").select(*self._columns(spark, transaction, rows.schema))
        if missing.isEmpty():
            return None
        written = transaction.write(missing, partition_by=self._partition_by, properties={})
        versions = {f"waltz:{self.cluster_key}:replayed": number + 1}
        return _StagedAppend(self, spark, transaction, written, versions, -1)

    def _columns(self, spark: SparkSession, transaction: TableTransaction, schema: StructType) -> list[Column]:
        """Reads the table's columns again only if they changed since the last batch, for example by a user."""
        text = transaction.schema_text()
        if self._fitted is None or self._fitted[:2] != (text, schema):
            columns = self._fit(spark, schema)
            if self.begin(spark).schema_text() != text:
                raise LostRace  # columns were added, here or by another writer; this transaction does not see them
            self._fitted = (text, schema, stored_columns(held_schema(text), schema, columns))
        return self._fitted[2]

    def _properties_of_new(self, spark: SparkSession) -> dict[str, str]:
        """`deltalake` creates no table with a property of ours. Its marks show that its rows were appended, and an identifier shows the zone."""
        if self.engine.arrow(spark) is None:
            return with_zone(with_mode(self._properties, "append"), spark)
        return with_defaults(with_interval(self._properties), session_properties(spark))

    def _fit(self, spark: SparkSession, schema: StructType) -> list[str]:
        return fit(engine_columns(spark, self.path, self.engine), self.path, schema, self._evolution, needed=(PARTITION, TRANSACTION_ID))


@dataclass(frozen=True, slots=True)
class _StagedAppend:
    sink: DeltaAppend
    spark: SparkSession
    transaction: TableTransaction
    written: object
    versions: Mapping[str, int]
    batch: int

    def commit(self) -> None:
        metadata = commit_metadata(self.sink.cluster_key)
        try:
            committed = self.transaction.commit(self.written, self.versions, query="waltz", batch=self.batch, metadata=metadata)
        except Exception as error:
            if not self.transaction.lost_to_another(error):
                raise
            raise LostRace from error
        seen, watch = self.transaction.read_version, self.sink.watch
        if not self.transaction.exists:
            watch.record(self.spark, self.sink.begin(self.spark).table_id)
        elif committed > seen + 1:
            watch.check_overtaken(self.sink.begin(self.spark), seen, committed)

    def release(self) -> None:
        """No commit names the files of a lost race; VACUUM removes them."""
