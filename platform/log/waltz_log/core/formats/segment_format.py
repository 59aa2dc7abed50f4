"""The bytes of a partition's segments: file names, the header that data, index and times share, and the entries of index and times
(On-Disk Data Structures, Segment Data File, Segment Index File; docs/reference/formats.md for `.tix`, which is ours).

    %019d.seg  header | records                                          ids dense, from the number in the name
    %019d.idx  header | long offset of each record                       element = id - first id
    %019d.tix  header | (long first id | long append time ms | int crc)* one entry per appended block
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Final
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from waltz_log.core.formats.crc import crc32
from waltz_log.core.formats.crc_algebra import crc_of_words
from waltz_log.errors import ClusterKeyMismatch, CorruptData

__all__ = [
    "CHECKPOINT_TRANSACTIONS",
    "DATA",
    "FILE_HEADER_BYTES",
    "INDEX",
    "TIMES",
    "TIME_ENTRY_BYTES",
    "SegmentHeader",
    "decode_times",
    "encode_time",
    "file_name",
    "first_id_of",
]

FILE_HEADER_BYTES: Final = 128
CHECKPOINT_TRANSACTIONS: Final = 1000
"""The index is synced before the record that follows each 1000th (the document's constant)."""

DATA: Final = "seg"
INDEX: Final = "idx"
TIMES: Final = "tix"

_HEADER = Struct(">iq16siq88x")
_TIME = Struct(">qq")
_TIME_DTYPE = np.dtype([("first", ">i8"), ("time", ">i8"), ("checksum", ">u4")])
TIME_ENTRY_BYTES: Final = 20


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    creation_time_ms: int
    cluster_key: UUID
    partition: int
    first_transaction_id: int

    def to_bytes(self) -> bytes:
        return _HEADER.pack(0, self.creation_time_ms, self.cluster_key.bytes, self.partition, self.first_transaction_id)

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> SegmentHeader:
        """Raises `CorruptData` if it is cut off or of another version."""
        if len(data) < FILE_HEADER_BYTES:
            raise CorruptData(where=where, offset=0, transaction_id=-1, reason=f"file header is cut off: bytes={len(data)}")
        version, created, key, partition, first = _HEADER.unpack_from(data)
        if version != 0:
            raise CorruptData(where=where, offset=0, transaction_id=-1, reason=f"unknown format version: version={version}")
        return cls(created, UUID(bytes=key), partition, first)

    def expect(self, key: UUID, partition: int, first_transaction_id: int, where: str) -> None:
        """Raises unless the file is the one its place says it is."""
        if self.cluster_key != key:
            raise ClusterKeyMismatch(where=where)
        if (self.partition, self.first_transaction_id) != (partition, first_transaction_id):
            raise CorruptData(
                where=where,
                offset=0,
                transaction_id=first_transaction_id,
                reason=f"header names another segment: partition={self.partition} first_transaction_id={self.first_transaction_id}",
            )


def file_name(first_transaction_id: int, kind: str) -> str:
    return f"{first_transaction_id:019d}.{kind}"


def first_id_of(name: str, kind: str) -> int | None:
    """The number in a file's name, or None if it is not a file of this kind."""
    stem, dot, found = name.partition(".")
    return int(stem) if dot and found == kind and len(stem) == 19 and stem.isascii() and stem.isdigit() else None


def encode_time(first_transaction_id: int, append_time_ms: int) -> bytes:
    entry = _TIME.pack(first_transaction_id, append_time_ms)
    return entry + crc32(entry).to_bytes(4, "big")


def decode_times(data: bytes) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """First ids and times of the entries that are complete and in order, and the byte at which the last of them ends. A torn or corrupt entry is left
    out: its block gets the previous time."""
    count = len(data) // TIME_ENTRY_BYTES
    if not count:
        nothing = np.empty(0, dtype=np.int64)
        return nothing, nothing, 0
    raw = data[: count * TIME_ENTRY_BYTES]
    entries = np.frombuffer(raw, dtype=_TIME_DTYPE)
    words = np.frombuffer(raw, dtype=">u4").reshape(count, TIME_ENTRY_BYTES // 4).T.astype(np.uint32, order="C")
    whole = crc_of_words(words[:4]) == words[4]
    places = np.flatnonzero(whole)
    firsts = entries["first"][places].astype(np.int64)
    rising = np.ones(len(firsts), dtype=bool)
    rising[1:] = firsts[1:] > np.maximum.accumulate(firsts)[:-1]
    end = (int(places[rising][-1]) + 1) * TIME_ENTRY_BYTES if rising.any() else 0
    return firsts[rising], entries["time"][places].astype(np.int64)[rising], end
