"""Each reason why data cannot be decoded, reported as such; every format; and that decoding happens once."""

from __future__ import annotations

import datetime as dt
import io
import json
from contextlib import redirect_stdout
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from pyspark_waltz.source import SCHEMA
from waltz_delta.decode.decode import DATA, PROBLEM, decode, project, shape
from waltz_delta.decode.decode_nested import checked, first_problem
from waltz_delta.decode.decode_times import TypedTimes
from waltz_delta.landing.landing import Landing, resulting_schemas
from waltz_delta.landing.output_decoder import OutputDecoder
from waltz_delta.settings import DeadLetterSettings, DecodeSettings, LandingSettings, OutputSettings, TargetSettings
from waltz_log.errors import InvalidSetting

COLUMNS = (
    "a INT, s STRING, d DATE, t TIMESTAMP, m DECIMAL(5,2), b BOOLEAN, f DOUBLE, l ARRAY<INT>, n STRUCT<x: INT NOT NULL>, y BINARY, "
    "k MAP<STRING, ARRAY<STRUCT<m: DECIMAL(4,2)>>>, w ARRAY<STRUCT<at: TIMESTAMP>>, e MAP<STRING, DATE>, r STRING NOT NULL"
)
JSON = DecodeSettings(format="json", columns=COLUMNS)

LOSSLESS = "send a number, or set numeric_strings to lossless"
NO_UNIT = "and no unit is declared; set timestamp_unit to s, ms or us, or send text such as 2026-01-02T03:04:05Z"
BOUNDS = "earliest_timestamp=0001-01-01T00:00:00Z latest_timestamp=9999-12-31T23:59:59.999999Z"
HALF = "holds half of a surrogate pair (such as \\ud800 alone), which is no character"

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
    ('{"r": "x", "m": 2e0000000}', {"r": "x", "m": Decimal("2.00")}),
    ('{"r": "x", "m": 1e-00002}', {"r": "x", "m": Decimal("0.01")}),
    ('{"r": "12.5", "m": 2.5, "y": "1234"}', {"r": "12.5", "m": Decimal("2.50"), "y": bytearray(b"\xd7m\xf8")}),
    ('{"r": "x", "t": "2026-01-02T03:04:05.25+01:00"}', {"r": "x", "t": dt.datetime(2026, 1, 2, 2, 4, 5, 250_000)}),
    ('{"r": "x", "t": "9999-12-31"}', {"r": "x", "t": dt.datetime(9999, 12, 31)}),
    ('{"r": "x", "t": "9999-12-31 23:59:59.999999"}', {"r": "x", "t": dt.datetime(9999, 12, 31, 23, 59, 59, 999_999)}),
    ('{"r": "x", "t": null, "w": [null, {}, {"at": null}]}', {"r": "x", "w": [None, (None,), (None,)]}),
    ('{"r": "x", "d": "9999-12-31", "w": [{"at": "0001-01-02"}]}', {"r": "x", "d": dt.date(9999, 12, 31), "w": [(dt.datetime(1, 1, 2),)]}),
    ('{"r": "\\ud83d\\ude00 \\\\ud800", "k": {"\\uD83D\\uDE00": []}}', {"r": "\U0001f600 \\ud800", "k": {"\U0001f600": []}}),
    ('{"r": "x", "k": {"q": [{"m": 1.25}]}}', {"r": "x", "k": {"q": [(Decimal("1.25"),)]}}),
]
BAD: list[tuple[bytes | None, str]] = [
    (b"", "is not one JSON object"),
    (b"null", "is not one JSON object"),
    (b"5", "is not one JSON object"),
    (b'"text"', "is not one JSON object"),
    (b'[{"r": "x"}]', "is not one JSON object"),
    (b'{"r": "x"', "is not one JSON object"),
    (b'{"r": "x"} and more', "is not one JSON object"),
    (b'{"r": "x"}{"r": "y"}', "is not one JSON object"),
    (b'{"r": "x"},{"r": "y"}', "is not one JSON object"),
    (b'{"r": "x",}', "is not one JSON object"),
    (b"{'r': 'x'}", "is not one JSON object"),
    (b'{"r": "x", "a": 01}', "is not one JSON object"),
    (b'{"r": "x", "f": NaN}', "is not one JSON object"),
    (b'// {"r": "x"}', "is not one JSON object"),
    (b'{"r": "x"}],"w":[{}', "is not one JSON object"),
    (b'{"r": "x"}],"w":[{},{}', "is not one JSON object"),
    (b'{"r": "x"}],"one":[{"r": "y"}', "is not one JSON object"),
    (b'{"r": "x"},{}],"w":[{}', "is not one JSON object"),
    (b'{"r": "x"}]}', "is not one JSON object"),
    (b'{"r": "x"}]} and more', "is not one JSON object"),
    (b'{"r": "x"},{"_waltz": true}]} and more', "is not one JSON object"),
    (b'{"r": "x"}],"_waltz_problem":["', "is not one JSON object"),
    (b'{"r": "x", "q": ' + b"[" * 5000 + b"]" * 5000 + b"}", "is not one JSON object"),
    (b'{"r": "\xff"}', "is not UTF-8"),
    (None, "no data"),
    (b'{"r": "x", "a": "1"}', f"a is the string 1: {LOSSLESS}"),
    (b'{"r": "x", "a": "one"}', "a is not INT"),
    (b'{"r": "x", "a": 1.5}', "a is not INT"),
    (b'{"r": "x", "a": 99999999999}', "a is not INT"),
    (b'{"r": "x", "d": "2026-13-45"}', "d is not DATE"),
    (b'{"r": "x", "m": 123456.1}', "m is not DECIMAL(5,2)"),
    (b'{"r": "x", "b": "true"}', "b is not BOOLEAN"),
    (b'{"r": "x", "l": [1, "x"]}', "l is not ARRAY<INT>"),
    (b'{"r": "x", "l": 5}', "l is not ARRAY<INT>"),
    (b'{"r": "x", "n": 5}', "n is not STRUCT<X:INT>"),
    (b'{"r": "x", "n": {"x": "q"}}', "a value is not of its declared type"),
    (b'{"r": "x", "y": "not base64!"}', "y is not BINARY"),
    (b'{"r": "x", "m": 1e9999999999}', "a number has an exponent of more than three digits"),
    (b'{"r": "x", "m": 12.3E+0999999999}', "a number has an exponent of more than three digits"),
    (b'{"r": "x", "m": -1e-100000000}', "a number has an exponent of more than three digits"),
    (b'{"m": 1e999999999, "r": "\\"", "m": 1}', "a number has an exponent of more than three digits"),
    (b'{"r": "x", "q": {"undeclared": 1e999999999}}', "a number has an exponent of more than three digits"),
    (b'{"r": "x", "m": "1e999999999"}', f"m is the string 1e999999999: {LOSSLESS}"),
    (b'{"r": "x", "m": "\\u0031\\u00659999999\\u0039\\u0039"}', f"m is the string 1e999999999: {LOSSLESS}"),
    ('{"r": "x", "m": "1e٩٩٩٩٩٩٩٩٩"}'.encode(), f"m is the string 1e٩٩٩٩٩٩٩٩٩: {LOSSLESS}"),
    (b'{"r": "x", "k": {"q": [{"m": "1e999999999"}]}}', f"k.m is the string 1e999999999: {LOSSLESS}"),
    (b'{"m": "1e999999999", "r": oops}', "is not one JSON object"),
    (b'{"m": "1e999999999", "k": 5, "r": "x"}', f"m is the string 1e999999999: {LOSSLESS}"),
    (b'{"k": 5, "r": "12"}', "k is not MAP<STRING,ARRAY<STRUCT<M:DECIMAL(4,2)>>>"),
    (b'{"r": "x", "m": "2.50"}', f"m is the string 2.50: {LOSSLESS}"),
    (b'{"r": "x", "m": "' + b"1" * 50_000 + b'"}', f"m is the string {'1' * 40}: {LOSSLESS}"),
    (b'{"r": "x", "f": "2.5"}', f"f is the string 2.5: {LOSSLESS}"),
    (b'{"r": "x", "f": 1e999}', "f is not DOUBLE"),
    (b'{"r": "x", "t": 1700000000000}', f"t is the number 1700000000000: {NO_UNIT}"),
    (b'{"r": "x", "w": [{"at": "2026-01-02"}, {"at": 1700000000}]}', f"w.at is the number 1700000000: {NO_UNIT}"),
    (b'{"r": "x", "t": "1700000000000"}', f"t is the string 1700000000000: {LOSSLESS} and timestamp_unit to its unit"),
    (b'{"r": "x", "t": "2026"}', f"t is the string 2026: {LOSSLESS} and timestamp_unit to its unit"),
    (b'{"r": "x", "t": 1.5}', "t is not TIMESTAMP"),
    (b'{"r": "x", "t": "12:30"}', "t is not TIMESTAMP"),
    (b'{"r": "x", "t": {"a": 1}}', "t is not TIMESTAMP"),
    (b'{"r": "x", "t": {"a": 1, "a": 2}}', "t is not TIMESTAMP"),
    (b'{"r": "x", "t": [' + b",".join(b'{"a%d": 1}' % n for n in range(60_000)) + b"]}", "t is not TIMESTAMP"),
    (b'{"r": "x", "t": "[2026-01-02]"}', "t is not TIMESTAMP"),
    (b'{"r": "x", "t": "55840-11-14 22:13:20"}', f"t is the time 55840-11-14 22:13:20: out of bounds: {BOUNDS}"),
    (b'{"r": "x", "d": "20260102"}', "d is not DATE"),
    (b'{"r": "x", "d": "5"}', "d is not DATE"),
    (b'{"r": "x", "d": "57440-04-11"}', "d is +57440-04-11, not a date from 0001-01-01 to 9999-12-31"),
    (b'{"r": "x", "e": {"q": "57440-04-11"}}', "e is +57440-04-11, not a date from 0001-01-01 to 9999-12-31"),
    (b'{"r": "\\ud800"}', HALF),
    (b'{"r": "\\uDE00\\uD83D"}', HALF),
    (b'{"r": "\\ud83d\\n\\ude00"}', HALF),
    (b'{"r": "x", "undeclared": {"\\\\\\udfff": 1}}', HALF),
    (b'{"r": "x", "m": 1e999}', "m is not DECIMAL(5,2)"),
    (b"{}", "r is missing or null"),
    (b'{"R": "x"}', "r is missing or null"),
    (b'{"r": null}', "r is missing or null"),
    (b'{"r": "x", "n": {}}', "n.x is missing or null"),
]


def raw(spark: Any, data: list[bytes | None], header: int = 0) -> Any:
    at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    return spark.createDataFrame([(0, n, at, header, None if each is None else bytearray(each)) for n, each in enumerate(data)], SCHEMA)


def output(decode: DecodeSettings, table: str = "t") -> OutputSettings:
    return OutputSettings(target=TargetSettings(table=table), decode=decode)


def test_json_is_decoded_strictly_and_every_refusal_says_why(spark: Any) -> None:
    data = [text.encode() for text, _ in GOOD] + [each for each, _ in BAD]
    decoder = OutputDecoder(output(JSON), dead_letters=True)
    good = {row.transaction_id: row for row in decoder.good(raw(spark, data)).collect()}
    reported = {row.transaction_id: row[PROBLEM] for row in decoder.bad(raw(spark, data)).collect()}
    assert {at: {k: v for k, v in row.asDict().items() if k in JSON_NAMES and v is not None} for at, row in good.items()} == dict(
        enumerate(values for _, values in GOOD)
    )
    assert reported == {len(GOOD) + n: reason for n, (_, reason) in enumerate(BAD)}


JSON_NAMES = {"a", "s", "d", "t", "m", "b", "f", "l", "n", "y", "k", "w", "e", "r"}


def decoded(spark: Any, settings: DecodeSettings, data: list[bytes]) -> list[Any]:
    """What each transaction decodes to, the reason where it does not."""
    rows = decode(raw(spark, list(data)), settings).orderBy("transaction_id").collect()
    kept = [name for name in rows[0].asDict() if name not in (*SCHEMA.fieldNames(), DATA, PROBLEM)]
    return [row[PROBLEM] or [row[name] for name in kept] for row in rows]


def test_numbers_are_timestamps_in_the_declared_unit_and_within_the_bounds(spark: Any) -> None:
    columns = "ms TIMESTAMP, s TIMESTAMP, n STRUCT<at: TIMESTAMP, us: ARRAY<TIMESTAMP>, named: MAP<STRING, TIMESTAMP>> COMMENT 'nested'"
    given: dict[str, Any] = {"format": "json", "columns": columns, "timestamp_unit": "ms", "timestamp_units": {"s": "s", "n.us": "us"}}
    moment, late = dt.datetime(2023, 11, 14, 22, 13, 20), dt.datetime(9999, 12, 31, 23, 59, 59)
    data = [
        b'{"ms": 1700000000000, "s": 1700000000, "n": {"at": 1700000000000, "us": [1700000000000000, null], "named": {"a": 1700000000000}}}',
        b'{"ms": 253402300799000, "s": 253402300799, "n": {"us": [253402300799000000, "9999-12-31T23:59:59Z"]}}',
        b'{"s": 1700000000000}',
        b'{"s": 1700000000000000}',
        b'{"s": 1700000000000000000}',
        b'{"s": 17000000000000000000000}',
        b'{"n": {"us": [1700000000000000, 1700000000000000000000]}}',
        b'{"n": {"named": {"a": 1700000000000, "b": 1700000000000000}}}',
        b'{"ms": "1700000000000"}',
        b'{"ms": -62135510400000}',
        b'{"ms": -62135596800001}',
    ]
    found = decoded(spark, DecodeSettings(**given), data)
    unit = "out of bounds for timestamp_unit={}; check the unit: " + BOUNDS
    assert found == [
        [moment, moment, (moment, [moment, None], {"a": moment})],
        [late, late, (None, [late, late], None)],
        f"s is the number 1700000000000: {unit.format('s')}",
        f"s is the number 1700000000000000: {unit.format('s')}",
        f"s is the number 1700000000000000000: {unit.format('s')}",
        "s is not TIMESTAMP",
        "n.us is not TIMESTAMP",
        f"n.named is the number 1700000000000000: {unit.format('ms')}",
        f"ms is the string 1700000000000: {LOSSLESS} and timestamp_unit to its unit",
        [dt.datetime(1, 1, 2), None, None],
        f"ms is the number -62135596800001: {unit.format('ms')}",
    ]
    fields = decode(raw(spark, [b"{}"]), DecodeSettings(**given)).schema
    assert fields["n"].metadata["comment"] == "nested"
    assert fields["n"].dataType.simpleString() == "struct<at:timestamp,us:array<timestamp>,named:map<string,timestamp>>"
    reported = "earliest_timestamp=2000-01-01T00:00:00Z latest_timestamp=2026-12-31T23:59:59.999999Z"
    bounded = DecodeSettings(**given | {"earliest_timestamp": "2000-01-01", "latest_timestamp": "2026-12-31", "numeric_strings": "lossless"})
    data = [b'{"ms": 1700000000}', b'{"ms": "1700000000000"}', b'{"s": "2026-12-31T23:59:59.9Z"}', b'{"s": "2027-01-01"}']
    assert decoded(spark, bounded, data) == [
        f"ms is the number 1700000000: out of bounds for timestamp_unit=ms; check the unit: {reported}",
        [moment, None, None],
        [None, dt.datetime(2026, 12, 31, 23, 59, 59, 900_000), None],
        f"s is the time 2027-01-01: out of bounds: {reported}",
    ]


def test_the_fast_path_decodes_everything_that_can_be_declared(spark: Any) -> None:
    given = DecodeSettings(format="json", columns="at TIMESTAMP", timestamp_unit="s")
    assert [row["at"] for row in shape(raw(spark, [b'{"at": 1700000000}']), settings=given).collect()] == [dt.datetime(2023, 11, 14, 22, 13, 20)]
    with pytest.raises(Exception, match="transaction 0 of partition 0: at is the number 1700000000: and no unit is declared"):
        shape(raw(spark, [b'{"at": 1700000000}']), schema="at TIMESTAMP").collect()


def test_a_unit_of_what_is_no_timestamp_is_refused_with_the_nearest(spark: Any) -> None:
    units: list[tuple[Any, str]] = [({"placed": "ms"}, "placed_at"), ({"n.in": "s"}, "n.on")]
    for paths, near in units:
        settings = DecodeSettings(format="json", columns="placed_at TIMESTAMP, placed DATE, n STRUCT<on: ARRAY<TIMESTAMP>>", timestamp_units=paths)
        with pytest.raises(InvalidSetting, match="no such column of type TIMESTAMP") as caught:
            decode(raw(spark, [b""]), settings)
        assert caught.value.nearest == near


def test_lossless_numeric_strings_are_the_numbers_they_spell(spark: Any) -> None:
    columns = "i INT, b BIGINT, d DOUBLE, m DECIMAL(5,2), l ARRAY<INT>"
    settings = DecodeSettings(format="json", columns=columns, numeric_strings="lossless")
    good = {
        '{"i": "5", "b": "-9223372036854775808", "d": "0.1", "m": "2.50", "l": ["1", 2, null]}': [5, -(2**63), 0.1, Decimal("2.50"), [1, 2, None]],
        '{"i": 5, "b": 9007199254740993, "d": 1e300, "m": 2.505}': [5, 9007199254740993, 1e300, Decimal("2.51"), None],
        '{"m": "-0.5000", "d": "12e2"}': [None, None, 1200.0, Decimal("-0.50"), None],
        '{"m": "7", "d": 12345678901234567890}': [None, None, 12345678901234567890.0, Decimal("7.00"), None],
        '{"i": null, "m": null, "l": []}': [None, None, None, None, []],
    }
    bad = {
        '{"i": "99999999999"}': "i is not INT: 99999999999",
        '{"i": 99999999999}': "i is not INT: 99999999999",
        '{"i": "5.0"}': "i is not INT: 5.0",
        '{"i": " 5"}': "i is not INT:  5",
        '{"i": "+5"}': "i is not INT: +5",
        '{"i": true}': "i is not INT: true",
        '{"b": 9223372036854775808}': "b is not BIGINT: 9223372036854775808",
        '{"d": "1e999"}': "d is not DOUBLE: 1e999",
        '{"d": 1e999}': "d is not DOUBLE: Infinity",
        '{"d": "NaN"}': "d is not DOUBLE: NaN",
        '{"m": "2.505"}': "m is the string 2.505: not a plain number with 2 digits after the point at most",
        '{"m": "1e2"}': "m is the string 1e2: not a plain number with 2 digits after the point at most",
        '{"m": "1e999999999"}': "m is the string 1e999999999: not a plain number with 2 digits after the point at most",
        '{"m": "1234567.00"}': "m is not DECIMAL(5,2)",
        '{"m": ""}': "m is not DECIMAL(5,2)",
        '{"l": [1, "x"]}': "l is not INT: x",
    }
    assert decoded(spark, settings, [text.encode() for text in (*good, *bad)]) == [*good.values(), *bad.values()]


def test_values_of_every_format_are_held_to_the_bounds(spark: Any) -> None:
    """As `from_avro` and `from_protobuf` give them: typed."""
    kinds = "at TIMESTAMP, plain TIMESTAMP_NTZ, day DATE, n ARRAY<STRUCT<at: TIMESTAMP>>"
    rows = spark.sql(
        "SELECT timestamp_millis(1700000000000) AS at, TIMESTAMP_NTZ '9999-12-31 23:59:59' AS plain, DATE '9999-12-31' AS day, "
        "array(named_struct('at', timestamp_millis(1700000000000))) AS n "
        "UNION ALL SELECT timestamp_seconds(1700000000000), NULL, NULL, NULL "
        "UNION ALL SELECT NULL, TIMESTAMP_NTZ '9999-12-31 23:59:59' + INTERVAL 1 DAY, NULL, NULL "
        "UNION ALL SELECT NULL, NULL, date_from_unix_date(20260102), NULL "
        "UNION ALL SELECT NULL, NULL, NULL, array(NULL, named_struct('at', timestamp_seconds(1700000000000)))"
    )
    columns = StructType.fromDDL(kinds)
    assert isinstance(columns, StructType)
    rule = TypedTimes(DecodeSettings(format="avro", avro_schema="{}"))
    problem = first_problem(checked(f.col(field.name), field.dataType, field.name, rule) for field in columns.fields)
    assert problem is not None
    reported = f", out of bounds: its producer may count in another unit than it says: {BOUNDS}"
    assert [row[0] for row in rows.select(problem).collect()] == [
        None,
        f"at is +55840-11-08 22:13:20{reported}",
        f"plain is +10000-01-01 23:59:59{reported}",
        "day is +57440-04-11, not a date from 0001-01-01 to 9999-12-31",
        f"n.at is +55840-11-08 22:13:20{reported}",
    ]


def test_data_is_decoded_once_though_what_fails_is_counted(spark: Any) -> None:
    """A filter that Spark moves below the decoding would parse every row twice."""
    from pyspark.sql import Observation

    reported = io.StringIO()
    with redirect_stdout(reported):
        OutputDecoder(output(DecodeSettings(format="json", columns="a INT, r STRING NOT NULL")), dead_letters=True).good(
            raw(spark, [b"{}"]), Observation()
        ).explain()
        shape(raw(spark, [b"{}"]), schema="r STRING, at TIMESTAMP, n STRUCT<at: ARRAY<TIMESTAMP>>").explain()
    assert reported.getvalue().count("from_json") == 2


def stream(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def test_arrow_transactions_hold_any_number_of_rows(spark: Any, tmp_path: Path) -> None:
    settings = DecodeSettings(format="arrow", columns="k STRING NOT NULL, n BIGINT, at TIMESTAMP", timestamp_unit="ms")
    moment = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
    data = [
        stream(pa.table({"k": ["a", "b"], "n": pa.array([1, 2], pa.int16()), "at": pa.array([moment, None], pa.timestamp("us", "UTC"))})),
        stream(pa.table({"k": pa.array([], pa.string()), "n": pa.array([], pa.int64()), "at": pa.array([], pa.timestamp("us", "UTC"))})),
        b"no stream",
        stream(pa.table({"k": ["c"], "n": ["text"], "at": pa.array([None], pa.timestamp("us", "UTC"))})),
        stream(pa.table({"k": ["d"]})),
        stream(pa.table({"k": pa.array([None, "e"]), "n": [1, 2], "at": pa.array([None, None], pa.timestamp("us", "UTC")), "more": [0, 0]})),
        None,
        stream(pa.table({"k": ["f"], "n": [3], "at": pa.array([1_700_000_000_000], pa.int64())})),
        stream(pa.table({"k": ["g"], "n": [3], "at": pa.array([1_700_000_000_000_000], pa.int64())})),
    ]
    landing = LandingSettings(outputs=(output(settings, str(tmp_path / "t")),), dead_letters=DeadLetterSettings(table=str(tmp_path / "dead")))
    Landing(landing, "key").write(raw(spark, data))
    found = spark.read.format("delta").load(str(tmp_path / "t")).orderBy("transaction_id", "row").collect()
    assert [(r.transaction_id, r.row, r.k, r.n, r["at"] and r["at"].replace(tzinfo=dt.UTC)) for r in found] == [
        (0, 0, "a", 1, moment),
        (0, 1, "b", 2, None),
        (7, 0, "f", 3, dt.datetime(2023, 11, 14, 22, 13, 20, tzinfo=dt.UTC)),
    ]
    letters = spark.read.format("delta").load(str(tmp_path / "dead")).orderBy("transaction_id").collect()
    assert [(r.transaction_id, r.reason) for r in letters] == [
        (2, "is not an Arrow IPC stream"),
        (3, "n is string, not int64; send numbers, or set numeric_strings to lossless"),
        (4, "n is missing or null"),
        (5, "k is missing or null"),
        (6, "no data"),
        (8, f"at is 1700000000000000000 microseconds from 1970, out of bounds; check the unit of its numbers, timestamp_unit=ms: {BOUNDS}"),
    ]


def test_a_format_whose_jar_is_missing_says_which(spark: Any, tmp_path: Path) -> None:
    schema = json.dumps({"type": "record", "name": "R", "fields": [{"name": "k", "type": "string"}]})
    (tmp_path / "d.desc").write_bytes(b"")
    for kind, settings in (
        ("avro", DecodeSettings(format="avro", avro_schema=schema)),
        ("protobuf", DecodeSettings(format="protobuf", descriptor=str(tmp_path / "d.desc"), message="m.R")),
    ):
        with pytest.raises(InvalidSetting, match=f"--packages org.apache.spark:spark-{kind}_2.13:{spark.version}"):
            resulting_schemas(spark, LandingSettings(outputs=(output(settings),)))


def test_settings_that_cannot_decode_anything_are_refused_before_the_first_batch(spark: Any) -> None:
    for columns, reported in (("header BIGINT", "already a column of the log"), ("k STRUNG", "are not SQL columns"), ("INT", "want names and types")):
        with pytest.raises(InvalidSetting, match=reported):
            decode(raw(spark, [b""]), DecodeSettings(format="json", columns=columns))


def test_a_projection_keeps_the_place_in_the_log(spark: Any) -> None:
    rows = decode(raw(spark, [b'{"r": "x", "a": 1}']), JSON)
    assert project(rows, where=None, select="a AS twice").columns == ["partition", "transaction_id", "twice"]
    assert project(rows, where=None, select="a, transaction_id").columns == ["partition", "a", "transaction_id"]
