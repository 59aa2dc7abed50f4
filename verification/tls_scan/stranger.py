"""How a port treats a TLS 1.3 client without a certificate. In TLS 1.3 such a client learns only after its handshake that it was refused."""

from __future__ import annotations

import socket
import ssl
from typing import Final

from verification.tls_scan.ports import HOST, Kind, Port

__all__ = ["welcome_of"]

TIMEOUT_S: Final = 5.0
"""Within it a port must have closed the connection. Nodes close what does not finish its handshake later, so that is no refusal."""

BEGINNINGS: Final = {
    Kind.GRPC: b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)),
    Kind.DIRECT: b"\0",
    Kind.METRICS: b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    Kind.CONSOLE: b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    Kind.ZOOKEEPER: b"srvr",
}
"""The bytes that make a port answer if it admits the client."""


def welcome_of(port: Port) -> str | None:
    """How the port serves the stranger; None if it refuses it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if port.kind is Kind.GRPC:
        context.set_alpn_protocols(["h2"])
    try:
        with socket.create_connection((HOST, port.number), TIMEOUT_S) as plain, context.wrap_socket(plain) as connection:
            connection.sendall(BEGINNINGS[port.kind])
            answer = connection.recv(4096)
    except TimeoutError:
        return "it waits for what a client without a certificate says"
    except OSError:
        return None
    refused = port.kind is Kind.METRICS and answer.split(b" ")[1:2] in ([b"401"], [b"403"])
    return None if refused or not answer else f"a client without a certificate gets {answer[:40]!r}"
