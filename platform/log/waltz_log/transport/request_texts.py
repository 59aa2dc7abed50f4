"""Checks the fields of requests that may have any length, before a handler, a rule, a log line or an error message sees them.

A name is a text field of a request, such as a topic or a principal. It has a limit of bytes and consists of printable characters, and so do the keys
and values of a map. A field of bytes is a key or a token unless `COLUMNS` states how long it may be; a field of numbers names partitions. A new field
therefore has a limit. Frames of records are as long as their message. The refusal says which field is wrong, and repeats nothing of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, Final, TypeVar  # Any: messages of any method

from waltz_log.core.metadata import PARTITIONS_MAX
from waltz_log.errors import ProtocolViolation

__all__ = ["COLUMNS", "ENTRIES_MAX", "FRAMES", "KEY_BYTES_MAX", "MAP_ENTRIES_MAX", "TEXT_BYTES_MAX", "VALUE_BYTES_MAX", "with_names"]

T = TypeVar("T")

TEXT_BYTES_MAX: Final = 256
"""The longest topic has 200 bytes, the longest principal that a rule can name 249."""

ENTRIES_MAX: Final = 64
"""For messages with names in one request: a follower names a version of each of about ten sources."""

MAP_ENTRIES_MAX: Final = 1024
"""Properties of ranges of a topic's partitions are one entry each."""

VALUE_BYTES_MAX: Final = 16 * 1024
"""For one value of a map: 4,096 characters of a subscriber's label."""

KEY_BYTES_MAX: Final = 64
"""The key of a cluster has 16 bytes, an owner's token 32."""

COLUMNS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "waltz.TransactionRequest.transaction_ids": 8 * 65_536,
        "waltz.LocateRequest.times_ms": 16 * 1024,
        "waltz.SubscribersRequest.partitions": 4 * PARTITIONS_MAX,
        "waltz.SubscribersRequest.marks": 8 * PARTITIONS_MAX,
    }
)
"""The most bytes of fields that hold numbers."""

FRAMES: Final = frozenset({"waltz.AppendFrame", "waltz.Block", "waltz.Blocks", "waltz.ReadViewResponse"})
"""Messages of records, whose size the stream limits and whose columns their handler checks against each other."""

TEXTS_OF_NODES: Final = frozenset({"waltz.TopicPartition.properties"})
"""Nodes alone send them, as the catalog has them: their characters are not checked."""


def with_names(request: T) -> T:
    """The request. Raises `ProtocolViolation` for a field that is too long, has too many entries, or contains a character that is not printable."""
    _check(request)
    return request


def _check(message: Any) -> None:
    for field, kind, is_repeated, limit in _fields(message.DESCRIPTOR):
        if kind == "message" and not is_repeated:
            if message.HasField(field):
                _check(getattr(message, field))
            continue
        value = getattr(message, field)
        if is_repeated:
            _expect_entries(field, value, limit)
        if kind == "text":
            for name in value if is_repeated else (value,):
                _expect_text(field, name, TEXT_BYTES_MAX)
        elif kind == "bytes":
            for each in value if is_repeated else (value,):
                if len(each) > limit:
                    raise ProtocolViolation(reason=f"{field} is longer than {limit} bytes")
        elif kind in ("map", "map of nodes"):
            for name, text in value.items():
                _expect_text(field, name, TEXT_BYTES_MAX, printable=kind == "map")
                _expect_text(field, text, VALUE_BYTES_MAX, printable=kind == "map")
        elif kind == "message":
            for each in value:
                _check(each)


def _expect_entries(field: str, value: Any, limit: int) -> None:
    if len(value) > limit:
        raise ProtocolViolation(reason=f"{field} has more than {limit} entries")


def _expect_text(field: str, text: str, bytes_max: int, *, printable: bool = True) -> None:
    if len(text) > bytes_max or len(text.encode()) > bytes_max:
        raise ProtocolViolation(reason=f"{field} is longer than {bytes_max} bytes")
    if printable and not text.isprintable():
        raise ProtocolViolation(reason=f"{field} contains a character that is not printable")


@cache
def _fields(descriptor: Any) -> tuple[tuple[str, str, bool, int], ...]:
    """The fields of a message that have no fixed size: name, kind, whether they are repeated, and the limit of bytes or entries."""
    return tuple(_described(descriptor))


def _described(descriptor: Any) -> Iterable[tuple[str, str, bool, int]]:
    for each in descriptor.fields:
        name, is_repeated = str(each.name), bool(each.is_repeated)
        if each.type == each.TYPE_STRING:
            yield name, "text", is_repeated, PARTITIONS_MAX
        elif each.type == each.TYPE_BYTES:
            yield name, "bytes", is_repeated, COLUMNS.get(each.full_name, KEY_BYTES_MAX)
        elif each.message_type is None:
            if is_repeated:
                yield name, "numbers", True, PARTITIONS_MAX
        elif each.message_type.GetOptions().map_entry:
            yield name, "map of nodes" if each.full_name in TEXTS_OF_NODES else "map", True, MAP_ENTRIES_MAX
        elif each.message_type.full_name not in FRAMES and _fields(each.message_type):
            yield name, "message", is_repeated, ENTRIES_MAX
