"""What an application wants in the log, as a value and as bytes.

An intent is either final bytes, which no lock guards, or the name of a handler with arguments, which computes the bytes when the log can be reached,
and again after a lock conflict. Pure.

    byte version 1 | byte kind (1 data, 2 call) | int partition | int header | long submitted, ms since 1970 | ushort bytes of the handler's name
    | ushort bytes of the key | name | key | data, or the arguments as JSON

Big-endian. No key and an empty key are the same.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from struct import Struct
from typing import Any, Self  # Any: JSON values of the application

from waltz_log.errors import CorruptData, InvalidRequest

__all__ = ["Intent", "decode_intent", "encode_intent"]

_HEAD = Struct(">BBiiqHH")
VERSION = 1
DATA, CALL = 1, 2
NAME_BYTES_MAX = 0xFFFF


@dataclass(frozen=True, slots=True)
class Intent:
    """Made by `Intent.data` or `Intent.call`. The partition is chosen now and stays. Intents of one partition with the same `key` reach the log
    in the order in which they were submitted; without a key each goes as soon as it can."""

    partition: int
    payload: bytes
    header: int = 0
    handler: str = ""
    key: str = ""

    @classmethod
    def data(cls, partition: int, data: bytes, header: int = 0, key: str | None = None) -> Self:
        """Final bytes: appended as they are, without a lock."""
        if not isinstance(data, bytes):
            raise InvalidRequest(reason=f"data must be bytes, not {type(data).__name__}")
        return cls(_partition(partition), data, _header(header), "", _text("key", key or ""))

    @classmethod
    def call(cls, handler: str, arguments: Any, partition: int, key: str | None = None) -> Self:
        """The handler registered under the name is run with the arguments, which must be JSON, and decides what to append under which locks."""
        if not handler:
            raise InvalidRequest(reason="a call needs the name of a handler")
        try:
            payload = json.dumps(arguments, separators=(",", ":"), allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            raise InvalidRequest(reason=f"arguments are not JSON: {error}") from None
        return cls(_partition(partition), payload, 0, _text("handler", handler), _text("key", key or ""))

    @property
    def arguments(self) -> Any:
        """The arguments of a call. Raises `CorruptData` if they are not JSON."""
        try:
            return json.loads(self.payload)
        except ValueError:
            raise _undecodable("arguments are not JSON") from None


def _partition(partition: int) -> int:
    if not isinstance(partition, int) or not 0 <= partition <= 0x7FFF_FFFF:
        raise InvalidRequest(reason=f"no such partition: partition={partition}")
    return partition


def _header(header: int) -> int:
    if not isinstance(header, int) or not -0x8000_0000 <= header <= 0x7FFF_FFFF:
        raise InvalidRequest(reason=f"header must fit a signed 32-bit integer: header={header}")
    return header


def _text(what: str, text: str) -> str:
    if not isinstance(text, str) or len(text.encode()) > NAME_BYTES_MAX:
        raise InvalidRequest(reason=f"{what} must be text of at most {NAME_BYTES_MAX} bytes")
    return text


def encode_intent(intent: Intent, submitted_ms: int) -> bytes:
    if not intent.handler and not intent.key:
        return _HEAD.pack(VERSION, DATA, intent.partition, intent.header, submitted_ms, 0, 0) + intent.payload
    name, key = intent.handler.encode(), intent.key.encode()
    kind = CALL if name else DATA
    return _HEAD.pack(VERSION, kind, intent.partition, intent.header, submitted_ms, len(name), len(key)) + name + key + intent.payload


def decode_intent(body: bytes) -> tuple[Intent, int]:
    """The intent and when it was submitted. Raises `CorruptData`."""
    if len(body) < _HEAD.size:
        raise _undecodable(f"cut off: bytes={len(body)}")
    version, kind, partition, header, submitted_ms, name_length, key_length = _HEAD.unpack_from(body)
    start = _HEAD.size
    if version != VERSION or kind not in (DATA, CALL) or (kind == CALL) != (name_length > 0) or partition < 0:
        raise _undecodable(f"unknown form: version={version} kind={kind}")
    if start + name_length + key_length > len(body):
        raise _undecodable("cut off")
    if not name_length and not key_length:
        return Intent(partition, body[start:], header), submitted_ms
    middle, end = start + name_length, start + name_length + key_length
    try:
        name, key = body[start:middle].decode(), body[middle:end].decode()
    except UnicodeDecodeError:
        raise _undecodable("handler or key is not text") from None
    return Intent(partition, body[end:], header, name, key), submitted_ms


def _undecodable(reason: str) -> CorruptData:
    return CorruptData(where="intent", offset=0, transaction_id=-1, reason=reason)
