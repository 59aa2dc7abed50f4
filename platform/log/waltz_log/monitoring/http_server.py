"""A small HTTP server in threads, plain or over TLS, for endpoints that programs read: health and metrics.

Bounded in connections at once, each with a deadline; the newest is closed if there are more. Each connection uses the newest certificate files.
"""

from __future__ import annotations

import socket
import ssl
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import ThreadingMixIn
from typing import Any  # signatures of the standard library

from waltz_log.loggers import get_logger
from waltz_log.security.certificates import Certificates
from waltz_log.security.identity import matches

__all__ = ["CONNECTIONS_MAX", "TEXT", "MonitoringHandler", "MonitoringServer"]

log = get_logger(__name__)

CONNECTIONS_MAX = 16
"""At once. Two Prometheus servers, a prober and people need fewer; each costs a thread."""

REQUEST_TIMEOUT_S = 5.0
"""For one read or write of the connection: a client that says nothing gives its place back."""

CONNECTION_TIMEOUT_S = 15.0
"""For a connection from its handshake to its answer, however slowly its client sends."""

TEXT = "text/plain; charset=utf-8"


class MonitoringHandler(BaseHTTPRequestHandler):
    """Of one request. A subclass has `do_GET`."""

    timeout = REQUEST_TIMEOUT_S
    server_version = "waltz"
    sys_version = ""

    def do_GET(self) -> None:
        raise NotImplementedError

    def do_HEAD(self) -> None:
        self.do_GET()

    def is_named(self) -> bool:
        """Whether the client is one of those that the server names, or the server names none."""
        assert isinstance(self.server, MonitoringServer)
        clients, certificates = self.server.clients, self.server.certificates
        if certificates is None or not clients:
            return True
        peer = certificates.identify_connection(self.connection) if isinstance(self.connection, ssl.SSLSocket) else None
        return peer is not None and any(matches(peer.principal, pattern) for pattern in clients)

    def send(self, status: HTTPStatus, body: bytes, content_type: str = TEXT) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Probes and scrapes come every few seconds and are not worth a line."""


class MonitoringServer(ThreadingMixIn, HTTPServer):
    """Listens from its construction, which raises `OSError` and `UnicodeError`, and answers within `serving`.

    `certificates`: HTTPS with them. `probes`: also answers clients without a certificate. `clients`: patterns of those that `is_named` names.
    """

    daemon_threads = True
    block_on_close = False  # a request that waits for statistics must not delay the end of the process
    allow_reuse_address = True
    request_queue_size = CONNECTIONS_MAX

    def __init__(
        self,
        host: str,
        port: int,
        handler: type[MonitoringHandler],
        certificates: Certificates | None = None,
        *,
        probes: bool = False,
        clients: Sequence[str] = (),
    ) -> None:
        self.certificates = certificates
        self.clients = clients
        self._probes = probes
        self._open: dict[socket.socket, float] = {}
        """When each connection is ended."""
        self._places = threading.BoundedSemaphore(CONNECTIONS_MAX)
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), handler)

    @contextmanager
    def serving(self) -> Iterator[int]:
        """Gives the real port."""
        thread = threading.Thread(target=self.serve_forever, name="waltz http", daemon=True)
        thread.start()
        try:
            yield self.server_port
        finally:
            self.shutdown()
            self.server_close()
            thread.join()

    def server_bind(self) -> None:
        """Without the request to a name server that the base class makes, which can last long."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._places.acquire(blocking=False):
            try:
                super().process_request(request, client_address)
            except RuntimeError:  # no thread could be started
                self._places.release()
                self.shutdown_request(request)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def finish_request(self, request: Any, client_address: Any) -> None:
        """The whole connection: the handshake, one request, the answer. It is shut down at its deadline, however slowly the client sends."""
        held = request.dup()
        self._open[held] = time.monotonic() + CONNECTION_TIMEOUT_S
        try:
            if self.certificates is None:
                super().finish_request(request, client_address)
                return
            request.settimeout(REQUEST_TIMEOUT_S)
            context = self.certificates.public_context() if self._probes else self.certificates.mutual_context()
            with context.wrap_socket(request, server_side=True) as secured:
                super().finish_request(secured, client_address)
        finally:
            del self._open[held]
            held.close()

    def service_actions(self) -> None:
        """Called twice a second by the thread that accepts."""
        now_s = time.monotonic()
        for connection, deadline_s in [*self._open.items()]:
            if deadline_s < now_s:
                with suppress(OSError):  # it has ended meanwhile
                    connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Called while the exception is handled. A client that has disconnected is not an error of this process."""
        if not isinstance(sys.exception(), OSError):
            log.exception("http request failed", client=str(client_address[0]))
