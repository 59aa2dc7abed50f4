"""What decoding means to Spark: types, dead letters, deletes, every format, and that it happens once."""

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
from waltz_delta.decode.problem_kinds import kind_of_problem
from waltz_delta.landing.landing import Landing, resulting_schemas
from waltz_delta.landing.output_decoder import OutputDecoder
from waltz_delta.settings import DeadLetterSettings, DecodeSettings, DeleteSettings, LandingSettings, LayoutSettings, OutputSettings, TargetSettings
from waltz_log.errors import InvalidSetting

COLUMNS = (
    "a INT, s STRING, d DATE, t TIMESTAMP, m DECIMAL(5,2), b BOOLEAN, f DOUBLE, l ARRAY<INT>, n STRUCT<x: INT NOT NULL>, y BINARY, "
    "k MAP<STRING, ARRAY<STRUCT<m: DECIMAL(4,2)>>>, w ARRAY<STRUCT<at: TIMESTAMP>>, e MAP<STRING, DATE>, r STRING NOT NULL"
)
JSON = DecodeSettings(format="json", columns=COLUMNS)

BOUNDS = "earliest_timestamp=0001-01-01T00:00:00Z latest_timestamp=9999-12-31T23:59:59.999999Z"


def raw(spark: Any, data: list[bytes | None], header: int = 0) -> Any:
    at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    return spark.createDataFrame([(0, n, at, header, None if each is None else bytearray(each)) for n, each in enumerate(data)], SCHEMA)


def output(decode: DecodeSettings, table: str = "t") -> OutputSettings:
    return OutputSettings(target=TargetSettings(table=table), decode=decode)


def decoded(spark: Any, settings: DecodeSettings, data: list[bytes | None]) -> list[Any]:
    """What each transaction decodes to, the reason where it does not."""
    rows = decode(raw(spark, data), settings).orderBy("transaction_id").collect()
    kept = [name for name in rows[0].asDict() if name not in (*SCHEMA.fieldNames(), DATA, PROBLEM)]
    return [row[PROBLEM] or [row[name] for name in kept] for row in rows]


def test_every_type_comes_back_to_spark_as_it_was_declared(spark: Any) -> None:
    columns = (
        "a INT COMMENT 'whole', s STRING, d DATE, t TIMESTAMP, p TIMESTAMP_NTZ, m DECIMAL(5,2), f FLOAT, y BINARY, v VARIANT, "
        "w ARRAY<STRUCT<at: TIMESTAMP, v: VARIANT>>, k MAP<STRING, ARRAY<STRUCT<m: DECIMAL(4,2)>>>, n STRUCT<x: INT NOT NULL>"
    )
    text = (
        b'{"a": 1, "s": 1.10, "d": "2026-01-02", "t": "2026-01-02T03:04:05.25+01:00", "p": "2026-01-02 03:04", "m": 12.345, "f": 0.5, "y": "1234", '
        b'"v": {"q": [1, 2.50], "q": [12345678901234567890]}, "w": [{"at": "0001-01-02", "v": "x"}, null], "k": {"q": [{"m": 1.25}]}, "n": {"x": 7}}'
    )
    settings = DecodeSettings(format="json", columns=columns)
    rows = decode(raw(spark, [text, b"{}", b'{"n": {}}', None]), settings)
    assert rows.schema["a"].metadata == {"comment": "whole"}
    assert [rows.schema[name].dataType.simpleString() for name in ("w", "n")] == ["array<struct<at:timestamp,v:variant>>", "struct<x:int>"]
    shown = rows.withColumns({"v": f.to_json("v"), "w": f.to_json("w")})
    one, empty, missing, none = shown.orderBy("transaction_id").collect()
    assert one.asDict(recursive=True) | {"y": bytes(one.y)} == {
        "partition": 0,
        "transaction_id": 0,
        "timestamp": dt.datetime(2026, 1, 1),
        "header": 0,
        "a": 1,
        "s": "1.1",
        "d": dt.date(2026, 1, 2),
        "t": dt.datetime(2026, 1, 2, 2, 4, 5, 250_000),
        "p": dt.datetime(2026, 1, 2, 3, 4),
        "m": Decimal("12.35"),
        "f": 0.5,
        "y": b"\xd7m\xf8",
        "v": '{"q":[12345678901234567890]}',
        "w": '[{"at":"0001-01-02T00:00:00.000Z","v":"x"},null]',
        "k": {"q": [{"m": Decimal("1.25")}]},
        "n": {"x": 7},
        DATA: None,
        PROBLEM: None,
    }
    assert (empty.n, empty[PROBLEM]) == (None, None)
    assert (missing[PROBLEM], bytes(missing[DATA])) == ("n.x is missing or null", b'{"n": {}}')
    assert (none[PROBLEM], none[DATA]) == ("no data", None)


def test_times_without_an_offset_are_in_the_time_zone_of_the_session(spark: Any) -> None:
    settings = DecodeSettings(format="json", columns="at TIMESTAMP")
    before = spark.conf.get("spark.sql.session.timeZone")
    try:
        spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
        rows = decode(raw(spark, [b'{"at": "2026-01-02T03:04:05"}']), settings).select(f.unix_seconds("at"))
        assert rows.collect()[0][0] == dt.datetime(2026, 1, 1, 18, 4, 5, tzinfo=dt.UTC).timestamp()
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


def test_the_short_form_decodes_everything_that_can_be_declared(spark: Any) -> None:
    given = DecodeSettings(format="json", columns="at TIMESTAMP", timestamp_unit="s")
    assert [row["at"] for row in shape(raw(spark, [b'{"at": 1700000000}']), settings=given).collect()] == [dt.datetime(2023, 11, 14, 22, 13, 20)]
    with pytest.raises(Exception, match="transaction 0 of partition 0: at is the number 1700000000: and no unit is declared"):
        shape(raw(spark, [b'{"at": 1700000000}']), schema="at TIMESTAMP").collect()


def test_a_delete_needs_its_key_alone_and_a_dead_letter_has_its_data(spark: Any) -> None:
    columns = "k STRING NOT NULL, n INT NOT NULL, day STRING NOT NULL"
    target = TargetSettings(
        table="t", mode="upsert", keys=("k", "day"), deletes=DeleteSettings(where="n < 0"), layout=LayoutSettings(partition_by=("day",))
    )
    decoder = OutputDecoder(OutputSettings(target=target, decode=DecodeSettings(format="json", columns=columns)), dead_letters=True)
    by_header = OutputSettings(
        target=TargetSettings(table="t", mode="upsert", keys=("k",), deletes=DeleteSettings(headers=(9,))), decode=decoder.output.decode
    )
    data: list[bytes | None] = [
        b'{"k": "a", "n": 1, "day": "mo"}',
        b'{"k": "a", "n": -1, "day": "mo"}',
        b'{"k": "a", "day": "mo"}',
        b'{"n": -1, "day": "mo"}',
        b'{"k": "a", "n": 1, "day": ""}',
    ]
    assert [row.transaction_id for row in decoder.good(raw(spark, data)).orderBy("transaction_id").collect()] == [0, 1]
    assert {row.transaction_id: (row[PROBLEM], bytes(row[DATA])) for row in decoder.bad(raw(spark, data)).collect()} == {
        2: ("n is missing or null", data[2]),
        3: ("k is missing or null", data[3]),
        4: ("day is an empty string, which a key column that is a partition column cannot hold", data[4]),
    }
    deleting = OutputDecoder(by_header, dead_letters=True)
    assert [row.k for row in deleting.good(raw(spark, [b'{"k": "a"}'], header=9)).collect()] == ["a"]
    assert [row[PROBLEM] for row in deleting.bad(raw(spark, [b'{"n": 1}'], header=9)).collect()] == ["k is missing or null"]


def test_a_unit_of_what_is_no_timestamp_is_refused_with_the_nearest(spark: Any) -> None:
    units: list[tuple[Any, str]] = [({"placed": "ms"}, "placed_at"), ({"n.in": "s"}, "n.on")]
    for paths, near in units:
        settings = DecodeSettings(format="json", columns="placed_at TIMESTAMP, placed DATE, n STRUCT<on: ARRAY<TIMESTAMP>>", timestamp_units=paths)
        with pytest.raises(InvalidSetting, match="no such column of type TIMESTAMP") as caught:
            decode(raw(spark, [b""]), settings)
        assert caught.value.nearest == near


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
    assert reported.getvalue().count("MapInArrow") == 2


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
    with pytest.raises(InvalidSetting, match="no such column") as caught:
        decode(raw(spark, [b""]), DecodeSettings(format="json", columns="placed INT", fields={"plased": "timestamp"}))
    assert (caught.value.name, caught.value.nearest) == ("fields.plased", "placed")


def test_a_projection_keeps_the_place_in_the_log(spark: Any) -> None:
    rows = decode(raw(spark, [b'{"r": "x", "a": 1}']), DecodeSettings(format="json", columns="a INT, r STRING"))
    assert project(rows, where=None, select="a AS twice").columns == ["partition", "transaction_id", "twice"]
    assert project(rows, where=None, select="a, transaction_id").columns == ["partition", "a", "transaction_id"]


def test_planning_a_batch_costs_the_same_for_any_number_of_columns(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call of the JVM costs about a tenth of a millisecond, and a batch is planned again."""
    client = spark.sparkContext._gateway._gateway_client
    send, calls = client.send_command, [0]

    def counted(*given: Any, **named: Any) -> Any:
        calls[0] += 1
        return send(*given, **named)

    def planned(count: int) -> int:
        columns = ", ".join(
            f"c{n} {kind} NOT NULL" for n, kind in zip(range(count), ("INT", "STRING", "TIMESTAMP", "DECIMAL(9,2)") * count, strict=False)
        )
        target = TargetSettings(table="t", mode="upsert", keys=("c0",), deletes=DeleteSettings(headers=(1,)))
        decoder = OutputDecoder(OutputSettings(target=target, decode=DecodeSettings(format="json", columns=columns)), dead_letters=True)
        rows = raw(spark, [b"{}"])
        calls[0] = 0
        decoder.good(rows)
        return calls[0]

    monkeypatch.setattr(client, "send_command", counted)
    few, many = planned(4), planned(300)
    assert few > 0
    assert many <= few + 20


def test_reasons_are_counted_without_the_values_that_they_quote(spark: Any) -> None:
    kinds = {
        "leg is not INT: two": "leg is not INT",
        "order.sum is not DECIMAL(5,2): 1: 2": "order.sum is not DECIMAL(5,2)",
        "k is not MAP<STRING,ARRAY<INT>>: 5": "k is not MAP<STRING,ARRAY<INT>>",
        "is not one JSON object: Extra data at character 20": "is not one JSON object",
        "t is the time 2026\n: out of bounds: earliest": "t is the time: out of bounds: earliest",
        "a is the string 1: send a number": "a is the string: send a number",
        "r is missing or null": "r is missing or null",
    }
    rows = spark.createDataFrame([(each,) for each in kinds], "reason STRING").select("reason", kind_of_problem(f.col("reason")).alias("kind"))
    assert {row.reason: row.kind for row in rows.collect()} == kinds
