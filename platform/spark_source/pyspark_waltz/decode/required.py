"""Which transactions lack a required (NOT NULL) column, or a required field of a struct that is there."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any  # pyarrow has no types

import pyarrow.compute as _pc
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from pyspark_waltz.decode.problems import Problems

__all__ = ["find_missing", "nullable"]

pc: Any = _pc


def find_missing(columns: StructType, arrays: Sequence[Any], problems: Problems, *, only: Collection[str] | None = None) -> None:
    """`arrays`: one for each declared column. `only`: the columns that must be there; otherwise each that is declared NOT NULL."""
    positions = {name: at for at, name in enumerate(columns.fieldNames())}
    for path in _required(columns):
        if only is None or path[0] in only:
            for row in _without(arrays[positions[path[0]]], path[1:]):
                problems.add(row, f"{'.'.join(path)} is missing or null")


def _required(struct: StructType) -> Iterator[tuple[str, ...]]:
    for field in struct.fields:
        if not field.nullable:
            yield (field.name,)
        if isinstance(field.dataType, StructType):
            yield from ((field.name, *rest) for rest in _required(field.dataType))


def _without(array: Any, names: Sequence[str]) -> Iterable[int]:
    there: Any = None
    for name in names:
        there = array.is_valid() if there is None else pc.and_(there, array.is_valid())
        array = array.field(name)
    if not array.null_count:
        return ()
    return list(pc.indices_nonzero(array.is_null() if there is None else pc.and_(there, array.is_null())).to_pylist())


def nullable(kind: DataType) -> DataType:
    """The type with fields that may all be null, as decoded columns have it: `find_missing` says where a required one is missing."""
    if isinstance(kind, StructType):
        return StructType([StructField(field.name, nullable(field.dataType), metadata=field.metadata) for field in kind.fields])
    if isinstance(kind, ArrayType):
        return ArrayType(nullable(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(kind.keyType, nullable(kind.valueType))
    return kind
