"""A message that is encoded once and sent as often as wanted, over any network: what many readers of a feed get is the same bytes."""

from __future__ import annotations

from typing import Any

__all__ = ["Encoded", "serialized"]


class Encoded:
    """`kind` is the message's type, `data` its encoding."""

    __slots__ = ("data", "kind")

    def __init__(self, message: Any) -> None:
        self.kind: type[Any] = type(message)
        self.data: bytes = message.SerializeToString()

    def SerializeToString(self) -> bytes:  # as messages call it
        return self.data

    def decoded(self) -> Any:
        return self.kind.FromString(self.data)


def serialized(message: Any) -> bytes:
    """Of a message, or of one that was encoded before."""
    data: bytes = message.SerializeToString()
    return data
