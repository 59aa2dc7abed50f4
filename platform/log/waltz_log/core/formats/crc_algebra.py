"""CRC-32 as algebra on whole columns: for many checksums at once, how each changes when bytes follow, without reading them.

CRC-32 is linear over GF(2). For byte strings A and B: `crc(A+B) = shift(crc(A), len(B)) ^ crc(B)`, and for A and A' of one length `crc(A+B) ^
crc(A'+B) = shift(crc(A) ^ crc(A'), len(B))`, where `shift(value, n)` is the effect of n zero bytes on the register: a multiplication by x^(8n) modulo
the CRC's polynomial. A shift is linear in each of its value's four bytes, and shifts compose; so tables for every digit of n to base 16 give any
shift with four lookups per digit, and one table of 4 KiB gives the shift of many values by one n. Tables are built at first use and hold no state.
They are small on purpose: a shared processor evicts them from its caches between two blocks. A larger base needs fewer lookups but was twice as slow
when its megabytes had to be fetched from memory again.

Never reads data; `columns` does. Tested against zlib on real bytes.
"""

from __future__ import annotations

import sys
from functools import cache, lru_cache
from typing import Any, Final  # Any: what a ufunc returns

import numpy as np
from numpy.typing import NDArray

from waltz_log.core.formats.crc import crc32

__all__ = ["LOW_BITS", "crc_of_words", "shares", "shift"]

LOW_BITS: Final = 12
"""What the lower bits of a number change in a checksum is looked up, in a table of 16 KiB. The rest of the number is computed."""

_POLYNOMIAL = 0xEDB88320
_BYTE_STEPS = np.array([[0], [8], [16], [24]], dtype=np.uint32)
_QUARTERS = np.array([[0], [256], [512], [768]], dtype=np.intp)
_TABLE = 1024
"""Entries of a table: four bytes of the register, 256 values each."""


@cache
def _byte_table() -> NDArray[np.uint32]:
    """The register after one byte, for each byte."""
    table: NDArray[np.uint32] = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = (table >> np.uint32(1)) ^ np.where(table & 1, np.uint32(_POLYNOMIAL), np.uint32(0))
    table.setflags(write=False)
    return table


@cache
def _identity() -> NDArray[np.uint32]:
    """The table of the shift by nothing: each byte at its place in the register."""
    table: NDArray[np.uint32] = (np.arange(256, dtype=np.uint32) << _BYTE_STEPS).ravel()
    return table


@cache
def _shift_table(level: int) -> NDArray[np.uint32]:
    """`[digit * 1024 + place * 256 + byte]`: the byte at its place in the register, shifted by digit * 16**level bytes."""
    table = np.empty((16, _TABLE), dtype=np.uint32)
    table[0] = _identity()
    if level == 0:
        byte_table = _byte_table()
        for digit in range(1, 16):
            table[digit] = byte_table[table[digit - 1] & 0xFF] ^ (table[digit - 1] >> np.uint32(8))
    else:
        below = _shift_table(level - 1)
        one = _apply(_apply(_identity(), below[_TABLE : 2 * _TABLE]), below[15 * _TABLE :])  # 1 + 15 steps of the level below
        for digit in range(1, 16):
            table[digit] = _apply(table[digit - 1], one)
    flat = table.ravel()
    flat.setflags(write=False)
    return flat


@lru_cache(maxsize=64)
def _table_of(following: int) -> NDArray[np.uint32]:
    """The shift by one number of bytes."""
    table = _identity()
    level = 0
    while following >> (4 * level):
        start = (following >> (4 * level) & 0xF) * _TABLE
        if start:
            table = _apply(table, _shift_table(level)[start : start + _TABLE])
        level += 1
    table.setflags(write=False)
    return table


def _apply(values: NDArray[np.uint32], table: NDArray[np.uint32], digits: NDArray[np.intp] | int = 0) -> NDArray[np.uint32]:
    """One lookup per byte of each value. `digits`: where the rows of the table start."""
    indexes = np.add(values.astype("<u4", copy=False).view(np.uint8).reshape(-1, 4).T, _QUARTERS, order="C")
    if not isinstance(digits, int):
        indexes += digits
    found = table.take(indexes)
    found[0] ^= found[1]
    found[2] ^= found[3]
    result: NDArray[np.uint32] = found[0] ^ found[2]
    return result


def shift(values: NDArray[np.uint32], following: NDArray[np.int64] | int) -> NDArray[np.uint32]:
    """`values[i]` after `following[i]` zero bytes, 0 <= following < 2**32; one number applies to all."""
    if isinstance(following, int):
        return _apply(values, _table_of(following))
    largest = int(following.max(initial=0))
    level = 0
    while largest >> (4 * level):
        digits = (following >> (4 * level)) & 0xF
        values = _apply(values, _shift_table(level), digits * _TABLE)
        level += 1
    return values


@cache
def _word_tables(words: int) -> tuple[NDArray[np.uint32], NDArray[np.intp]]:
    """What each byte of a row contributes to its checksum, and where the table of a byte starts: `[word, byte of the word as numpy sees it]`."""
    width = 4 * words
    table = np.empty((width, 256), dtype=np.uint32)
    table[width - 1] = _byte_table()
    for place in range(width - 2, -1, -1):
        table[place] = _byte_table()[table[place + 1] & 0xFF] ^ (table[place + 1] >> np.uint32(8))
    flat = table.ravel()
    flat.setflags(write=False)
    starts = np.arange(width, dtype=np.intp).reshape(words, 4) * 256
    return flat, np.ascontiguousarray(starts[:, ::-1] if sys.byteorder == "little" else starts)[:, :, None]


def crc_of_words(columns: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """The CRC-32 of rows that are stored as columns: u4[words, n], each row's bytes being its words, big-endian. n > 0. Words that are the same in
    all rows, as most of a header's are, cost next to nothing."""
    count = columns.shape[1]
    varying = np.flatnonzero((columns != columns[:, :1]).any(axis=1))
    alike = columns[:, 0].astype(">u4")
    alike[varying] = 0
    table, starts = _word_tables(len(columns))
    single = columns[varying].view(np.uint8).reshape(-1, count, 4).transpose(0, 2, 1)
    indexes = np.add(single, starts[varying], order="C").reshape(-1, count)  # byte by byte, or reducing takes several times as long
    found: NDArray[Any] = np.bitwise_xor.reduce(table.take(indexes), axis=0)
    found ^= np.uint32(crc32(alike.tobytes()))
    return found


def shares(first: int, count: int, width: int, following: int) -> NDArray[np.uint32]:
    """u4[count]: how the checksum of a row changes when a field that was zero becomes `first`, `first + 1` and so on. The field has `width` bytes,
    big-endian, and `following` bytes come after it."""
    found = np.empty(count, dtype=np.uint32)
    low = _low_shares(width, following)
    at = 0
    while at < count:
        start = (first + at) & (1 << LOW_BITS) - 1
        stop = min(start + count - at, 1 << LOW_BITS)
        np.bitwise_xor(low[start:stop], _share(first + at - start, width, following), out=found[at : at + stop - start])
        at += stop - start
    return found


def _share(number: int, width: int, following: int) -> np.uint32:
    """As `shares`, for one number."""
    rest = bytes(following)
    return np.uint32(crc32(rest, crc32(number.to_bytes(width, "big"))) ^ crc32(rest, crc32(bytes(width))))


@lru_cache(maxsize=64)
def _low_shares(width: int, following: int) -> NDArray[np.uint32]:
    """The shares of the numbers below `1 << LOW_BITS`. The shares of two numbers without a common bit combine by exclusive or."""
    table = np.zeros(1 << LOW_BITS, dtype=np.uint32)
    for bit in range(LOW_BITS):
        table[1 << bit : 2 << bit] = table[: 1 << bit] ^ _share(1 << bit, width, following)
    table.setflags(write=False)
    return table
