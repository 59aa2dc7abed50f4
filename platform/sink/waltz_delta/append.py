"""Appends micro-batches to a Delta table exactly once, whatever was lost: driver, executor, checkpoint.

The rows and one transaction identifier per log partition stand in one commit. Before it, the marks are read through the same optimistic
transaction, so that a second writer of the same partitions cannot slip in between: the loser's commit fails, it reads the marks again and drops
what is there by now.

Invariant: a row of partition p is in the table exactly if its id is at or below the table's mark of p (and no filter dropped it).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from waltz_delta import internal
from waltz_delta.batch import above, batch_range, require_columns
from waltz_delta.errors import WriteContended
from waltz_delta.marks import app_id, overlap, refuse_gaps
from waltz_delta.table import check_target

__all__ = ["DeltaAppend"]

ATTEMPTS = 8
"""Each lost race means that another writer committed; two drivers on one table settle in two."""


class DeltaAppend:
    """For `foreachBatch`: `rows.writeStream.foreachBatch(DeltaAppend(path, cluster_key)).start()`. Also `write(rows)` for a batch DataFrame.

    The rows keep `partition` and `transaction_id` as the source gave them. `partition_by` and `properties` shape the table when the first batch
    makes it."""

    def __init__(
        self, path: str, cluster_key: str, *, partition_by: Sequence[str] = (), properties: Mapping[str, str] | None = None, attempts: int = ATTEMPTS
    ) -> None:
        self.path = path
        self.cluster_key = cluster_key
        self._partition_by = tuple(partition_by)
        self._properties = dict(properties or {})
        self._attempts = attempts
        self._prepared = False

    def prepare(self, spark: SparkSession, schema: StructType) -> None:
        """Refuses what can never work, before the first batch: `UnsupportedDelta`, `NotADeltaTable`, `SchemaMismatch`, `InvalidRequest`."""
        require_columns(schema.fieldNames())
        internal.check_versions(spark)
        check_target(spark, self.path, schema)
        self._prepared = True

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        self._write(batch, batch_id)

    def write(self, rows: DataFrame) -> None:
        """A batch DataFrame, by the same rule; nothing that the table holds is written again."""
        self._write(rows, None)

    def _write(self, batch: DataFrame, batch_id: int | None) -> None:
        spark = batch.sparkSession
        if not self._prepared:
            self.prepare(spark, batch.schema)
        covered = batch_range(batch, batch_id)
        ends = covered.marks()
        for _ in range(self._attempts if ends else 0):
            transaction = internal.TableTransaction(spark, self.path)
            marks = {p: mark for p in sorted(ends) if (mark := transaction.version(app_id(self.cluster_key, p))) is not None}
            refuse_gaps(self.path, covered, marks)
            new = {partition: end for partition, end in ends.items() if end > marks.get(partition, -1)}
            if not new:
                return
            versions = {app_id(self.cluster_key, partition): end for partition, end in new.items()}
            try:
                transaction.append(
                    above(batch, overlap(covered, marks)),
                    versions,
                    partition_by=self._partition_by,
                    properties=self._properties,
                    query="waltz",
                    batch=-1 if batch_id is None else batch_id,
                    metadata="",
                )
            except Exception as error:
                if not transaction.lost_to_another(error):
                    raise
            else:
                return
        if ends:
            raise WriteContended(path=self.path, attempts=self._attempts)
