"""Accepts connections whose TLS handshake has a deadline, and only so many of them at once.

asyncio's own server begins a handshake, with a buffer of 256 KiB, for every connection that arrives, and calls the program only when the handshake is
over. Here a connection counts from the moment it is accepted.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from waltz_log.loggers import get_logger

__all__ = ["HANDSHAKES_MAX", "TlsAcceptor"]

log = get_logger(__name__)

HANDSHAKES_MAX: Final = 64
"""Of one process: connections of which it is not known yet whether a peer makes them. A peer that finds no place uses gRPC."""

SHUTDOWN_S: Final = 5.0
"""The time that a peer has to acknowledge the end of a TLS connection."""

BACKLOG: Final = 128

AGAIN_S: Final = 0.1
"""After the system could not accept a connection, which usually means that the process has no file descriptor left."""


class TlsAcceptor:
    """Listens from the beginning. `make`: the protocol of one connection, made after the handshake. Raises `OSError` if it cannot
    listen."""

    def __init__(self, host: str, port: int, make: Callable[[], asyncio.BaseProtocol], context: ssl.SSLContext, handshake_s: float) -> None:
        family, _, _, _, address = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        self._listening = socket.create_server(address[:2], family=family, backlog=BACKLOG)
        self._listening.setblocking(False)
        self._make = make
        self._context = context
        self._handshake_s = handshake_s
        self._handshakes: set[asyncio.Task[None]] = set()
        self._refusing = False
        self._accepting = asyncio.get_running_loop().create_task(self._accept())

    @property
    def port(self) -> int:
        return int(self._listening.getsockname()[1])

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(self._listening)
            except OSError as error:
                log.warning("connection not accepted", reason=error.strerror)
                await asyncio.sleep(AGAIN_S)
                continue
            if len(self._handshakes) >= HANDSHAKES_MAX:
                accepted.close()
                if not self._refusing:
                    self._refusing = True
                    log.warning("direct connections are refused", connections=len(self._handshakes), limit=HANDSHAKES_MAX)
                continue
            self._refusing = False
            task = loop.create_task(self._shake_hands(accepted))
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)

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
        tasks = [self._accepting, *self._handshakes]
        for task in tasks:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)
        self._listening.close()
