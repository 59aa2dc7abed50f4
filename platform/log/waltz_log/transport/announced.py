"""Large messages between the workers of a node are announced: the worker that passes them on receives one when its caller has room for it.

A message that a worker reads from a sibling is received whole, however long the caller needs for the one before. Without announcements, each stream
whose caller does not read would hold several MiB here that are counted nowhere. So the sibling sends the size first, and the message waits at the
sibling, in the room of its caller (`unread`), until it is read.
"""

from __future__ import annotations

from struct import Struct
from typing import Any, Final  # Any: gRPC's context

from waltz_log.transport.served_calls import encoded

__all__ = ["ANNOUNCED_BYTES", "SIBLING_OPTIONS", "AnnouncingContext", "announced_size"]

ANNOUNCED_BYTES: Final = 64 * 1024
"""Smaller messages fit the window of a stream anyway."""

SIBLING_OPTIONS: Final[list[tuple[str, Any]]] = [("grpc.http2.bdp_probe", 0)]
"""For a channel to a sibling: the window of a stream does not grow. On a socket of the same machine a larger one gains nothing."""

_ANNOUNCEMENT: Final = Struct(">BI")
"""A zero, with which no message of protobuf begins, and the size."""


class AnnouncingContext:
    """gRPC's context of a call that a sibling passed on."""

    def __init__(self, context: Any) -> None:
        self._context = context

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    async def write(self, message: Any) -> None:
        data = encoded(message)
        if len(data) >= ANNOUNCED_BYTES:
            await self._context.write(_ANNOUNCEMENT.pack(0, len(data)))
        await self._context.write(data)


def announced_size(message: bytes) -> int | None:
    """The announced size of the message that follows this one; None if this is a message itself."""
    if len(message) != _ANNOUNCEMENT.size or message[0]:
        return None
    return int(_ANNOUNCEMENT.unpack(message)[1])
