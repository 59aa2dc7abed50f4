"""The source rows of a MERGE: one row per key, the newest by sequence and then by position in the log, with a flag for deletes.

Pure plans except `hold`, which runs the job."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import and_

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from waltz_delta.base.quoting import quoted
from waltz_delta.marks.batch import PARTITION, ROW, TRANSACTION_ID
from waltz_delta.settings import DeleteSettings

__all__ = ["AT", "DELETED", "HIDDEN", "MOVED", "VALUES_AT", "hold", "latest_rows", "mark_deletes", "moved", "newer", "order_of", "same_key"]

DELETED = "_waltz_deleted"
"""Whether the row deletes its key."""
AT = "_waltz_at"
"""The append time of the transaction."""
VALUES_AT = "_waltz_values_at"
"""The order of the row that the values come from. For a delete that is the last row before it; null if the batch has none."""
HIDDEN = (DELETED, AT, VALUES_AT)
MOVED = "waltz_delta: a key is in two log partitions: "
"""Prefix of the error that a MERGE raises."""


def order_of(alias: str | None, sequence: str, place: Sequence[str]) -> Column:
    """The order of rows with the same key. Nulls come first, so rows that a user wrote without a position in the log are the oldest."""
    start = f"{alias}." if alias else ""
    return f.struct(*[f.col(f"{start}{quoted(name)}").alias(name) for name in dict.fromkeys([sequence, TRANSACTION_ID, PARTITION, *place])])


def mark_deletes(rows: DataFrame, deletes: DeleteSettings | None) -> DataFrame:
    """The rows with `DELETED` and `AT`, unless they have them already."""
    if DELETED in rows.columns:
        return rows
    at = f.col("timestamp") if "timestamp" in rows.columns else f.lit(None).cast("timestamp")
    if deletes is None:
        deleted = f.lit(False)
    elif deletes.headers:
        deleted = f.col("header").isin(list(deletes.headers))
    else:
        deleted = f.coalesce(f.expr(f"({deletes.where})"), f.lit(False))
    return rows.withColumns({DELETED: deleted, AT: at})


def same_key(keys: Sequence[str]) -> Column:
    first, *others = [f.col(f"t.{quoted(key)}").eqNullSafe(f.col(f"s.{quoted(key)}")) for key in keys]
    return reduce(and_, others, first)


def newer(sequence: str, place: Sequence[str]) -> Column:
    """Whether the source's row is newer than the table's. Raises if only their ids could decide that and their partitions differ. Ids below 0 are
    of a former cluster, which may have had the key in another partition."""
    later = order_of("s", sequence, place) > order_of("t", sequence, place)
    if sequence != TRANSACTION_ID:
        return later
    apart = (f.col(f"s.`{PARTITION}`") != f.col(f"t.`{PARTITION}`")) & (f.least(f"s.`{TRANSACTION_ID}`", f"t.`{TRANSACTION_ID}`") >= 0)
    return f.when(apart, moved(f.col(f"t.`{PARTITION}`"), f.col(f"s.`{PARTITION}`"), f.col(f"s.`{TRANSACTION_ID}`")).cast("boolean")).otherwise(later)


def latest_rows(rows: DataFrame, keys: Sequence[str], sequence: str, *, soft: bool = False) -> DataFrame:
    """One row per key. With `soft`, a delete has the values of the last row before it, if the batch has one."""
    place = [name for name in (ROW,) if name in rows.columns]
    order = order_of(None, sequence, place)
    aggregates = [f.max_by(f.struct(*map(quoted, rows.columns)), order).alias("newest")]
    if soft:
        lives = ~f.col(DELETED)
        aggregates.append(f.max_by(f.when(lives, f.struct(*map(quoted, rows.columns), order.alias(VALUES_AT))), f.when(lives, order)).alias("living"))
    if sequence == TRANSACTION_ID:
        aggregates += [f.min(PARTITION).alias("lowest"), f.max(PARTITION).alias("highest")]
    grouped = rows.groupBy(*map(quoted, keys)).agg(*aggregates)
    if sequence == TRANSACTION_ID:
        newest = f.col("newest")
        refused = moved(f.col("lowest"), f.col("highest"), newest.getField(TRANSACTION_ID)).cast(grouped.schema["newest"].dataType)
        grouped = grouped.withColumn("newest", f.when(f.col("lowest") != f.col("highest"), refused).otherwise(newest))
    fixed = {*keys, sequence, PARTITION, TRANSACTION_ID, *place, DELETED, AT}
    columns = []
    for name in rows.columns:
        value = f.col("newest").getField(name)
        if soft and name not in fixed:
            value = f.when(f.col("living").isNotNull(), f.col("living").getField(name)).otherwise(value)
        columns.append(value.alias(name))
    if soft:
        columns.append(f.col("living").getField(VALUES_AT).alias(VALUES_AT))
    return grouped.select(*columns)


def hold(source: DataFrame) -> DataFrame:
    """Reads and reduces the rows once. Spark holds the result in memory and on local disk, apart from the plan that it came from, so a MERGE need not
    copy it again. If a part is lost with an executor, a reader fails (`internal.lost_held_rows`) and the batch is staged again."""
    return source.localCheckpoint(eager=True, storageLevel=StorageLevel.MEMORY_AND_DISK)


def moved(one: Column, other: Column, transaction_id: Column) -> Column:
    return f.raise_error(f.concat_ws(" ", f.lit(f"{MOVED}partitions"), one, f.lit("and"), other, f.lit("transaction_id"), transaction_id))
