"""Avro's binary encoding, read strictly: each reader gives the value at a position, and the position after it.

`fastavro` reads the schema, but not the data: it accepts a negative branch of a union or symbol of an enum, counted from the end, cuts numbers of
too many bytes, and does not say which field is wrong. These readers are also faster, because a record gives a list instead of a dictionary. Source:
Apache Avro 1.12 specification, Binary Encoding."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final  # Any: values of any type of the schema

__all__ = [
    "Malformed",
    "Reader",
    "array",
    "boolean",
    "branches",
    "double",
    "either",
    "fixed",
    "float32",
    "mapping",
    "number",
    "octets",
    "optional",
    "record",
    "string",
    "unscaled",
]

Reader = Callable[[bytes, int], tuple[Any, int]]

_BITS_MAX: Final = 64
_FLOAT: Final = struct.Struct("<f").unpack_from
_DOUBLE: Final = struct.Struct("<d").unpack_from


class Malformed(ValueError):
    """Data that no writer of the schema makes. `path`: of the field where that was found. Internal to the decoder."""

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(reason, path)
        self.reason, self.path = reason, path


def number(data: bytes, at: int) -> tuple[int, int]:
    """An int or long of at most 64 bits."""
    byte = data[at]
    at += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at
    found, shift = byte & 0x7F, 7
    while True:
        byte = data[at]
        at += 1
        found |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift >= _BITS_MAX:
            raise Malformed("has a number of more than 64 bits")
    if found >> _BITS_MAX:
        raise Malformed("has a number of more than 64 bits")
    return (found >> 1) ^ -(found & 1), at


def boolean(data: bytes, at: int) -> tuple[bool, int]:
    byte = data[at]
    if byte > 1:
        raise Malformed(f"has the byte {byte} for a boolean")
    return byte == 1, at + 1


def float32(data: bytes, at: int) -> tuple[float, int]:
    return _FLOAT(data, at)[0], at + 4


def double(data: bytes, at: int) -> tuple[float, int]:
    return _DOUBLE(data, at)[0], at + 8


def octets(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = number(data, at)
    end = at + size
    if not at <= end <= len(data):
        raise Malformed("is cut off" if size > 0 else "has a negative size")
    return data[at:end], end


def string(data: bytes, at: int) -> tuple[str, int]:
    found, at = octets(data, at)
    try:
        return found.decode(), at
    except UnicodeDecodeError:
        raise Malformed("is not UTF-8") from None


def fixed(size: int) -> Reader:
    def read(data: bytes, at: int) -> tuple[bytes, int]:
        end = at + size
        if end > len(data):
            raise Malformed("is cut off")
        return data[at:end], end

    return read


def unscaled(inner: Reader) -> Reader:
    """The whole number of a decimal, from its bytes."""

    def read(data: bytes, at: int) -> tuple[int, int]:
        found, at = inner(data, at)
        if not found:
            raise Malformed("is a decimal without a byte")
        return int.from_bytes(found, "big", signed=True), at

    return read


def array(element: Reader) -> Reader:
    """`element` reads at least one byte, so that a few bytes cannot stand for any number of elements."""

    def read(data: bytes, at: int) -> tuple[list[Any], int]:
        found: list[Any] = []
        while True:
            count, at = _block(data, at)
            if not count:
                return found, at
            for _ in range(count):
                value, at = element(data, at)
                found.append(value)

    return read


def mapping(item: Reader) -> Reader:
    """A dictionary: of two equal keys the last one counts."""

    def read(data: bytes, at: int) -> tuple[dict[str, Any], int]:
        found: dict[str, Any] = {}
        while True:
            count, at = _block(data, at)
            if not count:
                return found, at
            for _ in range(count):
                key, at = string(data, at)
                found[key], at = item(data, at)

    return read


def _block(data: bytes, at: int) -> tuple[int, int]:
    count, at = number(data, at)
    if count < 0:
        count = -count
        size, at = number(data, at)
        if size < 0:
            raise Malformed("has a negative size")
    if count > len(data) - at:
        raise Malformed("is cut off")
    return count, at


def optional(inner: Reader, null_first: bool) -> Reader:
    """A union of null and another type."""
    absent, there = (0, 2) if null_first else (2, 0)

    def read(data: bytes, at: int) -> tuple[Any, int]:
        byte = data[at]
        if byte == there:
            return inner(data, at + 1)
        if byte == absent:
            return None, at + 1
        raise Malformed("has a branch that its union does not have")

    return read


def either(readers: Sequence[Reader]) -> Reader:
    """A union, as the value alone."""

    def read(data: bytes, at: int) -> tuple[Any, int]:
        branch, at = number(data, at)
        if not 0 <= branch < len(readers):
            raise Malformed("has a branch that its union does not have")
        return readers[branch](data, at)

    return read


def branches(readers: Sequence[Reader], members: Sequence[int | None]) -> Reader:
    """A union, as a list with a value at most in the member of its branch. `members`: of each branch; None for null, which gives None instead."""
    count = sum(member is not None for member in members)
    inner = either([_tagged(reader, member) for reader, member in zip(readers, members, strict=True)])

    def read(data: bytes, at: int) -> tuple[list[Any] | None, int]:
        (member, value), at = inner(data, at)
        if member is None:
            return None, at
        found: list[Any] = [None] * count
        found[member] = value
        return found, at

    return read


def _tagged(reader: Reader, member: int | None) -> Reader:
    def read(data: bytes, at: int) -> tuple[tuple[int | None, Any], int]:
        value, at = reader(data, at)
        return (member, value), at

    return read


def record(names: Sequence[str], readers: Sequence[Reader]) -> Reader:
    """A list with the value of each field."""

    def read(data: bytes, at: int) -> tuple[list[Any], int]:
        found: list[Any] = []
        try:
            for reader in readers:
                value, at = reader(data, at)
                found.append(value)
        except (IndexError, struct.error):
            raise Malformed("is cut off", names[len(found)]) from None
        except Malformed as error:
            name = names[len(found)]
            raise Malformed(error.reason, f"{name}.{error.path}" if error.path else name) from None
        return found, at

    return read
