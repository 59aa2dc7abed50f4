"""How many bytes the buffers of an Arrow IPC message have once they are decompressed, which pyarrow allocates before it can be asked.

A compressed buffer begins with its size (Arrow's columnar format, "Compression"). Which buffers there are is in the message's metadata, a
FlatBuffer of the tables `Message`, `RecordBatch` and `DictionaryBatch` (Arrow's `Message.fbs`)."""

from __future__ import annotations

from struct import unpack_from
from typing import Any, Final  # Any: pyarrow has no types

__all__ = ["decompressed_bytes"]

_DICTIONARY, _RECORDS = 2, 3
"""Values of `MessageHeader`."""
_HEADER_TYPE, _HEADER = 1, 2
_BUFFERS, _COMPRESSION = 2, 3
_DATA_OF_DICTIONARY = 1
_BUFFER_BYTES: Final = 16
_SIZE_BYTES: Final = 8


def decompressed_bytes(message: Any) -> int:
    """0 for a message without compressed buffers. Raises `ValueError` and `struct.error` for metadata that is no such FlatBuffer."""
    meta, body = memoryview(message.metadata), memoryview(message.body) if message.body is not None else memoryview(b"")
    (root,) = unpack_from("<I", meta, 0)
    kind = _field(meta, root, _HEADER_TYPE)
    header = _table(meta, root, _HEADER)
    if kind is None or header is None or meta[kind] not in (_DICTIONARY, _RECORDS):
        return 0
    records = header if meta[kind] == _RECORDS else _table(meta, header, _DATA_OF_DICTIONARY)
    if records is None or _field(meta, records, _COMPRESSION) is None:
        return 0
    buffers = _table(meta, records, _BUFFERS)
    if buffers is None:
        return 0
    (count,) = unpack_from("<I", meta, buffers)
    if count * _BUFFER_BYTES > len(meta):
        raise ValueError("more buffers than the metadata has room for")
    total = 0
    for at in range(count):
        offset, size = unpack_from("<qq", meta, buffers + 4 + at * _BUFFER_BYTES)
        if size >= _SIZE_BYTES and offset >= 0:
            total += max(unpack_from("<q", body, offset)[0], 0)  # -1: this buffer is not compressed
    return total


def _field(data: memoryview, table: int, number: int) -> int | None:
    """Where a field of a table is; None if it has its default."""
    vtable = table - unpack_from("<i", data, table)[0]
    if vtable < 0 or table < 0:
        raise ValueError("an offset before the metadata")
    entry = 4 + 2 * number
    if entry + 2 > unpack_from("<H", data, vtable)[0]:
        return None
    (offset,) = unpack_from("<H", data, vtable + entry)
    return table + offset if offset else None


def _table(data: memoryview, table: int, number: int) -> int | None:
    """Where the table or vector is that a field refers to."""
    at = _field(data, table, number)
    return None if at is None else at + int(unpack_from("<I", data, at)[0])
