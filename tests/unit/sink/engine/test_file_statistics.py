"""Statistics of data files: exact, or missing. A wrong bound hides rows from every filtered read."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from waltz_delta.engine.arrow_schema import arrow_schema, parquet_paths
from waltz_delta.engine.file_statistics import FileStatistics, indexed_leaves


def stated(rows: pa.Table, **properties: str) -> dict[str, Any]:
    found = FileStatistics(indexed_leaves(rows.schema, {f"delta.{name}": value for name, value in properties.items()}))
    for batch in rows.to_batches(max_chunksize=2):
        found.add(pa.Table.from_batches([batch]))
    parsed: dict[str, Any] = json.loads(found.text(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    return parsed


def of(values: list[Any], kind: pa.DataType) -> tuple[Any, Any, int]:
    found = stated(pa.table({"c": pa.array(values, kind)}))
    return found["minValues"].get("c"), found["maxValues"].get("c"), found["nullCount"]["c"]


def test_bounds_are_exact_at_the_edges_of_each_type() -> None:
    assert of([None, 5, -(2**63), 2**63 - 1], pa.int64()) == (-(2**63), 2**63 - 1, 1)
    assert of([date(1, 1, 1), date(9999, 12, 31)], pa.date32()) == ("0001-01-01", "9999-12-31", 0)
    moments = [datetime(1, 1, 1, 0, 0, 0, 1, UTC), datetime(9999, 12, 31, 23, 59, 59, 999999, UTC)]
    assert of(moments, pa.timestamp("us", "UTC")) == ("0001-01-01T00:00:00.000001Z", "9999-12-31T23:59:59.999999Z", 0)
    assert of([moment.replace(tzinfo=None) for moment in moments], pa.timestamp("us"))[0] == "0001-01-01T00:00:00.000001"
    assert of([Decimal("-99999999999.9999"), Decimal("0.0001")], pa.decimal128(15, 4)) == (-99999999999.9999, 0.0001, 0)
    assert of(["b", "", "é", "\U0001f600"], pa.string()) == ("", "\U0001f600", 0)


def test_what_has_no_exact_form_in_json_has_no_bounds_and_counts_its_nulls() -> None:
    assert of([math.nan, math.inf, 1.0, None], pa.float64()) == (None, None, 1)
    assert of([1.5], pa.float32()) == (None, None, 0)
    assert of([Decimal("12345678901234.5678")], pa.decimal128(18, 4)) == (None, None, 0)
    assert of([Decimal(10**37)], pa.decimal128(38, 0)) == (None, None, 0)
    assert of([True, None], pa.bool_()) == (None, None, 1)
    assert of([b"x"], pa.binary()) == (None, None, 0)
    assert of([[1], None], pa.list_(pa.int32())) == (None, None, 1)
    assert of([-800000, 0], pa.date32()) == (None, "1970-01-01", 0), "before year 1"
    assert of([None, None], pa.string()) == (None, None, 2)


def test_a_long_text_lies_between_its_bounds() -> None:
    for text in ("x" * 33, "é" * 40, "a" * 32 + "\U0010ffff\U0010ffff", "b" * 31 + "\U0010ffff" + "tail"):
        low, high, _ = of([text], pa.string())
        assert low.encode() <= text.encode()
        assert high is None or text.encode() <= high.encode()
        assert len(low) == 32
    assert of(["x" * 32], pa.string())[:2] == ("x" * 32, "x" * 32)


def test_fields_of_a_struct_are_null_where_the_struct_is() -> None:
    kind = pa.struct([("x", pa.int32()), ("deep", pa.struct([("y", pa.string())]))])
    found = stated(pa.table({"s": pa.array([{"x": 1, "deep": {"y": "a"}}, None, {"x": 3, "deep": None}], kind)}))
    assert found == {
        "numRecords": 3,
        "minValues": {"s": {"x": 1, "deep": {"y": "a"}}},
        "maxValues": {"s": {"x": 3, "deep": {"y": "a"}}},
        "nullCount": {"s": {"x": 1, "deep": {"y": 2}}},
    }


def test_the_table_says_which_columns_have_statistics() -> None:
    rows = pa.table({"a": [1], "s": [{"x": 1, "y.z": 2}], "d,e": [3]})

    def counted(**properties: str) -> dict[str, Any]:
        found: dict[str, Any] = stated(rows, **properties)["nullCount"]
        return found

    assert counted() == {"a": 0, "s": {"x": 0, "y.z": 0}, "d,e": 0}
    assert counted(dataSkippingNumIndexedCols="2") == {"a": 0, "s": {"x": 0}}
    assert counted(dataSkippingNumIndexedCols="0") == {}
    assert counted(dataSkippingNumIndexedCols="-1") == counted()
    assert counted(dataSkippingStatsColumns="A, `d,e`", dataSkippingNumIndexedCols="0") == {"a": 0, "d,e": 0}
    assert counted(dataSkippingStatsColumns="s") == {"s": {"x": 0, "y.z": 0}}
    assert counted(dataSkippingStatsColumns="s.`y.z`") == {"s": {"y.z": 0}}
    assert len(indexed_leaves(pa.schema([(f"c{n}", pa.int8()) for n in range(40)]), {})) == 32


def test_arrow_types_are_those_that_spark_reads_and_paths_are_those_of_parquet() -> None:
    kinds = [
        "binary",
        "boolean",
        "byte",
        "date",
        "double",
        "float",
        "integer",
        "long",
        "short",
        "string",
        "timestamp",
        "timestamp_ntz",
        "decimal(38,18)",
    ]
    fields = [{"name": kind, "type": kind} for kind in kinds]
    inner = {"type": "struct", "fields": [{"name": "f", "type": "float"}]}
    nested = {"type": "map", "keyType": "string", "valueType": {"type": "array", "elementType": inner}}
    found = arrow_schema({"fields": [*fields, {"name": "m", "type": nested}]})
    assert [str(field.type) for field in found][:-1] == [
        *("binary", "bool", "int8", "date32[day]", "double", "float", "int32", "int64", "int16", "string"),
        *("timestamp[us, tz=UTC]", "timestamp[us]", "decimal128(38, 18)"),
    ]
    assert [path for path, _ in parquet_paths(found)][-2:] == ["m.key_value.key", "m.key_value.value.list.element.f"]
