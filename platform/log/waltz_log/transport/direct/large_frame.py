"""A frame that is larger than a connection's buffer and is received in place. Its memory grows with what arrived, not with what its sender
announces. Pure."""

from __future__ import annotations

import sys

__all__ = ["BEGUN_BYTES_MAX", "LargeFrame"]

BEGUN_BYTES_MAX = 2 * 1024 * 1024
"""What a frame may hold from its beginning: the largest append frame of a client with the default settings, and its columns. A larger one may hold
twice as much each time that this is full."""


class LargeFrame:
    """`announced`: its bytes; `begin`: those that are here; `since_s`: when it began."""

    __slots__ = ("_announced", "_data", "_filled", "_room", "kind", "since_s")

    def __init__(self, kind: int, announced: int, begin: memoryview, since_s: float) -> None:
        self.kind = kind
        self.since_s = since_s
        self._announced = announced
        self._room = min(announced, max(BEGUN_BYTES_MAX, len(begin)))
        self._data = _memory(self._room, announced)
        self._filled = len(begin)
        self._data[: self._filled] = begin

    @property
    def held_bytes(self) -> int:
        return self._room

    @property
    def free(self) -> memoryview:
        """Where the next bytes belong."""
        return self._data[self._filled : self._room]

    def received(self, count: int) -> None:
        self._filled += count

    @property
    def whole(self) -> memoryview | None:
        """The frame, once all of it is here. The receiver may write to it."""
        return self._data if self._filled == self._announced else None

    @property
    def needs_memory(self) -> bool:
        """Whether there is no room for the next bytes."""
        return self._filled == self._room < self._announced

    def grow(self) -> int:
        """Returns by how many bytes."""
        room = min(self._announced, 2 * self._room)
        if room > len(self._data):
            data = _memory(room, self._announced)
            data[: self._filled] = self._data
            self._data = data
        grown = room - self._room
        self._room = room
        return grown


def _memory(size: int, announced: int) -> memoryview:
    """It is not cleared, which would be another pass over it. What it holds stays unread until it is overwritten.

    With numpy the addresses of the whole frame are reserved at once: the system gives memory to what is written alone, and nothing is copied when the
    frame may hold more."""
    numpy = sys.modules.get("numpy")  # nodes have it; a client works without it, and does not load it for this
    found: memoryview = memoryview(bytearray(size)) if numpy is None else numpy.empty(announced, dtype="u1").data
    return found
