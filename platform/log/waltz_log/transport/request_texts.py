"""Checks the names in requests before a handler, a rule, a log line or an error message sees them.

A name is a text field of a request, such as a topic or a principal. It has a limit of bytes and consists of printable characters. The refusal says
which field is wrong, and repeats nothing of it. Properties of topics, which nodes send to each other, are texts and not names.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, Final, TypeVar  # Any: messages of any method

from waltz_log.errors import ProtocolViolation

__all__ = ["TEXT_BYTES_MAX", "with_names"]

T = TypeVar("T")

TEXT_BYTES_MAX: Final = 256
"""The longest topic has 200 bytes, the longest principal that a rule can name 249."""

ENTRIES_MAX: Final = 64
"""Of messages with names in one request: a follower names a version of each of about ten sources."""


def with_names(request: T) -> T:
    """The request. Raises `ProtocolViolation` for a name that is too long or contains a character that is not printable, and for too
    many of them."""
    for field, name in _names(request):
        if len(name) > TEXT_BYTES_MAX or len(name.encode()) > TEXT_BYTES_MAX:
            raise ProtocolViolation(reason=f"{field} is longer than {TEXT_BYTES_MAX} bytes")
        if not name.isprintable():
            raise ProtocolViolation(reason=f"{field} contains a character that is not printable")
    return request


def _names(request: Any) -> Iterator[tuple[str, str]]:
    for field, kind, is_repeated in _fields(request.DESCRIPTOR):
        if kind == "text" and is_repeated:
            yield from ((field, name) for name in getattr(request, field))
        elif kind == "text":
            yield field, getattr(request, field)
        elif is_repeated:
            entries = getattr(request, field)
            if len(entries) > ENTRIES_MAX:
                raise ProtocolViolation(reason=f"{field} has more than {ENTRIES_MAX} entries")
            for each in entries:
                yield from _names(each)
        elif request.HasField(field):
            yield from _names(getattr(request, field))


@cache
def _fields(descriptor: Any) -> tuple[tuple[str, str, bool], ...]:
    """The texts of a message, and the messages in it that contain texts."""
    found = []
    for each in descriptor.fields:
        if each.type == each.TYPE_STRING:
            found.append((str(each.name), "text", bool(each.is_repeated)))
        elif each.message_type is not None and not each.message_type.GetOptions().map_entry and _fields(each.message_type):
            found.append((str(each.name), "message", bool(each.is_repeated)))
    return tuple(found)
