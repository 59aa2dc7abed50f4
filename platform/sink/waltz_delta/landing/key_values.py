"""Keys that a table cannot store: Delta writes an empty string in a partition column as NULL, and reads `__HIVE_DEFAULT_PARTITION__` as NULL.

A MERGE would never find such a row again, so each change of its key would add another row. The decoder makes them problems of their transactions. A
projection can still make one; then the query fails and names the transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import StringType, StructType

from waltz_delta.base.quoting import quoted
from waltz_delta.decode.decode import UNDECODABLE
from waltz_delta.marks.batch import PARTITION, TRANSACTION_ID

__all__ = ["refuse_unstored", "unstored_key"]

UNSTORED: Final = ("", "__HIVE_DEFAULT_PARTITION__")


def _endangered(schema: StructType, keys: Sequence[str], partition_by: Sequence[str]) -> list[str]:
    partitioned = {name.lower() for name in partition_by}
    wanted = {name.lower() for name in keys} & partitioned
    return [field.name for field in schema.fields if field.name.lower() in wanted and isinstance(field.dataType, StringType)]


def unstored_key(schema: StructType, keys: Sequence[str], partition_by: Sequence[str]) -> Column | None:
    """Why a row's key cannot be stored, NULL for one that can; None if every key of these columns can."""
    names = _endangered(schema, keys, partition_by)
    return f.coalesce(*map(_reason, names)) if names else None


def _reason(name: str) -> Column:
    value = f.col(quoted(name))
    shown = f.when(value == "", "an empty string").otherwise(value)
    return f.when(value.isin(*UNSTORED), f.concat(f.lit(f"{name} is "), shown, f.lit(", which a key column that is a partition column cannot hold")))


def refuse_unstored(rows: DataFrame, keys: Sequence[str], partition_by: Sequence[str]) -> DataFrame:
    """The same rows; a query over one whose key cannot be stored fails and names it."""
    problem = unstored_key(rows.schema, keys, partition_by)
    if problem is None:
        return rows
    place = f.format_string(f"{UNDECODABLE}transaction %d of partition %d: %s", f.col(TRANSACTION_ID), f.col(PARTITION), problem)
    return rows.where(f.when(problem.isNotNull(), f.raise_error(place).cast("boolean")).otherwise(f.lit(True)))
