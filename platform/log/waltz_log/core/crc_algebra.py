"""CRC-32 as algebra on whole columns: what becomes of many checksums when bytes follow, without touching those bytes.

CRC-32 is linear over GF(2). For byte strings A and B: `crc(A+B) = shift(crc(A), len(B)) ^ crc(B)`, and for A and A' of one length
`crc(A+B) ^ crc(A'+B) = shift(crc(A) ^ crc(A'), len(B))`, where `shift(value, n)` is the effect of n zero bytes on the register: a multiplication
by x^(8n) modulo the CRC's polynomial. A shift is linear in each of its value's four bytes, and shifts compose; so tables for every digit of n
to base 256 give any shift with four look-ups per digit that is not zero. The tables take 4 MiB, are made at first use, and hold no state.

Never reads data; `columns` does. Tested against zlib on real bytes.
"""

from __future__ import annotations

from functools import cache
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

__all__ = ["crc_of_rows", "shift"]

_POLYNOMIAL = 0xEDB88320
_BYTE_STEPS = np.array([[0], [8], [16], [24]], dtype=np.uint32)
_QUARTERS = np.array([[0], [256], [512], [768]], dtype=np.intp)


@cache
def _byte_table() -> NDArray[np.uint32]:
    """The register after one byte, for each byte."""
    table: NDArray[np.uint32] = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = (table >> np.uint32(1)) ^ np.where(table & 1, np.uint32(_POLYNOMIAL), np.uint32(0))
    table.setflags(write=False)
    return table


@cache
def _shift_table(level: int) -> NDArray[np.uint32]:
    """`[digit * 1024 + place * 256 + byte]`: the byte at its place in the register, shifted by digit * 256**level bytes."""
    table = np.empty((256, 1024), dtype=np.uint32)
    table[0] = (np.arange(256, dtype=np.uint32) << _BYTE_STEPS).ravel()
    if level == 0:
        byte_table = _byte_table()
        for digit in range(1, 256):
            table[digit] = byte_table[table[digit - 1] & 0xFF] ^ (table[digit - 1] >> np.uint32(8))
    else:
        below = _shift_table(level - 1)[255 * 1024 :]
        one = _apply(_apply(table[0], _shift_table(level - 1)[1024:2048]), below)  # 1 + 255 steps of the level below
        for digit in range(1, 256):
            table[digit] = _apply(table[digit - 1], one)
    flat = table.ravel()
    flat.setflags(write=False)
    return flat


def _apply(values: NDArray[np.uint32], table: NDArray[np.uint32], digits: NDArray[np.intp] | int = 0) -> NDArray[np.uint32]:
    """One look-up per byte of each value; `digits` are where the rows of the table start."""
    indexes = np.add(values.astype("<u4", copy=False).view(np.uint8).reshape(-1, 4).T, _QUARTERS, order="C")
    indexes += digits
    found: NDArray[np.uint32] = np.bitwise_xor.reduce(table.take(indexes), axis=0)
    return found


def shift(values: NDArray[np.uint32], following: NDArray[np.int64] | int) -> NDArray[np.uint32]:
    """`values[i]` after `following[i]` zero bytes, 0 <= following < 2**32."""
    if isinstance(following, int):
        following = np.array([following], dtype=np.int64)
    largest = int(following.max(initial=0))
    level = 0
    while largest >> (8 * level):
        digits = (following >> (8 * level)) & 0xFF
        values = _apply(values, _shift_table(level), digits * 1024)
        level += 1
    return values


@cache
def _row_tables(width: int) -> tuple[NDArray[np.uint32], NDArray[np.intp], int]:
    table = np.empty((width, 256), dtype=np.uint32)
    table[width - 1] = _byte_table()
    for place in range(width - 2, -1, -1):
        table[place] = _byte_table()[table[place + 1] & 0xFF] ^ (table[place + 1] >> np.uint32(8))
    flat = table.ravel()
    flat.setflags(write=False)
    starts = (np.arange(width, dtype=np.intp) * 256)[:, None]
    return flat, starts, crc32(bytes(width))


def crc_of_rows(rows: NDArray[np.uint8], *, conditioned: bool = True) -> NDArray[np.uint32]:
    """The CRC-32 of each row of a u1[n, width] array; not `conditioned`: only the linear part, which is zero for zero bytes."""
    table, starts, zeros = _row_tables(rows.shape[1])
    indexes = np.add(rows.T, starts, order="C")  # column by column, or reducing the columns takes several times as long
    found: NDArray[Any] = np.bitwise_xor.reduce(table.take(indexes), axis=0)
    return found ^ np.uint32(zeros) if conditioned else found
