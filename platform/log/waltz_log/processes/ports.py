"""Ports on the loopback for processes that listen a moment later. A held port is given to no other cluster of this machine in between.

The holder binds the port and never listens, with the options that let the real process bind it too. Another search for a port binds without these
options, which fails while a port is held. A port that two clusters know from before goes to the first holder: on Linux it also claims a name that is
in use as long as its process holds it.
"""

from __future__ import annotations

import random
import socket
import sys
from contextlib import suppress

__all__ = ["HeldPort", "free_port"]

HOST = "127.0.0.1"

PORTS = range(15_000, 32_000)
"""For a new cluster. Linux gives ports from 32,768 on to outgoing connections, other systems from 49,152 on."""

ATTEMPTS = 100


class HeldPort:
    """Holds a port until `close`; 0: one that the system chooses. Raises `OSError` if another process listens there or holds it."""

    def __init__(self, number: int) -> None:
        self._socket = socket.socket()
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # a node whose workers share its port
            self._socket.bind((HOST, number))
            self.number = int(self._socket.getsockname()[1])
            self._claim = _claim(self.number)
        except OSError:
            self._socket.close()
            raise

    def close(self) -> None:
        self._socket.close()
        if self._claim is not None:
            self._claim.close()


def free_port() -> HeldPort:
    """A port that no process has bound. Below the ports that systems give to outgoing connections, because one of those can be gone before a process
    listens at it; one of those if 100 others are in use. Raises `OSError` if the system has none."""
    for number in random.sample(PORTS, ATTEMPTS):
        if _is_unbound(number):
            with suppress(OSError):  # another process was faster
                return HeldPort(number)
    return HeldPort(0)


def _claim(number: int) -> socket.socket | None:
    """A socket with a name that one process can have, in the network where the port is. None where a system has no such names."""
    if sys.platform != "linux":
        return None
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0waltz-port-{number}")
    except OSError:
        claim.close()
        raise
    return claim


def _is_unbound(number: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((HOST, number))
        except OSError:
            return False
        return True
