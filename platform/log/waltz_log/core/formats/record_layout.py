"""The layout of a transaction record: its fields, their places and sizes (On-Disk Data Structures, Transaction Record). No other module knows them.

    header (36 bytes, `FIELDS`) | data | closing checksum (4 bytes)

A record without its data is a sealed header (`sealed_headers`). `records` decodes one record, `columns` whole blocks at once.
"""

from __future__ import annotations

from struct import Struct, calcsize
from typing import Final

__all__ = [
    "APPLICATION_HEADER",
    "CHECKSUM",
    "CHECKSUM_WORD",
    "DATA_LENGTH",
    "FIELDS",
    "HEADER",
    "HEADER_BYTES",
    "ID",
    "ID_AND_PARTITION",
    "ID_MAX",
    "RECORD_OVERHEAD_BYTES",
    "SEALED_HEADER",
    "SEALED_HEADER_BYTES",
    "SENDER",
    "SEQUENCE_WORD",
    "WORD_BYTES",
    "length_of",
    "offset_of",
]

FIELDS: Final = (
    ("transaction_id", "q"),
    ("client_id", "i"),
    ("generation", "i"),
    ("partition", "i"),
    ("sequence", "i"),
    ("header", "i"),
    ("data_length", "i"),
    ("data_checksum", "I"),
)
"""Name and type of each field of a header in order, big-endian; the types are those of `struct` and of numpy."""

HEADER: Final = Struct(">" + "".join(kind for _, kind in FIELDS))
CHECKSUM: Final = Struct(">I")
SEALED_HEADER: Final = Struct(HEADER.format + "I")

HEADER_BYTES: Final = HEADER.size
RECORD_OVERHEAD_BYTES: Final = HEADER.size + CHECKSUM.size
"""The bytes of a record besides its data: the header and the closing checksum."""

SEALED_HEADER_BYTES: Final = SEALED_HEADER.size

ID_MAX: Final = 2**63 - 1
"""The highest transaction id that a record can hold."""


def offset_of(name: str) -> int:
    """Where a field begins."""
    names = [each for each, _ in FIELDS]
    return calcsize(">" + "".join(kind for _, kind in FIELDS[: names.index(name)]))


def _some(*names: str) -> Struct:
    """Reads only these fields."""
    return Struct(">" + "".join(kind if name in names else f"{calcsize('>' + kind)}x" for name, kind in FIELDS))


ID: Final = Struct(">q")
SENDER: Final = _some("client_id", "generation", "sequence")
ID_AND_PARTITION: Final = _some("transaction_id", "partition")
APPLICATION_HEADER: Final = _some("header")
DATA_LENGTH: Final = _some("data_length")

WORD_BYTES: Final = 4
"""A header as columns consists of words of this size. The first two are the transaction id."""

SEQUENCE_WORD: Final = offset_of("sequence") // WORD_BYTES
CHECKSUM_WORD: Final = offset_of("data_checksum") // WORD_BYTES


def length_of(header: bytes | memoryview) -> int:
    """The length of the record that begins with this whole header, as the header states it: any number, if it is damaged."""
    return RECORD_OVERHEAD_BYTES + int(DATA_LENGTH.unpack_from(header)[0])
