"""Encodes the records of a frame: with numpy if it is installed and the frame is large, otherwise without. Both give the same bytes.

A client needs no numpy (docs/decisions, 39). If it is installed, the first large frame imports it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from itertools import repeat
from struct import pack
from typing import Final, Protocol

from waltz_log.core.formats.record_layout import RECORD_OVERHEAD_BYTES
from waltz_log.core.formats.records import encode_records

__all__ = ["FEW_BODIES", "encode_in_columns", "encode_without_numpy"]

FEW_BODIES: Final = 200
"""Fewer records are encoded faster without numpy: its thirty calls have a fixed cost, which is highest in an application that does other things too,
because the caches are then cold at each frame."""


class Encoder(Protocol):
    def __call__(
        self, client_id: int, generation: int, partition: int, first_sequence: int, headers: int | Sequence[int], bodies: Sequence[bytes | memoryview]
    ) -> tuple[bytes, bytes]: ...


def encode_in_columns(
    client_id: int, generation: int, partition: int, first_sequence: int, headers: int | Sequence[int], bodies: Sequence[bytes | memoryview]
) -> tuple[bytes, bytes]:
    """The columns `lengths` and `records` of an append frame: ids zero, sequences from `first_sequence`. `headers`: one for each record, or one for
    all. Raises `struct.error` or `OverflowError` if a number does not fit its field; callers check arguments of users before."""
    encode = encode_without_numpy if len(bodies) < FEW_BODIES else _encoder()
    return encode(client_id, generation, partition, first_sequence, headers, bodies)


def encode_without_numpy(
    client_id: int, generation: int, partition: int, first_sequence: int, headers: int | Sequence[int], bodies: Sequence[bytes | memoryview]
) -> tuple[bytes, bytes]:
    """Like `encode_in_columns`, without numpy."""
    each = repeat(headers) if isinstance(headers, int) else headers
    lengths = pack(f">{len(bodies)}i", *[len(data) + RECORD_OVERHEAD_BYTES for data in bodies])
    return lengths, encode_records(client_id, generation, partition, first_sequence, each, bodies)


@cache
def _encoder() -> Encoder:
    with suppress(ModuleNotFoundError):  # numpy is not installed
        from waltz_log.core.formats.record_columns import encode_record_columns

        return encode_record_columns
    return encode_without_numpy
