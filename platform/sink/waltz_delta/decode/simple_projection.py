"""Conditions and select lists that a worker applies to decoded columns by itself: columns that are kept or renamed, and comparisons with literals.
Spark evaluates everything else. Pure.

A condition is read only where Arrow and Spark agree for every value. So only whole numbers are compared with whole numbers, and texts with texts:
Spark would convert other types, and orders NaN."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final  # pyarrow has no types

from pyspark.sql.types import ByteType, DataType, IntegerType, LongType, ShortType, StringType, StructType

__all__ = ["Condition", "parse_select", "parse_where"]

_NAME: Final = r"(?:[A-Za-z_][A-Za-z0-9_]*|`[^`.]+`)"
_LITERAL: Final = r"(?:-?[0-9]{1,18}|'[^'\\$]*')"
_ITEM: Final = re.compile(rf"\s*({_NAME})(?:\s+(?:AS\s+)?({_NAME}))?\s*", re.IGNORECASE)
_CONDITION: Final = re.compile(
    rf"\s*({_NAME})\s*(?:(IS\s+NOT\s+NULL|IS\s+NULL)|(=|<>|!=|<=|>=|<|>)\s*({_LITERAL})|IN\s*\(\s*({_LITERAL}(?:\s*,\s*{_LITERAL})*)\s*\))\s*",
    re.IGNORECASE,
)
_AND: Final = re.compile(r"AND\b", re.IGNORECASE)
_WORDS: Final = frozenset(
    {
        *("all", "and", "as", "case", "cast", "current_catalog", "current_database", "current_date"),
        *("current_schema", "current_time", "current_timestamp", "current_user", "distinct", "end", "exists", "false"),
        *("from", "in", "interval", "is", "localtimestamp", "not", "now", "null"),
        *("or", "session_user", "true", "user", "when"),
    }
)
"""Words that begin something else than a column, or end it. Some are functions or literals to Spark."""
_COMPARISONS: Final = {"=": "equal", "<>": "not_equal", "!=": "not_equal", "<": "less", "<=": "less_equal", ">": "greater", ">=": "greater_equal"}
_WHOLE: Final = (ByteType, ShortType, IntegerType, LongType)


@dataclass(frozen=True, slots=True)
class Condition:
    """`test`: `is_null`, `is_valid`, `is_in`, or a comparison, by the names of `pyarrow.compute`. `values`: the literals."""

    column: str
    test: str
    values: tuple[int, ...] | tuple[str, ...] = ()

    def passes(self, batch: Any) -> Any:
        """A mask of the rows for which the condition is true."""
        import pyarrow as pa
        import pyarrow.compute as pc

        column = batch.column(self.column)
        apply: Callable[..., Any] = getattr(pc, self.test)
        if self.test in ("is_null", "is_valid"):
            return apply(column)
        literals = pa.array(self.values)
        if self.test == "is_in":
            return apply(column.cast(literals.type), literals)
        return pc.fill_null(apply(column.cast(literals.type), literals[0]), False)


def parse_where(text: str, columns: StructType) -> tuple[Condition, ...] | None:
    """The conditions of `a AND b AND …`; None if Spark must evaluate one of them."""
    kinds = {field.name.lower(): (field.name, field.dataType) for field in columns.fields}
    if len(kinds) < len(columns.fields):
        return None
    found, at = [], 0
    while True:
        match = _CONDITION.match(text, at)
        condition = None if match is None else _condition(match, kinds)
        if match is None or condition is None:
            return None
        found.append(condition)
        if match.end() == len(text):
            return tuple(found)
        joined = _AND.match(text, match.end())
        if joined is None:
            return None
        at = joined.end()


def _condition(match: re.Match[str], kinds: Mapping[str, tuple[str, DataType]]) -> Condition | None:
    name, null, operator, literal, listed = match.groups()
    known = kinds.get(_plain(name).lower())
    if known is None or name.lower() in _WORDS:
        return None
    column, kind = known
    if null is not None:
        return Condition(column, "is_null" if len(null.split()) == 2 else "is_valid")
    texts = [literal] if literal is not None else re.findall(_LITERAL, listed)
    test = _COMPARISONS[operator] if operator is not None else "is_in"
    if all(text.startswith("'") for text in texts):
        return Condition(column, test, tuple(text[1:-1] for text in texts)) if kind == StringType() else None
    if any(text.startswith("'") for text in texts) or not isinstance(kind, _WHOLE):
        return None
    return Condition(column, test, tuple(int(text) for text in texts))


def parse_select(text: str, columns: Sequence[str]) -> tuple[tuple[str, str], ...] | None:
    """Pairs of a column and its name in the result; None if Spark must evaluate the list."""
    known = {name.lower(): name for name in columns}
    if len(known) < len(columns):
        return None
    found = []
    for item in text.split(","):
        match = _ITEM.fullmatch(item)
        if match is None or any(word is not None and word.lower() in _WORDS for word in match.groups()):
            return None
        column = known.get(_plain(match[1]).lower())
        if column is None:
            return None
        found.append((column, _plain(match[2] or match[1])))
    return tuple(found) if len({name.lower() for _, name in found}) == len(found) else None


def _plain(name: str) -> str:
    return name.strip("`")
