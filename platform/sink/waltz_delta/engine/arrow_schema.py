"""A table's columns as Arrow types: what the files of the table hold. Pure.

Delta stores a schema as JSON. Each of its types has one Arrow type here, so that every file of a table has the same types, whatever writer the rows
come from: Spark cannot read nanoseconds, half floats, unsigned integers or columns of type null.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final  # Any: JSON values, and pyarrow has no types

import pyarrow as pa

__all__ = ["Leaf", "arrow_schema", "leaves", "parquet_paths"]

_DECIMAL: Final = re.compile(r"decimal\((\d+),\s*(\d+)\)")

_PRIMITIVE: Final[Mapping[str, Any]] = {
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "date": pa.date32(),
    "double": pa.float64(),
    "float": pa.float32(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "short": pa.int16(),
    "string": pa.string(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}

Leaf = tuple[str, ...]
"""The path of a column that is no struct: its name, after the names of the structs around it."""


def arrow_schema(schema: Mapping[str, Any]) -> pa.Schema:
    """The Arrow schema of a Delta schema that `allowed` accepts. Every value may be null: rows are checked before (`row_checks`)."""
    return pa.schema([pa.field(field["name"], _arrow_type(field["type"])) for field in schema["fields"]])


def leaves(schema: pa.Schema) -> Iterator[tuple[Leaf, pa.DataType]]:
    """The columns that are no structs, in order, with their types. An array or a map is one of them."""
    for field in schema:
        yield from _leaves_of((field.name,), field.type)


def parquet_paths(schema: pa.Schema) -> Iterator[tuple[str, pa.DataType]]:
    """The columns of a Parquet file of this schema, by the paths that pyarrow gives them, with their types."""
    for field in schema:
        yield from _parquet_paths_of(field.name, field.type)


def _arrow_type(kind: Any) -> pa.DataType:
    if isinstance(kind, str):
        if decimal := _DECIMAL.fullmatch(kind):
            return pa.decimal128(int(decimal[1]), int(decimal[2]))
        return _PRIMITIVE[kind]
    if kind["type"] == "array":
        return pa.list_(_arrow_type(kind["elementType"]))
    if kind["type"] == "map":
        return pa.map_(_arrow_type(kind["keyType"]), _arrow_type(kind["valueType"]))
    return pa.struct([pa.field(field["name"], _arrow_type(field["type"])) for field in kind["fields"]])


def _leaves_of(path: Leaf, kind: pa.DataType) -> Iterator[tuple[Leaf, pa.DataType]]:
    if not pa.types.is_struct(kind):
        yield path, kind
        return
    for field in kind:
        yield from _leaves_of((*path, field.name), field.type)


def _parquet_paths_of(path: str, kind: pa.DataType) -> Iterator[tuple[str, pa.DataType]]:
    if pa.types.is_struct(kind):
        for field in kind:
            yield from _parquet_paths_of(f"{path}.{field.name}", field.type)
    elif pa.types.is_map(kind):
        yield from _parquet_paths_of(f"{path}.key_value.key", kind.key_type)
        yield from _parquet_paths_of(f"{path}.key_value.value", kind.item_type)
    elif pa.types.is_list(kind):
        yield from _parquet_paths_of(f"{path}.list.element", kind.value_type)
    else:
        yield path, kind
