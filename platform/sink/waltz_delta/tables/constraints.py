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
_LENGTHS: Final = re.compile(r"(?:var)?char\((\d+)\)")


class Constraint(NamedTuple):
    """`name`: with its expression, as a reason shows it. `condition`: SQL over the columns of a row, which must be true."""

    name: str
    condition: str


def constraints_of(schema_text: str, properties: Mapping[str, str]) -> tuple[Constraint, ...]:
    """The constraints of a table with these columns, as Delta stores them, and properties. Delta has none within arrays and maps."""
    fields = json.loads(schema_text)["fields"] if schema_text else []
    checks = sorted((name[len(_CHECK) :], text) for name, text in properties.items() if name.lower().startswith(_CHECK))
    return (*_of_fields(fields, ()), *(Constraint(f"CHECK {name} ({text})", text) for name, text in checks))


def _of_fields(fields: Sequence[Mapping[str, Any]], parents: tuple[str, ...]) -> Iterator[Constraint]:
    for field in fields:
        place, metadata = (*parents, field["name"]), field.get("metadata") or {}
        shown, column = ".".join(place), ".".join(map(quoted, place))
        if not field["nullable"]:
            yield Constraint(f"NOT NULL of {shown}", f"{column} IS NOT NULL")  # to Delta, it is NULL within a STRUCT that is
        if not parents and (length := _LENGTHS.fullmatch(str(metadata.get(_LENGTH, "")))):
            yield Constraint(f"{length[0].upper()} of {shown}", f"{column} IS NULL OR length({column}) <= {length[1]}")
        if _INVARIANTS in metadata:
            text = json.loads(metadata[_INVARIANTS])["expression"]["expression"]
            yield Constraint(f"invariant of {shown} ({text})", text)
        if isinstance(field["type"], Mapping) and field["type"]["type"] == "struct":
            yield from _of_fields(field["type"]["fields"], place)
