"""Pipelines let the source decode where it can, and land the same rows and dead letters either way."""

from __future__ import annotations

import json
from typing import Any

import pytest

from waltz_delta.decode.decoded_source import decoding_options
from waltz_delta.settings import LandingSettings


def landing(*outputs: dict[str, Any]) -> LandingSettings:
    return LandingSettings.model_validate({"outputs": outputs})


def output(decode: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"target": {"table": f"t{len(more)}", **more.pop("target", {})}, "decode": decode, **more}


JSON = {"format": "json", "columns": "k STRING NOT NULL, n STRUCT<x: INT NOT NULL>", "timestamp_unit": "ms", "undecodable": "skip"}


def test_the_source_is_asked_for_what_the_only_output_declares(spark: Any) -> None:
    found = decoding_options(spark, landing(output(JSON)))
    assert found.keys() == {"columns", "decode", "timeZone"}
    assert [field["nullable"] for field in json.loads(found["columns"])["fields"]] == [False, True]
    assert json.loads(found["decode"]) == {"timestamp_unit": "ms"}
    assert found["timeZone"] == spark.conf.get("spark.sql.session.timeZone")


@pytest.mark.parametrize(
    "outputs",
    [
        [output({"format": "bytes"})],
        [output(JSON), output(JSON, route={"headers": [1]})],
        [output(JSON, route={"headers": [1]})],
        [output(JSON, target={"mode": "upsert", "keys": ["k"], "deletes": {"headers": [9]}})],
        [output(JSON, target={"mode": "upsert", "keys": ["k"], "layout": {"partition_by": ["K"]}})],
        [output({"format": "json", "columns": "Data STRING, k INT"})],
        [output({"format": "json", "columns": "problem STRING, k INT"})],
    ],
)
def test_the_sink_decodes_what_the_source_cannot(spark: Any, outputs: list[dict[str, Any]]) -> None:
    for number, each in enumerate(outputs):
        each["target"]["table"] = f"table-{number}"
    assert decoding_options(spark, landing(*outputs)) == {}
