"""Every version of a key with the range in which it was valid: a slowly changing dimension of type 2, independent of the order and the boundaries of
batches.

A version is valid from its own sequence (by default its transaction id) to that of the version or delete that replaced it, exclusive. The rows of a
batch are inserted between the existing versions, so a late row becomes a past version and ends where the next one begins. A delete ends the version
before it. A delete that ends nothing leaves a row that was never valid (`valid_to` equals `valid_from`), so that an older row that arrives later does
not count as the current one. Every transaction is a version, also one that changes nothing.

Invariant: versions of a key never overlap, and at most one is current. Of two rows with one key and sequence, the one with the higher position in the
log stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any  # keyword arguments of the base class, and values for pyspark's functions

from delta.tables import DeltaMergeBuilder, DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as f
from pyspark.sql.types import BooleanType, StructField, StructType

from waltz_delta.base.quoting import quoted
from waltz_delta.engine.folds import Fold
from waltz_delta.engine.versions import Ranges, Versions
from waltz_delta.landing.merge_sink import MergeSink
from waltz_delta.landing.merge_source import DELETED, mark_deletes, moved, same_key
from waltz_delta.marks.batch import PARTITION, ROW, TRANSACTION_ID
from waltz_delta.settings import DeleteSettings, HistorySettings
from waltz_delta.tables.mode import Mode

__all__ = ["DeltaHistory"]


class DeltaHistory(MergeSink):
    """Keeps every version of a key, with the range in which it was valid: `foreachBatch(DeltaHistory(path, cluster_key, keys))`, and `write(rows)`
    for a batch DataFrame. The arguments are those of `DeltaUpsert`; `names` are the names of the columns that it adds."""

    def __init__(
        self,
        path: str,
        cluster_key: str,
        keys: Sequence[str],
        *,
        sequence: str = TRANSACTION_ID,
        deletes: DeleteSettings | None = None,
        names: HistorySettings | None = None,
        **table: Any,
    ) -> None:
        super().__init__(path, cluster_key, keys, sequence, HistoryRule(tuple(keys), sequence, deletes, names or HistorySettings()), **table)


class HistoryRule:
    mode: Mode = "history"
    tombstones: str | None = None
    merges_held_rows = False

    @property
    def deletes(self) -> DeleteSettings | None:
        return self._deletes

    def __init__(self, keys: Sequence[str], sequence: str, deletes: DeleteSettings | None, names: HistorySettings) -> None:
        self._keys = keys
        self._sequence = sequence
        self._deletes = deletes
        self._names = names

    def prepare(self, spark: SparkSession, visible: StructType) -> None:
        """A history needs no second table."""

    def table_schema(self, visible: StructType) -> StructType:
        kind = visible[self._sequence].dataType
        own = [StructField(self._names.valid_from, kind), StructField(self._names.valid_to, kind), StructField(self._names.is_current, BooleanType())]
        return StructType([*visible.fields, *own])

    def fold(self, path: str, names: Mapping[str, str], columns: Sequence[str]) -> Fold:
        ranges = Ranges(*(names[name.lower()] for name in (self._names.valid_from, self._names.valid_to, self._names.is_current)))
        return Versions(path, [names[key.lower()] for key in self._keys], names[self._sequence.lower()], columns, ranges)

    def id_columns(self) -> Sequence[str]:
        return (TRANSACTION_ID, *((self._names.valid_from, self._names.valid_to) if self._sequence == TRANSACTION_ID else ()))

    def source(self, spark: SparkSession, rows: DataFrame, *, late: bool) -> DataFrame:
        return mark_deletes(rows, self._deletes)

    def remember(self, spark: SparkSession, source: DataFrame) -> None:
        """Does nothing: the history itself holds the deletes that exclude older rows."""

    def is_arrow(self, spark: SparkSession) -> bool:
        return True

    def living(self, spark: SparkSession, source: Any, *, late: bool) -> Any:
        """All: the history itself holds the deletes that exclude older rows."""
        return source

    def remember_arrow(self, spark: SparkSession, source: Any) -> None:
        """Does nothing, as `remember`."""

    def merge(self, spark: SparkSession, path: str, source: DataFrame, columns: Sequence[str]) -> DeltaMergeBuilder:
        table = DeltaTable.forPath(spark, path)
        changes = self.changes(table.toDF(), source, columns)
        ends: dict[str, str | Column] = {
            quoted(self._names.valid_to): f.col("s._waltz_to"),
            quoted(self._names.is_current): f.col("s._waltz_current"),
        }
        values: dict[str, str | Column] = {quoted(name): f.col(f"s.{quoted(name)}") for name in columns}
        begin: dict[str, str | Column] = {quoted(self._names.valid_from): f.col("s._waltz_from")}
        same = same_key(self._keys) & f.col(f"t.{quoted(self._names.valid_from)}").eqNullSafe(f.col("s._waltz_from"))
        merge = table.alias("t").merge(changes.alias("s"), same)
        merge = merge.whenMatchedUpdate(f.col("s._waltz_new"), {**values, **ends}).whenMatchedUpdate(None, ends)
        return merge.whenNotMatchedInsert(values={**values, **begin, **ends})

    def changes(self, table: DataFrame, source: DataFrame, columns: Sequence[str]) -> DataFrame:
        """The table's rows that change and the new rows, one per key and start."""
        events = self._events(table, source, columns)
        place = [name for name in (TRANSACTION_ID, PARTITION, ROW) if name in columns]
        order = f.struct("_waltz_weight", *place, (~f.col("_waltz_new")).alias("stays"))
        won = f.max_by(f.struct(*[quoted(name) for name in columns if name not in self._keys], "_waltz_version", "_waltz_new"), order).alias("won")
        held = [f.bool_or("_waltz_held").alias("held"), f.max("_waltz_was_to").alias("was_to"), f.bool_or("_waltz_was_current").alias("was_current")]
        each = events.groupBy(*map(quoted, self._keys), "_waltz_from").agg(won, *held)
        of_key = Window.partitionBy(*map(quoted, self._keys)).orderBy("_waltz_from")
        version = f.col("won._waltz_version")
        each = each.withColumns({"next": f.lead("_waltz_from").over(of_key), "after": f.coalesce(f.lag(version).over(of_key), f.lit(False))})
        if self._sequence == TRANSACTION_ID:
            whole = Window.partitionBy(*map(quoted, self._keys))
            placed = f.when(f.col(f"won.{TRANSACTION_ID}") >= 0, f.col(f"won.{PARTITION}"))  # a former cluster may have had the key elsewhere
            lowest, highest = f.min(placed).over(whole), f.max(placed).over(whole)
            each = each.withColumns({"lowest": lowest, "highest": highest})
            checked = moved(f.col("lowest"), f.col("highest"), f.col(f"won.{TRANSACTION_ID}")).cast("boolean")
            version = f.when(f.col("lowest") != f.col("highest"), checked).otherwise(version)
        found = each.where(version | f.col("held") | ~f.col("after")).select(
            *[f.col(quoted(name)) if name in self._keys else f.col(f"won.{quoted(name)}").alias(name) for name in columns],
            "_waltz_from",
            f.when(version, f.col("next")).otherwise(f.col("_waltz_from")).alias("_waltz_to"),
            (version & f.col("next").isNull()).alias("_waltz_current"),
            f.col("won._waltz_new").alias("_waltz_new"),
            *("held", "was_to", "was_current"),
        )
        same = f.col("held") & f.col("was_to").eqNullSafe(f.col("_waltz_to")) & f.col("was_current").eqNullSafe(f.col("_waltz_current"))
        return found.where(f.col("_waltz_new") | ~same).drop("held", "was_to", "was_current")

    def _events(self, table: DataFrame, source: DataFrame, columns: Sequence[str]) -> DataFrame:
        """Everything that starts or ends a version: the table's versions that the batch may change, their ends, and the batch."""
        since = source.groupBy(*map(quoted, self._keys)).agg(f.min(quoted(self._sequence)).alias("_waltz_since")).alias("s")
        begin, end = f.col(f"t.{quoted(self._names.valid_from)}"), f.col(f"t.{quoted(self._names.valid_to)}")
        reached = f.coalesce(end >= f.col("s._waltz_since"), f.lit(True)) | f.coalesce(begin >= f.col("s._waltz_since"), f.lit(True))
        there = table.alias("t").join(since, same_key(self._keys) & reached).select("t.*")
        place = {*self._keys, TRANSACTION_ID, PARTITION, ROW}
        begin, end, current = (f.col(quoted(name)) for name in (self._names.valid_from, self._names.valid_to, self._names.is_current))
        kinds = {field.name: field.dataType for field in source.schema.fields}
        never = [f.lit(None).cast(kinds[name]).alias(name) for name in columns]
        version = end.isNull() | (end > begin)

        def event(rows: DataFrame, values: Sequence[Any], at: Column, weight: int, kind: Column, new: bool, held: bool) -> DataFrame:
            return rows.select(
                *values,
                at.alias("_waltz_from"),
                f.lit(weight).alias("_waltz_weight"),
                kind.alias("_waltz_version"),
                f.lit(new).alias("_waltz_new"),
                f.lit(held).alias("_waltz_held"),
                (end if held else f.lit(None).cast(kinds[self._sequence])).alias("_waltz_was_to"),
                (current if held else f.lit(None).cast("boolean")).alias("_waltz_was_current"),
            )

        known = [f.col(quoted(name)) if name in place else empty for name, empty in zip(columns, never, strict=True)]
        keyed = [f.col(quoted(name)) if name in self._keys else empty for name, empty in zip(columns, never, strict=True)]
        mine = [f.col(quoted(name)) for name in columns]
        versions = event(there, known, begin, 1, version, new=False, held=True)
        ends = event(there.where(end > begin), keyed, end, 0, f.lit(False), new=False, held=False)
        batch = event(source, mine, f.col(quoted(self._sequence)), 1, ~f.col(DELETED), new=True, held=False)
        return versions.unionByName(ends).unionByName(batch)
