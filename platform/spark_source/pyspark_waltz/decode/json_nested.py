"""Arrays, maps and structs of the scalar types, and the type of a declared column. Each is built from one flat column of its elements, so that a
problem of an element is one of the transaction that holds it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import tzinfo
from typing import Any, Final  # Any: JSON values, and pyarrow has no types

import msgspec
import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from pyspark_waltz.decode.json_scalars import Binary, Boolean, Day, DecimalNumber, Floating, JsonKind, Moment, Text, Variant, Whole
from pyspark_waltz.decode.kinds import Rows, type_shown
from pyspark_waltz.decode.nested_columns import fields_of, list_column, map_column, struct_column
from pyspark_waltz.decode.problems import Problems
from pyspark_waltz.decode.settings import DecodeSettings
from pyspark_waltz.decode.whole_columns import texts
from waltz_log.errors import InvalidSetting

__all__ = ["Listing", "Mapping", "Record", "kind_of", "record_of"]

_WHOLE_BITS: Final[dict[type[DataType], int]] = {ByteType: 8, ShortType: 16, IntegerType: 32, LongType: 64}


@dataclass(frozen=True, slots=True)
class Listing(JsonKind):
    element: JsonKind

    @property
    def annotation(self) -> Any:
        return list[_nullable(self.element)]  # type: ignore[misc]  # a type for the fast decoder

    def admit(self, value: Any) -> Any:
        if not isinstance(value, list):
            raise self.is_not(value)
        return [_admitted(self.element, each) for each in value]

    def column(self, values: Sequence[Any], rows: Rows, problems: Problems) -> Any:
        return list_column(self, self.element, values, rows, problems)


@dataclass(frozen=True, slots=True)
class Mapping(JsonKind):
    """An object whose names are data. Of two equal names the last one counts."""

    value: JsonKind

    @property
    def annotation(self) -> Any:
        return dict[str, _nullable(self.value)]  # type: ignore[misc]  # a type for the fast decoder

    def admit(self, value: Any) -> Any:
        if not isinstance(value, dict):
            raise self.is_not(value)
        return {name: _admitted(self.value, each) for name, each in value.items()}

    def column(self, values: Sequence[Any], rows: Rows, problems: Problems) -> Any:
        return map_column(self, texts, self.value, values, rows, problems)


@dataclass(frozen=True, slots=True)
class Record(JsonKind):
    """An object with declared fields; others are ignored. `made` is the class of the fast decoder, whose attributes are `f0`, `f1` and so on."""

    names: tuple[str, ...]
    fields: tuple[JsonKind, ...]
    made: type[msgspec.Struct]

    @property
    def annotation(self) -> Any:
        return self.made

    def admit(self, value: Any) -> Any:
        if not isinstance(value, dict):
            raise self.is_not(value)
        return self.made(*[_admitted(field, value.get(name)) for name, field in zip(self.names, self.fields, strict=True)])

    def column(self, values: Sequence[Any], rows: Rows, problems: Problems) -> Any:
        return struct_column(self, self.made(), self.columns, values, rows, problems)

    def columns(self, values: Sequence[Any], rows: Rows, problems: Problems) -> list[Any]:
        """One array for each field; `values` holds no None."""
        return fields_of(self.fields, map(msgspec.structs.astuple, values), rows, problems)


def _admitted(kind: JsonKind, value: Any) -> Any:
    return None if value is None else kind.admit(value)


def _nullable(kind: JsonKind) -> Any:
    return kind.annotation if kind.annotation is msgspec.Raw else kind.annotation | None


def record_of(
    struct: StructType, arrow: Sequence[Any], settings: DecodeSettings, zone: tzinfo, path: str = "", *, fields: Sequence[str] | None = None
) -> Record:
    """The declared fields. `arrow`: their Arrow types, as Spark expects them. `fields`: their names in the documents, if they differ. Raises
    `InvalidSetting` for a type that JSON cannot hold."""
    start = f"{path}." if path else ""
    names = tuple(fields if fields is not None else struct.names)
    kinds = tuple(kind_of(field.dataType, kind, settings, zone, f"{start}{field.name}") for field, kind in zip(struct.fields, arrow, strict=True))
    attributes = {f"f{n}": name for n, name in enumerate(names)}
    members = [(f"f{n}", _nullable(kind), None) for n, kind in enumerate(kinds)]
    try:
        made = msgspec.defstruct("Record", members, rename=attributes, gc=False)
    except ValueError:  # equal names, or what the fast decoder cannot compare with a document's bytes
        reason = f"{path or 'the columns'} have names in JSON that are equal, or hold a quote, a backslash or a control character"
        raise InvalidSetting(name="columns", reason=reason, nearest=None) from None
    whole = pa.struct([pa.field(name, kind) for name, kind in zip(struct.names, arrow, strict=True)])
    return Record(path, type_shown(struct), whole, names, kinds, made)


def kind_of(declared: DataType, arrow: Any, settings: DecodeSettings, zone: tzinfo, path: str) -> JsonKind:
    """Raises `InvalidSetting` for a type that JSON cannot hold."""
    lossless = settings.numeric_strings == "lossless"
    named = (path, type_shown(declared), arrow)
    match declared:
        case BooleanType():
            return Boolean(*named)
        case ByteType() | ShortType() | IntegerType() | LongType():
            return Whole(*named, _WHOLE_BITS[type(declared)], lossless)
        case FloatType() | DoubleType():
            return Floating(*named, lossless)
        case DecimalType():
            return DecimalNumber(*named, declared.precision, declared.scale, lossless)
        case BinaryType():
            return Binary(*named)
        case DateType():
            return Day(*named)
        case TimestampType():
            return Moment(*named, settings, zone)
        case TimestampNTZType():
            return Moment(*named, settings, None)
        case VariantType():
            return Variant(path, named[1], pa.string())
        case ArrayType():
            return Listing(*named, kind_of(declared.elementType, arrow.value_type, settings, zone, path))
        case MapType() if type(declared.keyType) is StringType:
            return Mapping(*named, kind_of(declared.valueType, arrow.item_type, settings, zone, path))
        case StructType():
            return record_of(declared, [field.type for field in arrow], settings, zone, path)
    if type(declared) is StringType:
        return Text(*named)
    raise InvalidSetting(name="columns", reason=f"{path}: JSON holds no {named[1]}; declare STRING, and cast it in select", nearest=None)
