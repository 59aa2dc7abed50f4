"""JSON in columns: each value of each type, each reason why a document does not decode, exact times, and one batch like its documents apart."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal, localcontext
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from pyspark_waltz.decode.declarations import check_names
from pyspark_waltz.decode.json_columns import JsonColumns
from pyspark_waltz.decode.json_exact import DEPTH_MAX, java_double
from pyspark_waltz.decode.problems import Problems
from pyspark_waltz.decode.required import find_missing, nullable
from pyspark_waltz.decode.settings import DecodeSettings
from pyspark_waltz.decode.times import time_zone
from waltz_log.errors import InvalidSetting

UTC = dt.UTC
LOSSLESS = "send a number, or set numeric_strings to lossless"
NO_UNIT = "and no unit is declared; set timestamp_unit to s, ms or us, or send text such as 2026-01-02T03:04:05Z"
BOUNDS = "earliest_timestamp=0001-01-01T00:00:00Z latest_timestamp=9999-12-31T23:59:59.999999Z"
HALF = "holds half of a surrogate pair (such as \\ud800 alone), which is not a character"
CUT = "it counts less than a microsecond; to cut that, set nanoseconds to truncate"
NOT_ONE = "is not one JSON object"


def struct(**kinds: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in kinds.items()])


COLUMNS = StructType(
    [
        *struct(
            a=IntegerType(),
            s=StringType(),
            d=DateType(),
            t=TimestampType(),
            m=DecimalType(5, 2),
            b=BooleanType(),
            f=DoubleType(),
            l=ArrayType(IntegerType()),
        ),
        StructField("n", StructType([StructField("x", IntegerType(), nullable=False)])),
        *struct(
            y=BinaryType(),
            k=MapType(StringType(), ArrayType(struct(m=DecimalType(4, 2)))),
            w=ArrayType(struct(at=TimestampType())),
            e=MapType(StringType(), DateType()),
        ),
        StructField("r", StringType(), nullable=False),
    ]
)


def decoded(columns: StructType, documents: list[bytes | None], zone: str = "UTC", **settings: Any) -> list[Any]:
    """The declared values of each document that are not null, or its problem."""
    found = DecodeSettings(format="json", columns="x INT", **settings)
    arrow = [
        pa.string() if isinstance(field.dataType, VariantType) else to_arrow_type(nullable(field.dataType), timezone="UTC")
        for field in columns.fields
    ]
    problems = Problems()
    arrays = JsonColumns(columns, arrow, found, time_zone(zone)).decode(pa.array(documents, pa.binary()), problems)
    find_missing(columns, arrays, problems)
    for array in arrays:
        array.validate(full=True)
    rows = pa.table(arrays, names=columns.names).to_pylist()
    reasons = problems.column(len(documents))
    return [reason or {name: value for name, value in row.items() if value is not None} for row, reason in zip(rows, reasons, strict=True)]


def one(kind: DataType, text: str, zone: str = "UTC", **settings: Any) -> Any:
    """The value of `{"v": text}`, or the problem; None for null."""
    (found,) = decoded(struct(v=kind), [f'{{"v": {text}}}'.encode()], zone, **settings)
    return found if isinstance(found, str) else found.get("v")


def at(*when: int) -> dt.datetime:
    return dt.datetime(*when, tzinfo=UTC)  # type: ignore[arg-type, misc]  # the parts of a time


GOOD: list[tuple[str, dict[str, Any]]] = [
    ('{"r": "", "a": 1}', {"r": "", "a": 1}),
    (' {"r": "x", "other": [1, {"q": 2}]} ', {"r": "x"}),
    ('{"r": "x", "s": 5}', {"r": "x", "s": "5"}),
    ('{"r": "x", "s": {"q": 1}}', {"r": "x", "s": '{"q":1}'}),
    ('{"r": "x", "s": 1.10}', {"r": "x", "s": "1.1"}),
    ('{"r": "x", "s": 12345678901234567890.12}', {"r": "x", "s": "1.2345678901234567E19"}),
    ('{"r": "x", "m": 12.345}', {"r": "x", "m": Decimal("12.35")}),
    ('{"r": "x", "f": 3}', {"r": "x", "f": 3.0}),
    ('{"r": "x", "d": "2026-01-02"}', {"r": "x", "d": dt.date(2026, 1, 2)}),
    ('{"r": "x", "a": null, "n": null}', {"r": "x"}),
    ('{"r": "first", "r": "last"}', {"r": "last"}),
    ('{"r": "12e45678", "m": 1}', {"r": "12e45678", "m": Decimal("1.00")}),
    ('{"r": "\\\\", "s": "a \\"1e99999\\" b", "m": 12.5e0}', {"r": "\\", "s": 'a "1e99999" b', "m": Decimal("12.50")}),
    ('{"r": "x", "m": 1e-999}', {"r": "x", "m": Decimal("0.00")}),
    ('{"r": "x", "m": -1e-100000000}', {"r": "x", "m": Decimal("0.00")}),
    ('{"r": "x", "q": {"undeclared": 1e999999999}}', {"r": "x"}),
    ('{"m": "bad", "r": "x", "m": 1}', {"r": "x", "m": Decimal("1.00")}),
    ('{"r": "x", "k": {"q": [], "q": [{"m": 2}]}}', {"r": "x", "k": [("q", [{"m": Decimal("2.00")}])]}),
    ('{"r": "x", "m": -0.005}', {"r": "x", "m": Decimal("-0.01")}),
    ('{"r": true}', {"r": "true"}),
    ('{"r": 123456789012345678901234567890}', {"r": "123456789012345678901234567890"}),
    ('{"r": 1e400}', {"r": "1e400"}),
    ('{"r": 1e-7}', {"r": "1.0E-7"}),
    ('{"r": [1, null, "a\\u0001", {"q": 1e7, "q": 2.50}]}', {"r": '[1,null,"a\\u0001",{"q":2.5}]'}),
    ('{"r": "x", "m": 2e0000000}', {"r": "x", "m": Decimal("2.00")}),
    ('{"r": "x", "m": 1e-00002}', {"r": "x", "m": Decimal("0.01")}),
    ('{"r": "12.5", "m": 2.5, "y": "1234"}', {"r": "12.5", "m": Decimal("2.50"), "y": b"\xd7m\xf8"}),
    ('{"r": "x", "t": "2026-01-02T03:04:05.25+01:00"}', {"r": "x", "t": at(2026, 1, 2, 2, 4, 5, 250_000)}),
    ('{"r": "x", "t": "9999-12-31"}', {"r": "x", "t": at(9999, 12, 31)}),
    ('{"r": "x", "t": "9999-12-31 23:59:59.999999"}', {"r": "x", "t": at(9999, 12, 31, 23, 59, 59, 999_999)}),
    ('{"r": "x", "t": null, "w": [null, {}, {"at": null}]}', {"r": "x", "w": [None, {"at": None}, {"at": None}]}),
    ('{"r": "x", "d": "9999-12-31", "w": [{"at": "0001-01-02"}]}', {"r": "x", "d": dt.date(9999, 12, 31), "w": [{"at": at(1, 1, 2)}]}),
    ('{"r": "\\ud83d\\ude00 \\\\ud800", "k": {"\\uD83D\\uDE00": []}}', {"r": "\U0001f600 \\ud800", "k": [("\U0001f600", [])]}),
    ('{"r": "x", "k": {"q": [{"m": 1.25}]}}', {"r": "x", "k": [("q", [{"m": Decimal("1.25")}])]}),
]
BAD: list[tuple[bytes | None, str]] = [
    (b"", f"{NOT_ONE}: Expecting value at character 1"),
    (b"null", f"{NOT_ONE}, but null"),
    (b"5", f"{NOT_ONE}, but a number"),
    (b'"text"', f"{NOT_ONE}, but a string"),
    (b'[{"r": "x"}]', f"{NOT_ONE}, but an array"),
    (b'{"r": "x"', f"{NOT_ONE}: Expecting ',' delimiter at character 10"),
    (b'{"r": "x"} and more', f"{NOT_ONE}: Extra data at character 12"),
    (b'{"r": "x"}{"r": "y"}', f"{NOT_ONE}: Extra data at character 11"),
    (b'{"r": "x"},{"r": "y"}', f"{NOT_ONE}: Extra data at character 11"),
    (b'{"r": "x",}', f"{NOT_ONE}: Expecting property name enclosed in double quotes at character 11"),
    (b"{'r': 'x'}", f"{NOT_ONE}: Expecting property name enclosed in double quotes at character 2"),
    (b'{"r": "x", "a": 01}', f"{NOT_ONE}: Expecting ',' delimiter at character 18"),
    (b'{"r": "x", "f": NaN}', f"{NOT_ONE}: NaN is not a JSON value"),
    (b'// {"r": "x"}', f"{NOT_ONE}: Expecting value at character 1"),
    (b'{"r": "x"}],"w":[{}', f"{NOT_ONE}: Extra data at character 11"),
    (b'{"r": "x"}],"w":[{},{}', f"{NOT_ONE}: Extra data at character 11"),
    (b'{"r": "x"}],"one":[{"r": "y"}', f"{NOT_ONE}: Extra data at character 11"),
    (b'{"r": "x"},{}],"w":[{}', f"{NOT_ONE}: Extra data at character 11"),
    (b'{"r": "x"}]}', f"{NOT_ONE}: Extra data at character 11"),
    (b'{"r": "x"}]} and more', f"{NOT_ONE}: Extra data at character 11"),
    (b'{"r": "x"},{"_waltz": true}]} and more', f"{NOT_ONE}: Extra data at character 11"),
    (b'{"r": "x"}],"_waltz_problem":["', f"{NOT_ONE}: Extra data at character 11"),
    (b'{"r": "x", "q": ' + b"[" * 5000 + b"]" * 5000 + b"}", "nests deeper than 256 levels"),
    (b'{"r": "\xff"}', "is not UTF-8"),
    (None, "no data"),
    (b'{"r": "x", "a": "1"}', f"a is the string 1: {LOSSLESS}"),
    (b'{"r": "x", "a": "one"}', "a is not INT: one"),
    (b'{"r": "x", "a": 1.5}', "a is not INT: 1.5"),
    (b'{"r": "x", "a": 99999999999}', "a is not INT: 99999999999"),
    (b'{"r": "x", "d": "2026-13-45"}', "d is not DATE: 2026-13-45"),
    (b'{"r": "x", "m": 123456.1}', "m is not DECIMAL(5,2): 123456.1"),
    (b'{"r": "x", "b": "true"}', "b is not BOOLEAN: true"),
    (b'{"r": "x", "l": [1, "x"]}', "l is not INT: x"),
    (b'{"r": "x", "l": 5}', "l is not ARRAY<INT>: 5"),
    (b'{"r": "x", "n": 5}', "n is not STRUCT<X:INT>: 5"),
    (b'{"r": "x", "n": {"x": "q"}}', "n.x is not INT: q"),
    (b'{"r": "x", "y": "not base64!"}', "y is not BINARY: not base64!"),
    (b'{"r": "x", "m": 1e9999999999}', "m is not DECIMAL(5,2): 1e9999999999"),
    (b'{"r": "x", "m": 12.3E+0999999999}', "m is not DECIMAL(5,2): 12.3E+0999999999"),
    (b'{"r": "x", "m": "1e999999999"}', f"m is the string 1e999999999: {LOSSLESS}"),
    (b'{"r": "x", "m": "\\u0031\\u00659999999\\u0039\\u0039"}', f"m is the string 1e999999999: {LOSSLESS}"),
    ('{"r": "x", "m": "1e٩٩٩٩٩٩٩٩٩"}'.encode(), f"m is the string 1e٩٩٩٩٩٩٩٩٩: {LOSSLESS}"),
    (b'{"r": "x", "k": {"q": [{"m": "1e999999999"}]}}', f"k.m is the string 1e999999999: {LOSSLESS}"),
    (b'{"m": "1e999999999", "r": oops}', f"{NOT_ONE}: Expecting value at character 27"),
    (b'{"m": "1e999999999", "k": 5, "r": "x"}', "k is not MAP<STRING,ARRAY<STRUCT<M:DECIMAL(4,2)>>>: 5"),
    (b'{"k": 5, "r": "12"}', "k is not MAP<STRING,ARRAY<STRUCT<M:DECIMAL(4,2)>>>: 5"),
    (b'{"r": "x", "m": "2.50"}', f"m is the string 2.50: {LOSSLESS}"),
    (b'{"r": "x", "m": "' + b"1" * 50_000 + b'"}', f"m is the string 1111111111111111111111111111111111111111: {LOSSLESS}"),
    (b'{"r": "x", "f": "2.5"}', f"f is the string 2.5: {LOSSLESS}"),
    (b'{"r": "x", "f": 1e999}', "f is not DOUBLE: 1e999"),
    (b'{"r": "x", "t": 1700000000000}', f"t is the number 1700000000000: {NO_UNIT}"),
    (b'{"r": "x", "w": [{"at": "2026-01-02"}, {"at": 1700000000}]}', f"w.at is the number 1700000000: {NO_UNIT}"),
    (b'{"r": "x", "t": "1700000000000"}', f"t is the string 1700000000000: {LOSSLESS} and timestamp_unit to its unit"),
    (b'{"r": "x", "t": "2026"}', f"t is the string 2026: {LOSSLESS} and timestamp_unit to its unit"),
    (b'{"r": "x", "t": 1.5}', "t is not TIMESTAMP: 1.5"),
    (b'{"r": "x", "t": "12:30"}', "t is not TIMESTAMP: 12:30"),
    (b'{"r": "x", "t": {"a": 1}}', 't is not TIMESTAMP: {"a":1}'),
    (b'{"r": "x", "t": {"a": 1, "a": 2}}', 't is not TIMESTAMP: {"a":2}'),
    (
        b'{"r": "x", "t": [' + b",".join(b'{"a%d": 1}' % n for n in range(60_000)) + b"]}",
        't is not TIMESTAMP: [{"a0":1},{"a1":1},{"a2":1},{"a3":1},{"a',
    ),
    (b'{"r": "x", "t": "[2026-01-02]"}', "t is not TIMESTAMP: [2026-01-02]"),
    (b'{"r": "x", "t": "55840-11-14 22:13:20"}', "t is not TIMESTAMP: 55840-11-14 22:13:20"),
    (b'{"r": "x", "d": "20260102"}', "d is not DATE: 20260102"),
    (b'{"r": "x", "d": "5"}', "d is not DATE: 5"),
    (b'{"r": "x", "d": "57440-04-11"}', "d is not DATE: 57440-04-11"),
    (b'{"r": "x", "e": {"q": "57440-04-11"}}', "e is not DATE: 57440-04-11"),
    (b'{"r": "\\ud800"}', HALF),
    (b'{"r": "\\uDE00\\uD83D"}', HALF),
    (b'{"r": "\\ud83d\\n\\ude00"}', HALF),
    (b'{"r": "x", "undeclared": {"\\\\\\udfff": 1}}', HALF),
    (b'{"r": "x", "m": 1e999}', "m is not DECIMAL(5,2): 1e999"),
    (b"{}", "r is missing or null"),
    (b'{"R": "x"}', "r is missing or null"),
    (b'{"r": null}', "r is missing or null"),
    (b'{"r": "x", "n": {}}', "n.x is missing or null"),
    (b'{"r": 1.5, "y": "YWIu="}', "y is not BINARY: YWIu="),
    (b'{"r": [], "y": "YW\xc3\xa4u"}', "y is not BINARY: YWäu"),
    (b'\xef\xbb\xbf{"r": "x"}', "begins with a byte order mark, which JSON does not allow"),
    (b'{"r": "x", "k": {"q": [{"m": true}]}}', "k.m is not DECIMAL(4,2): true"),
    (b'{"r": "x", "l": [1, {}]}', "l is not INT: {}"),
    (b'{"r": "x", "t": "2026-01"}', "t is not TIMESTAMP: 2026-01"),
    (
        b'{"r": "x", "t": "2026-01-02T03:04:05.1234567Z"}',
        f"t is the time 2026-01-02T03:04:05.1234567Z: {CUT}",
    ),
    (b'{"r": "x", "d": "2026"}', "d is not DATE: 2026"),
    (b'{"r": "x", "d": "2026-1"}', "d is not DATE: 2026-1"),
    (b'{"r": "x", "d": "2026-01-02Tgarbage"}', "d is not DATE: 2026-01-02Tgarbage"),
    (b'{"r": "x", "d": "2026-01-02T00:00:00"}', "d is not DATE: 2026-01-02T00:00:00"),
    (b'{"r": "x", "q": "\xff"}', "is not UTF-8"),
    (b'{"r": "x", "m": 1e99999999999999999999}', "m is not DECIMAL(5,2): 1e99999999999999999999"),
    (b'{"r": "x", "m": 999.995}', "m is not DECIMAL(5,2): 999.995"),
]


@pytest.mark.parametrize("number", range(len(GOOD)))
def test_a_document_gives_its_values(number: int) -> None:
    text, values = GOOD[number]
    assert decoded(COLUMNS, [text.encode()]) == [values]


@pytest.mark.parametrize("number", range(len(BAD)))
def test_a_document_that_does_not_decode_says_why(number: int) -> None:
    document, reason = BAD[number]
    assert decoded(COLUMNS, [document]) == [reason]


def test_a_batch_of_good_and_bad_documents_gives_what_each_gives_alone() -> None:
    documents = [text.encode() for text, _ in GOOD for _ in (1, 2)] + [each for each, _ in BAD]
    expected = [values for _, values in GOOD for _ in (1, 2)] + [reason for _, reason in BAD]
    assert decoded(COLUMNS, documents) == expected
    assert decoded(COLUMNS, documents[::-1]) == expected[::-1]
    assert decoded(COLUMNS, []) == []


UNIT = "out of bounds for timestamp_unit={}; check the unit: " + BOUNDS
MOMENT, LATE = at(2023, 11, 14, 22, 13, 20), at(9999, 12, 31, 23, 59, 59)


def test_numbers_are_timestamps_in_the_declared_unit_and_within_the_bounds() -> None:
    columns = struct(
        ms=TimestampType(),
        s=TimestampType(),
        n=struct(at=TimestampType(), us=ArrayType(TimestampType()), named=MapType(StringType(), TimestampType())),
    )
    units: dict[str, Any] = {"timestamp_unit": "ms", "timestamp_units": {"s": "s", "n.us": "us"}}
    whole = b'{"ms": 1700000000000, "s": 1700000000, "n": {"at": 1700000000000, "us": [1700000000000000, null], "named": {"a": 1700000000000}}}'
    expected: dict[bytes | None, Any] = {
        whole: {"ms": MOMENT, "s": MOMENT, "n": {"at": MOMENT, "us": [MOMENT, None], "named": [("a", MOMENT)]}},
        b'{"ms": 253402300799000, "s": 253402300799}': {"ms": LATE, "s": LATE},
        b'{"n": {"us": [253402300799000000, "9999-12-31T23:59:59Z"]}}': {"n": {"at": None, "us": [LATE, LATE], "named": None}},
        b'{"s": 1700000000000}': f"s is the number 1700000000000: {UNIT.format('s')}",
        b'{"s": 1700000000000000000}': f"s is the number 1700000000000000000: {UNIT.format('s')}",
        b'{"s": 17000000000000000000000}': f"s is the number 17000000000000000000000: {UNIT.format('s')}",
        b'{"n": {"us": [1700000000000000, 1700000000000000000000]}}': f"n.us is the number 1700000000000000000000: {UNIT.format('us')}",
        b'{"n": {"named": {"a": 1, "b": 1700000000000000}}}': f"n.named is the number 1700000000000000: {UNIT.format('ms')}",
        b'{"ms": "1700000000000"}': f"ms is the string 1700000000000: {LOSSLESS} and timestamp_unit to its unit",
        b'{"ms": -62135510400000}': {"ms": at(1, 1, 2)},
        b'{"ms": -62135596800001}': f"ms is the number -62135596800001: {UNIT.format('ms')}",
        b'{"ms": 1.5}': "ms is not TIMESTAMP: 1.5",
    }
    assert decoded(columns, list(expected), **units) == list(expected.values())
    assert [decoded(columns, [document], **units)[0] for document in expected] == list(expected.values())


def test_values_outside_of_narrower_bounds_are_refused() -> None:
    reported = "earliest_timestamp=2000-01-01T00:00:00Z latest_timestamp=2026-12-31T23:59:59.999999Z"
    narrow: dict[str, Any] = {
        "earliest_timestamp": "2000-01-01",
        "latest_timestamp": "2026-12-31",
        "numeric_strings": "lossless",
        "timestamp_unit": "ms",
    }
    early = f"v is the number 1700000000: out of bounds for timestamp_unit=ms; check the unit: {reported}"
    assert one(TimestampType(), "1700000000", **narrow) == early
    assert one(TimestampType(), '"1700000000000"', **narrow) == MOMENT
    assert one(TimestampType(), '"2026-12-31T23:59:59.9Z"', **narrow) == at(2026, 12, 31, 23, 59, 59, 900_000)
    assert one(TimestampType(), '"2027-01-01"', **narrow) == f"v is the time 2027-01-01: out of bounds: {reported}"


def test_lossless_numeric_strings_are_the_numbers_they_spell() -> None:
    columns = struct(i=IntegerType(), b=LongType(), d=DoubleType(), m=DecimalType(5, 2), l=ArrayType(IntegerType()))
    expected: dict[bytes | None, Any] = {
        b'{"i": "5", "b": "-9223372036854775808", "d": "0.1", "m": "2.50", "l": ["1", 2, null]}': {
            "i": 5,
            "b": -(2**63),
            "d": 0.1,
            "m": Decimal("2.50"),
            "l": [1, 2, None],
        },
        b'{"i": 5, "b": 9007199254740993, "d": 1e300, "m": 2.505}': {"i": 5, "b": 9007199254740993, "d": 1e300, "m": Decimal("2.51")},
        b'{"m": "-0.5000", "d": "12e2"}': {"m": Decimal("-0.50"), "d": 1200.0},
        b'{"m": "7", "d": 12345678901234567890}': {"m": Decimal("7.00"), "d": 12345678901234567890.0},
        b'{"i": null, "m": null, "l": []}': {"l": []},
        b'{"i": "99999999999"}': "i is not INT: 99999999999",
        b'{"i": "5.0"}': "i is not INT: 5.0",
        b'{"i": " 5"}': "i is not INT:  5",
        b'{"i": "+5"}': "i is not INT: +5",
        b'{"i": true}': "i is not INT: true",
        b'{"b": 9223372036854775808}': "b is not BIGINT: 9223372036854775808",
        b'{"d": "1e999"}': "d is not DOUBLE: 1e999",
        b'{"d": "NaN"}': "d is not DOUBLE: NaN",
        b'{"m": "2.505"}': "m is the string 2.505: not a plain number with 2 digits after the point at most",
        b'{"m": "1e2"}': "m is the string 1e2: not a plain number with 2 digits after the point at most",
        b'{"m": "1234567.00"}': "m is not DECIMAL(5,2): 1234567.00",
        b'{"m": ""}': "m is the string : not a plain number with 2 digits after the point at most",
        b'{"l": [1, "x"]}': "l is not INT: x",
    }
    assert decoded(columns, list(expected), numeric_strings="lossless") == list(expected.values())


def test_times_without_an_offset_are_in_the_sessions_time_zone() -> None:
    def of(text: str, zone: str) -> Any:
        return one(TimestampType(), f'"{text}"', zone)

    assert of("2026-07-01T12:00", "Europe/Berlin") == at(2026, 7, 1, 10)
    assert of("2026-01-01", "Europe/Berlin") == at(2025, 12, 31, 23)
    assert of("2026-03-29T02:30:00", "Europe/Berlin") == at(2026, 3, 29, 1, 30)  # that night has no such time: 03:30
    assert of("2026-10-25T02:30:00", "Europe/Berlin") == at(2026, 10, 25, 0, 30)  # the first of two
    assert of("2026-10-25T02:30:00+01:00", "Europe/Berlin") == at(2026, 10, 25, 1, 30)
    assert of("2026-01-01T00:00:00", "+05:30") == at(2025, 12, 31, 18, 30)
    assert of("2026-01-01T00:00:00", "GMT-8") == at(2026, 1, 1, 8)
    assert one(TimestampNTZType(), '"2026-07-01T12:00"', "Europe/Berlin") == dt.datetime(2026, 7, 1, 12)
    assert one(TimestampNTZType(), '"2026-07-01T12:00Z"') == "v is not TIMESTAMP_NTZ: 2026-07-01T12:00Z"
    assert one(TimestampNTZType(), "5") == "v is not TIMESTAMP_NTZ: 5"
    both = decoded(struct(v=TimestampType()), [b'{"v": "2026-07-01T12:00"}', b'{"v": "2026-07-01T12:00Z"}', b"{}"], "Europe/Berlin")
    assert both == [{"v": at(2026, 7, 1, 10)}, {"v": at(2026, 7, 1, 12)}, {}]
    with pytest.raises(InvalidSetting, match="is not a time zone that Python knows: Mars/Base"):
        time_zone("Mars/Base")


def test_digits_below_a_microsecond_are_refused_or_cut_and_never_by_accident() -> None:
    assert one(TimestampType(), '"2026-01-02T03:04:05.123456000Z"') == at(2026, 1, 2, 3, 4, 5, 123456)
    reason = f"v is the time 2026-01-02T03:04:05.1234567Z: {CUT}"
    assert one(TimestampType(), '"2026-01-02T03:04:05.1234567Z"') == reason
    assert one(TimestampType(), '"2026-01-02T03:04:05.123456789Z"', nanoseconds="truncate") == at(2026, 1, 2, 3, 4, 5, 123456)


moments = st.datetimes(min_value=dt.datetime(1, 1, 2), max_value=dt.datetime(9999, 12, 30))
offsets = st.sampled_from(["", "Z", "+00:00", "-08:00", "+0530", "+14", "-23:59"])
forms = st.sampled_from(["%sT%s", "%s %s"])


@given(st.lists(st.tuples(moments, offsets, forms, st.sampled_from(["auto", "minutes", "milliseconds"])), min_size=1, max_size=6))
def test_a_whole_column_of_times_is_what_each_of_them_is(parts: list[Any]) -> None:
    """Arrow converts a column at once where it can; a time that it cannot convert makes all be judged one by one."""
    texts = [form % (when.date().isoformat(), when.time().isoformat(precision)) + offset for when, offset, form, precision in parts]
    documents: list[bytes | None] = [json.dumps({"v": text}).encode() for text in texts]
    for zone in ("UTC", "America/New_York"):
        columns = struct(v=TimestampType())
        together = decoded(columns, documents, zone)
        one_by_one = decoded(columns, [*documents, b'{"v": "no time"}'], zone)
        assert together == one_by_one[:-1]
        assert one_by_one[-1] == "v is not TIMESTAMP: no time"
        for text, found in zip(texts, together, strict=True):
            assert zone != "UTC" or found == {"v": expected_in_utc(text)}


def expected_in_utc(text: str) -> dt.datetime:
    found = dt.datetime.fromisoformat(text)
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)


numbers = st.one_of(
    st.integers(-(10**40), 10**40).map(str),
    st.decimals(allow_nan=False, allow_infinity=False, places=6, min_value=-(10**6), max_value=10**6).map(str),
)


@given(st.lists(numbers, min_size=1, max_size=5))
def test_a_whole_column_of_decimals_is_what_each_of_them_is(texts: list[str]) -> None:
    documents: list[bytes | None] = [f'{{"v": {text}}}'.encode() for text in texts]
    columns = struct(v=DecimalType(12, 3))
    together = decoded(columns, documents)
    assert together == decoded(columns, [*documents, b'{"v": 1e0}'])[:-1]
    for text, found in zip(texts, together, strict=True):
        rounded = Decimal(text).quantize(Decimal("0.001"), "ROUND_HALF_UP") if abs(Decimal(text)) < 10**12 else None
        assert found == ({"v": rounded} if rounded is not None and abs(rounded) < 10**9 else f"v is not DECIMAL(12,3): {text[:40]}")


@given(st.integers(1, 38).flatmap(lambda p: st.tuples(st.just(p), st.integers(0, p))), st.integers(0, 10**45), st.integers(0, 45))
def test_a_decimal_of_any_precision_is_exact_or_refused(kind: tuple[int, int], digits: int, fraction: int) -> None:
    """Arrow converts some long texts to other numbers without an error."""
    precision, scale = kind
    text = str(digits)
    text = text if not fraction else f"{text[:-fraction] or '0'}.{text[-fraction:].rjust(fraction, '0')}"
    with localcontext() as context:
        context.prec = 100
        rounded = Decimal(text).quantize(Decimal(1).scaleb(-scale), "ROUND_HALF_UP")
        fits = abs(rounded) < Decimal(10) ** (precision - scale)
    found = decoded(struct(v=DecimalType(precision, scale)), [f'{{"v": {text}}}'.encode(), b"{}"])[0]
    assert found == ({"v": rounded} if fits else f"v is not DECIMAL({precision},{scale}): {text[:40]}")


def test_a_document_gives_the_same_whatever_else_is_in_it() -> None:
    """A list in a STRING makes a document be parsed exactly."""
    columns = struct(s=StringType(), d=DoubleType(), t=TimestampType(), n=StringType())
    for field in ('"d": -0', '"d": -0.0', '"s": -0', '"s": -0.0', '"t": 123456789012345678901', '"s": 12345678901234567890123', '"d": 5e-324'):
        alone, beside = decoded(columns, [f"{{{field}}}".encode(), f'{{{field}, "n": []}}'.encode()], timestamp_unit="s")
        assert repr(alone) == repr(beside if isinstance(beside, str) else {name: value for name, value in beside.items() if name != "n"})


def test_numbers_at_the_edges_of_their_types() -> None:
    assert [one(ByteType(), text) for text in ("-128", "127", "128")] == [-128, 127, "v is not TINYINT: 128"]
    assert one(FloatType(), "3.4028234e38") == pytest.approx(3.4028234e38)
    assert one(FloatType(), "3.5e38") == "v is not FLOAT: 3.5E38"
    assert one(DoubleType(), "-0.0") == 0.0
    assert one(DecimalType(38, 0), "9" * 38) == Decimal("9" * 38)
    assert one(DecimalType(38, 38), "0." + "1" * 39) == Decimal("0." + "1" * 38)


def test_a_column_may_have_another_name_than_its_field() -> None:
    columns = StructType([StructField("at", TimestampType(), nullable=False), StructField("sum", LongType())])
    documents: list[bytes | None] = [b'{"timestamp": "2026-01-02", "header": 5, "sum": 6}', b'{"at": "2026-01-02"}']
    assert decoded(columns, documents, fields={"at": "timestamp", "sum": "header"}) == [{"at": at(2026, 1, 2), "sum": 5}, "at is missing or null"]


def test_a_required_field_is_missing_only_where_its_struct_exists() -> None:
    inner = StructType([StructField("x", IntegerType(), nullable=False)])
    columns = StructType([StructField("n", StructType([StructField("m", inner)])), StructField("k", StringType(), nullable=False)])
    documents: list[bytes | None] = [b'{"k": "", "n": {"m": {}}}', b'{"k": "", "n": {}}', b'{"k": "", "n": null}', b'{"n": {"m": {"x": 1}}}']
    assert decoded(columns, documents) == ["n.m.x is missing or null", {"n": {"m": None}, "k": ""}, {"k": ""}, "k is missing or null"]


def test_nesting_is_bounded_wherever_it_is() -> None:
    def nested(depth: int) -> bytes:
        return b'{"q": ' + b"[" * (depth - 1) + b'"]]]"' + b"]" * (depth - 1) + b"}"

    for beside in (None, b"", b"5", b" {}", b"{}"):  # the number of brackets in a batch is not that of its documents
        for count in (1, 100):
            found = [decoded(struct(s=StringType()), [*[beside] * count, nested(DEPTH_MAX + more), *[beside] * count])[count] for more in (0, 1)]
            assert found == [{}, f"nests deeper than {DEPTH_MAX} levels"]
    columns = struct(s=StringType())
    deep = f"nests deeper than {DEPTH_MAX} levels"
    assert decoded(columns, [nested(DEPTH_MAX), nested(DEPTH_MAX + 1), nested(5000)]) == [{}, deep, deep]
    assert decoded(columns, [b'{"s": "' + b"[" * 5000 + b'"}']) == [{"s": "[" * 5000}]
    hidden = b'{"s": "' + b"]" * 2000 + b'", "q": '  # brackets in a string count against those around it
    for depth in (DEPTH_MAX, 2000):
        assert decoded(columns, [hidden + b"[" * depth + b"]" * depth + b"}", b'{"s": "b"}']) == [deep, {"s": "b"}]
        assert decoded(columns, [b'{"s": ' + b"[" * depth + b"]" * depth + b', "q": "' + b"]" * 900 + b'"}']) == [deep]
    assert decoded(columns, [b"[" * 100_000, b"]" * 100_000 + b"[" * 100_000])[0].startswith((NOT_ONE, deep))
    assert decoded(columns, [b'{"s": ' + nested(DEPTH_MAX - 1).replace(b'"]]]"', b"1") + b"}"])[0]["s"].startswith('{"q":[[')
    assert decoded(columns, [b'{"s": "' + b'\\"' * 500_000 + b"[" * 300])[0].startswith(NOT_ONE)  # in a moment, though no string ends


def test_a_type_that_json_cannot_hold_is_refused_by_name() -> None:
    with pytest.raises(InvalidSetting, match="v: JSON holds no MAP<INT,STRING>; declare STRING, and cast it in select"):
        decoded(struct(v=MapType(IntegerType(), StringType())), [b"{}"])


def test_a_variant_holds_what_sparks_parser_accepts() -> None:
    kind = VariantType()
    assert one(kind, '{"a": 1.50, "a": [null, -0]}') == '{"a":[null,-0]}'
    assert one(kind, "null") is None
    assert one(kind, "9" * 1000) == "9" * 1000
    assert one(kind, "[" + "9" * 1001 + "]") == "v holds a number of more than 1000 characters, which a VARIANT cannot hold"
    assert one(kind, '{"' + "k" * 50_001 + '": 1}') == "v holds a name of more than 50000 characters, which a VARIANT cannot hold"


def test_names_that_the_decoder_cannot_distinguish_are_refused() -> None:
    for name in ('a"b', "a\\b", "a\nb"):
        with pytest.raises(InvalidSetting, match="hold a quote, a backslash or a control character"):
            decoded(StructType([StructField(name, StringType())]), [b"{}"])
    with pytest.raises(InvalidSetting, match="n have names in JSON that are equal"):
        decoded(struct(n=StructType([StructField("x", StringType()), StructField("x", StringType())])), [b"{}"])
    with pytest.raises(InvalidSetting, match="give the field a to two columns"):
        check_names(DecodeSettings(format="json", columns="a INT", fields={"b": "a"}), struct(a=StringType(), b=StringType()))


def test_data_with_wide_offsets_is_read_as_any_other() -> None:
    columns = struct(s=StringType())
    decoder = JsonColumns(columns, [pa.string()], DecodeSettings(format="json", columns="s STRING"), UTC)
    problems = Problems()
    deep = b'{"q": ' + b"[" * 300 + b"]" * 300 + b"}"
    found = decoder.decode(pa.array([b'{"s": "a"}', deep, None], pa.large_binary()), problems)
    assert (found[0].to_pylist(), sorted(problems.reasons)) == (["a", None, None], [1, 2])


def test_numbers_are_shown_as_java_shows_a_double() -> None:
    shown = {
        0.0: "0.0",
        1e-3: "0.001",
        9.99e-4: "9.99E-4",
        1e7: "1.0E7",
        9999999.0: "9999999.0",
        1.5e300: "1.5E300",
        -2.5e-10: "-2.5E-10",
        1e16: "1.0E16",
    }
    assert {value: java_double(value) for value in shown} == shown
    assert java_double(12345678.9) == "1.23456789E7"
