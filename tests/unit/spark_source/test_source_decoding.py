"""The option `columns`: what the source promises Spark, what it refuses, and the rows that it gives, without Spark."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, StringType, StructField, StructType, TimestampType

from pyspark_waltz.decoded_reads import Decoding, declared, decoded_schema
from pyspark_waltz.errors import DoesNotDecode
from pyspark_waltz.options import SourceOptions
from pyspark_waltz.record_batches import ARROW_SCHEMA
from pyspark_waltz.schema import SCHEMA
from pyspark_waltz.source import DefaultSource
from waltz_log.errors import InvalidSetting

CLUSTER = {"cluster": "127.0.0.1:1"}
LOG = "partition int, transaction_id bigint, timestamp timestamp, header int"


def test_spark_parses_the_declaration_without_not_null() -> None:
    text = "k STRING NOT NULL COMMENT 'is it not null?', `a, b` DECIMAL(5, 2), n STRUCT<x: INT, y: ARRAY<STRING>>, z INT not  null"
    found = DefaultSource({**CLUSTER, "columns": text}).schema()
    columns = "k STRING COMMENT 'is it not null?' , `a, b` DECIMAL ( 5 , 2 ) , n STRUCT < x : INT , y : ARRAY < STRING > > , z INT"
    assert found == f"{LOG}, {columns}, data BINARY, problem STRING"
    parsed = StructType([*SCHEMA.fields[:4], StructField("k", StringType()), StructField("z", IntegerType()), *SCHEMA.fields[4:], *SCHEMA.fields[:1]])
    assert [(field.name, field.nullable) for field in declared(parsed, SCHEMA, "K STRING NOT NULL, z INT").fields] == [("k", False), ("z", True)]


def test_the_json_of_a_schema_keeps_what_is_required_at_any_depth() -> None:
    inner = StructType([StructField("x", IntegerType(), nullable=False)])
    columns = StructType([StructField("n", inner, metadata={"comment": "nested"})])
    found = decoded_schema(SCHEMA, columns.json())
    assert isinstance(found, StructType)
    assert found.names == ["partition", "transaction_id", "timestamp", "header", "n", "data", "problem"]
    assert found["n"].dataType == StructType([StructField("x", IntegerType())])
    assert found["n"].metadata == {"comment": "nested"}
    assert declared(found, SCHEMA, columns.json()) == columns


@pytest.mark.parametrize(
    ("options", "name", "reason"),
    [
        ({"decode": "{}"}, "decode", "does nothing without columns"),
        ({"timeZone": "UTC"}, "timeZone", "does nothing without columns"),
        ({"undecodable": "fail"}, "undecodable", "does nothing without columns"),
        ({"columns": "k INT", "undecodable": "skip"}, "undecodable", "keep"),
        ({"columns": "k INT", "decode": '{"undecodable": "fail"}'}, "decode", "is an option of the source"),
        ({"columns": "k INT", "decode": "ms"}, "decode", "must be JSON of decode settings"),
        ({"columns": "k INT", "decode": '{"format": "avro"}'}, "decode", "cannot set format"),
        ({"columns": "k INT", "decode": '{"timestamp_units": {"k": "h"}}'}, "decode.timestamp_units.k", "ms"),
        ({"columns": "k INT", "timeZone": "Mars/Base"}, "timeZone", "is not a time zone that Python knows"),
        ({"columns": "k INT", "filterPushdown": "true"}, "columns", "cannot be combined with filterPushdown"),
        ({"columns": "k INT", "compacted": "true", "topic": "a/b"}, "columns", "cannot be combined with compacted"),
    ],
)
def test_what_would_have_no_effect_or_cannot_work_is_refused(options: dict[str, str], name: str, reason: str) -> None:
    with pytest.raises(InvalidSetting, match=reason) as caught:
        SourceOptions.parse(CLUSTER | options)
    assert caught.value.name == name


def test_a_declaration_is_checked_where_the_read_begins() -> None:
    def begun(columns: StructType, **options: str) -> None:
        source = DefaultSource({**CLUSTER, "columns": columns.json(), **options})
        schema = source.schema()
        assert isinstance(schema, StructType)
        source.streamReader(schema)

    begun(StructType([StructField("k", IntegerType())]))
    for name in ("header", "Problem", "data"):
        with pytest.raises(InvalidSetting, match="is already a column of the source"):
            begun(StructType([StructField(name, IntegerType())]))
    with pytest.raises(InvalidSetting, match="no such column of type TIMESTAMP"):
        begun(StructType([StructField("k", IntegerType())]), decode='{"timestamp_units": {"k": "s"}}')
    with pytest.raises(InvalidSetting, match="NOT NULL within a type"):
        DefaultSource({**CLUSTER, "columns": "n STRUCT<x: INT NOT NULL>"}).schema()
    with pytest.raises(InvalidSetting, match="neither SQL columns nor the JSON"):
        DefaultSource({**CLUSTER, "columns": "{}"}).schema()


def test_a_batch_has_the_data_of_what_does_not_decode_alone() -> None:
    columns = StructType([StructField("k", StringType(), nullable=False), StructField("at", TimestampType())])
    settings = SourceOptions.parse(CLUSTER | {"columns": columns.json(), "decode": '{"timestamp_unit": "s", "fields": {"at": "timestamp"}}'}).decode
    assert settings is not None
    data = [b'{"k": "a", "timestamp": 0}', b'{"timestamp": 1}', b"no JSON", b'{"k": "b", "timestamp": "1970-01-01"}']
    count = len(data)
    log = {"partition": [0] * count, "transaction_id": list(range(count)), "timestamp": [0] * count, "header": [7] * count, "data": data}
    batch = pa.RecordBatch.from_pydict(log, schema=ARROW_SCHEMA)
    (found,) = Decoding(columns, settings, "Asia/Tokyo").decoded(iter([batch]))
    assert found.schema.names == ["partition", "transaction_id", "timestamp", "header", "k", "at", "data", "problem"]
    rows: list[dict[str, Any]] = found.to_pylist()
    assert [(row["k"], row["at"], row["data"], row["problem"]) for row in rows if row["problem"] is None] == [
        ("a", dt.datetime(1970, 1, 1, tzinfo=dt.UTC), None, None),
        ("b", dt.datetime(1969, 12, 31, 15, tzinfo=dt.UTC), None, None),
    ]
    assert [(row["data"], row["problem"]) for row in rows if row["problem"] is not None] == [
        (data[1], "k is missing or null"),
        (data[2], "is not one JSON object: Expecting value at character 1"),
    ]


def test_a_read_that_fails_at_what_does_not_decode_has_no_columns_for_it_and_names_the_first() -> None:
    columns = StructType([StructField("k", StringType(), nullable=False)])
    options = {**CLUSTER, "columns": columns.json(), "undecodable": "fail"}
    schema = DefaultSource(options).schema()
    assert isinstance(schema, StructType)
    assert schema.names == ["partition", "transaction_id", "timestamp", "header", "k"]
    assert DefaultSource({**CLUSTER, "columns": "k STRING NOT NULL", "undecodable": "fail"}).schema() == f"{LOG}, k STRING"
    source = DefaultSource(options)
    source.streamReader(schema)
    decoding = source.decoding
    assert decoding is not None

    def decoded(data: list[bytes]) -> list[Any]:
        count = len(data)
        log = {"partition": [3] * count, "transaction_id": list(range(7, 7 + count)), "timestamp": [0] * count, "header": [0] * count, "data": data}
        return list(decoding.decoded(iter([pa.RecordBatch.from_pydict(log, schema=ARROW_SCHEMA)])))

    (found,) = decoded([b'{"k": "a"}', b'{"k": "b"}'])
    assert (found.schema.names, found.column("k").to_pylist()) == (schema.names, ["a", "b"])
    with pytest.raises(DoesNotDecode) as failed:
        decoded([b'{"k": "a"}', b"{}", b"no JSON"])
    assert (failed.value.partition, failed.value.transaction_id, failed.value.reason) == (3, 8, "k is missing or null")
