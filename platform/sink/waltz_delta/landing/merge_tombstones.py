"""Deleted keys, remembered in a table of their own: per key the order of its last delete, so that an older row that arrives later does not restore
it.

A tombstone is written before the MERGE that deletes, and read after the number that this MERGE must follow. So each MERGE has seen the tombstones of
every earlier delete, or loses the race. Tombstones have their own commit, without that number: the same number may come with other deletes, from
another driver or after one that died. Writing a tombstone twice changes nothing. Tombstones may be removed (`DELETE ... WHERE deleted_at < ...`) as
soon as nothing older than them can arrive.
"""

from __future__ import annotations

from collections.abc import Sequence

from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructField, StructType, TimestampType

from waltz_delta.base import internal
from waltz_delta.base.log_store import one_committer
from waltz_delta.base.quoting import quoted
from waltz_delta.landing.merge_source import AT, DELETED, order_of, same_key
from waltz_delta.marks.batch import PARTITION, ROW, TRANSACTION_ID, LostRace
from waltz_delta.tables.table import create_empty, is_table

__all__ = ["Tombstones"]

DELETED_AT = "deleted_at"


class Tombstones:
    def __init__(self, path: str, keys: Sequence[str], sequence: str) -> None:
        self.path = path
        self._keys = tuple(keys)
        self._order = tuple(dict.fromkeys([sequence, TRANSACTION_ID, PARTITION]))
        self._sequence = sequence

    def prepare(self, spark: SparkSession, schema: StructType) -> None:
        names = [*dict.fromkeys([*self._keys, *self._order]), *(name for name in (ROW,) if name in schema.fieldNames())]
        fields = [StructField(schema[name].name, schema[name].dataType) for name in names]
        if not is_table(spark, self.path):
            create_empty(spark, self.path, StructType([*fields, StructField(DELETED_AT, TimestampType())]), {})

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
