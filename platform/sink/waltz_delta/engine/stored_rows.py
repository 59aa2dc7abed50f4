"""Reads the rows of a table's data files as the table shows them, of any writer: by the table's columns and types, a row group at a time.

A file may lack columns and fields that were added later; then they are null. Spark may have written times as INT96, which reach further than
nanoseconds do. Files of old versions of Spark with days and times of the Julian calendar are not read here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final  # Any: pyarrow has no types
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as parquet

from waltz_delta.engine.log_actions import RemoveFile, is_removable
from waltz_delta.engine.partition_values import scalar_text

__all__ = ["JULIAN", "NotRead", "StoredFile", "row_groups"]

JULIAN: Final = frozenset({b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96"})
"""Names in the metadata of a file whose days and times before 1582 are by the old calendar, which pyarrow does not convert."""


class NotRead(Exception):
    """A file that only Spark reads or removes. The text is the reason for Spark's engine. Internal to this package."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file that a version of a table names. `path`: as in its log. `partition`: the values of partition columns as Arrow scalars, by
    name."""

    path: str
    size: int
    partition: Mapping[str, Any]

    def removed(self) -> RemoveFile:
        """Raises `NotRead`."""
        if not is_removable(self.path):
            raise NotRead(f"the path of the file {self.path} has letters that deltalake escapes otherwise")
        return RemoveFile(self.path, self.size, {name: scalar_text(value) for name, value in self.partition.items()})


def row_groups(files: Any, root: str, stored: StoredFile, schema: pa.Schema) -> Iterator[Any]:
    """The rows of a file, one Arrow table for each row group. `files`, `root`: the table's directory in a file system of pyarrow. `schema`: of the
    wanted columns. Raises `NotRead`."""
    with files.open_input_file(f"{root}/{unquote(stored.path)}") as source:
        file = parquet.ParquetFile(source, coerce_int96_timestamp_unit="us")
        if found := JULIAN & set(file.metadata.metadata or {}):
            raise NotRead(f"the file {stored.path} has days or times of the Julian calendar ({min(found).decode()})")
        there = {name for name in file.schema_arrow.names if name in schema.names}
        for number in range(file.num_row_groups):
            rows = file.read_row_group(number, columns=[name for name in schema.names if name in there])
            count = file.metadata.row_group(number).num_rows
            yield pa.Table.from_arrays([_column(rows, count, stored, field) for field in schema], schema=schema)


def _column(rows: Any, count: int, stored: StoredFile, field: pa.Field) -> Any:
    if field.name in stored.partition:
        return pa.repeat(stored.partition[field.name].cast(field.type), count)
    if field.name not in rows.schema.names:
        return pa.nulls(count, field.type)
    column = rows.column(field.name)
    if column.type == field.type:
        return column
    return pa.chunked_array([_conformed(chunk, field.type) for chunk in column.chunks], type=field.type)


def _conformed(values: Any, kind: pa.DataType) -> Any:
    """The same values by another type: with null for the fields that they lack."""
    if values.type == kind:
        return values
    if pa.types.is_struct(kind) and pa.types.is_struct(values.type):
        inner = []
        for field in kind:
            at = values.type.get_field_index(field.name)
            inner.append(pa.nulls(len(values), field.type) if at < 0 else _conformed(values.field(at), field.type))
        return pa.StructArray.from_arrays(inner, fields=list(kind), mask=values.is_null())
    if pa.types.is_list(kind) and pa.types.is_list(values.type):
        return pa.ListArray.from_arrays(values.offsets, _conformed(values.values, kind.value_type), type=kind, mask=values.is_null())
    if pa.types.is_map(kind) and pa.types.is_map(values.type):
        keys, items = _conformed(values.keys, kind.key_type), _conformed(values.items, kind.item_type)
        return pa.MapArray.from_arrays(values.offsets, keys, items, type=kind, mask=values.is_null())
    return values.cast(kind)
