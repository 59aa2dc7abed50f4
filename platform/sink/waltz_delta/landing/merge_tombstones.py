"""Deleted keys, remembered in a table of their own: per key the order of its last delete, so that an older row that arrives later does not restore
it.

A tombstone is written before the MERGE that deletes, and read after the number that this MERGE must follow. So each MERGE has seen the tombstones of
every earlier delete, or loses the race. Tombstones have their own commit, without that number: the same number may come with other deletes, from
another driver or after one that died. Writing a tombstone twice changes nothing. Tombstones may be removed (`DELETE ... WHERE deleted_at < ...`) as
soon as nothing older than them can arrive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any  # Any: pyarrow has no types

import pyarrow as pa
from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructField, StructType, TimestampType

from waltz_delta.base import internal
from waltz_delta.base.log_store import one_committer
from waltz_delta.base.quoting import quoted
from waltz_delta.base.session import session_properties
from waltz_delta.engine.allowed import refusal_of_new
from waltz_delta.engine.arrow_merge import ArrowMerge, refusal_of_merge, rows_with_keys_of
from waltz_delta.engine.arrow_schema import arrow_schema
from waltz_delta.engine.arrow_table import ArrowTable
from waltz_delta.engine.arrow_transaction import ArrowTransaction, new_shape
from waltz_delta.engine.choice import EngineChoice, TableEngine
from waltz_delta.engine.folds import AT as ARROW_AT
from waltz_delta.engine.folds import DELETES, Keyed, newest_of, overtaken
from waltz_delta.engine.key_index import KeyIndex
from waltz_delta.engine.newest import Newest
from waltz_delta.landing.engine_tables import create_by_engine
from waltz_delta.landing.merge_source import AT, DELETED, order_of, same_key
from waltz_delta.marks.batch import PARTITION, ROW, TRANSACTION_ID, LostRace
from waltz_delta.tables.table import create_empty, is_table

__all__ = ["Tombstones"]

DELETED_AT = "deleted_at"


class Tombstones:
    """`engine`, `storage`: as of the table whose deletes they are."""

    def __init__(
        self, path: str, keys: Sequence[str], sequence: str, engine: EngineChoice = "auto", storage: Mapping[str, str] | None = None
    ) -> None:
        self.path = path
        self._keys = tuple(keys)
        self._order = tuple(dict.fromkeys([sequence, TRANSACTION_ID, PARTITION]))
        self._sequence = sequence
        self._engine = TableEngine(path, engine, storage or {}, lambda shape: refusal_of_merge(shape, keys, sequence))

    def prepare(self, spark: SparkSession, schema: StructType) -> None:
        names = [*dict.fromkeys([*self._keys, *self._order]), *(name for name in (ROW,) if name in schema.fieldNames())]
        fields = [StructField(schema[name].name, schema[name].dataType) for name in names]
        made = new_shape(StructType([*fields, StructField(DELETED_AT, TimestampType())]), (), {}, session_properties(spark))
        self._engine.choose(spark, refusal_of_new(made, ()))
        table = self._engine.arrow(spark)
        if table is None:
            internal.check_versions(spark)
            if not is_table(spark, self.path):
                create_empty(spark, self.path, StructType([*fields, StructField(DELETED_AT, TimestampType())]), {})
        elif not table.is_table():
            create_by_engine(self._engine.begin(spark), table, made, {}, metadata="{}")

    def is_arrow(self, spark: SparkSession) -> bool:
        """Whether the Arrow engine writes them now. If not, Spark's engine merges the batch too."""
        return isinstance(self._engine.begin(spark), ArrowTransaction)

    def living(self, spark: SparkSession, source: Any) -> Any:
        """The rows of an Arrow table without those whose key was deleted later. May raise `LostRace`."""
        transaction, table = self._begun(spark)
        shape = transaction.shape
        assert shape is not None
        columns = [field["name"] for field in shape.schema["fields"] if field["name"] != DELETED_AT]
        dead, rows = rows_with_keys_of(source, self._names(source, self._keys), table, columns)
        gone = overtaken(dead, rows, *self._names(source, [self._sequence]))
        return source.filter(pa.array(~gone)) if gone.any() else source

    def remember_arrow(self, spark: SparkSession, source: Any) -> None:
        """Writes a tombstone for each key of an Arrow table whose newest row is a delete. May raise `LostRace`."""
        keys, (sequence,) = self._names(source, self._keys), self._names(source, [self._sequence])
        newest = newest_of(Keyed(source, KeyIndex(source, keys).of_batch), sequence)
        rows = source.take(pa.array(newest))
        deletes = rows.filter(rows.column(DELETES))
        if not deletes.num_rows:
            return
        transaction, _ = self._begun(spark)
        shape = transaction.shape
        assert shape is not None
        types = arrow_schema(shape.schema)
        given = deletes.append_column(DELETED_AT, deletes.column(ARROW_AT)) if DELETED_AT not in self._keys else deletes
        names = [name for name in types.names if name in given.schema.names]
        written = given.select([*names, DELETES]).set_column(len(names), DELETES, pa.array([False] * given.num_rows))
        fold = Newest(self.path, keys, sequence, names, moves=True)
        merge = ArrowMerge(written.cast(pa.schema([*(types.field(name) for name in names), (DELETES, pa.bool_())])), fold)
        try:
            transaction.merge(merge, {}, query="waltz", batch=-1, metadata="{}")
        except Exception as error:
            if not transaction.lost_to_another(error):
                raise
            raise LostRace from error

    def _begun(self, spark: SparkSession) -> tuple[ArrowTransaction, ArrowTable]:
        transaction, table = self._engine.begin(spark), self._engine.arrow(spark)
        if not isinstance(transaction, ArrowTransaction) or table is None:
            raise LostRace  # the table was changed so that Spark's engine writes it from now on
        return transaction, table

    def _names(self, source: Any, names: Sequence[str]) -> list[str]:
        """The columns as the rows call them: as the table does."""
        there = {name.lower(): name for name in source.schema.names}
        return [there[name.lower()] for name in names]

    def without_deleted(self, spark: SparkSession, source: DataFrame) -> DataFrame:
        """The rows without those whose key was deleted later."""
        place = [name for name in (ROW,) if name in source.columns]
        dead = spark.read.format("delta").load(self.path).alias("t")
        overtaken = same_key(self._keys) & (order_of("t", self._sequence, place) > order_of("s", self._sequence, place))
        return source.alias("s").join(dead, overtaken, "left_anti")

    def remember(self, spark: SparkSession, source: DataFrame) -> None:
        """Writes a tombstone for each delete among the rows, of which there is one per key."""
        deletes = source.where(f.col(DELETED))
        if deletes.isEmpty():
            return
        table = DeltaTable.forPath(spark, self.path)
        columns = table.toDF().columns
        place = [name for name in (ROW,) if name in source.columns]
        values: dict[str, str | Column] = {quoted(name): f.col(f"s.{quoted(name)}") for name in columns if name != DELETED_AT}
        values[DELETED_AT] = f.col(f"s.`{AT}`")
        later = order_of("s", self._sequence, place) > order_of("t", self._sequence, place)
        merge = table.alias("t").merge(deletes.alias("s"), same_key(self._keys))
        try:
            with one_committer(spark, self.path):
                merge.whenMatchedUpdate(later, values).whenNotMatchedInsert(values=values).execute()
        except Exception as error:
            if not internal.is_conflict(error):
                raise
            raise LostRace from error
