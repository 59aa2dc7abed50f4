"""Connections from their acceptance until their request is complete: the handshake of TLS, and the head of the request, in one thread.

A client that is slow, or sends nothing, costs a socket here and no thread. The number of these connections is limited. If there are more, the
oldest is closed: a client needs milliseconds, so strangers that wait keep no prober away.
"""

from __future__ import annotations

import selectors
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from waltz_log import machine_faults
from waltz_log.loggers import get_logger

__all__ = ["ARRIVING_MAX", "ARRIVING_S", "ArrivingRequests"]

log = get_logger(__name__)

ARRIVING_MAX: Final = 64
ARRIVING_S: Final = 5.0
"""From the acceptance of a connection until its request is complete."""

HEAD_BYTES_MAX: Final = 16 * 1024
READ_BYTES: Final = 4096
TICK_S: Final = 0.5
AGAIN_S: Final = 0.1
"""After the system could not accept a connection, which usually means that the process has no file descriptor left."""

Complete = Callable[[socket.socket, bytes], None]


class _Arriving:
    def __init__(self, connection: socket.socket, deadline_s: float) -> None:
        self.connection = connection
        self.deadline_s = deadline_s
        self.head = b""
        self.is_shaking_hands = isinstance(connection, ssl.SSLSocket)

    def read_on(self) -> int | None:
        """Which event to wait for; None: the head is complete. Raises `OSError`."""
        try:
            if self.is_shaking_hands:
                assert isinstance(self.connection, ssl.SSLSocket)
                self.connection.do_handshake()
                self.is_shaking_hands = False
            while b"\r\n\r\n" not in self.head and b"\n\n" not in self.head:
                data = self.connection.recv(READ_BYTES)
                self.head += data
                if not data or len(self.head) > HEAD_BYTES_MAX:
                    raise ConnectionError("no request")
            return None
        except (ssl.SSLWantReadError, BlockingIOError):
            return selectors.EVENT_READ
        except ssl.SSLWantWriteError:
            return selectors.EVENT_WRITE


class ArrivingRequests:
    """Serves the listening socket, which it closes at the end, in the thread that calls `run`. `context`: of TLS for the next connection; None:
    plain. `complete` gets a connection and the head of its request, and must not wait. `tick` is called about twice a second."""

    def __init__(
        self, listening: socket.socket, context: Callable[[], ssl.SSLContext | None], complete: Complete, tick: Callable[[], None] = lambda: None
    ) -> None:
        self._listening = listening
        self._listening.setblocking(False)
        self._context = context
        self._complete = complete
        self._tick = tick
        self._selector = selectors.DefaultSelector()
        self._arriving: dict[_Arriving, None] = {}
        """The oldest first."""
        self._refused = False
        self._stopping = threading.Event()
        self._wake, self._woken = socket.socketpair()

    def stop(self) -> None:
        """From any thread: `run` returns soon."""
        self._stopping.set()
        with suppress(OSError):
            self._wake.send(b"\0")

    def run(self) -> None:
        self._selector.register(self._listening, selectors.EVENT_READ, self._accept)
        self._selector.register(self._woken, selectors.EVENT_READ, lambda: None)
        next_tick_s = 0.0
        try:
            while not self._stopping.is_set():
                for key, _ in self._selector.select(TICK_S):
                    key.data()
                if (now_s := time.monotonic()) >= next_tick_s:
                    next_tick_s = now_s + TICK_S
                    self._end_late(now_s)
                    self._tick()
        finally:
            for each in [*self._arriving]:
                self._close(each)
            self._selector.close()
            for end in (self._listening, self._wake, self._woken):
                end.close()

    def _accept(self) -> None:
        try:
            connection, _ = self._listening.accept()
        except BlockingIOError:
            return
        except OSError as error:
            if not self._refused:
                self._refused = True
                log.warning("connection not accepted", port=self._listening.getsockname()[1], reason=machine_faults.not_opened(error))
            time.sleep(AGAIN_S)
            return
        self._refused = False
        try:
            connection.setblocking(False)
            context = self._context()
            if context is not None:
                connection = context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        except OSError:
            connection.close()
            return
        if len(self._arriving) >= ARRIVING_MAX:
            self._close(next(iter(self._arriving)))
        each = _Arriving(connection, time.monotonic() + ARRIVING_S)
        self._arriving[each] = None
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._read_on(each))

    def _read_on(self, each: _Arriving) -> None:
        if each not in self._arriving:  # closed while the same events were served
            return
        try:
            event = each.read_on()
        except (OSError, ValueError):  # among them `ssl.SSLError`: a stranger
            self._close(each)
            return
        if event is not None:
            self._selector.modify(each.connection, event, lambda: self._read_on(each))
            return
        del self._arriving[each]
        self._selector.unregister(each.connection)
        self._complete(each.connection, each.head)

    def _end_late(self, now_s: float) -> None:
        for each in [*self._arriving]:
            if each.deadline_s > now_s:
                return
            self._close(each)

    def _close(self, each: _Arriving) -> None:
        del self._arriving[each]
        self._selector.unregister(each.connection)
        each.connection.close()
