"""Each way in which data does not decode, told with its reason; every format; and that decoding happens once."""

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

from pyspark_waltz.source import SCHEMA
from waltz_delta.decode import PROBLEM, decode, project, shape
from waltz_delta.landing import Landing, resulting_schemas
from waltz_delta.landing_way import Way
from waltz_delta.settings import DeadLetterSettings, DecodeSettings, LandingSettings, OutputSettings, TargetSettings
from waltz_log.errors import InvalidSetting

COLUMNS = (
    "a INT, s STRING, d DATE, t TIMESTAMP, m DECIMAL(5,2), b BOOLEAN, f DOUBLE, l ARRAY<INT>, n STRUCT<x: INT NOT NULL>, y BINARY, "
    "k MAP<STRING, ARRAY<STRUCT<m: DECIMAL(4,2)>>>, r STRING NOT NULL"
)
JSON = DecodeSettings(format="json", columns=COLUMNS)

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
    ('{"r": "x", "m": "1e-00002"}', {"r": "x", "m": Decimal("0.01")}),
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
    (b'{"r": "x", "a": "1"}', "a is not INT"),
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
    (b'{"r": "x", "m": "1e999999999"}', "a number has an exponent of more than three digits"),
    (b'{"r": "x", "m": "\\u0031\\u00659999999\\u0039\\u0039"}', "a number has an exponent of more than three digits"),
    ('{"r": "x", "m": "1e٩٩٩٩٩٩٩٩٩"}'.encode(), "a number has an exponent of more than three digits"),
    (b'{"r": "x", "k": {"q": [{"m": "1e999999999"}]}}', "a number has an exponent of more than three digits"),
    (b'{"m": "1e999999999", "r": oops}', "is not one JSON object"),
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
    way = Way(output(JSON), dead_letters=True)
    good = {row.transaction_id: row for row in way.good(raw(spark, data)).collect()}
    told = {row.transaction_id: row[PROBLEM] for row in way.bad(raw(spark, data)).collect()}
    assert {at: {k: v for k, v in row.asDict().items() if k in JSON_NAMES and v is not None} for at, row in good.items()} == dict(
        enumerate(values for _, values in GOOD)
    )
    assert told == {len(GOOD) + n: reason for n, (_, reason) in enumerate(BAD)}


JSON_NAMES = {"a", "s", "d", "t", "m", "b", "f", "l", "n", "y", "k", "r"}


def test_data_is_decoded_once_though_what_fails_is_counted(spark: Any) -> None:
    """A filter that Spark moves below the decoding would parse every row twice."""
    from pyspark.sql import Observation

    told = io.StringIO()
    with redirect_stdout(told):
        Way(output(DecodeSettings(format="json", columns="a INT, r STRING NOT NULL")), dead_letters=True).good(
            raw(spark, [b"{}"]), Observation()
        ).explain()
        shape(raw(spark, [b"{}"]), schema="r STRING").explain()
    assert told.getvalue().count("from_json") == 2


def stream(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def test_arrow_transactions_hold_any_number_of_rows(spark: Any, tmp_path: Path) -> None:
    settings = DecodeSettings(format="arrow", columns="k STRING NOT NULL, n BIGINT, at TIMESTAMP")
    moment = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
    data = [
        stream(pa.table({"k": ["a", "b"], "n": pa.array([1, 2], pa.int16()), "at": pa.array([moment, None], pa.timestamp("us", "UTC"))})),
        stream(pa.table({"k": pa.array([], pa.string()), "n": pa.array([], pa.int64()), "at": pa.array([], pa.timestamp("us", "UTC"))})),
        b"no stream",
        stream(pa.table({"k": ["c"], "n": ["text"], "at": pa.array([None], pa.timestamp("us", "UTC"))})),
        stream(pa.table({"k": ["d"]})),
        stream(pa.table({"k": pa.array([None, "e"]), "n": [1, 2], "at": pa.array([None, None], pa.timestamp("us", "UTC")), "more": [0, 0]})),
        None,
    ]
    landing = LandingSettings(outputs=(output(settings, str(tmp_path / "t")),), dead_letters=DeadLetterSettings(table=str(tmp_path / "dead")))
    Landing(landing, "key").write(raw(spark, data))
    found = spark.read.format("delta").load(str(tmp_path / "t")).orderBy("transaction_id", "row").collect()
    assert [(r.transaction_id, r.row, r.k, r.n, r["at"] and r["at"].replace(tzinfo=dt.UTC)) for r in found] == [
        (0, 0, "a", 1, moment),
        (0, 1, "b", 2, None),
    ]
    letters = spark.read.format("delta").load(str(tmp_path / "dead")).orderBy("transaction_id").collect()
    assert [(r.transaction_id, r.reason) for r in letters] == [
        (2, "is not an Arrow IPC stream"),
        (3, "n is string, not int64"),
        (4, "n is missing or null"),
        (5, "k is missing or null"),
        (6, "no data"),
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


def test_what_cannot_be_decoded_at_all_is_refused_before_the_first_batch(spark: Any) -> None:
    for columns, told in (("header BIGINT", "already a column of the log"), ("k STRUNG", "are not SQL columns"), ("INT", "want names and types")):
        with pytest.raises(InvalidSetting, match=told):
            decode(raw(spark, [b""]), DecodeSettings(format="json", columns=columns))


def test_a_projection_keeps_the_place_in_the_log(spark: Any) -> None:
    rows = decode(raw(spark, [b'{"r": "x", "a": 1}']), JSON)
    assert project(rows, where=None, select="a AS twice").columns == ["partition", "transaction_id", "twice"]
    assert project(rows, where=None, select="a, transaction_id").columns == ["partition", "a", "transaction_id"]
