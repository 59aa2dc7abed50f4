"""A 64-bit hash of a row that two rows share only if every value is the same, NULLs included.

Spark's `xxhash64` skips NULL, so it is the same for (NULL, 1) and (1, NULL), for `[NULL]` and `[]`, and for `[]` and NULL. It refuses maps and
VARIANT. Here each value, also one within an array, a struct or a map, is hashed after a flag that says whether it is NULL. An array has its
length before it. A map has no order, so its entries come in the order of their hashes. The columns come in the order of their names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, AtomicType, DataType, MapType, StructType, VariantType

from waltz_delta.base.quoting import quoted
from waltz_delta.tables.evolution import as_stored

__all__ = ["row_hash"]


def row_hash(schema: StructType, columns: Sequence[str], stored: StructType | None = None) -> Column:
    """`schema`: of the rows. `stored`: of the table whose rows they are compared with; a value of a type that the table has widened since is hashed
    as one of the table's type."""
    kinds, wider = _types(schema), _types(stored)
    return f.xxhash64(*[part for name in sorted(columns, key=str.lower) for part in _parts(*_as_stored(name, kinds[name.lower()], wider))])


def _types(schema: StructType | None) -> Mapping[str, DataType]:
    return {} if schema is None else {field.name.lower(): field.dataType for field in schema.fields}


def _as_stored(name: str, kind: DataType, stored: Mapping[str, DataType]) -> tuple[Column, DataType]:
    value, wanted = f.col(quoted(name)), stored.get(name.lower(), kind)
    if (isinstance(kind, AtomicType) and isinstance(wanted, AtomicType)) or type(kind) is type(wanted):
        return as_stored(value, wanted, kind), wanted
    return value, kind


def _parts(value: Column, kind: DataType) -> tuple[Column, Column]:
    return value.isNull(), _comparable(value, kind)


def _comparable(value: Column, kind: DataType) -> Column:
    """The value in a form that has an `xxhash64` of its own."""
    if isinstance(kind, ArrayType):
        element = kind.elementType
        return f.struct(f.size(value), f.transform(value, lambda each: f.struct(*_parts(each, element))))
    if isinstance(kind, StructType):
        return f.struct(*[part for field in kind.fields for part in _parts(value.getField(field.name), field.dataType)])
    if isinstance(kind, MapType):
        entries = f.transform(f.map_entries(value), lambda each: f.struct(_hash(each["key"], kind.keyType), _hash(each["value"], kind.valueType)))
        return f.struct(f.size(value), f.array_sort(entries))
    if isinstance(kind, VariantType):
        return f.to_json(value)
    return value


def _hash(value: Column, kind: DataType) -> Column:
    return f.xxhash64(*_parts(value, kind))
