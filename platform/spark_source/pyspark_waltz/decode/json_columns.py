"""A batch of JSON documents as Arrow columns. The fast decoder reads the declared fields of each document; a document that it does not accept is
parsed exactly, which accepts it after all (a number in a STRING column) or says why it does not decode.

These do not decode: data that is null; bytes that are not UTF-8, also in fields that are not declared; text that is not one JSON object; a value that
is not of the declared type or does not fit into it; a number for a TIMESTAMP without a declared unit; a string for a number, unless `numeric_strings`
allows it; nesting deeper than `DEPTH_MAX`. A STRING accepts any value as its text, and a number for a DECIMAL is rounded to its scale."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import tzinfo
from itertools import pairwise
from typing import Any, Final  # Any: pyarrow has no types

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql.types import StructType

from pyspark_waltz.decode.json_exact import DEPTH_MAX, is_deep, parse
from pyspark_waltz.decode.json_nested import record_of
from pyspark_waltz.decode.problems import Problems, Refused
from pyspark_waltz.decode.settings import DecodeSettings
from pyspark_waltz.decode.whole_columns import no_collections

__all__ = ["JsonColumns"]

_VALUES_AT_ONCE: Final = 25_000
_DOCUMENTS_AT_ONCE: Final = 2_048
"""Most values, and documents, that are turned into columns together: about as many as a processor's cache holds."""
Document = bytes | memoryview
_ARRAY, _OBJECT = b"[{"
_ARRAY_OR_OBJECT: Final = np.uint8(_ARRAY ^ _OBJECT)
"""The one bit that distinguishes them."""


class JsonColumns:
    """`columns`: the declared ones. `arrow`: their Arrow types, as Spark expects them. `zone`: of times without an offset."""

    def __init__(self, columns: StructType, arrow: Sequence[Any], settings: DecodeSettings, zone: tzinfo) -> None:
        self._record = record_of(columns, arrow, settings, zone, fields=settings.names_in_data(columns.names))
        self._decode: Callable[[Any], Any] = msgspec.json.Decoder(self._record.made).decode
        self._nothing = self._record.made()
        self.rows_at_once = max(1, min(_DOCUMENTS_AT_ONCE, _VALUES_AT_ONCE // max(1, len(columns))))

    def decode(self, data: Any, problems: Problems) -> list[Any]:
        """One array for each declared field, from a binary array. A transaction with a problem has nulls or values that mean nothing."""
        if data.type != pa.binary():
            data = data.cast(pa.binary())
        with no_collections():
            parts = [self._part(data.slice(at, self.rows_at_once), at, problems) for at in range(0, max(1, len(data)), self.rows_at_once)]
        return parts[0] if len(parts) == 1 else [pa.concat_arrays(arrays) for arrays in zip(*parts, strict=True)]

    def _part(self, data: Any, first: int, problems: Problems) -> list[Any]:
        documents = _documents(data)
        exact = _suspicious(data, documents)
        found: list[Any] = []
        if exact:
            for at, document in enumerate(documents):
                found.append(self._exact(first + at, document, problems) if at in exact else self._either(first + at, document, problems))
        else:
            waiting = iter(documents)
            while len(found) < len(documents):
                try:
                    found.extend(map(self._decode, waiting))
                except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, TypeError):
                    at = len(found)
                    found.append(self._exact(first + at, documents[at], problems))
        return self._record.columns(found, range(first, first + len(found)), problems)

    def _either(self, row: int, document: Document | None, problems: Problems) -> Any:
        try:
            return self._decode(document)  # null raises TypeError
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, TypeError):
            return self._exact(row, document, problems)

    def _exact(self, row: int, document: Document | None, problems: Problems) -> Any:
        try:
            if document is None:
                raise Refused("no data")
            return self._record.admit(parse(bytes(document)))
        except Refused as refused:
            problems.add(row, str(refused))
        except RecursionError:
            problems.add(row, f"nests deeper than {DEPTH_MAX} levels")
        return self._nothing


def _documents(data: Any) -> list[Document | None]:
    """As `to_pylist`, without a copy of each."""
    if data.null_count:
        found: list[Document | None] = data.to_pylist()
        return found
    whole = memoryview(data.buffers()[2] or b"")
    return [whole[start:end] for start, end in pairwise(_offsets(data).tolist())]


def _offsets(data: Any) -> Any:
    """Where each document begins in the array's buffer, and where the last one ends."""
    return np.frombuffer(data.buffers()[1], dtype=np.int32)[data.offset : data.offset + len(data) + 1]


def _suspicious(data: Any, documents: list[Document | None]) -> set[int]:
    """The documents that the fast decoder would accept, and that may break a rule that it does not have."""
    found: set[int] = set()
    try:
        data.cast(pa.string())
    except pa.ArrowInvalid:  # it ignores the bytes of fields that are not declared
        found |= {at for at, document in enumerate(documents) if document is not None and not _is_utf8(document)}
    offsets = _offsets(data)
    if len(data) and np.diff(offsets).max() > 2 * DEPTH_MAX:
        text = np.frombuffer(data.buffers()[2], dtype=np.uint8)[offsets[0] : offsets[-1]]
        found |= {at for at in _with_many_brackets(text, offsets - offsets[0]) if is_deep(bytes(documents[at] or b""))}
    return found


def _with_many_brackets(text: Any, offsets: Any) -> list[int]:
    """The documents with more opening brackets than levels are allowed."""
    opening = text | _ARRAY_OR_OBJECT == _OBJECT
    starts = offsets[:-1][np.diff(offsets) > 0]
    in_others = np.count_nonzero(opening[starts]) - 1  # at least as many are in the other documents, since most begin with one
    if np.count_nonzero(opening) - in_others <= DEPTH_MAX:
        return []
    brackets = np.diff(np.searchsorted(np.flatnonzero(opening), offsets))
    return [int(at) for at in np.flatnonzero(brackets > DEPTH_MAX)]


def _is_utf8(document: Document) -> bool:
    try:
        bytes(document).decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
