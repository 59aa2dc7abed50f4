"""The hash of an audited row: every two different rows have different ones, NULLs and nested values included."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest

from waltz_delta.jobs.audit_hash import row_hash
from waltz_delta.settings import TargetSettings

DIFFERENT: dict[str, tuple[str, list[str]]] = {
    "a value in another nullable column": ("a INT, b INT", ["1, NULL", "NULL, 1", "NULL, NULL", "1, 1"]),
    "arrays": ("a ARRAY<INT>", ["NULL", "array()", "array(NULL)", "array(NULL, NULL)", "array(1)", "array(1, NULL)", "array(NULL, 1)"]),
    "nested arrays": (
        "a ARRAY<ARRAY<INT>>",
        ["array(array(1), array(2))", "array(array(1, 2))", "array(array(), array(1, 2))", "array(array(1, 2), array())", "array(NULL, array(1, 2))"],
    ),
    "structs": (
        "a STRUCT<x: INT, y: INT>",
        ["NULL", "struct(NULL, NULL)", "struct(1, NULL)", "struct(NULL, 1)", "struct(1, 1)"],
    ),
    "maps": (
        "a MAP<STRING, INT>",
        ["NULL", "map()", "map('a', NULL)", "map('a', 1)", "map('b', 1)", "map('a', 1, 'b', 2)", "map('a', 2, 'b', 1)"],
    ),
    "maps of arrays of maps": (
        "a MAP<STRING, ARRAY<MAP<STRING, INT>>>",
        ["map('a', array())", "map('a', array(map()))", "map('a', array(map('x', NULL)))", "map('a', array(map('x', 1)))", "map('a', NULL)"],
    ),
    "variants": (
        "a VARIANT",
        [
            "NULL",
            "parse_json('null')",
            "parse_json('1')",
            "parse_json('\"1\"')",
            "parse_json('[]')",
            "parse_json('{}')",
            "parse_json('{\"a\": [null]}')",
        ],
    ),
    "names with dots and spaces": ("`a.b` INT, `c d` STRING, `e``f` INT", ["1, NULL, NULL", "NULL, '1', NULL", "NULL, NULL, 1"]),
}


def _hashes(spark: Any, schema: str, rows: list[str], stored: str | None = None) -> list[int]:
    empty = spark.createDataFrame([], schema)
    query = " UNION ALL ".join(f"SELECT {number} AS number, {row}" for number, row in enumerate(rows))
    names = ", ".join(["number", *(f"`{name.replace('`', '``')}`" for name in empty.columns)])
    casts = ", ".join(f"CAST(`{f.name.replace('`', '``')}` AS {f.dataType.simpleString()}) AS `{f.name.replace('`', '``')}`" for f in empty.schema)
    frame = spark.sql(f"WITH given({names}) AS ({query}) SELECT number, {casts} FROM given")
    wanted = row_hash(empty.schema, empty.columns, None if stored is None else spark.createDataFrame([], stored).schema)
    return [row[1] for row in sorted(frame.select("number", wanted.alias("hash")).collect())]


@pytest.mark.parametrize("kind", DIFFERENT)
def test_rows_that_differ_have_different_hashes(spark: Any, kind: str) -> None:
    schema, rows = DIFFERENT[kind]
    hashes = _hashes(spark, schema, rows)
    assert [(rows[a], rows[b]) for a, b in combinations(range(len(rows)), 2) if hashes[a] == hashes[b]] == []


def test_a_map_has_no_order(spark: Any) -> None:
    one, other = _hashes(spark, "a MAP<STRING, ARRAY<INT>>", ["map('a', array(1), 'b', NULL)", "map('b', NULL, 'a', array(1))"])
    assert one == other


def test_a_value_of_a_column_that_was_widened_is_the_same(spark: Any) -> None:
    narrow = _hashes(spark, "a INT, b DECIMAL(5,2)", ["7, 1.50"], "a BIGINT, b DECIMAL(9,2)")
    assert narrow == _hashes(spark, "a BIGINT, b DECIMAL(9,2)", ["7, 1.50"])


def test_a_keyed_table_in_which_a_value_moved_to_another_column_is_reported(spark: Any) -> None:
    from waltz_delta.jobs.audit_compare import compare_keyed

    schema = "`the key` STRING, a INT, `b.c` INT, partition INT, transaction_id BIGINT"
    log = spark.createDataFrame([("x", 1, None, 0, 5), ("y", None, None, 0, 6)], schema)
    table = spark.createDataFrame([("x", None, 1, 0, 5), ("y", None, None, 0, 6)], schema)
    target = TargetSettings(table="t", mode="upsert", keys=("the key",))
    assert [str(each) for each in compare_keyed(log, log, target, 20, whole=True)] == []
    assert [str(each) for each in compare_keyed(log, table, target, 20, whole=True)] == ['changed: key={"the key":"x"}']
