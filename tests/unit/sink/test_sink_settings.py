"""What may be declared of a landing, what contradicts itself, and which columns fit a table."""

from __future__ import annotations

import pickle
import re
from datetime import UTC, date, datetime
from typing import Any

import pytest
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
)

from waltz_delta.base.missing_column import Missing
from waltz_delta.errors import KeyMoved, SchemaMismatch, Undecodable
from waltz_delta.settings import DecodeSettings, DeleteSettings, LandingSettings, OutputSettings, TargetSettings
from waltz_delta.tables.evolution import fitting_columns
from waltz_log.errors import InvalidSetting

JSON = {"format": "json", "columns": "at TIMESTAMP"}
AVRO = {"format": "avro", "avro_schema": "{}"}
KEYED = {"table": "/t", "mode": "upsert", "keys": ["k"]}


def test_little_is_enough_and_everything_can_be_said() -> None:
    assert LandingSettings(outputs=[{"target": {"table": "/t"}}]).outputs[0].decode.format == "bytes"  # type: ignore[arg-type]
    found = LandingSettings(
        outputs=[  # type: ignore[arg-type]
            {
                "target": {**KEYED, "sequence": "v", "deletes": {"headers": [9], "kind": "soft"}, "layout": {"cluster_by": ["k"]}},
                "decode": {"format": "json", "columns": "k STRING NOT NULL, v INT"},
                "route": {"headers": [1, 9]},
                "projection": {"where": "v > 0", "select": "k, v"},
            },
            {"target": {"table": "/h", "mode": "history", "keys": ["k"], "history": {"valid_from": "since"}}},
        ],
        dead_letters={"table": "/dead"},  # type: ignore[arg-type]
        unrouted="dead_letter",
    )
    assert found.outputs[0].target.deletes is not None
    assert found.outputs[1].target.history.valid_from == "since"
    assert LandingSettings(**found.model_dump()) == found


@pytest.mark.parametrize(
    ("given", "reported"),
    [
        ({"outputs": []}, "at least 1 item"),
        ({"outputs": [{"target": {"table": "/t", "moda": "append"}}]}, "did you mean mode"),
        ({"outputs": [{"target": {"table": "/t", "mode": "upsert"}}]}, "needs keys"),
        ({"outputs": [{"target": {"table": "/t", "keys": ["k"]}}]}, "keys are for the modes"),
        ({"outputs": [{"target": {"table": "/t", "sequence": "v"}}]}, "sequence is for the modes"),
        ({"outputs": [{"target": {"table": "/t", "deletes": {"headers": [1]}}}]}, "deletes are for the modes"),
        ({"outputs": [{"target": {**KEYED, "deletes": {}}}]}, "by headers or by where"),
        ({"outputs": [{"target": {**KEYED, "deletes": {"headers": [1], "where": "x"}}}]}, "by headers or by where"),
        ({"outputs": [{"target": {**KEYED, "deletes": {"headers": [1], "kind": "soft", "tombstones": "/x"}}}]}, "for hard deletes"),
        ({"outputs": [{"target": {**KEYED, "deletes": {"headers": [1], "kind": "soft", "deleted_at": "DELETED"}}}]}, "two columns"),
        ({"outputs": [{"target": {**KEYED, "mode": "history", "deletes": {"headers": [1], "kind": "soft"}}}]}, "keeps what was deleted"),
        ({"outputs": [{"target": {**KEYED, "history": {"valid_to": "until"}}}]}, "of the mode history"),
        ({"outputs": [{"target": {**KEYED, "mode": "history", "history": {"valid_to": "VALID_FROM"}}}]}, "three columns"),
        ({"outputs": [{"target": {"table": "/t", "layout": {"partition_by": ["a"], "cluster_by": ["b"]}}}]}, "not both"),
        ({"outputs": [{"target": {"table": "/t"}, "decode": {"format": "json"}}]}, "needs columns"),
        ({"outputs": [{"target": {"table": "/t"}, "decode": {"columns": "a INT"}}]}, "does not apply to the format bytes"),
        ({"outputs": [{"target": {"table": "/t"}, "decode": {"format": "protobuf", "message": "m"}}]}, "needs descriptor"),
        ({"outputs": [{"target": {"table": "/t"}, "decode": {"timestamp_unit": "s"}}]}, "timestamp_unit does not apply to the format bytes"),
        ({"outputs": [{"target": {"table": "/t"}, "decode": {**AVRO, "timestamp_units": {"a": "s"}}}]}, "timestamp_units does not apply"),
        ({"outputs": [{"target": {"table": "/t"}, "decode": {**AVRO, "numeric_strings": "lossless"}}]}, "numeric_strings does not apply"),
        ({"outputs": [{"target": {"table": "/t"}, "decode": {"fields": {"a": "b"}}}]}, "fields does not apply to the format bytes"),
        ({"outputs": [{"target": {"table": "/t"}, "decode": {"nanoseconds": "truncate"}}]}, "nanoseconds does not apply to the format bytes"),
        ({"outputs": [{"target": {"table": "/t"}, "decode": {"latest_timestamp": "2026-01-01"}}]}, "do not apply to the format bytes"),
        ({"outputs": [{"target": {"table": "/t"}, "decode": {**JSON, "timestamp_unit": "ns"}}]}, "must be 's', 'ms' or 'us'"),
        ({"outputs": [{"target": {"table": "/t"}, "decode": {**JSON, "timestamp_units": {"at": "h"}}}]}, "must be 's', 'ms' or 'us'"),
        ({"outputs": [{"target": {"table": "/t"}, "decode": {**JSON, "earliest_timestamp": 946684800}}]}, "must be a time with its offset"),
        ({"outputs": [{"target": {"table": "/t"}, "decode": {**JSON, "earliest_timestamp": "0001-01-01T00:00:00+01:00"}}]}, "from 0001-01-01 to"),
        ({"outputs": [{"target": {"table": "/t"}, "route": {"headers": []}}]}, "at least 1 item"),
        ({"outputs": [{"target": {"table": "/t"}}, {"target": {"table": "/t/"}}]}, "two outputs of one table"),
        ({"outputs": [{"target": {"table": "/t"}}], "dead_letters": {"table": "/t"}}, "two outputs of one table"),
        ({"outputs": [{"target": {"table": "/t"}}], "unrouted": "dead_letter"}, "no dead_letters are declared"),
        ({"outputs": [{"target": {"table": "/t"}, "decode": {"undecodable": "dead_letter"}}]}, "no dead_letters are declared"),
    ],
)
def test_contradicting_options_are_refused_in_one_sentence(given: dict[str, Any], reported: str) -> None:
    with pytest.raises(InvalidSetting, match=reported):
        LandingSettings(**given)


def test_bounds_are_times_in_utc_and_a_last_day_is_whole() -> None:
    plain = DecodeSettings(format="json", columns="at TIMESTAMP")
    assert (plain.earliest_timestamp.year, plain.latest_timestamp.isoformat()) == (1, "9999-12-31T23:59:59.999999+00:00")
    for last in ("2026-12-31", date(2026, 12, 31), "2026-12-31T23:59:59.999999", "2027-01-01T00:59:59.999999+01:00"):
        found = DecodeSettings(format="json", columns="at TIMESTAMP", earliest_timestamp="2026-01-01", latest_timestamp=last)  # type: ignore[arg-type]
        assert found.earliest_timestamp == datetime(2026, 1, 1, tzinfo=UTC)
        assert found.latest_timestamp == datetime(2026, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
        assert DecodeSettings(**found.model_dump()) == found


def test_every_setting_says_how_to_choose_it() -> None:
    for model in (LandingSettings, OutputSettings, TargetSettings, DecodeSettings, DeleteSettings):
        for name, field in model.model_fields.items():
            assert field.description, f"{model.__name__}.{name}"


INT, TEXT = IntegerType(), StringType()


def _struct(**kinds: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in kinds.items()])


HELD = StructType([StructField("k", StringType()), StructField("n", IntegerType()), StructField("note", StringType())])


def given(*fields: StructField) -> StructType:
    return StructType([StructField("K", StringType()), *fields])


def test_columns_missing_in_a_table_are_refused_added_or_left_out() -> None:
    more = given(StructField("n", IntegerType()), StructField("more", LongType()))
    with pytest.raises(SchemaMismatch, match=r"evolution: add_columns adds it, off leaves it out: .* column=more"):
        fitting_columns("t", HELD, more, "fail")
    assert fitting_columns("t", HELD, more, "add_columns") == (["K", "n", "more"], [Missing(("more",), LongType())])
    assert fitting_columns("t", HELD, more, "off") == (["K", "n"], [])
    assert fitting_columns("t", HELD, given(), "fail") == (["K"], [])


@pytest.mark.parametrize(
    ("held", "rows", "place"),
    [
        (_struct(a=INT), _struct(b=TEXT, a=INT), "n.b"),
        (ArrayType(_struct(a=INT)), ArrayType(_struct(a=INT, b=TEXT)), "n.element.b"),
        (MapType(TEXT, _struct(a=_struct(c=INT))), MapType(TEXT, _struct(a=_struct(c=INT, b=TEXT))), "n.value.a.b"),
    ],
)
def test_a_field_that_a_struct_of_the_table_lacks_is_refused_added_or_left_out(held: DataType, rows: DataType, place: str) -> None:
    there, new = _struct(n=held), _struct(n=rows)
    with pytest.raises(SchemaMismatch, match=rf"has no such field; evolution: add_columns adds it.* column={re.escape(place)}$"):
        fitting_columns("t", there, new, "fail")
    assert fitting_columns("t", there, new, "add_columns") == (["n"], [Missing(tuple(place.split(".")), StringType())])
    assert fitting_columns("t", there, new, "off") == (["n"], [])
    assert fitting_columns("t", new, there, "fail") == (["n"], []), "and more in the table than in the rows"


@pytest.mark.parametrize(
    ("held", "rows", "fits"),
    [
        (LongType(), INT, True),
        (INT, LongType(), False),
        (DoubleType(), INT, True),
        (DoubleType(), LongType(), False),
        (DoubleType(), FloatType(), True),
        (DecimalType(10, 0), INT, True),
        (DecimalType(9, 0), INT, False),
        (DecimalType(12, 2), DecimalType(10, 1), True),
        (DecimalType(10, 2), DecimalType(10, 1), False),
        (TEXT, INT, False),
        (NullType(), INT, False),
        (ArrayType(LongType()), ArrayType(INT), True),
        (MapType(TEXT, INT), MapType(TEXT, LongType()), False),
    ],
)
def test_a_type_fits_one_that_holds_all_of_its_values(held: DataType, rows: DataType, fits: bool) -> None:
    if fits:
        assert fitting_columns("t", _struct(n=held), _struct(n=rows), "fail") == (["n"], [])
    else:
        with pytest.raises(SchemaMismatch, match="VOID" if isinstance(held, NullType) else "no evolution changes a type"):
            fitting_columns("t", _struct(n=held), _struct(n=rows), "add_columns")


def test_a_generated_column_may_be_missing_in_the_rows() -> None:
    def made(metadata: dict[str, str]) -> StructType:
        return StructType([*HELD.fields, StructField("must", StringType(), nullable=False, metadata=metadata)])

    assert fitting_columns("t", made({"delta.generationExpression": "upper(k)"}), given(), "fail") == (["K"], [])
    with pytest.raises(SchemaMismatch, match="select a value: `… AS must`"):
        fitting_columns("t", made({"CURRENT_DEFAULT": "'x'"}), given(), "fail")


@pytest.mark.parametrize("evolution", ["off", "add_columns", "fail"])
def test_another_type_and_a_column_that_must_be_there_are_refused_in_any_case(evolution: Any) -> None:
    with pytest.raises(SchemaMismatch, match="is int in the table, bigint in the rows"):
        fitting_columns("t", HELD, given(StructField("n", LongType())), evolution)
    strict = StructType([*HELD.fields, StructField("must", StringType(), nullable=False)])
    with pytest.raises(SchemaMismatch, match="column=must"):
        fitting_columns("t", strict, given(), evolution)


def test_the_errors_survive_pickling() -> None:
    for error in (KeyMoved(path="p", reason="r"), Undecodable(path="p", reason="r")):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again)) == (type(error), str(error))
