"""Accepts connections whose TLS handshake has a deadline. The number of handshakes at the same time is limited.

asyncio's own server begins a handshake, with a buffer of 256 KiB, for every connection that arrives, and calls the program only when the handshake is
over. Here a connection counts from the moment it is accepted. If there are too many, the oldest handshake ends: a peer needs milliseconds for one,
and strangers that send nothing keep no peer away.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Final

from waltz_log import machine_faults
from waltz_log.background_tasks import BackgroundTask, end_tasks, start_task
from waltz_log.loggers import get_logger

__all__ = ["HANDSHAKES_MAX", "TlsAcceptor", "listen"]

log = get_logger(__name__)

HANDSHAKES_MAX: Final = 64
"""For one port: connections of which it is not known yet whether a peer makes them."""

SHUTDOWN_S: Final = 5.0
"""The time that a peer has to acknowledge the end of a TLS connection."""

BACKLOG: Final = 128

AGAIN_S: Final = 0.1
"""After the system could not accept a connection, which usually means that the process has no file descriptor left."""


def listen(host: str, port: int) -> socket.socket:
    """Raises `OSError`."""
    family, _, _, _, address = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    return socket.create_server(address[:2], family=family, backlog=BACKLOG)


class TlsAcceptor:
    """Accepts from the beginning what arrives at the bound socket, which it closes at the end. `make`: the protocol of one connection, made after the
    handshake."""

    def __init__(self, listening: socket.socket, make: Callable[[], asyncio.BaseProtocol], context: ssl.SSLContext, handshake_s: float) -> None:
        self._listening = listening
        self._listening.listen(BACKLOG)
        self._listening.setblocking(False)
        self._make = make
        self._context = context
        self._handshake_s = handshake_s
        self._handshakes: dict[asyncio.Task[None], None] = {}
        """The oldest first."""
        self._crowded = False
        self._refused = False
        self._accepting = BackgroundTask("accept connections", self._accept)

    @property
    def port(self) -> int:
        return int(self._listening.getsockname()[1])

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(self._listening)
            except OSError as error:
                if not self._refused:
                    self._refused = True
                    log.warning("connection not accepted", port=self.port, reason=machine_faults.not_opened(error))
                await asyncio.sleep(AGAIN_S)
                continue
            self._refused = False
            self._make_room()
            task = start_task(self._shake_hands(accepted))
            self._handshakes[task] = None
            task.add_done_callback(partial(self._ended, accepted))
            await asyncio.sleep(0)  # a connection that already waits would be accepted without letting the loop do anything else

    def _make_room(self) -> None:
        if len(self._handshakes) < HANDSHAKES_MAX:
            self._crowded = False
            return
        oldest = next(iter(self._handshakes))
        del self._handshakes[oldest]
        oldest.cancel()
        if not self._crowded:
            self._crowded = True
            log.warning("too many handshakes, the oldest ends", port=self.port, limit=HANDSHAKES_MAX)

    def _ended(self, accepted: socket.socket, task: asyncio.Task[None]) -> None:
        self._handshakes.pop(task, None)
        if task.cancelled():
            accepted.close()

    async def _shake_hands(self, accepted: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(
                self._make, accepted, ssl=self._context, ssl_handshake_timeout=self._handshake_s, ssl_shutdown_timeout=SHUTDOWN_S
            )
        except (OSError, EOFError):  # among them `ssl.SSLError`: a stranger, or a peer that does not trust this node
            accepted.close()

    async def close(self) -> None:
        """Accepts no more connections. Those whose handshake is over belong to their protocols."""
        await self._accepting.end()
        await end_tasks(self._handshakes)
        self._listening.close()
