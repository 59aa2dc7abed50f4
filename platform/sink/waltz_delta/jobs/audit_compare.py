"""The comparisons of an audit, as Spark plans: the log with itself, with a table that keeps every transaction, and with one that keeps the newest.

Rows are compared by 64-bit hashes of their columns, summed over many rows: if one row differs, the sums differ except for one chance in 2^64. A
column that the table has and the log's rows do not (a user added it) is not compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from waltz_delta.base.quoting import quoted
from waltz_delta.jobs.audit_hash import row_hash
from waltz_delta.landing.merge_source import AT, DELETED, same_key
from waltz_delta.marks.batch import PARTITION, TRANSACTION_ID
from waltz_delta.settings import TargetSettings

__all__ = ["Counted", "Density", "Difference", "PieceOfLog", "compare_appended", "compare_keyed", "density"]

BUCKET = 65_536
"""Ids that are compared by their sums first, and row by row only if these differ."""

_EXACT = "decimal(38,0)"


@dataclass(frozen=True, slots=True)
class Difference:
    """`kind`: log, missing, extra, repeated, changed, column, mark or table. Ids `first` to `last` of a partition, or a `detail` in words."""

    kind: str
    partition: int | None
    first: int | None
    last: int | None
    detail: str = ""

    def __str__(self) -> str:
        place = "" if self.partition is None else f" partition={self.partition}"
        ids = "" if self.first is None else f" transaction_id={self.first}" + (f"-{self.last}" if self.last != self.first else "")
        return f"{self.kind}:{place}{ids}" + (f" {self.detail}" if self.detail else "")


@dataclass(frozen=True, slots=True)
class PieceOfLog:
    starts: Mapping[int, int]
    ends: Mapping[int, int]

    def holds(self, rows: DataFrame) -> DataFrame:
        within = f.lit(False)
        for partition, start in sorted(self.starts.items()):
            ids = f.col(TRANSACTION_ID).between(start, self.ends[partition] - 1)
            within = within | ((f.col(PARTITION) == partition) & ids)
        return rows.where(within)


@dataclass(frozen=True, slots=True)
class Density:
    """How many ids of one partition the log has."""

    partition: int
    first: int
    last: int
    count: int
    differences: tuple[Difference, ...]


@dataclass(frozen=True, slots=True)
class Counted:
    """For one partition: rows expected and found, and whether the sums agree."""

    partition: int
    expected: int
    found: int
    checksum: int
    agrees: bool


def density(raw: DataFrame, piece: PieceOfLog) -> list[Density]:
    """Whether the log has every id of the piece once."""
    at = f.col(TRANSACTION_ID)
    counted = raw.groupBy(PARTITION).agg(f.count("*"), f.min(at), f.max(at), f.sum(at.cast(_EXACT)), f.count_distinct(at)).collect()
    found = {row[0]: row for row in counted}
    result = []
    for partition, start in sorted(piece.starts.items()):
        last = piece.ends[partition] - 1
        wanted = (last - start + 1, start, last, (start + last) * (last - start + 1) // 2, last - start + 1)
        row = found.get(partition)
        got = tuple(int(value) for value in row[1:]) if row is not None else (0, None, None, 0, 0)
        wrong = (
            () if got == wanted else (Difference("log", partition, start, last, f"is not dense: {got[0]} of {wanted[0]}, ids {got[1]} to {got[2]}"),)
        )
        result.append(Density(partition, start, last, int(got[0] or 0), wrong))
    return result


def compare_appended(expected: DataFrame, table: DataFrame, piece: PieceOfLog, shown: int) -> tuple[list[Counted], list[Difference]]:
    """A table that keeps every transaction, within the piece."""
    columns, lacking = _columns(expected.schema, table.schema)
    found = piece.holds(table)
    sides = [_sums(rows, columns, table.schema) for rows in (expected, found)]
    joined = sides[0].alias("e").join(sides[1].alias("t"), [PARTITION, "bucket"], "full").collect()
    totals: dict[int, list[int]] = {}
    agrees: dict[int, bool] = {}
    buckets: list[tuple[int, int]] = []
    for row in joined:
        partition, bucket = row[0], row[1]
        ours, theirs = [int(value or 0) for value in row[2:5]], [int(value or 0) for value in row[5:8]]
        total = totals.setdefault(partition, [0, 0, 0])
        total[0], total[1], total[2] = total[0] + ours[0], total[1] + theirs[0], total[2] + ours[2]
        agrees[partition] = agrees.get(partition, True) and ours == theirs
        if ours != theirs:
            buckets.append((partition, bucket))
    counted = [
        Counted(partition, totals[partition][0], totals[partition][1], totals[partition][2], agrees[partition]) for partition in sorted(totals)
    ]
    return counted, [*lacking, *_appended_rows(expected, found, columns, sorted(buckets)[:shown], shown)]


def _sums(rows: DataFrame, columns: Sequence[str], stored: StructType) -> DataFrame:
    """Count, sum of ids, sum of hashes for each bucket of ids."""
    bucket = f.floor(f.col(TRANSACTION_ID) / BUCKET).alias("bucket")
    hashed = rows.select(PARTITION, TRANSACTION_ID, bucket, row_hash(rows.schema, columns, stored).alias("hash"))
    sums = (f.count("*").alias("count"), f.sum(f.col(TRANSACTION_ID).cast(_EXACT)).alias("ids"), f.sum(f.col("hash").cast(_EXACT)).alias("hashes"))
    return hashed.groupBy(PARTITION, "bucket").agg(*sums)


def _appended_rows(
    expected: DataFrame, found: DataFrame, columns: Sequence[str], buckets: Sequence[tuple[int, int]], shown: int
) -> Iterator[Difference]:
    if not buckets:
        return
    chosen = f.lit(False)
    for partition, bucket in buckets:
        ids = f.col(TRANSACTION_ID).between(bucket * BUCKET, (bucket + 1) * BUCKET - 1)
        chosen = chosen | ((f.col(PARTITION) == partition) & ids)
    sides = []
    for rows in (expected, found):
        each = rows.where(chosen).select(PARTITION, TRANSACTION_ID, row_hash(rows.schema, columns, found.schema).alias("hash"))
        sides.append(each.groupBy(PARTITION, TRANSACTION_ID).agg(f.count("*").alias("count"), f.sum(f.col("hash").cast(_EXACT)).alias("hash")))
    joined = sides[0].alias("e").join(sides[1].alias("t"), [PARTITION, TRANSACTION_ID], "full")
    ours, theirs = f.coalesce(f.col("e.count"), f.lit(0)), f.coalesce(f.col("t.count"), f.lit(0))
    kind = (
        f.when(theirs == 0, "missing")
        .when(ours == 0, "extra")
        .when(theirs > ours, "repeated")
        .when((ours != theirs) | (f.col("e.hash") != f.col("t.hash")), "changed")
    )
    rows = joined.select(kind.alias("kind"), PARTITION, TRANSACTION_ID).where("kind IS NOT NULL").orderBy("kind", PARTITION, TRANSACTION_ID)
    yield from _runs([(row[0], row[1], row[2]) for row in rows.limit(shown * 1000).collect()])


def _runs(found: Sequence[tuple[str, int, int]]) -> Iterator[Difference]:
    """Joins neighboring ids with the same difference."""
    start = 0
    for at in range(1, len(found) + 1):
        kind, partition, last = found[at - 1]
        if at == len(found) or found[at] != (kind, partition, last + 1):
            yield Difference(kind, partition, found[start][2], last)
            start = at


def compare_keyed(rows: DataFrame, table: DataFrame, target: TargetSettings, shown: int, *, whole: bool) -> Iterator[Difference]:
    """Compares a table that keeps the newest row of each key (or, as a history, marks it) with a plain fold of all rows. If the log is not `whole`,
    keys that it does not contain cannot be checked. Nor can rows of former clusters; with a named sequence, such a row can be the newest one."""
    order = f.struct(*dict.fromkeys([quoted(target.sequence), *(name for name in (TRANSACTION_ID, PARTITION) if name in rows.columns)]))
    whole_row = f.struct(*map(quoted, rows.columns))
    newest = rows.groupBy(*map(quoted, target.keys)).agg(f.max_by(whole_row, order).alias("newest")).select("newest.*")
    if DELETED in rows.columns:
        newest = newest.where(~f.col(DELETED)).drop(DELETED, AT)
    living = table
    if target.mode == "history":
        living = table.where(f.col(quoted(target.history.is_current)))
    elif target.deletes is not None and target.deletes.kind == "soft":
        living = table.where(~f.coalesce(f.col(quoted(target.deletes.deleted)), f.lit(False)))
    former, living = living.where(f.col(TRANSACTION_ID) < 0), living.where(f.coalesce(f.col(TRANSACTION_ID) >= 0, f.lit(True)))
    columns, lacking = _columns(newest.schema, living.schema)
    yield from lacking
    if target.sequence != TRANSACTION_ID:
        overtaken = same_key(target.keys) & (f.col(f"t.{quoted(target.sequence)}") > f.col(f"s.{quoted(target.sequence)}"))
        newest = newest.alias("s").join(former.alias("t"), overtaken, "left_anti")
    place = [name for name in (PARTITION, TRANSACTION_ID) if name in living.columns]
    sides = [side.select(*_keys(target), *place, row_hash(side.schema, columns, living.schema).alias("hash")) for side in (newest, living)]
    counted = (
        sides[1]
        .groupBy(*[f"key{n}" for n in range(len(target.keys))])
        .agg(f.count("*").alias("count"), f.first("hash").alias("hash"), *[f.first(name).alias(name) for name in place])
    )
    same = f.lit(True)
    for n in range(len(target.keys)):
        same = same & f.col(f"e.key{n}").eqNullSafe(f.col(f"t.key{n}"))
    joined = sides[0].alias("e").join(counted.alias("t"), same, "full")
    kind = (
        f.when(f.col("t.count").isNull(), "missing")
        .when(f.col("e.hash").isNull(), "extra")
        .when(f.col("t.count") > 1, "repeated")
        .when(f.col("e.hash") != f.col("t.hash"), "changed")
    )
    key = f.to_json(f.struct(*[f.coalesce(f.col(f"e.key{n}"), f.col(f"t.key{n}")).alias(name) for n, name in enumerate(target.keys)]))
    wrong = joined.select(kind.alias("kind"), key.alias("key")).where("kind IS NOT NULL")
    if not whole:
        wrong = wrong.where("kind != 'extra'")
    for row in wrong.orderBy("kind", "key").limit(shown + 1).collect():
        yield Difference(row[0], None, None, None, f"key={row[1]}")


def _keys(target: TargetSettings) -> list[Column]:
    return [f.col(quoted(key)).alias(f"key{n}") for n, key in enumerate(target.keys)]


def _columns(expected: StructType, found: StructType) -> tuple[list[str], list[Difference]]:
    """The columns to compare; those that the table lacks."""
    held = {name.lower() for name in found.fieldNames()}
    own = [name for name in expected.fieldNames() if name not in (DELETED, AT)]
    lacking = [name for name in own if name.lower() not in held]
    different = [Difference("column", None, None, None, f"{name} is not in the table") for name in lacking]
    return [name for name in own if name not in lacking], different
