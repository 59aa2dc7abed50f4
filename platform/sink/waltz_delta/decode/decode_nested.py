"""Scalars at any depth of nested columns: finds and replaces types, converts values. Plans only."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

__all__ = ["converted", "found_in", "replaced"]

Test = Callable[[DataType], bool]


def converted(read: Column, kind: DataType, test: Test, convert: Callable[[Column], Column]) -> Column:
    """The value with each scalar converted whose type passes the test."""
    if not found_in(kind, test):
        return read
    if isinstance(kind, StructType):
        fields = [(field, converted(read.getField(field.name), field.dataType, test, convert)) for field in kind.fields]
        return f.when(read.isNotNull(), f.struct(*[value.alias(field.name, metadata=field.metadata) for field, value in fields]))
    if isinstance(kind, ArrayType):
        return f.transform(read, lambda each: converted(each, kind.elementType, test, convert))
    if isinstance(kind, MapType):
        return f.transform_values(read, lambda _, each: converted(each, kind.valueType, test, convert))
    return convert(read)


def found_in(kind: DataType, test: Test) -> bool:
    """Whether a scalar type that passes the test is anywhere in the type."""
    if isinstance(kind, StructType):
        return any(found_in(field.dataType, test) for field in kind.fields)
    if isinstance(kind, ArrayType):
        return found_in(kind.elementType, test)
    if isinstance(kind, MapType):
        return found_in(kind.valueType, test)
    return test(kind)


def replaced(kind: DataType, test: Test, other: DataType) -> DataType:
    """The type with `other` for each scalar that passes the test. Keys of maps stay."""
    if isinstance(kind, StructType):
        return StructType([StructField(field.name, replaced(field.dataType, test, other), field.nullable, field.metadata) for field in kind.fields])
    if isinstance(kind, ArrayType):
        return ArrayType(replaced(kind.elementType, test, other), kind.containsNull)
    if isinstance(kind, MapType):
        return MapType(kind.keyType, replaced(kind.valueType, test, other), kind.valueContainsNull)
    return other if test(kind) else kind
