"""Appends micro-batches to a Delta table exactly once, whatever was lost: driver, executor, checkpoint.

The rows and one transaction identifier per log partition stand in one commit. Before it, the marks are read through the same optimistic
transaction, so that a second writer of the same partitions cannot slip in between: the loser's commit fails, it reads the marks again and drops
what is there by now.

Invariant: a row of partition p is in the table exactly if its id is at or below the table's mark of p (and no filter dropped it).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from waltz_delta.base import internal
from waltz_delta.marks.batch import PARTITION, TRANSACTION_ID, LostRace, Rows, Staged, land, require_columns
from waltz_delta.marks.marks import BatchRange, app_id, marks_among, overlap, refuse_gaps
from waltz_delta.marks.restored import follow_restore, told_by
from waltz_delta.tables.evolution import Evolution, fit
from waltz_delta.tables.table import check_layout, create_empty, is_table, reserve
from waltz_delta.tables.table_watch import TableWatch

__all__ = ["ATTEMPTS", "DeltaAppend"]

ATTEMPTS = 8
"""Each lost race means that another writer committed; two drivers on one table settle in two."""


class DeltaAppend:
    """For `foreachBatch`: `rows.writeStream.foreachBatch(DeltaAppend(path, cluster_key)).start()`. Also `write(rows)` for a batch DataFrame.

    The rows keep `partition` and `transaction_id` as the source gave them. `partition_by`, `cluster_by` and `properties` shape the table when the
    first batch makes it."""

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
    ) -> None:
        self.path = path
        self.cluster_key = cluster_key
        self._partition_by = tuple(partition_by)
        self._cluster_by = tuple(cluster_by)
        self._properties = dict(properties or {})
        self._evolution = evolution
        self._attempts = attempts
        self._fitted: tuple[str, StructType, list[str]] | None = None
        self._prepared = False
        self.watch = TableWatch(path)

    def prepare(self, spark: SparkSession, schema: StructType) -> None:
        """Refuses what can never work, before the first batch: `UnsupportedDelta`, `NotADeltaTable`, `SchemaMismatch`, `InvalidRequest`."""
        require_columns(schema.fieldNames())
        internal.check_versions(spark)
        check_layout(schema, self._partition_by, self._cluster_by)
        if is_table(spark, self.path):
            fit(spark, self.path, schema, self._evolution, needed=(PARTITION, TRANSACTION_ID))
            self.watch.begin(follow_restore(spark, self.path, self.cluster_key))
        elif self._cluster_by:
            create_empty(spark, self.path, schema, self._properties, cluster_by=self._cluster_by)
        else:
            reserve(spark, self.path)
        self._prepared = True

    def table_schema(self, schema: StructType) -> StructType:
        """The columns of the table that rows of `schema` make: the same."""
        return schema

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        self._land(batch, batch_id)

    def write(self, rows: DataFrame) -> None:
        """A batch DataFrame, by the same rule; nothing that the table holds is written again."""
        self._land(rows, None)

    def _land(self, batch: DataFrame, batch_id: int | None) -> None:
        if not self._prepared:
            self.prepare(batch.sparkSession, batch.schema)
        land(self, batch, batch_id, self._attempts)

    def stage(self, spark: SparkSession, covered: BatchRange, rows: Rows, batch_id: int | None) -> Staged | None:
        """Writes the files of what the table lacks; `commit` makes them part of it."""
        ends = covered.marks()
        if not ends:
            return None
        transaction = internal.TableTransaction(spark, self.path)
        names = {app_id(self.cluster_key, p): transaction.version(app_id(self.cluster_key, p)) for p in sorted(ends)}
        marks = marks_among({name: mark for name, mark in names.items() if mark is not None}, self.cluster_key)
        refuse_gaps(self.path, covered, marks)
        self.watch.check(spark, transaction, covered.checkpoint)
        versions = {app_id(self.cluster_key, p): end for p, end in ends.items() if end > marks.get(p, -1)}
        if not versions:
            return None
        frame = rows(overlap(covered, marks))
        if transaction.exists:
            frame = frame.select(*self._columns(spark, transaction, frame.schema))
        try:
            written = transaction.write(frame, partition_by=self._partition_by, properties=self._properties)
        except Exception as error:
            if not transaction.lost_to_another(error):
                raise
            raise LostRace from error
        batch = -1 if batch_id is None else batch_id
        return _StagedAppend(spark, self.watch, transaction, written, versions, batch, told_by(self.cluster_key))

    def stage_late(self, spark: SparkSession, rows: DataFrame) -> Staged | None:
        """Rows from below the marks, which are put through again: of each transaction only what is not there. None where all is there. Moves no mark;
        a second replay at the same time loses the race."""
        transaction = internal.TableTransaction(spark, self.path)
        number = transaction.version(f"waltz:{self.cluster_key}:replayed") or 0
        there = spark.read.format("delta").load(self.path).select(PARTITION, TRANSACTION_ID).distinct()
        missing = rows.join(there, [PARTITION, TRANSACTION_ID], "left_anti").select(*self._columns(spark, transaction, rows.schema))
        if missing.isEmpty():
            return None
        written = transaction.write(missing, partition_by=self._partition_by, properties={})
        versions = {f"waltz:{self.cluster_key}:replayed": number + 1}
        return _StagedAppend(spark, self.watch, transaction, written, versions, -1, told_by(self.cluster_key))

    def _columns(self, spark: SparkSession, transaction: internal.TableTransaction, schema: StructType) -> list[str]:
        """Looks at the table's columns again only when they changed since the last batch, as by a user."""
        text = transaction.schema_text()
        if self._fitted is None or self._fitted[:2] != (text, schema):
            columns = fit(spark, self.path, schema, self._evolution, needed=(PARTITION, TRANSACTION_ID))
            if internal.TableTransaction(spark, self.path).schema_text() != text:
                raise LostRace  # columns were added, here or by another; this transaction does not see them
            self._fitted = (text, schema, columns)
        return self._fitted[2]


@dataclass(frozen=True, slots=True)
class _StagedAppend:
    spark: SparkSession
    watch: TableWatch
    transaction: internal.TableTransaction
    written: Any
    versions: Mapping[str, int]
    batch: int
    metadata: str

    def commit(self) -> None:
        try:
            committed = self.transaction.commit(self.written, self.versions, query="waltz", batch=self.batch, metadata=self.metadata)
        except Exception as error:
            if not self.transaction.lost_to_another(error):
                raise
            raise LostRace from error
        seen = self.transaction.read_version
        if not self.transaction.exists:
            self.watch.record(self.spark, internal.TableTransaction(self.spark, self.watch.path).table_id)
        elif committed > seen + 1:
            self.watch.check_overtaken(internal.TableTransaction(self.spark, self.watch.path), seen, committed)

    def release(self) -> None:
        """Files of a lost race are nobody's; VACUUM removes them."""
