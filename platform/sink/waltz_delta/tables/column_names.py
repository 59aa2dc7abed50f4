"""Names and types that a column cannot have, found before a table is created instead of in its second batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from pyspark.sql.types import ArrayType, DataType, MapType, NullType, StructType

from waltz_log.errors import InvalidSetting

__all__ = ["check_columns"]

NOT_IN_PARQUET: Final = " ,;{}()\n\t="
"""Letters that Delta accepts in a name only with column mapping."""

OF_MERGE: Final = frozenset({"filepath", "rowindexcol", "deletionvectorid", "_metadata", "_file_name_", "_row_id_"})
"""Columns that Delta adds to the rows of a table while it runs a MERGE."""

OF_CHANGE_FEED: Final = frozenset({"_change_type", "_commit_version", "_commit_timestamp"})


def check_columns(schema: StructType, properties: Mapping[str, str], *, merged: bool) -> None:
    """Raises `InvalidSetting`, with both names where two are the same to Delta; also for a column without a type. `properties`: of the table.
    `merged`: rows come by MERGE."""
    _refuse_twins("", schema)
    for field in schema.fields:
        if _untyped(field.dataType):
            raise _refused(field.name, f"has no type (VOID), so no later row could have a value: `CAST(NULL AS STRING) AS {field.name}` in `select`")
    mapped = properties.get("delta.columnMapping.mode", "none") != "none"
    taken = (OF_MERGE if merged else frozenset()) | (OF_CHANGE_FEED if properties.get("delta.enableChangeDataFeed") == "true" else frozenset())
    for name in schema.fieldNames():
        if name.lower() in taken:
            raise _refused(name, "Delta needs this name itself; choose another one: `name AS other` in `select`")
    if not mapped:
        for name in _names(schema):
            if set(name) & set(NOT_IN_PARQUET):
                reason = f"has {_shown(name)}, which Delta accepts only in a table with the property delta.columnMapping.mode=name"
                raise _refused(name, f"{reason}; set it, or choose another name: `name AS other` in `select`")


def _untyped(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return any(_untyped(field.dataType) for field in kind.fields)
    if isinstance(kind, ArrayType):
        return _untyped(kind.elementType)
    return _untyped(kind.keyType) or _untyped(kind.valueType) if isinstance(kind, MapType) else isinstance(kind, NullType)


def _shown(name: str) -> str:
    letter = next(each for each in name if each in NOT_IN_PARQUET)
    return {" ": "a space", "\n": "a line break", "\t": "a tab"}.get(letter, f"the letter {letter}")


def _names(kind: DataType) -> Iterator[str]:
    """The names of the columns and of all fields within them."""
    if isinstance(kind, StructType):
        for field in kind.fields:
            yield field.name
            yield from _names(field.dataType)
    elif isinstance(kind, ArrayType):
        yield from _names(kind.elementType)
    elif isinstance(kind, MapType):
        yield from _names(kind.keyType)
        yield from _names(kind.valueType)


def _refuse_twins(path: str, kind: DataType) -> None:
    if isinstance(kind, StructType):
        seen: dict[str, str] = {}
        for field in kind.fields:
            other = seen.setdefault(field.name.lower(), field.name)
            if other is not field.name:
                both = f"{path}{other} and {path}{field.name}"
                raise _refused(field.name, f"{both} are one name to Delta, which ignores case; rename one: `name AS other` in `select`")
            _refuse_twins(f"{path}{field.name}.", field.dataType)
    elif isinstance(kind, ArrayType):
        _refuse_twins(path, kind.elementType)
    elif isinstance(kind, MapType):
        _refuse_twins(path, kind.valueType)


def _refused(name: str, reason: str) -> InvalidSetting:
    return InvalidSetting(name=f"column {name}", reason=reason, nearest=None)
