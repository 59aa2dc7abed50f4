"""The closing checksum of a record from its header alone, without its data and without numpy.

The closing checksum covers header and data: `crc(header + data) = shift(crc(header), data length) ^ crc(data)`, where `shift` is the effect of zero
bytes (`crc_algebra`), and the header holds `crc(data)`. So 36 bytes of header and 4 of closing checksum can be verified together. `sealed_headers`
does the same for many at once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Final

from waltz_log.core.formats.crc import crc32

__all__ = ["closing_without_data"]

ZEROS_MAX: Final = 4096
"""Up to this many zero bytes, reading them costs less than a multiplication."""

_ZEROS = memoryview(bytes(ZEROS_MAX))
_POLYNOMIAL = 0xEDB88320
_ONE = 1 << 31
"""The polynomial 1: the register's bits stand for rising powers of x, from the highest bit down."""


def closing_without_data(header: bytes | memoryview, data_length: int, data_checksum: int) -> int:
    """The closing checksum of a record with this header. `data_length` and `data_checksum`: what the header states; the length is 0 or more."""
    return _shift_by(data_length)(crc32(header)) ^ data_checksum


@lru_cache(maxsize=ZEROS_MAX)
def _shift_by(count: int) -> Callable[[int], int]:
    """The effect of `count` zero bytes on a register."""
    if count > ZEROS_MAX:
        return partial(_product, _power(count))
    zeros = _ZEROS[:count]
    of_zeros = crc32(zeros)
    return lambda register: crc32(zeros, register) ^ of_zeros


def _power(exponent: int) -> int:
    """x^(8 * exponent) modulo the polynomial."""
    found, square = _ONE, _ONE >> 8
    while exponent:
        if exponent & 1:
            found = _product(found, square)
        square = _product(square, square)
        exponent >>= 1
    return found


def _product(first: int, second: int) -> int:
    """The product of two polynomials, modulo CRC-32's."""
    found = 0
    while first:
        if first & _ONE:
            found ^= second
        first = first << 1 & 0xFFFF_FFFF
        second = second >> 1 ^ (_POLYNOMIAL if second & 1 else 0)
    return found
