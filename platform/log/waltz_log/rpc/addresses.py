"""A TCP address that several processes of one node listen at: taken once, by who starts them, so that it stays the node's while workers come and go.

The kernel gives each new connection to one of the listening sockets (SO_REUSEPORT). The socket that keeps the address never listens, so no connection
comes to it. Two nodes at one address are refused as they would be without workers: before it is shared the address is taken for oneself.
"""

from __future__ import annotations

import socket

__all__ = ["PORT_MAX", "ReservedAddress"]

PORT_MAX = 65535


class ReservedAddress:
    """`address` is `host:port` with the real port where 0 was asked for. Raises `OSError` where the address is taken or is none."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        try:
            if not 0 <= int(port) <= PORT_MAX:
                raise ValueError("no such port")
            found = socket.getaddrinfo(host.strip("[]") or None, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        except (ValueError, socket.gaierror) as error:
            raise OSError(f"cannot listen on {address}: {error}") from None
        family, kind, protocol, _, where = found[0]
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(where)
                where = probe.getsockname()
            self._socket = socket.socket(family, kind, protocol)
            try:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                self._socket.bind(where)
            except OSError:
                self._socket.close()
                raise
        except OSError as error:
            raise OSError(f"cannot listen on {address}: {error.strerror or error}") from None
        self.address = f"{host}:{where[1]}"

    def close(self) -> None:
        self._socket.close()
