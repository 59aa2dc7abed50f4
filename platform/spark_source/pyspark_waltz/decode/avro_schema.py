"""The writer's schema of Avro data: the columns, and what reads and converts each of them.

The types are those of Spark's `from_avro`, except that a `timestamp-nanos` is a TIMESTAMP. A union of null and another type may be null; int and long
are a BIGINT, float and double a DOUBLE, and any other union is a STRUCT of which one field is there. Refused are a type that holds itself, and types
of no bytes (null alone, a record without fields), because a few bytes of data could stand for any number of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final  # Any: JSON values, and pyarrow has no types

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
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
)

from pyspark_waltz.decode import avro_reader as reader
from pyspark_waltz.decode.kinds import Kind, type_shown
from pyspark_waltz.decode.settings import DecodeSettings
from pyspark_waltz.decode.typed_kinds import Days, Dictionary, Fields, Instant, Numbers, Plain, Repeated, Symbols, Texts, Unscaled
from waltz_log.errors import InvalidSetting

__all__ = ["Part", "avro_record"]

_NOT_A_RECORD: Final = "is not the schema of an Avro record"
_DIGITS_MAX: Final = 38
_PER_SECOND: Final = {"millis": 1_000, "micros": 1_000_000, "nanos": 1_000_000_000}
_NULL: Final = "null"


@dataclass(frozen=True, slots=True)
class Part:
    """A type: as Spark's, what reads its values, and what makes columns of them (from a path, the Arrow type and the settings)."""

    spark: DataType
    read: reader.Reader
    kind: Callable[[str, Any, DecodeSettings], Kind]


def avro_record(schema: bytes) -> tuple[StructType, Part]:
    """The columns of a record. Raises `InvalidSetting` for a schema that is none, or that no table can hold."""
    from fastavro.schema import SchemaParseException, UnknownType, parse_schema

    named: dict[str, Any] = {}
    try:
        found = parse_schema(json.loads(schema), named)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, SchemaParseException, UnknownType) as error:
        raise _refused(f"{_NOT_A_RECORD}: {str(error)[:200] or type(error).__name__}") from None
    if not isinstance(found, dict) or found.get("type") != "record":
        raise _refused(_NOT_A_RECORD)
    part = _Schema(named).part(found, "", ())
    assert isinstance(part.spark, StructType)
    return part.spark, part


def _refused(reason: str) -> InvalidSetting:
    return InvalidSetting(name="avro_schema", reason=reason, nearest=None)


class _Schema:
    """`named`: the records, enums and fixed types by their full names."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        self._named = named

    def part(self, schema: Any, path: str, within: tuple[str, ...]) -> Part:
        """`within`: the records that contain it."""
        if isinstance(schema, list):
            return self._union(schema, path, within)
        if isinstance(schema, str):
            if schema in self._named:
                return self.part(self._named[schema], path, within)
            schema = {"type": schema}
        kind = schema["type"]
        if isinstance(kind, list | dict):
            return self.part(kind, path, within)
        if kind in self._named and kind not in ("record", "enum", "fixed"):
            return self.part(self._named[kind], path, within)
        match kind:
            case "record" | "error":
                return self._record(schema, path, within)
            case "array":
                return _array(self.part(schema["items"], path, within))
            case "map":
                return _map(self.part(schema["values"], path, within))
            case "enum":
                names = dict(enumerate(schema["symbols"]))
                return Part(StringType(), reader.number, lambda where, arrow, _: Symbols(where, "STRING", arrow, schema["name"], names))
            case "null":
                raise _refused(f"{path} is always null, which no table holds")
        return _scalar(schema, path)

    def _record(self, schema: Any, path: str, within: tuple[str, ...]) -> Part:
        name = schema["name"]
        if name in within:
            raise _refused(f"{path}: the record {name} holds itself, which no table can")
        fields = schema["fields"]
        if not fields:
            raise _refused(f"{path or name} is a record without fields")
        parts = [self.part(field["type"], f"{path}.{field['name']}" if path else field["name"], (*within, name)) for field in fields]
        names = [field["name"] for field in fields]
        return _struct(names, parts, reader.record(names, [part.read for part in parts]))

    def _union(self, schema: list[Any], path: str, within: tuple[str, ...]) -> Part:
        others = [each for each in schema if each != _NULL and each != {"type": _NULL}]
        if not others:
            return self.part(_NULL, path, within)
        parts = [self.part(each, path, within) for each in others]
        nulls = [each not in others for each in schema]
        if len(parts) == 1:
            part = parts[0]
            return replace(part, read=reader.optional(part.read, nulls[0]) if any(nulls) else reader.either([part.read]))
        readers = iter([part.read for part in parts])
        all_readers = [_nothing if null else next(readers) for null in nulls]
        types = {type(part.spark) for part in parts}
        for wider, kinds in ((LongType, {IntegerType, LongType}), (DoubleType, {FloatType, DoubleType})):
            if types == kinds and all(each in ("int", "long", "float", "double") for each in others):
                return replace(next(part for part in parts if type(part.spark) is wider), read=reader.either(all_readers))
        counted = iter(range(len(parts)))
        members = [None if null else next(counted) for null in nulls]
        return _struct([f"member{n}" for n in range(len(parts))], parts, reader.branches(all_readers, members))


def _nothing(data: bytes, at: int) -> tuple[None, int]:
    return None, at


def _array(element: Part) -> Part:
    spark = ArrayType(element.spark)
    return Part(
        spark,
        reader.array(element.read),
        lambda path, arrow, settings: Repeated(path, type_shown(spark), arrow, element.kind(path, arrow.value_type, settings)),
    )


def _map(item: Part) -> Part:
    spark = MapType(StringType(), item.spark)
    return Part(
        spark,
        reader.mapping(item.read),
        lambda path, arrow, settings: Dictionary(
            path, type_shown(spark), arrow, Texts(path, "STRING", arrow.key_type), item.kind(path, arrow.item_type, settings)
        ),
    )


def _struct(names: list[str], parts: list[Part], read: reader.Reader) -> Part:
    spark = StructType([StructField(name, part.spark) for name, part in zip(names, parts, strict=True)])

    def kind(path: str, arrow: Any, settings: DecodeSettings) -> Kind:
        start = f"{path}." if path else ""
        fields = [part.kind(f"{start}{field.name}", field.type, settings) for part, field in zip(parts, arrow, strict=True)]
        return Fields(path, type_shown(spark), arrow, tuple(fields))

    return Part(spark, read, kind)


def _scalar(schema: Any, path: str) -> Part:
    kind, logical = schema["type"], schema.get("logicalType")
    if kind in ("bytes", "fixed"):
        octets = reader.octets if kind == "bytes" else reader.fixed(schema["size"])
        if kind == "fixed" and schema["size"] < 1:
            raise _refused(f"{path} has a size of {schema['size']} bytes")
        return _decimal(schema, octets, path) if logical == "decimal" else _plain(BinaryType(), octets)
    if kind == "long" and isinstance(logical, str) and (found := _moment(logical)) is not None:
        return found
    if kind == "int" and logical == "date":
        return Part(DateType(), reader.number, lambda where, arrow, _: Days(where, "DATE", arrow))
    simple: dict[str, tuple[DataType, reader.Reader, str]] = {
        "int": (IntegerType(), reader.number, "i"),
        "long": (LongType(), reader.number, "q"),
        "float": (FloatType(), reader.float32, "f"),
        "double": (DoubleType(), reader.double, "d"),
    }
    if kind in simple:
        spark, read, letter = simple[kind]
        return Part(spark, read, lambda where, arrow, _: Numbers(where, type_shown(spark), arrow, letter))
    if kind == "string":
        return Part(StringType(), reader.string, lambda where, arrow, _: Texts(where, "STRING", arrow))
    assert kind == "boolean", kind
    return _plain(BooleanType(), reader.boolean)


def _plain(spark: DataType, read: reader.Reader) -> Part:
    return Part(spark, read, lambda where, arrow, _: Plain(where, type_shown(spark), arrow))


def _moment(logical: str) -> Part | None:
    name, _, unit = logical.rpartition("-")
    if unit not in _PER_SECOND or name not in ("timestamp", "local-timestamp"):
        return None
    spark = TimestampType() if name == "timestamp" else TimestampNTZType()
    return Part(spark, reader.number, lambda where, arrow, settings: Instant(where, type_shown(spark), arrow, settings, _PER_SECOND[unit]))


def _decimal(schema: Any, octets: reader.Reader, path: str) -> Part:
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    if not (isinstance(precision, int) and isinstance(scale, int) and 0 < precision <= _DIGITS_MAX and 0 <= scale <= precision):
        raise _refused(f"{path} is a decimal of precision {precision} and scale {scale}; a table holds up to {_DIGITS_MAX} digits")
    spark = DecimalType(precision, scale)
    return Part(spark, reader.unscaled(octets), lambda where, arrow, _: Unscaled(where, type_shown(spark), arrow, precision, scale))
