"""Avro in columns: what `fastavro` writes comes back, and each reason why data does not decode."""

from __future__ import annotations

import datetime as dt
import io
import json
from decimal import Decimal
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_waltz.decode.formats import own_columns, read_schema
from pyspark_waltz.decode.settings import DecodeSettings
from tests.unit.spark_source.decode.own_schema import decoded_rows
from waltz_log.errors import InvalidSetting

UTC = dt.UTC
BOUNDS = "earliest_timestamp=0001-01-01T00:00:00Z latest_timestamp=9999-12-31T23:59:59.999999Z"
NOT_A_RECORD = "is not an Avro record of the declared schema: "


def record(*fields: Any, name: str = "R") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": f"f{n}", "type": kind} for n, kind in enumerate(fields)]}


def encoded(schema: Any, *values: Any) -> bytes:
    sink = io.BytesIO()
    fastavro.schemaless_writer(sink, fastavro.parse_schema(schema), {f"f{n}": value for n, value in enumerate(values)})
    return sink.getvalue()


def decoded(schema: Any, data: list[bytes | None], **more: Any) -> list[Any]:
    """The values of each transaction, or the reason why it does not decode."""
    found = decoded_rows(DecodeSettings(format="avro", avro_schema=json.dumps(schema), **more), data)
    return [each if isinstance(each, str) else list(each.values()) for each in found]


def one(kind: Any, data: bytes, **more: Any) -> Any:
    """The value of a single field, or the reason."""
    (found,) = decoded(record(kind), [data], **more)
    return found if isinstance(found, str) else found[0]


def logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


ENUM = {"type": "enum", "name": "E", "symbols": ["x", "y"]}
MOMENT = dt.datetime(2026, 1, 2, 3, 4, 5, 250_000, UTC)
KINDS: list[tuple[Any, str, list[Any]]] = [
    ("boolean", "boolean", [True, False]),
    ("int", "int", [0, -1, 63, 64, 2**31 - 1, -(2**31)]),
    ("long", "bigint", [0, 2**63 - 1, -(2**63)]),
    ("float", "float", [0.5, float("inf")]),
    ("double", "double", [0.1, -0.0, 1e308]),
    ("bytes", "binary", [b"", b"\xff\x00"]),
    ("string", "string", ["", "é", "x" * 200]),
    ({"type": "fixed", "name": "F", "size": 2}, "binary", [b"ab"]),
    (ENUM, "string", ["x", "y"]),
    (["null", "string"], "string", [None, "a"]),
    (["int", "null"], "int", [None, 5]),
    (["string"], "string", ["a"]),
    (["null", "int", "long"], "bigint", [None, 5, 2**40]),
    (["float", "double"], "double", [0.5]),
    ({"type": "array", "items": ["null", "int"]}, "array<int>", [[], [1, None, 3]]),
    ({"type": "map", "values": {"type": "array", "items": "string"}}, "map<string,array<string>>", [{}, {"k": ["v"], "e": []}]),
    (["null", {"type": "int", "note": 1}, "long"], "struct<member0:int,member1:bigint>", [None]),
    ([logical("int", "time-millis"), logical("long", "time-micros")], "struct<member0:int,member1:bigint>", []),
    (record("int", ["null", "string"], name="N"), "struct<f0:int,f1:string>", [{"f0": 1, "f1": None}]),
    (["null", record("int", name="N")], "struct<f0:int>", [None, {"f0": 1}]),
    (logical("int", "date"), "date", [dt.date(2026, 1, 2), dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
    (logical("long", "timestamp-millis"), "timestamp", [MOMENT, dt.datetime(1, 1, 1, tzinfo=UTC)]),
    (logical("long", "timestamp-micros"), "timestamp", [MOMENT.replace(microsecond=7)]),
    (logical("long", "local-timestamp-millis"), "timestamp_ntz", [MOMENT.replace(tzinfo=None)]),
    (logical("long", "local-timestamp-micros"), "timestamp_ntz", [dt.datetime(1969, 12, 31, 23, 59, 59, 999_999)]),
    (logical("bytes", "decimal", precision=38, scale=10), "decimal(38,10)", [Decimal("-1.25"), Decimal("9" * 28 + "." + "9" * 10), Decimal(0)]),
    ({**logical("fixed", "decimal", precision=5, scale=2), "name": "D", "size": 4}, "decimal(5,2)", [Decimal("999.99"), Decimal("-0.01")]),
    (logical("int", "time-millis"), "int", [dt.time(0, 0, 1)]),
    (logical("string", "uuid"), "string", ["f81d4fae-7dec-11d0-a765-00a0c91e6bf6"]),
]


@pytest.mark.parametrize(("kind", "spark", "values"), KINDS, ids=lambda each: each if isinstance(each, str) else "")
def test_each_type_comes_back_as_spark_declares_it(kind: Any, spark: str, values: list[Any]) -> None:
    schema = record(kind)
    settings = DecodeSettings(format="avro", avro_schema=json.dumps(schema))
    assert own_columns(settings, read_schema(settings) or b"").simpleString() == f"struct<f0:{spark}>"
    found = [row[0] for row in decoded(schema, [encoded(schema, value) for value in values])]
    expected = [1000 if isinstance(value, dt.time) else list(value.items()) if spark.startswith("map") else value for value in values]
    assert found == expected


def test_a_union_of_several_types_is_a_struct_of_one() -> None:
    schema = record(["null", "string", {"type": "array", "items": "int"}])
    found = decoded(schema, [encoded(schema, value) for value in (None, "a", [1])])
    assert found == [[None], [{"member0": "a", "member1": None}], [{"member0": None, "member1": [1]}]]


def test_a_named_type_may_stand_twice_and_in_a_namespace() -> None:
    schema = {"namespace": "a.b", **record(ENUM, "E", ["null", "a.b.E"])}
    assert decoded(schema, [encoded(schema, "x", "y", None), encoded(schema, "y", "x", "x")]) == [["x", "y", None], ["y", "x", "x"]]


@pytest.mark.parametrize(
    ("kind", "data", "reason"),
    [
        ("int", b"\x80\x80\x80\x80\x10", "f0 is not INT: 2147483648"),
        ("int", b"", f"{NOT_A_RECORD}f0 is cut off"),
        ("int", b"\x02\x02", f"{NOT_A_RECORD}1 bytes follow it"),
        ("long", b"\xff" * 10 + b"\x01", f"{NOT_A_RECORD}f0 has a number of more than 64 bits"),
        ("long", b"\xff" * 9 + b"\x02", f"{NOT_A_RECORD}f0 has a number of more than 64 bits"),
        ("boolean", b"\x02", f"{NOT_A_RECORD}f0 has the byte 2 for a boolean"),
        ("float", b"\x00\x00\x00", f"{NOT_A_RECORD}f0 is cut off"),
        ("string", b"\x02\xff", f"{NOT_A_RECORD}f0 is not UTF-8"),
        ("string", b"\x04a", f"{NOT_A_RECORD}f0 is cut off"),
        ("string", b"\x03abc", f"{NOT_A_RECORD}f0 has a negative size"),
        ("bytes", b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01abc", f"{NOT_A_RECORD}f0 is cut off"),
        ({"type": "fixed", "name": "F", "size": 2}, b"a", f"{NOT_A_RECORD}f0 is cut off"),
        (ENUM, b"\x04", "f0 is the number 2: not a value of the enum E"),
        (ENUM, b"\x01", "f0 is the number -1: not a value of the enum E"),
        (["null", "string"], b"\x01\x02a", f"{NOT_A_RECORD}f0 has a branch that its union does not have"),
        (["null", "string"], b"\x04\x02a", f"{NOT_A_RECORD}f0 has a branch that its union does not have"),
        (["null", "string", "int"], b"\x01\x02", f"{NOT_A_RECORD}f0 has a branch that its union does not have"),
        ({"type": "array", "items": "int"}, b"\x02\x02", f"{NOT_A_RECORD}f0 is cut off"),
        ({"type": "array", "items": "int"}, b"\xfe\xff\xff\xff\x0f", f"{NOT_A_RECORD}f0 is cut off"),
        ({"type": "array", "items": "int"}, b"\x01\x01\x02\x00", f"{NOT_A_RECORD}f0 has a negative size"),
        ({"type": "array", "items": "int"}, b"\x02\x80\x80\x80\x80\x10\x00", "f0 is not INT: 2147483648"),
        ({"type": "map", "values": record("int", name="N")}, b"\x02\x02k", f"{NOT_A_RECORD}f0.f0 is cut off"),
        (record(["null", "string"], name="N"), b"\x02\x02\xff", f"{NOT_A_RECORD}f0.f0 is not UTF-8"),
        (logical("bytes", "decimal", precision=3, scale=2), b"\x04\x03\xe8", "f0 is not DECIMAL(3,2): 10.00"),
        (logical("bytes", "decimal", precision=3, scale=2), b"\x00", f"{NOT_A_RECORD}f0 is a decimal without a byte"),
        (logical("bytes", "decimal", precision=38, scale=0), b"\xd0\x0f" + b"\x7f" * 1000, "f0 is not DECIMAL(38,0): a number of more digits"),
        (logical("int", "date"), b"\x8c\x94\xa9\x13", "f0 is the number 20260102: as days from 1970, not a date from 0001-01-01 to 9999-12-31"),
        (
            logical("long", "timestamp-micros"),
            b"\xff" * 9 + b"\x01",
            f"f0 is the number {-(2**63)}: as microseconds from 1970, out of bounds: its producer may count in another unit than it says: {BOUNDS}",
        ),
        (
            logical("long", "timestamp-nanos"),
            b"\x02",
            "f0 is the number 1: it counts less than a microsecond; to cut that, set nanoseconds to truncate",
        ),
    ],
)
def test_data_that_does_not_decode_says_where_and_why(kind: Any, data: bytes, reason: str) -> None:
    assert one(kind, data) == reason


def test_one_bad_record_of_a_batch_leaves_the_others() -> None:
    schema = record("int", "string")
    good = [encoded(schema, n, f"v{n}") for n in range(2000)]
    found = decoded(schema, [*good[:1000], None, b"\x80\x80\x80\x80\x10\x00", *good[1000:]])
    assert found == [*([n, f"v{n}"] for n in range(1000)), "no data", "f0 is not INT: 2147483648", *([n, f"v{n}"] for n in range(1000, 2000))]


def test_blocks_may_say_their_size_and_nanoseconds_may_be_cut() -> None:
    assert one({"type": "array", "items": "int"}, b"\x03\x04\x02\x04\x02\x06\x00") == [1, 2, 3]
    assert one(logical("long", "timestamp-nanos"), b"\xa0\x1f") == dt.datetime(1970, 1, 1, 0, 0, 0, 2, UTC)
    assert one(logical("long", "timestamp-nanos"), b"\x01", nanoseconds="truncate") == dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC)


def test_a_record_of_nulls_alone_is_a_row() -> None:
    assert decoded(record(["null", "int"], ["null", "string"]), [b"\x00\x00"]) == [[None, None]]


def test_bounds_apply_at_any_depth() -> None:
    kind = {"type": "array", "items": record(logical("long", "timestamp-millis"), name="N")}
    late = encoded(record(kind), [{"f0": 0}, {"f0": 1_700_000_000_000}])
    (reason,) = decoded(record(kind), [late], latest_timestamp="2020-01-01")
    assert reason.startswith("f0.f0 is the number 1700000000000000: as microseconds from 1970, out of bounds")


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("no JSON", "is not the schema of an Avro record"),
        ('"string"', "is not the schema of an Avro record"),
        (json.dumps(record("nothing")), "is not the schema of an Avro record"),
        (json.dumps(record()), "without fields"),
        (json.dumps(record("null")), "f0 is always null"),
        (json.dumps(record({"type": "array", "items": "null"})), "f0 is always null"),
        (json.dumps(record({"type": "array", "items": record(name="N")})), "f0 is a record without fields"),
        (json.dumps(record(["null", "R"])), "f0: the record R holds itself"),
        (json.dumps(record(logical("bytes", "decimal", precision=39, scale=0))), "up to 38 digits"),
        (json.dumps(record({"type": "fixed", "name": "F", "size": 0})), "size of 0"),
        ("/nowhere/x.avsc", "cannot be read"),
    ],
)
def test_a_schema_that_no_table_can_hold_is_refused(schema: str, reason: str) -> None:
    settings = DecodeSettings(format="avro", avro_schema=schema)
    with pytest.raises(InvalidSetting, match=reason) as caught:
        own_columns(settings, read_schema(settings) or b"")
    assert caught.value.name == "avro_schema"


def test_a_field_may_have_another_name_in_the_table() -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "timestamp", "type": "int"}, {"name": "k", "type": "string"}]}
    decode = DecodeSettings(format="avro", avro_schema=json.dumps(schema), fields={"event_time": "timestamp"})
    assert own_columns(decode, read_schema(decode) or b"").names == ["event_time", "k"]
    for fields, name, near in (({"a": "kk"}, "fields.a", "k"), ({"a": "k", "b": "k"}, "fields", None)):
        wrong = DecodeSettings(format="avro", avro_schema=json.dumps(schema), fields=fields)
        with pytest.raises(InvalidSetting) as caught:
            own_columns(wrong, read_schema(wrong) or b"")
        assert (caught.value.name, caught.value.nearest) == (name, near)


schemas = st.recursive(
    st.sampled_from(["boolean", "int", "long", "float", "double", "bytes", "string", ["null", "long"], ["string", "null"]]),
    lambda inner: st.one_of(
        st.builds(lambda each: {"type": "array", "items": each}, inner),
        st.builds(lambda each: {"type": "map", "values": each}, inner),
    ),
    max_leaves=3,
)
VALUES = {
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "bytes": st.binary(max_size=9),
    "string": st.text(max_size=9),
}


def values_of(schema: Any) -> st.SearchStrategy[Any]:
    if isinstance(schema, list):
        return st.one_of(*[st.none() if each == "null" else values_of(each) for each in schema])
    if isinstance(schema, str):
        return VALUES[schema]
    inner = values_of(schema.get("items", schema.get("values")))
    return st.lists(inner, max_size=3) if schema["type"] == "array" else st.dictionaries(st.text(max_size=5), inner, max_size=3)


def plain(value: Any) -> Any:
    """As Arrow gives it back: a map as pairs."""
    if isinstance(value, dict):
        return [(key, plain(each)) for key, each in value.items()]
    return [plain(each) for each in value] if isinstance(value, list) else value


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_what_fastavro_writes_is_read_and_no_cut_or_longer_data_is(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(schemas, min_size=1, max_size=4))
    values = [data.draw(values_of(kind)) for kind in kinds]
    whole = encoded(record(*kinds), *values)
    found = decoded(record(*kinds), [whole, *(whole[:at] for at in range(len(whole))), whole + b"\0"])
    assert found[0] == [plain(value) for value in values]
    assert all(isinstance(each, str) for each in found[1:])


@settings(max_examples=300, deadline=None)
@given(st.lists(schemas, min_size=1, max_size=4), st.binary(max_size=40))
def test_no_bytes_are_more_than_a_problem(kinds: list[Any], data: bytes) -> None:
    (found,) = decoded(record(*kinds), [data])
    assert isinstance(found, str) or len(found) == len(kinds)
