"""The payload of the smoke test's transactions: the sender, the attempt, the mark from which it was computed, and the names of its locks. So the log
itself holds everything that is needed to judge it again. Only this test uses the layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

__all__ = ["Sent", "decode", "encode"]

HEAD = Struct(">HIqBBB")


class Sent(NamedTuple):
    """Locks by number. `write`, `read`, `append`: how many of each, in that order, stand in `locks`."""

    client: int
    number: int
    mark: int
    write: int
    read: int
    append: int
    locks: tuple[int, ...]


def encode(client: int, number: int, mark: int, write: Sequence[int], read: Sequence[int], append: Sequence[int], size: int) -> bytes:
    """Filled up to `size` bytes."""
    locks = (*write, *read, *append)
    data = HEAD.pack(client, number, mark, len(write), len(read), len(append)) + b"".join(lock.to_bytes(4, "big") for lock in locks)
    return data.ljust(size, b".")


def decode(data: bytes) -> Sent:
    client, number, mark, write, read, append = HEAD.unpack_from(data)
    end = HEAD.size + 4 * (write + read + append)
    locks = tuple(int.from_bytes(data[at : at + 4], "big") for at in range(HEAD.size, end, 4))
    return Sent(client, number, mark, write, read, append, locks)
