"""Keys that a table cannot store: Delta writes an empty string in a partition column as NULL, and reads `__HIVE_DEFAULT_PARTITION__` as NULL.

A MERGE would never find such a row again, so each change of its key would add another row. The decoder makes them problems of their transactions. A
projection can still make one; then the query fails and names the transaction.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import StringType

from waltz_delta.base.quoting import quoted
from waltz_delta.decode.decode import raised
from waltz_delta.decode.row_checks import UNSTORED, partitioned_keys

__all__ = ["refuse_unstored", "unstored_key"]


def unstored_key(rows: DataFrame, keys: Sequence[str], partition_by: Sequence[str]) -> Column | None:
    """Why a row's key cannot be stored, NULL for one that can; None if every key of these columns can. Spark is asked for the schema only where a key
    is a partition column."""
    wanted = partitioned_keys(keys, partition_by)
    fields = rows.schema.fields if wanted else []
    names = [field.name for field in fields if field.name.lower() in wanted and isinstance(field.dataType, StringType)]
    return f.coalesce(*map(_reason, names)) if names else None


def _reason(name: str) -> Column:
    value = f.col(quoted(name))
    shown = f.when(value == "", "an empty string").otherwise(value)
    return f.when(value.isin(*UNSTORED), f.concat(f.lit(f"{name} is "), shown, f.lit(", which a key column that is a partition column cannot hold")))


def refuse_unstored(rows: DataFrame, keys: Sequence[str], partition_by: Sequence[str]) -> DataFrame:
    """The same rows; a query over one whose key cannot be stored fails and names it."""
    problem = unstored_key(rows, keys, partition_by)
    return rows if problem is None else rows.where(f.when(problem.isNotNull(), raised(problem).cast("boolean")).otherwise(f.lit(True)))
