"""Scalars at any depth of nested columns: finds, replaces and keeps types, checks and converts values. Plans only.

A path names a scalar: fields of a struct with dots, elements of an array and values of a map by the name of the column that holds them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

__all__ = ["Checked", "Rule", "checked", "first_problem", "found_in", "replaced"]

Test = Callable[[DataType], bool]


@dataclass(frozen=True, slots=True)
class Checked:
    value: Column
    problem: Column | None
    """Why the value is not what was declared, null if it is; None if no value can be wrong."""


class Rule(Protocol):
    """A check of scalars. `check` is called only for the types that the rule inspects."""

    def inspects(self, kind: DataType) -> bool: ...
    def converts(self, kind: DataType) -> bool:
        """Whether `check` returns another value than it was given."""
        ...

    def check(self, read: Column, kind: DataType, path: str) -> Checked: ...


def checked(read: Column, kind: DataType, path: str, rule: Rule) -> Checked:
    """`kind` is the declared type, which the value has after the rule's conversions."""
    if not found_in(kind, rule.inspects):
        return Checked(read, None)
    converts = found_in(kind, rule.converts)
    if isinstance(kind, StructType):
        fields = [(field, checked(read.getField(field.name), field.dataType, f"{path}.{field.name}", rule)) for field in kind.fields]
        made = f.struct(*[part.value.alias(field.name, metadata=field.metadata) for field, part in fields])
        return Checked(f.when(read.isNotNull(), made) if converts else read, first_problem(part for _, part in fields))
    if isinstance(kind, ArrayType):
        inner = kind.elementType
        value = f.transform(read, lambda each: checked(each, inner, path, rule).value) if converts else read
        return Checked(value, _first_of(read, inner, path, rule))
    if isinstance(kind, MapType):
        inner = kind.valueType
        value = f.transform_values(read, lambda _, each: checked(each, inner, path, rule).value) if converts else read
        return Checked(value, _first_of(f.map_values(read), inner, path, rule))
    return rule.check(read, kind, path)


def _first_of(elements: Column, kind: DataType, path: str, rule: Rule) -> Column:
    def problem(element: Column) -> Column:
        found = checked(element, kind, path, rule).problem
        return found if found is not None else f.lit(None).cast("string")

    problems = f.transform(elements, problem)
    return f.get(f.filter(problems, lambda each: each.isNotNull()), f.lit(0))


def first_problem(parts: Iterable[Checked]) -> Column | None:
    """The first problem among several checks, in their order; None if no value can be wrong."""
    problems = [part.problem for part in parts if part.problem is not None]
    return f.coalesce(*problems) if problems else None


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
