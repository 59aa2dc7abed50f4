"""Columns of Protobuf messages. A field whose data has another type than the schema says is unknown to Protobuf's parser, as one of a later schema
is; here it is a problem if the schema has a field of its number, and otherwise ignored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final  # Any: messages, and pyarrow has no types

from google.protobuf.unknown_fields import UnknownFieldSet

from pyspark_waltz.decode.kinds import Kind, Rows
from pyspark_waltz.decode.nested_columns import struct_column
from pyspark_waltz.decode.problems import Problems, Refused
from pyspark_waltz.decode.typed_kinds import Instant, Repeated, Symbols

if TYPE_CHECKING:
    from google.protobuf.message import Message

__all__ = ["Field", "Messages", "Stamps"]

_NANOS: Final = 1_000_000_000
_ANOTHER: Final = "data of another type or value"


@dataclass(frozen=True, slots=True)
class Field:
    """`get`: its value in a message, as `kind` converts it; None if it is absent. It raises `Refused`."""

    number: int
    kind: Kind
    get: Callable[[Any], Any]

    def unknown(self, data: Any) -> Refused:
        """The problem of a field that the parser did not recognize."""
        kind = self.kind.element if isinstance(self.kind, Repeated) else self.kind
        if isinstance(kind, Symbols) and isinstance(data, int):
            return kind.unnamed(data)
        return self.kind.mismatch(_ANOTHER)


@dataclass(frozen=True, slots=True)
class Messages(Kind):
    """A STRUCT from messages, with a field for each declared one."""

    made: type[Message]
    fields: tuple[Field, ...]

    def column(self, values: Sequence[Any], rows: Rows, problems: Problems) -> Any:
        return struct_column(self, self.made(), self.columns, values, rows, problems)

    def columns(self, values: Sequence[Any], rows: Rows, problems: Problems) -> list[Any]:
        """One array for each field; `values` holds no None."""
        self._find_unknown(values, rows, problems)
        return [field.kind.column(_values(field, values, rows, problems), rows, problems) for field in self.fields]

    def _find_unknown(self, values: Sequence[Any], rows: Rows, problems: Problems) -> None:
        for row, unknown in zip(rows, map(UnknownFieldSet, values), strict=True):
            if len(unknown):
                fields = {field.number: field for field in self.fields}
                found: Any = unknown  # its type does not say that it can be iterated
                wrong = next((each for each in found if each.field_number in fields), None)
                if wrong is not None:
                    problems.add(row, str(fields[wrong.field_number].unknown(wrong.data)))


def _values(field: Field, messages: Sequence[Any], rows: Rows, problems: Problems) -> list[Any]:
    try:
        return list(map(field.get, messages))
    except Refused:
        return [_value(field, message, row, problems) for row, message in zip(rows, messages, strict=True)]


def _value(field: Field, message: Any, row: int, problems: Problems) -> Any:
    try:
        return field.get(message)
    except Refused as refused:
        problems.add(row, str(refused))
        return None


class Stamps(Instant):
    """A TIMESTAMP from messages of the type `google.protobuf.Timestamp`."""

    __slots__ = ()

    def micros(self, value: Any) -> int:
        if len(UnknownFieldSet(value)):
            raise self.mismatch(_ANOTHER)
        if not 0 <= value.nanos < _NANOS:
            raise self.mismatch(f"{value.seconds} seconds and {value.nanos} nanoseconds")
        return Instant.micros(self, value.seconds * _NANOS + value.nanos)
