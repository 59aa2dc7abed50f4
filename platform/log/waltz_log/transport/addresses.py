"""A TCP address at which several processes of one node listen. The process that starts them reserves it, so that it stays the node's while workers
are restarted.

The kernel gives each new connection to one of the listening sockets (SO_REUSEPORT). The socket that reserves the address never listens, so it
receives no connection. Two nodes at one address are refused, as without workers: the address is first bound exclusively, then shared.
"""

from __future__ import annotations

import errno
import socket

__all__ = ["PORT_MAX", "ReservedAddress", "listen_error"]

PORT_MAX = 65535


_ADVICE = {
    errno.EADDRINUSE: "another process listens there; stop it, or choose another address with --listen (port 0 takes a free one)",
    errno.EADDRNOTAVAIL: "this machine has no such address; choose one that it has with --listen",
    errno.EACCES: "the port needs privileges; choose one above 1023 with --listen",
}


def listen_error(address: str) -> OSError:
    """The reason why no process can listen at `host:port`, and what to do, found by trying it. gRPC's own error only recommends its debug output."""
    host, _, port = address.rpartition(":")
    reason, advice = "the address was taken a moment ago", "try again"
    try:
        if not 0 <= int(port) <= PORT_MAX:
            raise ValueError(f"no such port, 0 to {PORT_MAX} are")
        found = socket.getaddrinfo(host.strip("[]") or None, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, where in found:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(where)
                probe.listen()
    except socket.gaierror as error:
        reason, advice = str(error.strerror), "correct the host of --listen"
    except OSError as error:
        reason, advice = str(error.strerror), _ADVICE.get(error.errno or 0, "choose another address with --listen")
    except ValueError as error:
        reason, advice = str(error), "--listen is host:port"
    return OSError(f"cannot listen on {address}: {reason} ({advice})")


class ReservedAddress:
    """`address` is `host:port`, with the assigned port if 0 was requested. Raises `OSError` if the address is in use or invalid."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        try:
            if not 0 <= int(port) <= PORT_MAX:
                raise ValueError("no such port")
            found = socket.getaddrinfo(host.strip("[]") or None, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        except (ValueError, socket.gaierror):
            raise listen_error(address) from None
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
        except OSError:
            raise listen_error(address) from None
        self.address = f"{host}:{where[1]}"

    def close(self) -> None:
        self._socket.close()
