"""What a table demands of its rows, from its schema and properties as Delta stores them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from waltz_delta.tables.constraints import Constraint, constraints_of


def field(name: str, kind: Any = "string", *, nullable: bool = True, **metadata: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": nullable, "metadata": metadata}


def schema(*fields: dict[str, Any]) -> str:
    return json.dumps({"type": "struct", "fields": list(fields)})


def test_checks_are_named_with_their_expressions_in_the_order_of_their_names() -> None:
    properties = {"delta.constraints.small": "n < 5", "delta.constraints.after": "`a b` > n", "delta.appendOnly": "true", "waltz.mode": "append"}
    found = constraints_of(schema(field("n", "integer")), properties)
    assert found == (Constraint("CHECK after (`a b` > n)", "`a b` > n", raises=True), Constraint("CHECK small (n < 5)", "n < 5", raises=True))


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
        Constraint("invariant of n (n > 3)", "n > 3", raises=True),
    )


def test_lengths_within_structs_arrays_and_maps_are_those_of_the_whole_type_of_the_column() -> None:
    pair = {"type": "struct", "fields": [field("c", "string"), field("d")]}
    listed = {
        "type": "array",
        "elementType": {"type": "map", "keyType": "string", "valueType": pair, "valueContainsNull": True},
        "containsNull": True,
    }
    inner = {"type": "struct", "fields": [field("a:b", "decimal(3,2)"), field("x"), field("l", listed)]}
    text = "struct<a:b:decimal(3,2),x:varchar(3),l:array<map<char(2),struct<`c`:varchar(9),d:string>>>>"
    x, listed_in = "`s`.`x`", "`s`.`l` IS NULL OR forall(`s`.`l`, _waltz_each0 -> "
    keys, values = "map_keys(_waltz_each0)", "map_values(_waltz_each0)"
    assert constraints_of(schema(field("s", inner, __CHAR_VARCHAR_TYPE_STRING=text)), {}) == (
        Constraint("VARCHAR(3) of s.x", f"{x} IS NULL OR length({x}) <= 3"),
        Constraint(
            "CHAR(2) of s.l.element.key",
            f"{listed_in}{keys} IS NULL OR forall({keys}, _waltz_each1 -> _waltz_each1 IS NULL OR length(_waltz_each1) <= 2))",
        ),
        Constraint(
            "VARCHAR(9) of s.l.element.value.c",
            f"{listed_in}{values} IS NULL OR forall({values}, _waltz_each1 -> _waltz_each1.`c` IS NULL OR length(_waltz_each1.`c`) <= 9))",
        ),
    )


@pytest.mark.parametrize("text", ["struct<y:varchar(3)>", "struct<x:varchar(3)", "array<varchar(3)>", "varchar(3)", "struct<x:varchar(3)>,int"])
def test_lengths_of_another_type_than_the_columns_are_left_to_delta(text: str) -> None:
    inner = {"type": "struct", "fields": [field("x")]}
    assert constraints_of(schema(field("s", inner, __CHAR_VARCHAR_TYPE_STRING=text)), {}) == ()


def test_a_table_that_does_not_exist_demands_nothing() -> None:
    assert constraints_of("", {}) == ()
