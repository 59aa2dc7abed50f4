"""The statistics of a data file, by which readers skip it: the number of rows, and for each column the bounds and the number of nulls. Pure.

A wrong bound hides rows from every filtered read, and makes MERGE insert duplicates. So a bound is exact or missing:

- no bounds of FLOAT and DOUBLE, because NaN is greater than every number and has no place in JSON;
- none of a DECIMAL of more than 15 digits, because readers parse numbers of JSON as doubles;
- none of a date or time outside the years 1 to 9999;
- a text of more than 32 characters has a shorter text below it, and one above it, as Delta's own writer makes them.

Source: Delta's PROTOCOL.md, "Per-file Statistics".
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final  # Any: pyarrow has no types, and JSON values

import pyarrow as pa
import pyarrow.compute as _pc

from waltz_delta.engine.arrow_schema import Leaf, leaves

__all__ = ["DECIMAL_DIGITS_MAX", "FileStatistics", "indexed_leaves"]

pc: Any = _pc
DECIMAL_DIGITS_MAX: Final = 15
"""Each decimal of so many digits has a double of its own."""
TEXT_MAX: Final = 32
"""In characters, of the bounds of a text; Delta's own number."""
INDEXED_COLUMNS: Final = 32
"""How many columns have statistics unless the table says otherwise; Delta's own number."""

_NUMBER: Final = "delta.dataskippingnumindexedcols"
_NAMED: Final = "delta.dataskippingstatscolumns"
_NAME: Final = re.compile(r"(`(?:[^`]|``)*`|[^`.]+)(?:\.|$)")

_GREATEST: Final = "\U0010ffff"
_EPOCH: Final = datetime(1970, 1, 1)
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()


def indexed_leaves(schema: pa.Schema, properties: Mapping[str, str]) -> list[Leaf]:
    """The columns that have statistics, as the table's properties say. A named struct stands for its fields."""
    given = {name.lower(): value for name, value in properties.items()}
    paths = [path for path, _ in leaves(schema)]
    if _NAMED in given:
        named = [_parsed(each) for each in _split(given[_NAMED])]
        return [path for path in paths if any(tuple(name.lower() for name in path)[: len(one)] == one for one in named)]
    number = int(given.get(_NUMBER, INDEXED_COLUMNS))
    return paths if number < 0 else paths[:number]


class FileStatistics:
    """The statistics of one file, whose rows are added in any number of parts."""

    def __init__(self, indexed: Sequence[Leaf]) -> None:
        self.rows = 0
        self._nulls: dict[Leaf, int] = dict.fromkeys(indexed, 0)
        self._bounds: dict[Leaf, tuple[Any, Any]] = {}
        self._types: dict[Leaf, pa.DataType] = {}

    def add(self, rows: pa.Table) -> None:
        """Counts these rows, which have the columns of the file."""
        self.rows += rows.num_rows
        for path in self._nulls:
            values = _values(rows, path)
            self._nulls[path] += values.null_count
            self._types[path] = values.type
            if _is_bounded(values.type):
                self._widen(path, values)

    def text(self) -> str:
        """As strict JSON, for the file's entry in the table's log."""
        least: dict[str, Any] = {}
        greatest: dict[str, Any] = {}
        nulls: dict[str, Any] = {}
        for path, count in self._nulls.items():
            _put(nulls, path, count)
            if path in self._bounds:
                low, high = (shown(self._types[path], value) for shown, value in zip((_lower, _upper), self._bounds[path], strict=True))
                for bound, into in ((low, least), (high, greatest)):
                    if bound is not None:
                        _put(into, path, bound)
        found = {"numRecords": self.rows, "minValues": least, "maxValues": greatest, "nullCount": nulls}
        return json.dumps(found, allow_nan=False, ensure_ascii=False, separators=(",", ":"))

    def _widen(self, path: Leaf, values: pa.ChunkedArray) -> None:
        found = pc.min_max(_comparable(values))
        low, high = found["min"].as_py(), found["max"].as_py()
        if low is None:
            return
        if path in self._bounds:
            low, high = min(low, self._bounds[path][0]), max(high, self._bounds[path][1])
        self._bounds[path] = (low, high)


def _values(rows: pa.Table, path: Leaf) -> pa.ChunkedArray:
    found = rows.column(path[0])
    for name in path[1:]:
        found = pc.struct_field(found, [found.type.get_field_index(name)])  # null where the struct is
    return found


def _is_bounded(kind: pa.DataType) -> bool:
    if pa.types.is_decimal(kind):
        return int(kind.precision) <= DECIMAL_DIGITS_MAX
    return bool(pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_date32(kind) or pa.types.is_timestamp(kind))


def _comparable(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Dates and times as numbers: Python has no date before year 1."""
    if pa.types.is_date32(values.type):
        return values.cast(pa.int32())
    return values.cast(pa.int64()) if pa.types.is_timestamp(values.type) else values


def _lower(kind: pa.DataType, value: Any) -> Any:
    return value[:TEXT_MAX] if pa.types.is_string(kind) else _shown(kind, value)


def _upper(kind: pa.DataType, value: Any) -> Any:
    if not pa.types.is_string(kind):
        return _shown(kind, value)
    if len(value) <= TEXT_MAX:
        return value
    return None if value[TEXT_MAX] == _GREATEST else value[:TEXT_MAX] + _GREATEST


def _shown(kind: pa.DataType, value: Any) -> Any:
    """None: the value has no form that every reader knows."""
    if isinstance(value, Decimal):
        return float(value)
    if pa.types.is_date32(kind):
        day = _EPOCH_DAY + value
        return date.fromordinal(day).isoformat() if date.min.toordinal() <= day <= date.max.toordinal() else None
    if pa.types.is_timestamp(kind):
        try:
            moment = _EPOCH + timedelta(microseconds=value)
        except OverflowError:
            return None
        return moment.isoformat(timespec="microseconds") + ("Z" if kind.tz is not None else "")
    return value


def _put(into: dict[str, Any], path: Leaf, value: Any) -> None:
    for name in path[:-1]:
        into = into.setdefault(name, {})
    into[path[-1]] = value


def _split(names: str) -> Iterable[str]:
    """At the commas that are not within backticks."""
    return (each.strip() for each in re.findall(r"(?:`(?:[^`]|``)*`|[^`,])+", names))


def _parsed(name: str) -> Leaf:
    return tuple(part[1:-1].replace("``", "`").lower() if part.startswith("`") else part.strip().lower() for part in _NAME.findall(name))
