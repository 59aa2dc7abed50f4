"""A batch of Protobuf messages of one type as Arrow columns.

These do not decode: data that is null; data that is no message of the type, or lacks a required field of it; a field whose data has another type, or
an enum whose number has no name; text that is not UTF-8; and a time out of bounds."""

from __future__ import annotations

from typing import Any  # pyarrow has no types

from google.protobuf.message import DecodeError, Message

from pyspark_waltz.decode.problems import Problems
from pyspark_waltz.decode.protobuf_kinds import Messages
from pyspark_waltz.decode.protobuf_schema import message_type
from pyspark_waltz.decode.settings import DecodeSettings
from pyspark_waltz.decode.whole_columns import no_collections

__all__ = ["ProtobufColumns"]


class ProtobufColumns:
    """`descriptors`: a descriptor set with the message and all that it imports. `columns`: a struct with the Arrow types of the columns."""

    def __init__(self, descriptors: bytes, message: str, columns: Any, settings: DecodeSettings) -> None:
        found = message_type(descriptors, message)
        kind = found.kind("", columns, settings)
        assert isinstance(kind, Messages)
        self._name, self._made, self._messages = message, found.made, kind
        self._nothing = found.made()

    def decode(self, data: Any, problems: Problems) -> list[Any]:
        """One array for each field, from a binary array. A transaction with a problem has nulls or values that mean nothing."""
        with no_collections():
            found = [self._one(row, document, problems) for row, document in enumerate(data.to_pylist())]
            return self._messages.columns(found, range(len(found)), problems)

    def _one(self, row: int, document: bytes | None, problems: Problems) -> Message:
        if document is None:
            problems.add(row, "no data")
            return self._nothing
        try:
            found = self._made.FromString(document)
        except DecodeError as error:
            problems.add(row, f"is not a Protobuf message {self._name}: {str(error).rpartition(': ')[2]}")
            return self._nothing
        if not self._made.IsInitialized(found):
            problems.add(row, f"{_missing(found) or 'a required field'} is missing or null")
        return found


def _missing(message: Message, path: str = "") -> str | None:
    """The first required field that is missing in the message or in a single message within it. `FindInitializationErrors` ends the process with
    a segmentation fault where a key of a map is not UTF-8 (protobuf 7.36.2)."""
    for field in message.DESCRIPTOR.fields:
        if field.is_repeated:
            continue
        if not field.has_presence or type(message).HasField(message, field.name):
            if field.message_type is not None and (found := _missing(getattr(message, field.name), f"{path}{field.name}.")) is not None:
                return found
        elif field.is_required:
            return f"{path}{field.name}"
    return None
