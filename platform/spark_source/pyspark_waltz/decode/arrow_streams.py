"""Arrow: the data of a transaction is an Arrow IPC stream of any number of rows, as `pyarrow.ipc.new_stream` writes it.

Columns are read by name and cast if nothing is lost by it; undeclared columns are ignored. A transaction decodes completely or not at all: a null in
a required column is a problem of all of its rows, also in a delete. A stream without rows gives no row.

Arrow casts any whole number to a timestamp without a unit, and any string to a number that it can be read as. Here a number needs a declared unit
(`timestamp_unit`). A string must be one of JSON's numbers if `numeric_strings` is lossless, and is refused if it is strict."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any  # pyarrow has no types

import numpy as np
import pyarrow as pa
import pyarrow.compute as _pc
from pyspark.sql.types import StructType

from pyspark_waltz.decode.arrow_sizes import decompressed_bytes
from pyspark_waltz.decode.arrow_values import declared_values
from pyspark_waltz.decode.problems import Problems, Refused
from pyspark_waltz.decode.settings import DecodeSettings

__all__ = ["ArrowColumns"]

pc: Any = _pc
ROWS_MAX = 1_000_000
BYTES_MAX = 256 << 20
"""Most rows and bytes of a transaction: far more than fit into one without tricks."""
_REASON_MAX = 400
"""Most characters of a reason, which may show a type of any length."""


class ArrowColumns:
    """`columns`: the declared ones. `arrow`: their Arrow types, as Spark expects them."""

    def __init__(self, columns: StructType, arrow: Sequence[Any], settings: DecodeSettings) -> None:
        self._names = settings.names_in_data(columns.names)
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
            except (pa.ArrowException, KeyError, MemoryError, ValueError, OSError, struct.error) as error:
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
        found = _read(data)
        for name in self._names:
            if (times := found.column_names.count(name)) != 1:
                raise Refused(f"{name} is missing or null" if not times else f"{name} is {times} columns of the stream")
        columns = []
        for field, name, required in zip(self._schema, self._names, self._required, strict=True):
            columns.append(declared_values(found[name], field.type, field.name, self._settings))
            if required and columns[-1].null_count:
                raise Refused(f"{field.name} is missing or null")
        return pa.table(columns, schema=self._schema)


def _read(data: Any) -> Any:
    """The rows of a stream. pyarrow checks neither offsets nor UTF-8 when it reads, and a few bytes can stand for any number of rows."""
    _bound_decompressed(data.as_buffer())
    batches, rows, size = [], 0, 0
    with pa.ipc.open_stream(data.as_buffer()) as stream:
        for batch in stream:
            rows, size = rows + batch.num_rows, size + batch.get_total_buffer_size()
            if rows > ROWS_MAX or size > BYTES_MAX:
                raise Refused(f"holds more than {ROWS_MAX} rows or {BYTES_MAX} bytes")
            batch.validate(full=True)
            batches.append(batch)
        found = pa.Table.from_batches(batches, stream.schema)
    for column in found.columns:
        if pa.types.is_dictionary(column.type) and _expanded(column) > BYTES_MAX:
            raise Refused(f"holds more than {BYTES_MAX} bytes without its dictionaries")
    return found


def _bound_decompressed(stream: Any) -> None:
    size = 0
    for message in pa.ipc.MessageReader.open_stream(stream):
        size += decompressed_bytes(message)
        if size > BYTES_MAX:
            raise Refused(f"holds more than {BYTES_MAX} bytes without compression")


def _expanded(column: Any) -> int:
    """The size of a column of dictionaries of text without them."""
    if not (pa.types.is_string(column.type.value_type) or pa.types.is_binary(column.type.value_type)):
        return 0
    return sum(pc.sum(pc.binary_length(chunk.dictionary).take(chunk.indices)).as_py() or 0 for chunk in column.chunks)


def _one(column: Any) -> Any:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks) if column.num_chunks else pa.nulls(0, column.type)
