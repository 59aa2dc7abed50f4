"""Connections to ZooKeeper over mutual TLS, in the place of kazoo's own.

kazoo trusts the authorities of the system besides the configured ones, and accepts any server whose certificate names the host. Here only the
configured authorities count, and the server's certificate must have a name of ZooKeeper: what a process reads from it decides where payloads go.
"""

from __future__ import annotations

import socket
import ssl
from typing import Any  # kazoo's arguments that are not used here

from waltz_log.security.certificates import Certificates
from waltz_log.security.identity import matches
from waltz_log.security.peers import handshake_refusal, refused

__all__ = ["SecureConnections"]


class SecureConnections:
    """The secure connections of one coordinator session; kazoo's threads call it. `refusal`: why the last server was not accepted; None if it was."""

    def __init__(self, certificates: Certificates) -> None:
        self._certificates = certificates
        self.refusal: str | None = None

    def create(self, address: tuple[str, int], hostname: str | None = None, timeout: float | None = None, **_: Any) -> ssl.SSLSocket:
        """Like kazoo's `create_tcp_connection`. Raises `OSError`, also for a server that is not ZooKeeper."""
        context = self._certificates.client_context()
        host = hostname or address[0]
        plain = socket.create_connection(address, timeout)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = context.wrap_socket(plain, server_hostname=host)
        except ssl.SSLError as error:
            plain.close()
            self.refusal = handshake_refusal(error)
            raise
        except BaseException:
            plain.close()
            raise
        try:
            self._expect_zookeeper(f"{host}:{address[1]}", connection)
        except BaseException:
            connection.close()
            raise
        self.refusal = None
        return connection

    def _expect_zookeeper(self, address: str, connection: ssl.SSLSocket) -> None:
        identity = self._certificates.identify_connection(connection)
        if identity is None or not any(matches(identity.principal, each) for each in self._certificates.settings.coordinators):
            found = "a server without a name" if identity is None else identity.principal
            self.refusal = (
                f"{found} answers there, which is not ZooKeeper: its certificate needs the URI spiffe://DOMAIN/zookeeper/NAME, or a name that "
                "fits the setting tls.coordinators, and the extended key usage serverAuth"
            )
            raise ConnectionAbortedError(refused(address, self.refusal).reason)
