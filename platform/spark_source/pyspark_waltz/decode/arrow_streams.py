"""Arrow: the data of a transaction is an Arrow IPC stream of any number of rows, as `pyarrow.ipc.new_stream` writes it.

Columns are read by name and cast if nothing is lost by it; undeclared columns are ignored. A transaction decodes completely or not at all: a null in
a required column is a problem of all of its rows, also in a delete. A stream without rows gives no row.

Arrow casts any whole number to a timestamp without a unit, and any string to a number that it can be read as. Here a number needs a declared unit
(`timestamp_unit`). A string must be one of JSON's numbers if `numeric_strings` is lossless, and is refused if it is strict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any  # pyarrow has no types

import numpy as np
import pyarrow as pa
from pyspark.sql.types import StructType

from pyspark_waltz.decode.arrow_values import declared_values
from pyspark_waltz.decode.problems import Problems, Refused
from pyspark_waltz.decode.settings import DecodeSettings

__all__ = ["ArrowColumns"]

_REASON_MAX = 400
"""Most characters of a reason, which may show a type of any length."""


class ArrowColumns:
    """`columns`: the declared ones. `arrow`: their Arrow types, as Spark expects them. `names`: what each is called in the streams."""

    def __init__(self, columns: StructType, arrow: Sequence[Any], names: Sequence[str], settings: DecodeSettings) -> None:
        self._names = names
        self._required = [not field.nullable for field in columns.fields]
        self._schema = pa.schema([pa.field(field.name, kind) for field, kind in zip(columns.fields, arrow, strict=True)])
        self._settings = settings

    def decode(self, data: Any, problems: Problems) -> tuple[list[Any], Any]:
        """One array for each declared column, and for each row the index of its transaction in the batch. A transaction with a problem has one row of
        nulls."""
        tables = []
        for transaction, stream in enumerate(data):
            try:
                tables.append(self._table(stream))
            except (pa.ArrowException, ValueError, OSError) as error:
                reason = str(error).split("\n")[0][:_REASON_MAX] if isinstance(error, Refused) else "is not an Arrow IPC stream"
                problems.add(transaction, reason)
                tables.append(pa.table([pa.nulls(1, field.type) for field in self._schema], schema=self._schema))
        whole = pa.concat_tables(tables) if tables else self._schema.empty_table()
        owners = np.repeat(np.arange(len(tables)), [table.num_rows for table in tables])
        return [_one(column) for column in whole.columns], owners

    def _table(self, data: Any) -> Any:
        """The rows of one transaction in the declared columns. Raises `Refused` and Arrow's errors."""
        if not data.is_valid:
            raise Refused("no data")
        with pa.ipc.open_stream(data.as_buffer()) as stream:
            found = stream.read_all()
        missing = [name for name in self._names if name not in found.column_names]
        if missing:
            raise Refused(f"{missing[0]} is missing or null")
        columns = []
        for field, name, required in zip(self._schema, self._names, self._required, strict=True):
            columns.append(declared_values(found[name], field.type, field.name, self._settings))
            if required and columns[-1].null_count:
                raise Refused(f"{field.name} is missing or null")
        return pa.table(columns, schema=self._schema)


def _one(column: Any) -> Any:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks) if column.num_chunks else pa.nulls(0, column.type)
