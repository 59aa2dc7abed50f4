"""From the source's raw columns to a table's: JSON data with a declared schema, a filter, a projection. Plans only; no row is touched here."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from waltz_delta.batch import PARTITION, TRANSACTION_ID
from waltz_log.errors import InvalidSetting

__all__ = ["shape"]

_KEPT = (PARTITION, TRANSACTION_ID, "timestamp", "header")


def shape(rows: DataFrame, *, schema: str | None = None, where: str | None = None, select: Sequence[str] = ()) -> DataFrame:
    """`schema` (DDL) parses `data` as JSON into columns of its own; data that is not such JSON fails the query, naming the record. `where` is a SQL
    condition over the columns; `select` SQL expressions. The place in the log is kept in any case, since the sink judges every row by it."""
    if schema is not None:
        fields = f.from_json(f.col("data").cast("string"), schema, {"mode": "FAILFAST"})
        rows = rows.select(*_KEPT, fields.alias("data"))
        parsed = rows.schema["data"].dataType.fieldNames()
        for name in parsed:
            if name.lower() in _KEPT:
                raise InvalidSetting(name="schema", reason=f"field {name} is already a column of the log; rename it in the data", nearest=None)
        rows = rows.select(*_KEPT, "data.*")
    if where is not None:
        rows = rows.where(where)
    if select:
        chosen = rows.selectExpr(*select)
        missing = [name for name in (PARTITION, TRANSACTION_ID) if name not in chosen.columns]
        rows = rows.selectExpr(*missing, *select)
    return rows
