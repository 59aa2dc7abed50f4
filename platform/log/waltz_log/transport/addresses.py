"""A TCP address at which several processes of one node listen. The process that starts them reserves it, so that it stays the node's while workers
are restarted.

The kernel gives each new connection to one of the listening sockets (SO_REUSEPORT). The socket that reserves the address never listens, so it
receives no connection. Two nodes at one address are refused, as without workers: the address is first bound exclusively, then shared. A supervisor
that was killed leaves workers that end a moment later, the last one perhaps when its disk answers, so its successor waits for the address.
"""

from __future__ import annotations

import errno
import socket
from functools import partial
from typing import Any  # the address of a socket

from waltz_log.predecessor import PREDECESSOR_S, when_released

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
    """`address` is `host:port`, with the assigned port if 0 was requested. Raises `OSError` if the address is in use for longer than `within_s`, or
    invalid."""

    def __init__(self, address: str, *, within_s: float = PREDECESSOR_S) -> None:
        host, _, port = address.rpartition(":")
        try:
            if not 0 <= int(port) <= PORT_MAX:
                raise ValueError("no such port")
            found = socket.getaddrinfo(host.strip("[]") or None, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        except (ValueError, socket.gaierror):
            raise listen_error(address) from None
        family, kind, protocol, _, where = found[0]
        try:
            self._socket = when_released(partial(_bound_alone, family, kind, protocol, where), address, within_s=within_s)
        except OSError:
            raise listen_error(address) from None
        self.address = f"{host}:{self._socket.getsockname()[1]}"

    def close(self) -> None:
        self._socket.close()


def _bound_alone(family: int, kind: int, protocol: int, where: Any) -> socket.socket:
    """A socket that holds the address for several processes. Raises `OSError` if a process listens there."""
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(where)
        where = probe.getsockname()
    try:
        return _shared(family, kind, protocol, where)
    except OSError:
        # No process listens or has reserved it, or the probe had failed. What is left are connections of a node without workers, which the system
        # remembers for a minute. Until the workers listen, the address reserved like this does not refuse another node.
        return _shared(family, kind, protocol, where, socket.SO_REUSEADDR)


def _shared(family: int, kind: int, protocol: int, where: Any, *more: int) -> socket.socket:
    held = socket.socket(family, kind, protocol)
    try:
        for option in (socket.SO_REUSEPORT, *more):
            held.setsockopt(socket.SOL_SOCKET, option, 1)
        held.bind(where)
    except OSError:
        held.close()
        raise
    return held
