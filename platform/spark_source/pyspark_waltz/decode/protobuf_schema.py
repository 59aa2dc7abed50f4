"""A message type of a descriptor set: its columns, and what converts each of them.

The types are those of Spark's `from_protobuf`, except that unsigned numbers keep their values: a uint32 is a BIGINT, a uint64 a DECIMAL(20,0). An
enum is the name of its value, a `google.protobuf.Timestamp` a TIMESTAMP. A field that has presence (`optional`, a message, a member of a oneof,
each field of proto2) is null if it is absent; another one has its default, as in every library of Protobuf. A message without fields is no column."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final  # Any: messages, and pyarrow has no types

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pyspark_waltz.decode.kinds import Kind, Scalar, type_shown
from pyspark_waltz.decode.problems import Refused
from pyspark_waltz.decode.protobuf_kinds import Field, Messages, Stamps
from pyspark_waltz.decode.settings import DecodeSettings
from pyspark_waltz.decode.typed_kinds import Dictionary, Numbers, Plain, Repeated, Symbols, Texts, Unscaled
from waltz_log.errors import InvalidSetting

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor
    from google.protobuf.message import Message

__all__ = ["MessageType", "message_type"]

_TIMESTAMP: Final = "google.protobuf.Timestamp"
_PER_SECOND: Final = 1_000_000_000
_UINT64_DIGITS: Final = 20

_NUMBERS: Final[dict[int, tuple[type[DataType], str]]] = {
    FieldDescriptor.TYPE_DOUBLE: (DoubleType, "d"),
    FieldDescriptor.TYPE_FLOAT: (FloatType, "f"),
    FieldDescriptor.TYPE_INT32: (IntegerType, "i"),
    FieldDescriptor.TYPE_SINT32: (IntegerType, "i"),
    FieldDescriptor.TYPE_SFIXED32: (IntegerType, "i"),
    FieldDescriptor.TYPE_UINT32: (LongType, "q"),
    FieldDescriptor.TYPE_FIXED32: (LongType, "q"),
    FieldDescriptor.TYPE_INT64: (LongType, "q"),
    FieldDescriptor.TYPE_SINT64: (LongType, "q"),
    FieldDescriptor.TYPE_SFIXED64: (LongType, "q"),
}

MakeKind = Callable[[str, Any, DecodeSettings], Kind]
"""From a path, the Arrow type and the settings."""


@dataclass(frozen=True, slots=True)
class _Part:
    spark: DataType
    kind: MakeKind


@dataclass(frozen=True, slots=True)
class MessageType:
    """`made`: the class of the messages. `columns`: of the fields."""

    made: type[Message]
    columns: StructType
    kind: MakeKind


def message_type(descriptors: bytes, name: str) -> MessageType:
    """The message of a descriptor set. Raises `InvalidSetting` if it is none, or has no such message, or one that no table can hold."""
    pool = descriptor_pool.DescriptorPool()
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(descriptors).file
        for each in files:
            pool.Add(each)
    except DecodeError:
        raise _refused("is not a descriptor set, as protoc --descriptor_set_out writes it") from None
    except TypeError as error:
        raise _refused(f"is not complete; make it with protoc --include_imports: {str(error).strip().splitlines()[-1][:200]}") from None
    try:
        found = pool.FindMessageTypeByName(name)
    except KeyError:
        known = [f"{each.package}.{message.name}".lstrip(".") for each in files for message in each.message_type]
        raise InvalidSetting(name="message", reason=f"no such message in the descriptor set: {name}", nearest=_nearest(name, known)) from None
    part = _message(found, "", ())
    if part is None:
        raise InvalidSetting(name="message", reason=f"{name} has no fields", nearest=None)
    assert isinstance(part.spark, StructType)
    return MessageType(message_factory.GetMessageClass(found), part.spark, part.kind)


def _nearest(name: str, known: list[str]) -> str | None:
    return InvalidSetting.unknown(name, known).nearest


def _refused(reason: str) -> InvalidSetting:
    return InvalidSetting(name="descriptor", reason=reason, nearest=None)


def _message(message: Descriptor, path: str, within: tuple[str, ...]) -> _Part | None:
    """`within`: the messages that contain it. None for a message without fields."""
    if message.full_name in within:
        raise _refused(f"{path}: the message {message.full_name} holds itself, which no table can")
    start = f"{path}." if path else ""
    found = [(field, _field(field, f"{start}{field.name}", (*within, message.full_name))) for field in message.fields]
    parts = [(field, part) for field, part in found if part is not None]
    if not parts:
        return None
    spark = StructType([StructField(field.name, part.spark) for field, part in parts])
    made = message_factory.GetMessageClass(message)

    def kind(where: str, arrow: Any, settings: DecodeSettings) -> Kind:
        own = f"{where}." if where else ""
        fields = [_made(field, part.kind(f"{own}{each.name}", each.type, settings)) for (field, part), each in zip(parts, arrow, strict=True)]
        return Messages(where, type_shown(spark), arrow, made, tuple(fields))

    return _Part(spark, kind)


def _made(field: FieldDescriptor, kind: Kind) -> Field:
    return Field(field.number, kind, _getter(field, kind.path))


def _getter(field: FieldDescriptor, path: str) -> Callable[[Any], Any]:
    name = field.name
    if _is_map(field):
        return lambda message: _sorted(getattr(message, name), path)
    if field.is_repeated:
        return lambda message: list(getattr(message, name))
    if field.has_presence:
        return lambda message: getattr(message, name) if type(message).HasField(message, name) else None  # also where a field has the method's name
    return attrgetter(name)


def _sorted(entries: Any, path: str) -> dict[Any, Any]:
    """The entries in order of their keys: Protobuf keeps none, and each attempt of a batch gives the same rows."""
    keys = list(entries)
    if any(isinstance(key, bytes) for key in keys):
        raise Refused(f"{path} has a key that is not UTF-8")
    return {key: entries[key] for key in sorted(keys)}


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _field(field: FieldDescriptor, path: str, within: tuple[str, ...]) -> _Part | None:
    if _is_map(field):
        assert field.message_type is not None
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        return _map(_single(key, path, within), _single(value, path, within))
    element = _single(field, path, within)
    if element is None or not field.is_repeated:
        return element
    spark = ArrayType(element.spark)
    return _Part(spark, lambda where, arrow, settings: Repeated(where, type_shown(spark), arrow, element.kind(where, arrow.value_type, settings)))


def _map(key: _Part | None, item: _Part | None) -> _Part | None:
    if key is None or item is None:
        return None
    spark = MapType(key.spark, item.spark)

    def kind(where: str, arrow: Any, settings: DecodeSettings) -> Kind:
        keys = key.kind(where, arrow.key_type, settings)
        assert isinstance(keys, Scalar)
        return Dictionary(where, type_shown(spark), arrow, keys, item.kind(where, arrow.item_type, settings))

    return _Part(spark, kind)


def _single(field: FieldDescriptor, path: str, within: tuple[str, ...]) -> _Part | None:
    """The type of one value of the field."""
    if field.type in _NUMBERS:
        made, letter = _NUMBERS[field.type]
        spark = made()
        return _Part(spark, lambda where, arrow, _: Numbers(where, type_shown(spark), arrow, letter))
    match field.type:
        case FieldDescriptor.TYPE_UINT64 | FieldDescriptor.TYPE_FIXED64:
            spark = DecimalType(_UINT64_DIGITS, 0)
            return _Part(spark, lambda where, arrow, _: Unscaled(where, type_shown(spark), arrow, _UINT64_DIGITS, 0))
        case FieldDescriptor.TYPE_BOOL:
            return _Part(BooleanType(), lambda where, arrow, _: Plain(where, "BOOLEAN", arrow))
        case FieldDescriptor.TYPE_BYTES:
            return _Part(BinaryType(), lambda where, arrow, _: Plain(where, "BINARY", arrow))
        case FieldDescriptor.TYPE_STRING:
            return _Part(StringType(), lambda where, arrow, _: Texts(where, "STRING", arrow))
        case FieldDescriptor.TYPE_ENUM:
            enum = field.enum_type
            assert enum is not None
            names = {number: value.name for number, value in enum.values_by_number.items()}
            return _Part(StringType(), lambda where, arrow, _: Symbols(where, "STRING", arrow, enum.full_name, names))
    assert field.message_type is not None
    if field.message_type.full_name == _TIMESTAMP:
        return _Part(TimestampType(), lambda where, arrow, settings: Stamps(where, "TIMESTAMP", arrow, settings, _PER_SECOND))
    return _message(field.message_type, path, within)
