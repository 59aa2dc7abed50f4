"""What a table demands of its rows, from its schema and properties as Delta stores them."""

from __future__ import annotations

import json
from typing import Any

from waltz_delta.tables.constraints import Constraint, constraints_of


def field(name: str, kind: Any = "string", *, nullable: bool = True, **metadata: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": nullable, "metadata": metadata}


def schema(*fields: dict[str, Any]) -> str:
    return json.dumps({"type": "struct", "fields": list(fields)})


def test_checks_are_named_with_their_expressions_in_the_order_of_their_names() -> None:
    properties = {"delta.constraints.small": "n < 5", "delta.constraints.after": "`a b` > n", "delta.appendOnly": "true", "waltz.mode": "append"}
    found = constraints_of(schema(field("n", "integer")), properties)
    assert found == (Constraint("CHECK after (`a b` > n)", "`a b` > n"), Constraint("CHECK small (n < 5)", "n < 5"))


def test_a_field_within_a_struct_must_not_be_null_and_one_within_an_array_is_not_checked() -> None:
    inner = {"type": "struct", "fields": [field("x", nullable=False), field("y.z")]}
    listed = {"type": "array", "elementType": {"type": "struct", "fields": [field("x", nullable=False)]}, "containsNull": True}
    found = constraints_of(schema(field("a`b", nullable=False), field("s", inner), field("l", listed), field("free")), {})
    assert found == (
        Constraint("NOT NULL of a`b", "`a``b` IS NOT NULL"),
        Constraint("NOT NULL of s.x", "`s`.`x` IS NOT NULL"),
    )


def test_lengths_and_invariants_are_read_from_the_columns() -> None:
    invariant = json.dumps({"expression": {"expression": "n > 3"}})
    number = {**field("n", "integer"), "metadata": {"delta.invariants": invariant}}
    found = constraints_of(schema(field("code", __CHAR_VARCHAR_TYPE_STRING="varchar(3)"), number, field("text")), {})
    assert found == (
        Constraint("VARCHAR(3) of code", "`code` IS NULL OR length(`code`) <= 3"),
        Constraint("invariant of n (n > 3)", "n > 3"),
    )


def test_a_table_that_does_not_exist_demands_nothing() -> None:
    assert constraints_of("", {}) == ()
