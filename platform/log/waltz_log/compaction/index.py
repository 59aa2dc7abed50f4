"""The `.wal.index` next to each file of a view: which keys it holds, and where. Small, so that compaction reads keys without values.

The file consists of records (`core.formats.wal_records`). Each holds a chunk of entries, sorted by hash, key length and key; its key is the decimal
number of all hashes of the chunk combined by exclusive or, and its value

    long largest offset | long key bytes | int entries | ulong hash * n | long offset * n | int key bytes * n | keys        little-endian

Chunks follow each other in the order of the records, and one ends when its keys reach a bound of bytes. The layout packs the same fields by a schema
compiler; columns need none and are read without a loop. Pure except for `read_index`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh64_intdigest

from waltz_log.core.formats.wal_records import HEADER_BYTES, WalRecord, encode_wal_record, wal_record_bytes, walk_wal_records
from waltz_log.core.ports import DiskFile
from waltz_log.errors import CorruptData

__all__ = ["ENTRY_BYTES", "IndexChunk", "IndexWriter", "decode_index", "read_index"]

ENTRY_BYTES: Final = 160
"""The memory that a key in the cache needs in addition to its bytes: two objects and a place in a table."""

CHUNK_BYTES: Final = 1 << 22
"""A chunk ends when its keys, with what each costs to hold, reach this: an eighth of the 32 MiB of keys that the layout allows. A writer of a file
holds one chunk of its index in memory, and so does a reader, however large the file is."""

_HEAD: Final = Struct("<qqi")


@dataclass(frozen=True, slots=True)
class IndexChunk:
    """Columns: the n-th hash, offset and key are of one record of the file."""

    hashes: NDArray[np.uint64]
    offsets: NDArray[np.int64]
    key_ends: NDArray[np.int64]
    keys: bytes

    def key(self, entry: int) -> bytes:
        return self.keys[int(self.key_ends[entry - 1]) if entry else 0 : int(self.key_ends[entry])]

    def __len__(self) -> int:
        return len(self.hashes)


class IndexWriter:
    """Collects the key and place of each record of a file, in order. Returns a chunk of the index whenever one is full, and the `rest`."""

    def __init__(self, time_ms: int) -> None:
        self._time_ms = time_ms
        self._keys: list[bytes] = []
        self._offsets: list[int] = []
        self._held = 0

    def add(self, key: bytes, offset: int) -> bytes:
        """The chunk that is full with it, or nothing."""
        self._keys.append(key)
        self._offsets.append(offset)
        self._held += len(key) + ENTRY_BYTES
        return self.rest() if self._held >= CHUNK_BYTES else b""

    def rest(self) -> bytes:
        if not self._keys:
            return b""
        chunk = _encode_chunk(self._keys, self._offsets, self._time_ms)
        self._keys, self._offsets, self._held = [], [], 0
        return chunk


def _encode_chunk(keys: Sequence[bytes], offsets: Sequence[int], time_ms: int) -> bytes:
    entries = sorted((xxh64_intdigest(key), len(key), key, offset) for key, offset in zip(keys, offsets, strict=True))
    hashes = np.array([entry[0] for entry in entries], np.uint64)
    sizes = np.array([entry[1] for entry in entries], "<i4")
    joined = b"".join([entry[2] for entry in entries])
    columns = (
        _HEAD.pack(max(offsets), len(joined), len(entries)),
        hashes.astype("<u8").tobytes(),
        np.array([entry[3] for entry in entries], "<i8").tobytes(),
        sizes.tobytes(),
        joined,
    )
    combined = int(np.bitwise_xor.reduce(hashes))
    return encode_wal_record(WalRecord(len(entries), time_ms, 0, str(combined).encode(), b"".join(columns)))


def decode_index(data: bytes, *, where: str) -> Iterator[IndexChunk]:
    """Raises `CorruptData` if a record's checksum or its numbers do not match."""
    for offset, record, _ in walk_wal_records(data, where=where):
        value = record.value
        if len(value) < _HEAD.size:
            raise _corrupt(where, offset, "chunk cut off")
        _, key_bytes, count = _HEAD.unpack_from(value)
        hashes_at = _HEAD.size
        offsets_at = hashes_at + 8 * count
        sizes_at = offsets_at + 8 * count
        keys_at = sizes_at + 4 * count
        if count < 1 or key_bytes < 0 or keys_at + key_bytes != len(value):
            raise _corrupt(where, offset, f"chunk of another size: entries={count} key_bytes={key_bytes}")
        hashes = np.frombuffer(value, "<u8", count, hashes_at).astype(np.uint64, copy=False)
        offsets = np.frombuffer(value, "<i8", count, offsets_at).astype(np.int64, copy=False)
        sizes = np.frombuffer(value, "<i4", count, sizes_at)
        ends = np.cumsum(sizes, dtype=np.int64)
        if int(sizes.min()) < 0 or int(ends[-1]) != key_bytes or record.key != str(int(np.bitwise_xor.reduce(hashes))).encode():
            raise _corrupt(where, offset, "the keys of a chunk do not match their hashes")
        yield IndexChunk(hashes, offsets, ends, value[keys_at:])


def read_index(file: DiskFile, *, where: str) -> Iterator[IndexChunk]:
    """Chunk by chunk, one in memory at a time. Raises `CorruptData`, with the place in the file; what was given before is right."""
    offset, size = 0, file.size()
    while offset < size:
        length = wal_record_bytes(file.read(offset, HEADER_BYTES))
        if not 0 < length <= size - offset:
            raise _corrupt(where, offset, "cut off or bad lengths")
        try:
            yield from decode_index(file.read(offset, length), where=where)
        except CorruptData as error:
            raise _corrupt(where, offset, error.reason) from None
        offset += length


def _corrupt(where: str, offset: int, reason: str) -> CorruptData:
    return CorruptData(where=where, offset=offset, transaction_id=-1, reason=reason)
