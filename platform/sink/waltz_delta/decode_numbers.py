"""Tells JSON in which a number for a DECIMAL has an exponent that no DECIMAL can have, before Spark's parser works it out digit by digit.

To bring `1e99999999` to a scale, the parser makes a number of as many digits: minutes and gigabytes for ten bytes of data, and the same again at
every restart. Most texts are passed by one regular expression, which sees every such number and now and then something that is none. Only what it
stops at is looked at closely: numbers as such, wherever they stand; strings where they stand for a DECIMAL, which a reading with text for each
DECIMAL tells.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, DataType, DecimalType, MapType, StringType, StructField, StructType

__all__ = ["as_text", "endless_number", "endless_string", "may_be_endless"]

_DIGIT: Final = r"(?:\p{Nd}|\\u[0-9a-fA-F]{4})"
"""Also where it is escaped: a DECIMAL may stand in a string."""
_SUSPECT: Final = rf"(?:{_DIGIT}|\.)(?:[eE]|\\u00[46]5)(?:[+-]|\\u002[bBdD])?{_DIGIT}{{4}}"
_NUMBER: Final = r"[0-9][eE][+-]?0*[1-9][0-9]{3}"
_TEXT: Final = r"[eE][+-]?0*[\p{Nd}&&[^0]]\p{Nd}{3}"
_ESCAPE: Final = r"(?s)\\."
_STRING: Final = r'"[^"]*+"'
"""Where no escapes are left. Of these expressions none makes Java's matcher call itself once more for each character."""


def may_be_endless(text: Column) -> Column:
    return f.coalesce(text.rlike(_SUSPECT), f.lit(False))


def endless_number(text: Column) -> Column:
    """Whether a number of JSON text, outside of its strings, has an exponent of more than three digits."""
    bare = f.regexp_replace(f.regexp_replace(text, _ESCAPE, ""), _STRING, "")
    return f.coalesce(bare.rlike(_NUMBER), f.lit(False))


def as_text(kind: DataType) -> DataType | None:
    """The type with text for each DECIMAL and without what has none; None where there is none."""
    if isinstance(kind, DecimalType):
        return StringType()
    if isinstance(kind, ArrayType):
        element = as_text(kind.elementType)
        return None if element is None else ArrayType(element)
    if isinstance(kind, MapType):
        value = as_text(kind.valueType)
        return None if value is None else MapType(StringType(), value)
    if isinstance(kind, StructType):
        fields = [StructField(field.name, read) for field in kind.fields if (read := as_text(field.dataType)) is not None]
        return StructType(fields) if fields else None
    return None


def endless_string(value: Column, kind: DataType) -> Column:
    """Whether a text for a DECIMAL has an exponent of more than three digits. `kind`: of the value, as `as_text` gave it."""
    if isinstance(kind, StringType):
        found = value.rlike(_TEXT)
    elif isinstance(kind, ArrayType):
        found = f.exists(value, _of_each(kind.elementType))
    elif isinstance(kind, MapType):
        found = f.exists(f.map_values(value), _of_each(kind.valueType))
    else:
        assert isinstance(kind, StructType)
        found = f.lit(False)
        for field in kind.fields:
            found = found | endless_string(value.getField(field.name), field.dataType)
    return f.coalesce(found, f.lit(False))


def _of_each(kind: DataType) -> Callable[[Column], Column]:
    return lambda element: endless_string(element, kind)
