"""The event loop of serving processes: libuv's (decision 19), which reads all wake-ups of gRPC at once (decision 197)."""

from __future__ import annotations

import fcntl
import socket
import struct
import termios
from collections.abc import Callable
from functools import partial
from typing import Any, Final  # Any: what the loop passes to a callback

import uvloop

__all__ = ["NodeLoop"]

GRPC_READER: Final = "PollerCompletionQueue"
"""The class whose bound method gRPC registers as the reader of its socket."""


class NodeLoop(uvloop.Loop):
    """gRPC's thread writes one byte to a socket for each of its events. The loop calls gRPC's reader once in a pass (an iteration of the loop); the
    reader processes all events, but reads one byte. With more events than passes the socket is soon full, and gRPC's thread waits until it can
    write. From then on a pass processes one event, and the thread serves no connection meanwhile: a node that commits at full speed seems to be
    gone. In this loop a pass reads all bytes. A process runs one such loop: gRPC shares the socket among the loops of a process."""

    def add_reader(self, fd: Any, callback: Callable[..., object], *args: Any) -> None:  # type: ignore[override]  # the same, without type variables
        if isinstance(fd, socket.socket) and _is_reader_of_grpc(callback):
            callback = partial(_drain_then_read, fd, callback)
        super().add_reader(fd, callback, *args)


def _is_reader_of_grpc(callback: Callable[..., object]) -> bool:
    bound = callback.func if isinstance(callback, partial) else callback
    return type(getattr(bound, "__self__", None)).__name__ == GRPC_READER


def _drain_then_read(wakeups: socket.socket, reader: Callable[..., object], *args: Any) -> None:
    """Discards all wake-ups but one, which the reader itself reads."""
    (waiting,) = struct.unpack("i", fcntl.ioctl(wakeups, termios.FIONREAD, bytes(4)))
    if waiting > 1:
        wakeups.recv(waiting - 1)
    reader(*args)
