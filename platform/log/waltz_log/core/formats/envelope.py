"""How the data of a transaction in a keyed topic begins: with the key.

    byte version = 1 | int key length | key | value                      big-endian; an empty value ends the key, a tombstone

The record around it stays as documented; that its data begins so is what the catalog says of the topic. Pure.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from waltz_log.errors import InvalidRequest

__all__ = ["ENVELOPE_BYTES", "ENVELOPE_VERSION", "KEY_BYTES_MAX", "Keyed", "key_of", "pack_keyed", "split_keyed"]

ENVELOPE_VERSION: Final = 1
KEY_BYTES_MAX: Final = 64 * 1024
_START: Final = Struct(">Bi")
_unpack = _START.unpack_from
ENVELOPE_BYTES: Final = _START.size


class Keyed(NamedTuple):
    key: bytes
    value: bytes

    @property
    def is_tombstone(self) -> bool:
        return not self.value


def pack_keyed(key: bytes, value: bytes) -> bytes:
    """Raises `InvalidRequest` for a key that is empty or too long."""
    if not 1 <= len(key) <= KEY_BYTES_MAX:
        raise InvalidRequest(reason=f"a key has 1 to {KEY_BYTES_MAX} bytes, not {len(key)}")
    return _START.pack(ENVELOPE_VERSION, len(key)) + key + value


def key_of(data: bytes) -> bytes | None:
    """The key alone, where the value is not wanted: of a large one there is no copy. None as `split_keyed`."""
    size = len(data)
    if size <= ENVELOPE_BYTES:
        return None
    version, length = _unpack(data)
    end = ENVELOPE_BYTES + length
    if version != ENVELOPE_VERSION or not 1 <= length <= KEY_BYTES_MAX or end > size:
        return None
    return data[ENVELOPE_BYTES:end]


def split_keyed(data: bytes) -> Keyed | None:
    """None if the data does not begin with a key, because it was appended without the keyed interface."""
    key = key_of(data)
    return None if key is None else Keyed(key, data[ENVELOPE_BYTES + len(key) :])
