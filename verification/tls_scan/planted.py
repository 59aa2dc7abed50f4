"""A port with a weakness, which a scan must notice."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from verification.tls_scan.ports import HOST, Kind, Port
from waltz_log.security.settings import TlsSettings

__all__ = ["WEAKNESSES", "planted"]

WEAKNESSES: Final = ("tls-1.2", "no-client-certificate")


@contextmanager
def planted(weakness: str, files: TlsSettings) -> Iterator[Port]:
    """`tls-1.2`: also an old protocol, with a cipher of CBC. `no-client-certificate`: a client without a certificate is served."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    context.load_verify_locations(files.authorities)
    context.verify_mode = ssl.CERT_REQUIRED
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    if weakness == "tls-1.2":
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers("ECDHE-ECDSA-AES128-SHA")
    else:
        context.verify_mode = ssl.CERT_NONE
    with socket.create_server((HOST, 0)) as listener:
        threading.Thread(target=_serve, args=(listener, context), daemon=True).start()
        yield Port("planted", Kind.DIRECT, listener.getsockname()[1])


def _serve(listener: socket.socket, context: ssl.SSLContext) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_answer, args=(connection, context), daemon=True).start()


def _answer(connection: socket.socket, context: ssl.SSLContext) -> None:
    try:
        connection.settimeout(10)
        with context.wrap_socket(connection, server_side=True) as served:
            while data := served.recv(4096):
                served.sendall(data)
    except OSError:
        connection.close()
