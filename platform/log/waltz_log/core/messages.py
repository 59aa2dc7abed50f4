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
    """`kind` is the message's type, `data` its encoding, of which `len` is the length."""

    __slots__ = ("kind", "pieces")

    def __init__(self, message: M) -> None:
        self.kind: type[M] = type(message)
        self.pieces: tuple[bytes, ...] = (message.SerializeToString(),)

    @classmethod
    def of_pieces(cls, kind: type[M], pieces: tuple[bytes, ...]) -> Self:
        """The pieces of an encoding in several pieces, which a transport may send one after the other instead of copying them into one."""
        found = cls.__new__(cls)
        found.kind, found.pieces = kind, pieces
        return found

    @property
    def data(self) -> bytes:
        return self.pieces[0] if len(self.pieces) == 1 else b"".join(self.pieces)

    def __len__(self) -> int:
        return sum(map(len, self.pieces))

    def SerializeToString(self) -> bytes:  # as messages call it
        return self.data

    def decoded(self) -> M:
        return self.kind.FromString(self.data)


def serialized(message: Message | Encoded[M]) -> bytes:
    """The bytes of a message, or of one that was encoded before."""
    return message.SerializeToString()
