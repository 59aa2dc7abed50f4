"""A batch of Avro records, each the binary encoding of one record of the writer's schema, as Arrow columns.

These do not decode: data that is null; data that no writer of the schema makes, that is cut off, or that has bytes behind the record; and a value
out of its type's range or of the bounds."""

from __future__ import annotations

from typing import Any, Final  # Any: pyarrow has no types

from pyspark_waltz.decode.avro_reader import Malformed
from pyspark_waltz.decode.avro_schema import avro_record
from pyspark_waltz.decode.problems import Problems
from pyspark_waltz.decode.settings import DecodeSettings
from pyspark_waltz.decode.typed_kinds import Fields
from pyspark_waltz.decode.whole_columns import no_collections

__all__ = ["AvroColumns"]

_NOT_A_RECORD: Final = "is not an Avro record of the declared schema"


class AvroColumns:
    """`schema`: the writer's, as JSON. `columns`: a struct with the Arrow types of the columns, in the order of the schema."""

    def __init__(self, schema: bytes, columns: Any, settings: DecodeSettings) -> None:
        _, part = avro_record(schema)
        kind = part.kind("", columns, settings)
        assert isinstance(kind, Fields)
        self._read, self._record = part.read, kind

    def decode(self, data: Any, problems: Problems) -> list[Any]:
        """One array for each field, from a binary array. A transaction with a problem has nulls or values that mean nothing."""
        with no_collections():
            found = [self._one(row, document, problems) for row, document in enumerate(data.to_pylist())]
            return self._record.columns(found, range(len(found)), problems)

    def _one(self, row: int, document: bytes | None, problems: Problems) -> list[Any]:
        if document is None:
            problems.add(row, "no data")
            return self._record.nothing
        try:
            found: list[Any]
            found, end = self._read(document, 0)
        except Malformed as error:
            problems.add(row, f"{_NOT_A_RECORD}: {error.path} {error.reason}")
            return self._record.nothing
        if end != len(document):
            problems.add(row, f"{_NOT_A_RECORD}: {len(document) - end} bytes follow it")
        return found
