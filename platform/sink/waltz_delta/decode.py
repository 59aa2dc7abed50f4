"""From the source's raw columns to a table's: JSON data with a declared schema, a filter, a projection. Plans only; no row is touched here."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from waltz_delta.batch import PARTITION, TRANSACTION_ID
from waltz_log.errors import InvalidSetting

__all__ = ["shape"]

_KEPT = (PARTITION, TRANSACTION_ID, "timestamp", "header")


def shape(rows: DataFrame, *, schema: str | None = None, where: str | None = None, select: str | None = None) -> DataFrame:
    """`schema` (DDL) parses `data` as JSON into columns of its own; data that is not such JSON fails the query, naming the record. `where` is a SQL
    condition over the columns; `select` a SQL select list. The place in the log is kept in any case, since the sink judges every row by it."""
    if schema is not None:
        fields = f.from_json(f.col("data").cast("string"), schema, {"mode": "FAILFAST"})
        rows = rows.select(*_KEPT, fields.alias("data"))
        parsed = rows.select("data.*").columns
        for name in parsed:
            if name.lower() in _KEPT:
                raise InvalidSetting(name="schema", reason=f"field {name} is already a column of the log; rename it in the data", nearest=None)
        rows = rows.select(*_KEPT, "data.*")
    if where is not None:
        rows = rows.where(where)
    if select is not None:
        chosen = rows.select(*_KEPT[:2], f.expr(f"struct({select})").alias("chosen"))
        own = [name for name in (PARTITION, TRANSACTION_ID) if name not in chosen.select("chosen.*").columns]
        rows = chosen.select(*own, "chosen.*")
    return rows
