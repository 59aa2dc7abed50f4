"""Arrow: the data of a transaction is an Arrow IPC stream of any number of rows, as `pyarrow.ipc.new_stream` writes it.

The column `row` holds the index of a row within its transaction, from 0. A stream without rows lands nothing and counts as seen. Columns are read by
name and cast if nothing is lost by it; undeclared columns are ignored. A transaction decodes completely or not at all: a null in a required column
makes all of its rows a dead letter, also in a delete. Runs in Python workers, one record batch of transactions at a time.

Arrow casts any whole number to a timestamp without a unit, and any string to a number that it can be read as. Here a number needs a declared unit
(`timestamp_unit`). A string must be one of JSON's numbers if `numeric_strings` is lossless, and is refused if it is strict."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any  # Any: pyarrow has no types

from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField, StructType

from waltz_delta.decode.decode_arrow_values import Refused, declared_values
from waltz_delta.marks.batch import DATA, PROBLEM, ROW
from waltz_delta.settings import DecodeSettings

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["decode_arrow"]


def decode_arrow(rows: DataFrame, kept: Sequence[str], columns: StructType, settings: DecodeSettings) -> DataFrame:
    """The kept columns, `row`, the declared columns, the data of what does not decode, and the reason."""
    fields = [rows.schema[name] for name in kept]
    nullable = [StructField(field.name, field.dataType) for field in columns.fields]
    result = StructType([*fields, StructField(ROW, IntegerType()), *nullable, StructField(DATA, BinaryType()), StructField(PROBLEM, StringType())])
    return rows.select(*kept, f.col("data").alias(DATA)).mapInArrow(
        _decoder(tuple(kept), result, [field.nullable for field in columns.fields], settings), result
    )


def _decoder(
    kept: tuple[str, ...], result: StructType, nullable: Sequence[bool], settings: DecodeSettings
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    given = settings.model_dump()

    def decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_schema

        again = DecodeSettings(**given)
        schema = to_arrow_schema(result, timezone="UTC", prefers_large_types=False)
        wanted = pa.schema([schema.field(len(kept) + 1 + n).with_nullable(optional) for n, optional in enumerate(nullable)])
        for batch in batches:
            yield from _decoded(batch, kept, schema, wanted, again).to_batches()

    return decode


def _decoded(batch: pa.RecordBatch, kept: Sequence[str], schema: pa.Schema, wanted: pa.Schema, settings: DecodeSettings) -> pa.Table:
    import numpy as np
    import pyarrow as pa

    tables, sizes, problems, raw = [], [], [], []
    for data in batch.column(DATA):
        table, problem = _table(data, wanted, settings)
        tables.append(table)
        sizes.append(table.num_rows)
        problems += [problem] * table.num_rows
        raw += [data.as_py() if problem is not None else None] * table.num_rows
    counts = np.array(sizes, dtype=np.int64)
    whole = pa.concat_tables(tables) if tables else _loose(wanted).empty_table()
    of = np.repeat(np.arange(len(counts)), counts)
    within = np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts, counts)
    columns: list[object] = [batch.column(name).take(pa.array(of)) for name in kept]
    columns += [pa.array(within, pa.int32()), *whole.columns, pa.array(raw, pa.binary()), pa.array(problems, pa.string())]
    return pa.table([_cast(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema)


def _cast(column: Any, kind: Any) -> Any:
    return column if column.type == kind else column.cast(kind)


def _table(data: Any, wanted: pa.Schema, settings: DecodeSettings) -> tuple[pa.Table, str | None]:
    """The rows of one transaction in the declared columns; if it does not decode, one row of nulls and the reason."""
    import pyarrow as pa

    try:
        if not data.is_valid:
            raise Refused("no data")
        with pa.ipc.open_stream(data.as_buffer()) as stream:
            found = stream.read_all()
        missing = [name for name in wanted.names if name not in found.column_names]
        if missing:
            raise Refused(f"{missing[0]} is missing or null")
        columns = []
        for field in wanted:
            columns.append(declared_values(found[field.name], field.type, field.name, settings))
            if not field.nullable and columns[-1].null_count:
                raise Refused(f"{field.name} is missing or null")
        return pa.table(columns, schema=_loose(wanted)), None
    except (pa.ArrowException, ValueError, OSError) as error:
        reason = str(error).split("\n")[0][:400] if isinstance(error, Refused) else "is not an Arrow IPC stream"
        return pa.table([pa.nulls(1, field.type) for field in wanted], schema=_loose(wanted)), reason


def _loose(schema: pa.Schema) -> pa.Schema:
    import pyarrow as pa

    return pa.schema([field.with_nullable(True) for field in schema])
