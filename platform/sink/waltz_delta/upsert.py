"""Merges micro-batches into a Delta table by key: one row per key, the one with the highest sequence; a replay or a late batch never moves a row
back.

MERGE carries one transaction identifier only. Its version is the number of transactions at or below the marks (which rises with every batch), its
commit's metadata holds the marks, and a second commit right after sets them, one identifier per log partition, as `append` does. A driver that dies
between the two leaves a MERGE whose position is above that of the marks: the next batch, of whichever driver, finishes it from the metadata. That
the marks may lag behind the rows for a moment is harmless, since every row is guarded by its own sequence; they never run ahead of them.

The rows carry the state of their key, not an increment: an increment merged twice with other batch boundaries would count twice. An application that
appends under a lock on the key knows the state. The default sequence, `transaction_id`, orders the rows of one log partition, so a key must stay in
one
partition (hash the key); otherwise name a column that orders across partitions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from waltz_delta import internal
from waltz_delta.batch import PARTITION, TRANSACTION_ID, above, batch_range, require_columns
from waltz_delta.errors import WriteContended
from waltz_delta.marks import app_id, marks_among, merge_app_id, overlap, position, refuse_gaps
from waltz_delta.table import check_target, create_empty
from waltz_log.errors import InvalidRequest

__all__ = ["DeltaUpsert", "latest_rows"]

ATTEMPTS = 8
_TXN_APP = "spark.databricks.delta.write.txnAppId"
_TXN_VERSION = "spark.databricks.delta.write.txnVersion"
_METADATA = "spark.databricks.delta.commitInfo.userMetadata"

HISTORY_SEARCHED = (20, 1000)
"""Commits looked through for an unfinished MERGE: it is the last of ours, with at most others' (OPTIMIZE, user writes) above it."""


def latest_rows(rows: DataFrame, keys: Sequence[str], sequence: str) -> DataFrame:
    """One row per key: the last by sequence, then by place in the log."""
    order = f.struct(*dict.fromkeys([sequence, TRANSACTION_ID, PARTITION]))
    newest = rows.groupBy(*keys).agg(f.max_by(f.struct(*rows.columns), order).alias("newest"))
    return newest.select(*[f.col("newest").getField(name).alias(name) for name in rows.columns])


class DeltaUpsert:
    """For `foreachBatch`, and `write(rows)` for a batch DataFrame. `keys` name the columns that identify a row; nulls are a key value like any
    other."""

    def __init__(
        self,
        path: str,
        cluster_key: str,
        keys: Sequence[str],
        *,
        sequence: str = TRANSACTION_ID,
        properties: Mapping[str, str] | None = None,
        attempts: int = ATTEMPTS,
    ) -> None:
        if not keys:
            raise InvalidRequest(reason="an upsert needs at least one key column")
        self.path = path
        self.cluster_key = cluster_key
        self._keys = tuple(keys)
        self._sequence = sequence
        self._properties = dict(properties or {})
        self._attempts = attempts
        self._prepared = False

    def prepare(self, spark: SparkSession, schema: StructType) -> None:
        """As `DeltaAppend.prepare`; and the table is made here, since MERGE needs one."""
        require_columns(schema.fieldNames())
        for name in (*self._keys, self._sequence):
            if name not in schema.fieldNames():
                raise InvalidRequest(reason=f"there is no column {name}, only {', '.join(schema.fieldNames())}")
        internal.check_versions(spark)
        if not check_target(spark, self.path, schema):
            create_empty(spark, self.path, schema, self._properties)
        self._prepared = True

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        self._write(batch, batch_id)

    def write(self, rows: DataFrame) -> None:
        self._write(rows, None)

    def _write(self, batch: DataFrame, batch_id: int | None) -> None:
        spark = batch.sparkSession
        if not self._prepared:
            self.prepare(spark, batch.schema)
        self._finish_interrupted(spark)
        covered = batch_range(batch, batch_id)
        ends = covered.marks()
        for _ in range(self._attempts if ends else 0):
            marks = marks_among(internal.transaction_versions(spark, self.path), self.cluster_key)
            refuse_gaps(self.path, covered, marks)
            new = {partition: end for partition, end in ends.items() if end > marks.get(partition, -1)}
            if not new:
                return
            if self._merge(spark, above(batch, overlap(covered, marks)), {**marks, **new}) and self._mark(spark, new):
                return
            self._finish_interrupted(spark)
        if ends:
            raise WriteContended(path=self.path, attempts=self._attempts)

    def _merge(self, spark: SparkSession, rows: DataFrame, marks: Mapping[int, int]) -> bool:
        """False where another writer came first. Delta skips a MERGE whose version was used; it gives no result row then."""
        source = latest_rows(rows, self._keys, self._sequence)
        same = " AND ".join(f"t.`{key}` <=> s.`{key}`" for key in self._keys)
        newer = f"t.`{self._sequence}` IS NULL OR s.`{self._sequence}` > t.`{self._sequence}`"
        merge = DeltaTable.forPath(spark, self.path).alias("t").merge(source.alias("s"), same)
        settings = {
            _TXN_APP: merge_app_id(self.cluster_key),
            _TXN_VERSION: str(position(marks)),
            _METADATA: json.dumps({"waltz": {"cluster": self.cluster_key, "marks": {str(p): mark for p, mark in sorted(marks.items())}}}),
        }
        try:
            for name, value in settings.items():
                spark.conf.set(name, value)
            result = merge.whenMatchedUpdateAll(newer).whenNotMatchedInsertAll().execute()
            return bool(result.collect())
        except Exception as error:
            if not internal.is_conflict(error):
                raise
            return False
        finally:
            for name in settings:
                spark.conf.unset(name)

    def _mark(self, spark: SparkSession, marks: Mapping[int, int]) -> bool:
        transaction = internal.TableTransaction(spark, self.path)
        versions = {app_id(self.cluster_key, partition): mark for partition, mark in sorted(marks.items())}
        ahead = {name: mark for name, mark in versions.items() if mark > (found if (found := transaction.version(name)) is not None else -1)}
        if not ahead:
            return True
        try:
            transaction.mark(ahead, query="waltz", batch=-1, metadata="")
        except Exception as error:
            if not internal.is_conflict(error):
                raise
            return False
        return True

    def _finish_interrupted(self, spark: SparkSession) -> None:
        """Sets the marks of a MERGE whose driver died before it could."""
        versions = internal.transaction_versions(spark, self.path)
        merged = versions.get(merge_app_id(self.cluster_key))
        if merged is None or merged <= position(marks_among(versions, self.cluster_key)):
            return
        for depth in HISTORY_SEARCHED:
            for row in DeltaTable.forPath(spark, self.path).history(depth).select("userMetadata").collect():
                marks = _marks_in(row[0], self.cluster_key)
                if marks is not None:
                    if position(marks) == merged:
                        self._mark(spark, marks)
                    return


def _marks_in(metadata: str | None, cluster_key: str) -> dict[int, int] | None:
    try:
        found = json.loads(metadata or "")["waltz"]
        return {int(partition): int(mark) for partition, mark in found["marks"].items()} if found["cluster"] == cluster_key else None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
