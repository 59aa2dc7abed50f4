"""What the columns of marks and locks of an append frame hold, for client and server. Without numpy, because clients import it."""

from __future__ import annotations

from array import array

__all__ = ["ONE_WRITE", "TURN_MARK", "unpack_i8"]

TURN_MARK = -2
"""A mark below every transaction id and every floor. A transaction that has it checks at least one lock."""

ONE_WRITE = b"\1\0\0"
"""The counts of a transaction with one write lock and no other."""


def unpack_i8(packed: bytes) -> array[int]:
    """A packed column of signed 64-bit big-endian integers. Raises `ValueError` if its length is not a multiple of 8."""
    values: array[int] = array("q")
    values.frombytes(packed)
    values.byteswap()
    return values
