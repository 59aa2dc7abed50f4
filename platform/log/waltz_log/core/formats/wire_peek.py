"""One number of an encoded message, without decoding the message: what a request is routed by (protobuf wire format).

Passes over fields by their lengths, so that a frame of any size costs as many steps as it has fields before the wanted one, and nothing is copied.
Agrees with the real decoder wherever that accepts the message: the last value of a field counts, an absent one is 0, and of a message field that is
there several times the parts are merged. Gives None for what is no such message; whoever decodes it then says what is wrong. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

__all__ = ["FIELDS_MAX", "peek_int32"]

FIELDS_MAX: Final = 1024
"""Looked at in one message. No request has so many; a packet made of a million empty fields must not cost a worker its time."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def peek_int32(data: bytes, path: Sequence[int]) -> int | None:
    """The int32 field that `path`, of field numbers from the outermost message inwards, leads to."""
    found = _Walk(data).value(0, len(data), path, 0)
    return None if found is None else (found & 0xFFFFFFFF ^ 0x80000000) - 0x80000000


class _Walk:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._fields = 0

    def value(self, at: int, end: int, path: Sequence[int], result: int) -> int | None:
        """`result` where there is no such field between the two places."""
        number, inner = path[0], path[1:]
        while at < end:
            self._fields += 1
            tag = self._varint(at, end)
            if tag is None or self._fields > FIELDS_MAX:
                return None
            (key, at), told = tag, None
            kind, field = key & 7, key >> 3
            if kind in (_VARINT, _BYTES):
                told = self._varint(at, end)
                if told is None:
                    return None
                at = told[1] if kind == _VARINT else told[1] + told[0]
            elif kind in (_FIXED64, _FIXED32):
                at += 8 if kind == _FIXED64 else 4
            else:
                return None  # groups, which nobody sends, and what is no kind at all
            if at > end or field == 0:
                return None
            if told is not None and field == number and (kind == _BYTES) == bool(inner):
                deeper = self.value(told[1], at, inner, result) if inner else told[0]
                if deeper is None:
                    return None
                result = deeper
        return result

    def _varint(self, at: int, end: int) -> tuple[int, int] | None:
        """Its value and the place behind it."""
        value = 0
        for shift in range(0, 70, 7):
            if at >= end:
                return None
            byte = self._data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & (1 << 64) - 1, at
        return None
