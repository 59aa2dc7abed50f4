"""Messages as every transport knows them, and a message that is encoded once and sent as often as wanted: what many readers of a feed get is the same
bytes. The core names no library of messages; protobuf's classes have these two methods."""

from __future__ import annotations

from typing import Generic, Protocol, Self, TypeVar

__all__ = ["Encoded", "Message", "serialized"]


class Message(Protocol):
    """As protobuf names its methods."""

    def SerializeToString(self) -> bytes: ...

    @classmethod
    def FromString(cls, data: bytes, /) -> Self: ...


M = TypeVar("M", bound=Message)


class Encoded(Generic[M]):
    """`kind` is the message's type, `data` its encoding."""

    __slots__ = ("data", "kind")

    def __init__(self, message: M) -> None:
        self.kind: type[M] = type(message)
        self.data: bytes = message.SerializeToString()

    def SerializeToString(self) -> bytes:  # as messages call it
        return self.data

    def decoded(self) -> M:
        return self.kind.FromString(self.data)


def serialized(message: Message | Encoded[M]) -> bytes:
    """Of a message, or of one that was encoded before."""
    return message.SerializeToString()
