"""Checks rows against the columns of their table before they are written. `deltalake` compares a file that it commits with nothing: a column of
another type makes the table unreadable, one that the table lacks is lost, and NULL in a NOT NULL column breaks MERGE and OPTIMIZE. Pure.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import pyarrow as pa

__all__ = ["REFUSED", "RowRefused", "fitted"]

REFUSED: Final = "the table refuses a row: "
"""In front of the sentence, by which the driver finds it in the error of a Spark task."""


class RowRefused(ValueError):
    """Its text is one sentence about one column, after `REFUSED`."""

    def __init__(self, column: str, reason: str) -> None:
        super().__init__(f"{REFUSED}{column}: {reason}\n")
        self.column, self.reason = column, reason


def fitted(rows: pa.Table, schema: pa.Schema, required: Collection[str]) -> pa.Table:
    """The rows with exactly the columns and types of `schema`. `required`: columns that must not be null. Raises `RowRefused`."""
    columns = []
    for field in schema:
        place = rows.schema.get_field_index(field.name)
        if place < 0:
            raise RowRefused(field.name, "the rows do not have it")
        column = rows.column(place)
        if column.type != field.type:
            if not _is_same_kind(column.type, field.type):
                raise RowRefused(field.name, f"is {field.type} in the table, {column.type} in the rows")
            column = column.cast(field.type)
        if column.null_count and field.name in required:
            raise RowRefused(field.name, "must not be null in the table")
        columns.append(column)
    for name in rows.schema.names:
        if name not in schema.names:
            raise RowRefused(name, "the table has no such column")
    return pa.Table.from_arrays(columns, schema=schema)


def _is_same_kind(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether the types differ only in how the values lie in memory, or in the zone in which a moment is shown."""
    kinds = pa.types
    if kinds.is_timestamp(given) and kinds.is_timestamp(wanted):
        return given.unit == wanted.unit and (given.tz is None) == (wanted.tz is None)
    if kinds.is_dictionary(given):
        return _is_same_kind(given.value_type, wanted)
    if kinds.is_string(wanted):
        return bool(kinds.is_string(given) or kinds.is_large_string(given) or kinds.is_string_view(given))
    if kinds.is_binary(wanted):
        return bool(kinds.is_binary(given) or kinds.is_large_binary(given) or kinds.is_binary_view(given))
    if kinds.is_list(wanted):
        return (kinds.is_list(given) or kinds.is_large_list(given)) and _is_same_kind(given.value_type, wanted.value_type)
    if kinds.is_map(wanted) and kinds.is_map(given):
        return _is_same_kind(given.key_type, wanted.key_type) and _is_same_kind(given.item_type, wanted.item_type)
    if kinds.is_struct(wanted) and kinds.is_struct(given):
        same = [field.name for field in given] == [field.name for field in wanted]
        return same and all(_is_same_kind(one.type, other.type) for one, other in zip(given, wanted, strict=True))
    return bool(given == wanted)
