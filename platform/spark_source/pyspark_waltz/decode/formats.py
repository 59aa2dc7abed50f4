"""The formats that a batch of transactions is decoded from, and the columns of those whose own schema declares them (Avro, Protobuf)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any  # Any: pyarrow has no types

from pyspark.sql.types import StructField, StructType

from pyspark_waltz.decode.settings import DecodeSettings
from waltz_log.errors import InvalidSetting
from waltz_log.untrusted_files import DESCRIPTOR, read_bytes

if TYPE_CHECKING:
    from pyspark_waltz.decode.arrow_streams import ArrowColumns
    from pyspark_waltz.decode.avro_columns import AvroColumns
    from pyspark_waltz.decode.json_columns import JsonColumns
    from pyspark_waltz.decode.protobuf_columns import ProtobufColumns

__all__ = ["make_decoder", "own_columns", "read_schema"]


def read_schema(settings: DecodeSettings) -> bytes | None:
    """The schema of the data: Avro's as JSON, or a descriptor set. Read where the files are, which workers may not have. None for other formats."""
    if settings.avro_schema is not None:
        text = settings.avro_schema.strip()
        return _read(text, "avro_schema") if text.endswith(".avsc") else text.encode()
    return _read(settings.descriptor, "descriptor") if settings.descriptor is not None else None


def _read(path: str, setting: str) -> bytes:
    try:
        return read_bytes(Path(path), DESCRIPTOR)
    except OSError as error:
        raise InvalidSetting(name=setting, reason=f"cannot be read: {path}: {error.strerror}", nearest=None) from None


def own_columns(settings: DecodeSettings, schema: bytes) -> StructType:
    """The columns that a schema declares, with the names that `fields` gives them. Raises `InvalidSetting` for a schema that is none, that no table
    can hold, or that lacks a field."""
    if settings.format == "avro":
        from pyspark_waltz.decode.avro_schema import avro_record

        found = avro_record(schema)[0]
    else:
        from pyspark_waltz.decode.protobuf_schema import message_type

        found = message_type(schema, settings.message or "").columns
    for column, name in settings.fields.items():
        if name not in found.names:
            near = InvalidSetting.unknown(name, found.names).nearest
            raise InvalidSetting(name=f"fields.{column}", reason=f"the data has no field {name}", nearest=near)
    columns = {name: column for column, name in settings.fields.items()}
    if len(columns) < len(settings.fields):
        raise InvalidSetting(name="fields", reason="give a field to two columns", nearest=None)
    return StructType([StructField(columns.get(field.name, field.name), field.dataType) for field in found.fields])


def make_decoder(
    declared: StructType, arrow: Sequence[Any], settings: DecodeSettings, zone: str, schema: bytes | None
) -> ArrowColumns | AvroColumns | JsonColumns | ProtobufColumns:
    """`arrow`: the Arrow types of the declared columns, as Spark expects them. `zone`: of times without an offset, in JSON."""
    if settings.format == "json":
        from pyspark_waltz.decode.json_columns import JsonColumns
        from pyspark_waltz.decode.times import time_zone

        return JsonColumns(declared, arrow, settings, time_zone(zone))
    if settings.format == "arrow":
        from pyspark_waltz.decode.arrow_streams import ArrowColumns

        return ArrowColumns(declared, arrow, settings)
    import pyarrow as pa

    assert schema is not None
    columns = pa.struct([pa.field(name, kind) for name, kind in zip(declared.names, arrow, strict=True)])
    if settings.format == "avro":
        from pyspark_waltz.decode.avro_columns import AvroColumns

        return AvroColumns(schema, columns, settings)
    from pyspark_waltz.decode.protobuf_columns import ProtobufColumns

    return ProtobufColumns(schema, settings.message or "", columns, settings)
