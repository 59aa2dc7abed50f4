"""Conditions and select lists that a worker applies: what it reads means the same as in Spark, and what it does not read is left to Spark."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import DoubleType, IntegerType, LongType, StringType, StructField, StructType

from waltz_delta.decode.simple_projection import parse_select, parse_where

COLUMNS = StructType(
    [StructField("tail", StringType()), StructField("leg", IntegerType()), StructField("total", LongType()), StructField("x", DoubleType())]
)
ROWS = pa.record_batch(
    {
        "tail": pa.array(["N1", "", None, "N2", "é"]),
        "leg": pa.array([1, 2, 3, None, -5], pa.int32()),
        "total": pa.array([2**40, 0, None, 7, -1], pa.int64()),
        "x": pa.array([1.0, None, float("nan"), 0.0, -0.0]),
    }
)


def passing(text: str) -> Any:
    conditions = parse_where(text, COLUMNS)
    assert conditions is not None
    rows = ROWS.append_column("at", pa.array(range(ROWS.num_rows)))
    for condition in conditions:
        rows = rows.filter(condition.passes(rows))
    return rows.column("at").to_pylist()


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("tail IS NOT NULL", [0, 1, 3, 4]),
        ("TAIL is null", [2]),
        ("x IS NULL", [1]),
        ("tail = 'N1'", [0]),
        ("tail <> 'N1'", [1, 3, 4]),
        ("tail > 'N1'", [3, 4]),
        ("tail = ''", [1]),
        ("leg >= 2", [1, 2]),
        ("leg != 3", [0, 1, 4]),
        ("leg <= -5", [4]),
        ("leg > 3000000000", []),
        ("total < 8", [1, 3, 4]),
        ("total = 1099511627776", [0]),
        ("leg IN (1, 3, 9)", [0, 2]),
        ("tail IN ('N2','é')", [3, 4]),
        ("`leg` > 0 AND tail IS NOT NULL and leg < 2", [0]),
    ],
)
def test_a_simple_condition_passes_what_spark_passes(text: str, wanted: list[int]) -> None:
    assert passing(text) == wanted


@pytest.mark.parametrize(
    "text",
    [
        *("leg = 1 OR leg = 2", "NOT leg = 1", "leg + 1 = 2", "x > 1", "x = 1", "tail = 1", "leg = '1'", "leg = 1.0", "leg <=> 1", "leg = total"),
        *("tail LIKE 'N%'", "upper(tail) = 'N1'", "missing IS NULL", "leg BETWEEN 1 AND 2", "leg IN (1, 'a')", "leg IN ()", "tail = 'it''s'"),
        *(r"tail = 'a\n'", "leg = 1 AND", "AND leg = 1", "leg = 1 leg = 2", "", "leg = 12345678901234567890", "leg = 1 -- comment", "leg IS TRUE"),
        *("tail = '${env:HOME}'", "user IS NULL", "true = 1"),
    ],
)
def test_any_other_condition_is_left_to_spark(text: str) -> None:
    assert parse_where(text, COLUMNS) is None


def test_names_that_differ_only_in_case_are_left_to_spark() -> None:
    twice = StructType([StructField("a", StringType()), StructField("A", StringType())])
    assert parse_where("a IS NULL", twice) is None
    assert parse_select("a", twice.names) is None


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("tail", [("tail", "tail")]),
        ("tail, leg AS legs", [("tail", "tail"), ("leg", "legs")]),
        ("Leg as `legs so far`, total t", [("leg", "legs so far"), ("total", "t")]),
        ("leg AS tail, tail AS leg", [("leg", "tail"), ("tail", "leg")]),
        ("leg AS one, leg AS two", [("leg", "one"), ("leg", "two")]),
    ],
)
def test_a_simple_list_keeps_and_renames(text: str, wanted: list[tuple[str, str]]) -> None:
    assert parse_select(text, COLUMNS.names) == tuple(wanted)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "*",
            "tail, *",
            "leg + 1 AS leg",
            "1 AS one",
            "'a' AS a",
            "missing",
            "tail.x",
            "`tail.x`",
            "struct(tail)",
            "tail AS a, leg AS A",
            "tail AS a b",
        ),
        *("DISTINCT tail", "tail, ", "", "CAST(leg AS STRING)", "tail AS from", "tail -- x"),
    ],
)
def test_any_other_list_is_left_to_spark(text: str) -> None:
    assert parse_select(text, COLUMNS.names) is None
