"""Merges micro-batches into a Delta table by key: one row per key, the one with the highest sequence. A replay or a late batch never replaces a newer
row and never restores a key that was deleted later.

Of two rows of a key, the one with the higher sequence is newer, then the one with the higher position in the log, so the table is the same however
the log was cut into batches. The default sequence, `transaction_id`, orders the rows of one log partition; a key in two partitions is refused
(`KeyMoved`). A named sequence orders across partitions.

A row holds the state of its key, not an increment: an increment merged twice with other batch boundaries would count twice. An application that
appends under a lock on the key knows the state.

After a hard delete there is no row left to compare with. With the default sequence no older row can arrive, because the marks exclude it. Otherwise
(a named sequence, replayed dead letters) deletes are remembered as tombstones in another table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any  # keyword arguments of the base class

from delta.tables import DeltaMergeBuilder, DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import BooleanType, StructField, StructType, TimestampType

from waltz_delta.base.quoting import quoted
from waltz_delta.engine.folds import Fold
from waltz_delta.engine.newest import Newest, SoftDeletes
from waltz_delta.landing.merge_sink import MergeSink
from waltz_delta.landing.merge_source import AT, DELETED, VALUES_AT, latest_rows, mark_deletes, newer, order_of, same_key
from waltz_delta.landing.merge_tombstones import Tombstones
from waltz_delta.marks.batch import PARTITION, ROW, TRANSACTION_ID
from waltz_delta.settings import DeleteSettings
from waltz_delta.tables.mode import Mode

__all__ = ["DeltaUpsert"]


class DeltaUpsert(MergeSink):
    """Keeps the newest row of each key: `foreachBatch(DeltaUpsert(path, cluster_key, keys))`, and `write(rows)` for a batch DataFrame. `keys` name
    the columns that identify a row; nulls are a key value like any other. `sequence`: the column that orders the rows of a key.

    `remember_deletes` keeps tombstones even if the sequence alone does not require them. The other arguments (`partition_by`, `cluster_by`,
    `properties`, `evolution`, `attempts`, `engine`, `storage`, `former_clusters`) are those of `DeltaAppend`. `tombstones`: path of that table, None
    if there is none."""

    def __init__(
        self,
        path: str,
        cluster_key: str,
        keys: Sequence[str],
        *,
        sequence: str = TRANSACTION_ID,
        deletes: DeleteSettings | None = None,
        remember_deletes: bool = False,
        **table: Any,
    ) -> None:
        tombstones = None
        if deletes is not None and deletes.kind == "hard" and (remember_deletes or sequence != TRANSACTION_ID):
            tombstones = Tombstones(
                deletes.tombstones or f"{path.rstrip('/')}_tombstones", keys, sequence, table.get("engine", "auto"), table.get("storage")
            )
        rule = UpsertRule(tuple(keys), sequence, deletes, tombstones)
        self.tombstones = rule.tombstones
        super().__init__(path, cluster_key, keys, sequence, rule, **table)


class UpsertRule:
    mode: Mode = "upsert"
    merges_held_rows = True

    @property
    def deletes(self) -> DeleteSettings | None:
        return self._deletes

    def __init__(self, keys: Sequence[str], sequence: str, deletes: DeleteSettings | None, tombstones: Tombstones | None) -> None:
        self._keys = keys
        self._sequence = sequence
        self._deletes = deletes
        self._soft = deletes is not None and deletes.kind == "soft"
        self._tombstones = tombstones
        self.tombstones = tombstones.path if tombstones is not None else None

    def prepare(self, spark: SparkSession, visible: StructType) -> None:
        if self._tombstones is not None:
            self._tombstones.prepare(spark, visible)

    def table_schema(self, visible: StructType) -> StructType:
        if self._deletes is None or not self._soft:
            return visible
        own = [StructField(self._deletes.deleted, BooleanType()), StructField(self._deletes.deleted_at, TimestampType())]
        return StructType([*visible.fields, *own])

    def fold(self, path: str, names: Mapping[str, str], columns: Sequence[str]) -> Fold:
        soft = None
        if self._deletes is not None and self._soft:
            soft = SoftDeletes(names[self._deletes.deleted.lower()], names[self._deletes.deleted_at.lower()])
        return Newest(path, [names[key.lower()] for key in self._keys], names[self._sequence.lower()], columns, soft)

    def id_columns(self) -> Sequence[str]:
        return (TRANSACTION_ID,)

    def source(self, spark: SparkSession, rows: DataFrame, *, late: bool) -> DataFrame:
        """One row per key. Reads tombstones only if the rows may include some that are older than them."""
        found = latest_rows(mark_deletes(rows, self._deletes), self._keys, self._sequence, soft=self._soft)
        if self._tombstones is not None and (late or self._sequence != TRANSACTION_ID):
            return self._tombstones.without_deleted(spark, found)
        return found

    def remember(self, spark: SparkSession, source: DataFrame) -> None:
        if self._tombstones is not None:
            self._tombstones.remember(spark, source)

    def is_arrow(self, spark: SparkSession) -> bool:
        return self._tombstones is None or self._tombstones.is_arrow(spark)

    def living(self, spark: SparkSession, source: Any, *, late: bool) -> Any:
        if self._tombstones is not None and (late or self._sequence != TRANSACTION_ID):
            return self._tombstones.living(spark, source)
        return source

    def remember_arrow(self, spark: SparkSession, source: Any) -> None:
        if self._tombstones is not None:
            self._tombstones.remember_arrow(spark, source)

    def merge(self, spark: SparkSession, path: str, source: DataFrame, columns: Sequence[str]) -> DeltaMergeBuilder:
        place = [name for name in (ROW,) if name in source.columns]
        newest, deleted = newer(self._sequence, place), f.col(f"s.`{DELETED}`")
        values: dict[str, str | Column] = {quoted(name): f.col(f"s.{quoted(name)}") for name in columns}
        merge = DeltaTable.forPath(spark, path).alias("t").merge(source.alias("s"), same_key(self._keys))
        if self._deletes is None:
            return merge.whenMatchedUpdate(newest, values).whenNotMatchedInsert(values=values)
        if not self._soft:
            return merge.whenMatchedDelete(newest & deleted).whenMatchedUpdate(newest, values).whenNotMatchedInsert(~deleted, values)
        flags: dict[str, str | Column] = {
            quoted(self._deletes.deleted): deleted,
            quoted(self._deletes.deleted_at): f.when(deleted, f.col(f"s.`{AT}`")),
        }
        moved = [name for name in columns if name in (PARTITION, TRANSACTION_ID, ROW, self._sequence)]
        only_place: dict[str, str | Column] = {quoted(name): f.col(f"s.{quoted(name)}") for name in moved}
        valued = ~deleted | (f.col(f"s.`{VALUES_AT}`") > order_of("t", self._sequence, place))
        merge = merge.whenMatchedUpdate(newest & valued, {**values, **flags}).whenMatchedUpdate(newest, {**only_place, **flags})
        return merge.whenNotMatchedInsert(values={**values, **flags})
