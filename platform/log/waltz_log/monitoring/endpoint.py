"""The HTTP endpoint of a serving process: `/livez`, `/readyz`, `/metrics`, in separate threads (decision 41).

The event loop gives a snapshot of its statistics when it is asked, and does nothing else for the endpoint. Bounded: so many connections at once, each
with a deadline; the newest is closed if there are more.
"""

from __future__ import annotations

import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import ThreadingMixIn
from typing import Any  # signatures of the standard library
from urllib.parse import parse_qs, urlsplit

from waltz_log.errors import InvalidSetting
from waltz_log.loggers import get_logger
from waltz_log.monitoring.checks import Check, is_ready, report
from waltz_log.monitoring.monitored import Finding, Monitored
from waltz_log.monitoring.settings import HttpSettings
from waltz_log.security.certificates import Certificates
from waltz_log.security.identity import matches

__all__ = ["CONNECTIONS_MAX", "serve_http"]

log = get_logger(__name__)

CONNECTIONS_MAX = 16
"""At once. Two Prometheus servers, a prober and people need fewer; each costs a thread."""

REQUEST_TIMEOUT_S = 5.0
"""For one read or write of the connection: a client that says nothing gives its place back."""

CONNECTION_TIMEOUT_S = 15.0
"""For a connection from its handshake to its answer, however slowly its client sends."""

TEXT = "text/plain; charset=utf-8"

Exposition = Callable[[Finding, str], tuple[bytes, str]]


@contextmanager
def serve_http(settings: HttpSettings, monitored: Monitored, certificates: Certificates | None = None) -> Iterator[HttpSettings]:
    """Serves within the context and gives the settings with the real port. Raises `OSError` where it cannot listen, and `InvalidSetting` for settings
    that need certificates where there are none."""
    if settings.tls and certificates is None:
        raise InvalidSetting(name="http.tls", reason="needs the block `tls` with the files of this node's certificate", nearest=None)
    if settings.clients and not settings.tls:
        raise InvalidSetting(name="http.clients", reason="needs http.tls: without it nothing shows who a client is", nearest=None)
    if settings.address is None:
        yield settings
        return
    from waltz_log.monitoring.exposition import exposition  # only here: a node without an endpoint does not load prometheus_client

    try:
        server = _Server(settings, monitored, exposition, certificates if settings.tls else None)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is no address"
        advice = "choose another http.host or http.port; port 0 is a free one"
        raise OSError(f"cannot listen on {settings.address} for http: {reason} ({advice})") from None
    thread = threading.Thread(target=server.serve_forever, name="waltz http", daemon=True)
    thread.start()
    try:
        yield settings.model_copy(update={"port": server.server_port})
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingMixIn, HTTPServer):
    daemon_threads = True
    block_on_close = False  # a request that waits for statistics must not delay the end of the process
    allow_reuse_address = True
    request_queue_size = CONNECTIONS_MAX

    def __init__(self, settings: HttpSettings, monitored: Monitored, exposition: Exposition, certificates: Certificates | None) -> None:
        self.clients = settings.clients
        self.certificates = certificates
        self.monitored = monitored
        self.exposition = exposition
        self._open: dict[socket.socket, float] = {}
        """When each connection is ended."""
        self._places = threading.BoundedSemaphore(CONNECTIONS_MAX)
        self.address_family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        super().__init__((settings.host, settings.port), _Handler)

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
            with self.certificates.public_context().wrap_socket(request, server_side=True) as secured:
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


class _Handler(BaseHTTPRequestHandler):
    timeout = REQUEST_TIMEOUT_S
    server_version = "waltz"
    sys_version = ""

    @property
    def _endpoint(self) -> _Server:
        assert isinstance(self.server, _Server)
        return self.server

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if url.path == "/livez":
            self._checks("livez", (Check("event loop", self._endpoint.monitored.alive()),), url.query)
        elif url.path == "/readyz":
            self._checks("readyz", self._endpoint.monitored.find().checks, url.query)
        elif url.path == "/metrics" and not self._is_named():
            self._send(HTTPStatus.FORBIDDEN, b"http.clients does not name this client's certificate\n", TEXT)
        elif url.path == "/metrics":
            body, content_type = self._endpoint.exposition(self._endpoint.monitored.find(), self.headers.get("Accept") or "")
            self._send(HTTPStatus.OK, body, content_type)
        elif url.path == "/":
            self._send(HTTPStatus.OK, b"/livez\n/readyz\n/readyz?verbose\n/metrics\n", TEXT)
        else:
            self._send(HTTPStatus.NOT_FOUND, b"not found\n", TEXT)

    do_HEAD = do_GET

    def _checks(self, what: str, checks: tuple[Check, ...], query: str) -> None:
        verbose = "verbose" in parse_qs(query, keep_blank_values=True)
        status = HTTPStatus.OK if is_ready(checks) else HTTPStatus.SERVICE_UNAVAILABLE
        text = report(what, checks, verbose=verbose) if self._is_named() else f"{status.phrase.lower()}\n"
        self._send(status, text.encode(), TEXT)

    def _is_named(self) -> bool:
        """Whether the client may see what names partitions and errors."""
        clients, certificates = self._endpoint.clients, self._endpoint.certificates
        if certificates is None or not clients:
            return True
        peer = certificates.identify_connection(self.connection) if isinstance(self.connection, ssl.SSLSocket) else None
        return peer is not None and any(matches(peer.principal, pattern) for pattern in clients)

    def _send(self, status: HTTPStatus, body: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Probes and scrapes come every few seconds and are not worth a line."""
