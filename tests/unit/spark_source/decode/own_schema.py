"""Decoding of the formats whose own schema declares the columns: Avro and Protobuf."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type

from pyspark_waltz.decode.formats import make_decoder, own_columns, read_schema
from pyspark_waltz.decode.problems import Problems
from pyspark_waltz.decode.settings import DecodeSettings


def decoded_rows(settings: DecodeSettings, data: list[bytes | None]) -> list[dict[str, Any] | str]:
    """The values of each transaction by their columns, or the reason why it does not decode. Arrow must find the arrays valid."""
    schema = read_schema(settings)
    assert schema is not None
    columns, problems = own_columns(settings, schema), Problems()
    arrow = [to_arrow_type(field.dataType, timezone="UTC") for field in columns.fields]
    arrays = make_decoder(columns, arrow, settings, "UTC", schema).decode(pa.array(data, pa.binary()), problems)
    for array, kind in zip(arrays, arrow, strict=True):
        array.validate(full=True)
        assert array.type == kind
    rows = range(len(data))
    return [problems.reasons.get(row) or {name: array[row].as_py() for name, array in zip(columns.names, arrays, strict=True)} for row in rows]
