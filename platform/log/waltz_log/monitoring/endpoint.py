"""The HTTP endpoint of a serving process: `/livez`, `/readyz`, `/metrics`, in threads of its own (decision 41).

The event loop gives a snapshot of its statistics when it is asked, and does nothing else for the endpoint. Bounded: so many connections at once, each
with a deadline for its request; the newest is closed if there are more.
"""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import ThreadingMixIn
from typing import Any
from urllib.parse import parse_qs, urlsplit

import structlog

from waltz_log.monitoring.checks import Check, is_ready, report
from waltz_log.monitoring.monitored import Finding, Monitored
from waltz_log.monitoring.settings import HttpSettings

__all__ = ["CONNECTIONS_MAX", "serve_http"]

log = structlog.get_logger(__name__)

CONNECTIONS_MAX = 16
"""At once. Two Prometheus servers, a prober and people need fewer; each costs a thread."""

REQUEST_TIMEOUT_S = 5.0
"""For one read or write of the connection: a client that says nothing gives its place back."""

TEXT = "text/plain; charset=utf-8"

Exposition = Callable[[Finding, str], tuple[bytes, str]]


@contextmanager
def serve_http(settings: HttpSettings, monitored: Monitored) -> Iterator[HttpSettings]:
    """Serves within the context and gives the settings with the real port. Raises `OSError` where it cannot listen."""
    if settings.address is None:
        yield settings
        return
    from waltz_log.monitoring.exposition import exposition  # only here: a node without an endpoint does not load prometheus_client

    try:
        server = _Server(settings, monitored, exposition)
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
    block_on_close = False  # a request that waits for statistics must not hold up the end of the process
    allow_reuse_address = True
    request_queue_size = CONNECTIONS_MAX

    def __init__(self, settings: HttpSettings, monitored: Monitored, exposition: Exposition) -> None:
        self.monitored = monitored
        self.exposition = exposition
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

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Called while the exception is handled. A client that has gone is none of ours."""
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
        self._send(status, report(what, checks, verbose=verbose).encode(), TEXT)

    def _send(self, status: HTTPStatus, body: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Probes and scrapes come every few seconds and are not worth a line."""
