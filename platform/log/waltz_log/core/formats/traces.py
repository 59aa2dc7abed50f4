"""Trace contexts beside records: which record of a frame or block belongs to which span. Never part of a record.
On disk only beside the intents of an outbox.

A context is a W3C traceparent without its version: 16 bytes trace id, 8 bytes span id, 1 byte flags. A column has an entry for each traced record:
its position (u4, big-endian) and its context. An append never fails because of its traces: what is not well formed is left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct

__all__ = ["CONTEXT_BYTES", "SAMPLED", "TRACES_MAX", "is_context", "pack_traces", "unpack_traces"]

CONTEXT_BYTES = 25
SAMPLED = 0x01
"""The flag of a context whose spans are recorded."""

TRACES_MAX = 64
"""Entries of one frame or block. Spans are recorded in the event loop; more of them would hold up the next block for milliseconds."""

_ENTRY = Struct(f">I{CONTEXT_BYTES}s")
_NO_TRACE, _NO_SPAN = bytes(16), bytes(8)


def pack_traces(entries: Iterable[tuple[int, bytes]]) -> bytes:
    """A column of positions and contexts; of more than `TRACES_MAX` the first."""
    packed = [_ENTRY.pack(position, context) for position, context in entries]
    return b"".join(packed[:TRACES_MAX])


def unpack_traces(column: bytes, count: int) -> list[tuple[int, bytes]]:
    """Positions below `count` with their contexts, `TRACES_MAX` at most."""
    size = min(len(column), TRACES_MAX * _ENTRY.size) // _ENTRY.size * _ENTRY.size
    return [(position, context) for position, context in _ENTRY.iter_unpack(column[:size]) if position < count and is_context(context)]


def is_context(context: bytes) -> bool:
    """Whether it names a span that is recorded."""
    return len(context) == CONTEXT_BYTES and context[:16] != _NO_TRACE and context[16:24] != _NO_SPAN and bool(context[24] & SAMPLED)
