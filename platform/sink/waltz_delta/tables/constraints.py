"""What a table demands of its rows besides their types: CHECK constraints, columns that must not be NULL, and longest texts. Pure.

Source: Delta's PROTOCOL.md, "CHECK Constraints" and "Column Invariants"; Spark's VARCHAR and CHAR. As Delta does it, a condition that is NULL is
violated.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple  # Any: JSON values

from waltz_delta.base.quoting import quoted

__all__ = ["VIOLATES", "Constraint", "constraints_of"]

VIOLATES: Final = "violates "
"""In front of the constraint, in the reason of a dead letter."""

_CHECK: Final = "delta.constraints."
_INVARIANTS: Final = "delta.invariants"
_LENGTH: Final = "__CHAR_VARCHAR_TYPE_STRING"
"""In the metadata of a column: its whole type, in which Delta's own has STRING for each VARCHAR and CHAR."""
_LENGTHS: Final = re.compile(r"(?:var)?char\((\d+)\)")
_LEAF: Final = re.compile(r"[^<>,()]*(?:\([^()]*\))?[^<>,()]*")
_EACH: Final = "_waltz_each"


class Constraint(NamedTuple):
    """`name`: with its expression, as a reason shows it. `condition`: SQL over the columns of a row, which must be true. `raises`: its evaluation can
    fail, as a division by zero does, because a user wrote it."""

    name: str
    condition: str
    raises: bool = False


def constraints_of(schema_text: str, properties: Mapping[str, str]) -> tuple[Constraint, ...]:
    """The constraints of a table with these columns, as Delta stores them, and properties. Within arrays and maps Delta has lengths alone."""
    fields = json.loads(schema_text)["fields"] if schema_text else []
    checks = sorted((name[len(_CHECK) :], text) for name, text in properties.items() if name.lower().startswith(_CHECK))
    return (*_of_fields(fields, ()), *(Constraint(f"CHECK {name} ({text})", text, raises=True) for name, text in checks))


def _of_fields(fields: Sequence[Mapping[str, Any]], parents: tuple[str, ...]) -> Iterator[Constraint]:
    for field in fields:
        place, metadata = (*parents, field["name"]), field.get("metadata") or {}
        shown, column = ".".join(place), ".".join(map(quoted, place))
        if not field["nullable"]:
            yield Constraint(f"NOT NULL of {shown}", f"{column} IS NOT NULL")  # to Delta, it is NULL within a STRUCT that is
        if not parents and _LENGTH in metadata:
            yield from _lengths(field["type"], metadata[_LENGTH], column, shown)
        if _INVARIANTS in metadata:
            text = json.loads(metadata[_INVARIANTS])["expression"]["expression"]
            yield Constraint(f"invariant of {shown} ({text})", text, raises=True)
        if isinstance(field["type"], Mapping) and field["type"]["type"] == "struct":
            yield from _of_fields(field["type"]["fields"], place)


def _lengths(kind: object, text: str, column: str, shown: str) -> Sequence[Constraint]:
    """The longest texts in a column, whose type is `text` to Spark. None if the text is of another type: then they are left to Delta."""
    try:
        found, rest = _longest(kind, text, column, shown, 0)
    except _OtherType:
        return ()
    return () if rest else found


class _OtherType(Exception):
    """Spark's text of a type does not belong to the type. Internal to this module."""


def _longest(kind: object, text: str, value: str, shown: str, depth: int) -> tuple[list[Constraint], str]:
    """The constraints of a value, and what follows its type in the text. The names of fields come from the type, since Spark quotes none."""
    if not isinstance(kind, Mapping):
        leaf = _LEAF.match(text)
        assert leaf is not None, "the pattern accepts an empty text"
        length, rest = _LENGTHS.fullmatch(leaf[0]), text[leaf.end() :]
        return ([Constraint(f"{length[0].upper()} of {shown}", f"{value} IS NULL OR length({value}) <= {length[1]}")] if length else []), rest
    found: list[Constraint] = []
    rest = _after(text, (f"{kind['type']}<",))
    if kind["type"] == "struct":
        for number, field in enumerate(kind["fields"]):
            name = field["name"]
            rest = _after(_after(rest, (",",)) if number else rest, (f"{name}:", f"{quoted(name)}:"))
            inner, rest = _longest(field["type"], rest, f"{value}.{quoted(name)}", f"{shown}.{name}", depth)
            found += inner
    else:
        parts = [("element", value)] if kind["type"] == "array" else [("key", f"map_keys({value})"), ("value", f"map_values({value})")]
        for number, (part, listed) in enumerate(parts):
            each = f"{_EACH}{depth}"
            inner, rest = _longest(kind[f"{part}Type"], _after(rest, (",",)) if number else rest, each, f"{shown}.{part}", depth + 1)
            found += [one._replace(condition=f"{listed} IS NULL OR forall({listed}, {each} -> {one.condition})") for one in inner]
    return found, _after(rest, (">",))


def _after(text: str, starts: Sequence[str]) -> str:
    for start in starts:
        if text.startswith(start):
            return text[len(start) :]
    raise _OtherType
