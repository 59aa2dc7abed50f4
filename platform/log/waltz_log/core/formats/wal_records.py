"""The records of a compacted view's files, each way (the 24-byte header of the partitioned write-ahead log; docs/reference/formats.md).

    long time ms | int checksum | int key bytes | int value bytes | byte compression | byte version | short magic 0xCAFE | key | value

Little-endian. In the layout's own version, 1, the checksum is the low 31 bits of xxh64(key, value): it leaves the header out, so that a length that
moved from the key to the value goes unnoticed. Version 2, the only one written here, covers all bytes of the record except the checksum itself. Its
value begins with the transaction's id (long) and header (int), for which the layout has no field, because it addresses records by offset.

Pure. Compressed values, which the layout allows, are refused: nothing writes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from xxhash import xxh64_intdigest

from waltz_log.errors import CorruptData

__all__ = [
    "HEADER_BYTES",
    "WalRecord",
    "checksum_in",
    "decode_wal_record",
    "encode_wal_record",
    "wal_checksum",
    "wal_record_bytes",
    "walk_wal_records",
]

MAGIC: Final = 0xCAFE
VERSION: Final = 2
_HEADER: Final = Struct("<qiiibBH")
HEADER_BYTES: Final = _HEADER.size
_ORIGIN: Final = Struct("<qi")
"""What the value of version 2 begins with: transaction id, header."""
_CHECKSUM: Final = Struct("<i")
_CHECKSUM_AT: Final = 8
_CHECKSUM_MASK: Final = 0x7FFFFFFF


class WalRecord(NamedTuple):
    transaction_id: int
    time_ms: int
    header: int
    key: bytes
    value: bytes

    @property
    def is_tombstone(self) -> bool:
        return not self.value


def encode_wal_record(record: WalRecord) -> bytes:
    """Version 2."""
    whole = _without_checksum(record)
    return b"".join((whole[:_CHECKSUM_AT], _CHECKSUM.pack(_checksum_of(whole)), whole[_CHECKSUM_AT + _CHECKSUM.size :]))


def wal_checksum(record: WalRecord) -> int:
    """The checksum that `encode_wal_record` writes."""
    return _checksum_of(_without_checksum(record))


def checksum_in(whole: bytes) -> int:
    """The one that is written in the bytes of a record."""
    (checksum,) = _CHECKSUM.unpack_from(whole, _CHECKSUM_AT)
    return int(checksum)


def _without_checksum(record: WalRecord) -> bytes:
    """The bytes of the record, with zeros where the checksum goes."""
    transaction_id, time_ms, header, key, value = record
    begin = _HEADER.pack(time_ms, 0, len(key), _ORIGIN.size + len(value), 0, VERSION, MAGIC)
    return b"".join((begin, key, _ORIGIN.pack(transaction_id, header), value))


def _checksum_of(whole: bytes) -> int:
    return xxh64_intdigest(whole) & _CHECKSUM_MASK


def decode_wal_record(data: bytes, offset: int, *, where: str) -> tuple[WalRecord, int]:
    """The record at `offset`, and where it ends. Raises `CorruptData` if it is cut off, of another version, or its checksum does not match."""
    if len(data) - offset < HEADER_BYTES:
        raise _corrupt(where, offset, f"cut off: bytes={len(data) - offset}")
    time_ms, checksum, key_bytes, value_bytes, compression, version, magic = _HEADER.unpack_from(data, offset)
    if magic != MAGIC or version != VERSION or compression:
        raise _corrupt(where, offset, f"not a record: magic={magic:#x} version={version} compression={compression}")
    key_at = offset + HEADER_BYTES
    value_at, end = key_at + key_bytes, key_at + key_bytes + value_bytes
    if key_bytes < 0 or value_bytes < _ORIGIN.size or end > len(data):
        raise _corrupt(where, offset, f"cut off or bad lengths: key_bytes={key_bytes} value_bytes={value_bytes}")
    whole = data[offset:end]
    if checksum != _checksum_of(b"".join((whole[:_CHECKSUM_AT], bytes(4), whole[_CHECKSUM_AT + 4 :]))):
        raise _corrupt(where, offset, "checksum does not match")
    transaction_id, header = _ORIGIN.unpack_from(data, value_at)
    return WalRecord(transaction_id, time_ms, header, data[key_at:value_at], data[value_at + _ORIGIN.size : end]), end


def wal_record_bytes(header: bytes) -> int:
    """How long the record is that begins with these bytes, as far as its lengths can be believed; 0 if it cannot be one."""
    if len(header) < HEADER_BYTES:
        return 0
    _, _, key_bytes, value_bytes, _, _, magic = _HEADER.unpack_from(header)
    return HEADER_BYTES + key_bytes + value_bytes if magic == MAGIC and key_bytes >= 0 and value_bytes >= 0 else 0


def walk_wal_records(data: bytes, *, where: str) -> Iterator[tuple[int, WalRecord, int]]:
    """(offset, record, end) of each record of a file's bytes, to their very end. Raises `CorruptData`."""
    offset = 0
    while offset < len(data):
        record, end = decode_wal_record(data, offset, where=where)
        yield offset, record, end
        offset = end


def _corrupt(where: str, offset: int, reason: str) -> CorruptData:
    return CorruptData(where=where, offset=offset, transaction_id=-1, reason=reason)
