"""What decoding means to Spark: types, dead letters, deletes, every format, and that it happens once."""

from __future__ import annotations

import datetime as dt
import io
import json
from contextlib import redirect_stdout
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2
from py4j.protocol import MEMORY_COMMAND_NAME
from pyspark.sql import functions as f

from pyspark_waltz.source import SCHEMA
from waltz_delta.decode.decode import DATA, PROBLEM, decode, project, shape
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


AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "k", "type": "string"},
        {"name": "timestamp", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "sum", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "items", "type": {"type": "array", "items": {"type": "record", "name": "Item", "fields": [{"name": "n", "type": ["null", "int"]}]}}},
    ],
}


def avro(**order: Any) -> bytes:
    sink = io.BytesIO()
    fastavro.schemaless_writer(sink, fastavro.parse_schema(AVRO), order)
    return sink.getvalue()


def test_avro_lands_by_the_arrow_engine_and_what_does_not_decode_is_a_dead_letter(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "order.avsc").write_text(json.dumps(AVRO))
    fields, latest = {"placed_at": "timestamp"}, dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
    settings = DecodeSettings(format="avro", avro_schema=str(tmp_path / "order.avsc"), fields=fields, latest_timestamp=latest)
    moment, late = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC), dt.datetime(2031, 1, 1, tzinfo=dt.UTC)
    good = avro(k="a", timestamp=moment, sum=Decimal("12.50"), items=[{"n": 1}, {"n": None}])
    data = [good, good[:-1], good + b"\0", avro(k="b", timestamp=late, sum=Decimal(1), items=[]), None]
    target = TargetSettings(table=str(tmp_path / "t"), engine="arrow")
    landing = LandingSettings(
        outputs=(OutputSettings(target=target, decode=settings),), dead_letters=DeadLetterSettings(table=str(tmp_path / "dead"))
    )
    ((_, schema),) = resulting_schemas(spark, landing).items()
    assert schema.names[4:] == ["k", "placed_at", "sum", "items"]
    Landing(landing, "key").write(raw(spark, data))
    (row,) = spark.read.format("delta").load(str(tmp_path / "t")).collect()
    assert (row.transaction_id, row.k, row["sum"], [item.n for item in row["items"]]) == (0, "a", Decimal("12.50"), [1, None])
    assert row.placed_at.replace(tzinfo=dt.UTC) == moment
    letters = spark.read.format("delta").load(str(tmp_path / "dead")).orderBy("transaction_id").collect()
    assert [(r.transaction_id, r.reason.split(":")[0], r.data and bytes(r.data)) for r in letters] == [
        (1, "is not an Avro record of the declared schema", data[1]),
        (2, "is not an Avro record of the declared schema", data[2]),
        (3, "placed_at is the number 1924992000000000", data[3]),
        (4, "no data", None),
    ]


def test_protobuf_lands_keyed_rows_and_what_does_not_decode_is_a_dead_letter(spark: Any, tmp_path: Path) -> None:
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="m", syntax="proto3")
    message = file.message_type.add(name="Order")
    for number, (name, kind) in enumerate([("k", kinds.TYPE_STRING), ("n", kinds.TYPE_UINT64)], 1):
        message.field.add(name=name, number=number, type=kind, label=kinds.LABEL_OPTIONAL)
    (tmp_path / "d.desc").write_bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())
    settings = DecodeSettings(format="protobuf", descriptor=str(tmp_path / "d.desc"), message="m.Order")
    target = TargetSettings(table=str(tmp_path / "t"), mode="upsert", keys=("k",))
    landing = LandingSettings(
        outputs=(OutputSettings(target=target, decode=settings),), dead_letters=DeadLetterSettings(table=str(tmp_path / "dead"))
    )
    data: list[bytes | None] = [b"\x0a\x01a\x10\x01", b"\x0a\x01b", b"\x08\x05", b"\x0a\x01a\x10" + b"\xff" * 9 + b"\x01"]
    Landing(landing, "key").write(raw(spark, data))
    rows = spark.read.format("delta").load(str(tmp_path / "t")).orderBy("k").collect()
    assert [(row.k, row.n) for row in rows] == [("a", Decimal(2**64 - 1)), ("b", Decimal(0))]
    (letter,) = spark.read.format("delta").load(str(tmp_path / "dead")).collect()
    assert (letter.transaction_id, letter.reason) == (2, "k is not STRING: data of another type or value")


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

    def counted(command: str, *given: Any, **named: Any) -> Any:
        calls[0] += not command.startswith(MEMORY_COMMAND_NAME)  # sent for each object that Python has collected, at any time
        return send(command, *given, **named)

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
        "is not an Avro record of the declared schema: n.at is cut off": "is not an Avro record of the declared schema",
        "is not a Protobuf message m.R: Wire format was corrupt": "is not a Protobuf message m.R",
        "e is the number 7: not a value of the enum m.E": "e is the number: not a value of the enum m.E",
    }
    rows = spark.createDataFrame([(each,) for each in kinds], "reason STRING").select("reason", kind_of_problem(f.col("reason")).alias("kind"))
    assert {row.reason: row.kind for row in rows.collect()} == kinds
