"""A small HTTP server in threads, plain or over TLS, for endpoints that programs read: health and metrics.

A connection gets a thread when its request is complete (`arriving_requests`). Probes have threads of their own, so that neither slow clients nor
slow readers of a large answer keep them waiting. Bounded in requests at once, each with a deadline; the newest is closed if there are more. Each
connection uses the newest certificate files.
"""

from __future__ import annotations

import io
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from types import MappingProxyType
from typing import Final
from urllib.parse import urlsplit

from waltz_log.line_limit import LineLimit
from waltz_log.loggers import get_logger
from waltz_log.monitoring.arriving_requests import ArrivingRequests
from waltz_log.security.certificates import Certificates
from waltz_log.security.identity import matches

__all__ = ["CONNECTIONS_MAX", "TEXT", "MonitoringHandler", "MonitoringServer"]

log = get_logger(__name__)

_failures = LineLimit(2, 20)
"""Lines with a stack trace, of one client and of all."""

CONNECTIONS_MAX = 16
"""Requests at once. Two Prometheus servers and people need fewer; each costs a thread."""

PROBES_MAX: Final[Mapping[str, int]] = MappingProxyType({"/livez": 8, "/readyz": 8})
"""The same of each of these paths, besides the others. `/livez` waits for nothing."""

BACKLOG: Final = 128

REQUEST_TIMEOUT_S = 5.0
"""For one write of the connection: a client that reads nothing gives its place back."""

CONNECTION_TIMEOUT_S = 15.0
"""For a request and its answer, however slowly its client reads."""

TEXT = "text/plain; charset=utf-8"


class MonitoringHandler(BaseHTTPRequestHandler):
    """The handler of one request. A subclass has `do_GET`."""

    timeout = REQUEST_TIMEOUT_S
    server_version = "waltz"
    sys_version = ""

    def setup(self) -> None:
        """The head of the request was read before."""
        super().setup()
        self.rfile.close()
        assert isinstance(self.server, MonitoringServer)
        self.rfile = io.BytesIO(self.server.head_of(self.request))

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

    def target(self) -> tuple[str, str]:
        """Path and query of the request; an empty path if they cannot be parsed, as those of `http://[`."""
        try:
            found = urlsplit(self.path)
        except ValueError:
            return "", ""
        return found.path, found.query

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


class MonitoringServer:
    """Listens from its construction, which raises `OSError` and `UnicodeError`, and answers within `serving`.

    `certificates`: HTTPS with them. `probes`: also answers clients without a certificate. `clients`: patterns of those that `is_named` names.
    """

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
        self._handler = handler
        self._open: dict[socket.socket, float] = {}
        """When each connection is ended."""
        self._heads: dict[socket.socket, bytes] = {}
        self._others = threading.BoundedSemaphore(CONNECTIONS_MAX)
        self._places = {path: threading.BoundedSemaphore(most) for path, most in PROBES_MAX.items()}
        self._listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        try:
            self._listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._listening.bind((host, port))
            self._listening.listen(BACKLOG)
        except (OSError, UnicodeError):
            self._listening.close()
            raise
        self._port = int(self._listening.getsockname()[1])

    @property
    def server_port(self) -> int:
        return self._port

    def head_of(self, connection: socket.socket) -> bytes:
        return self._heads.get(connection, b"")

    @contextmanager
    def serving(self) -> Iterator[int]:
        """Gives the real port."""
        arriving = ArrivingRequests(self._listening, self._context, self._complete, self._end_late)
        thread = threading.Thread(target=arriving.run, name="waltz http", daemon=True)
        thread.start()
        try:
            yield self._port
        finally:
            arriving.stop()  # a request that waits for statistics must not delay the end of the process
            thread.join()

    def _context(self) -> ssl.SSLContext | None:
        if self.certificates is None:
            return None
        return self.certificates.public_context() if self._probes else self.certificates.mutual_context()

    def _complete(self, connection: socket.socket, head: bytes) -> None:
        """Answers the request in a thread, if there is a place; called by the thread that accepts."""
        place = self._places.get(_path_of(head), self._others)
        if not place.acquire(blocking=False):
            connection.close()
            return
        self._open[connection] = time.monotonic() + CONNECTION_TIMEOUT_S
        self._heads[connection] = head
        try:
            threading.Thread(target=self._answer, args=(connection, place), name="waltz http request", daemon=True).start()
        except RuntimeError:  # no thread could be started
            self._end(connection, place)

    def _answer(self, connection: socket.socket, place: threading.BoundedSemaphore) -> None:
        try:
            connection.settimeout(REQUEST_TIMEOUT_S)
            client = connection.getpeername()
            self._handler(connection, client, self)  # type: ignore[arg-type]  # a server as far as a handler asks it
            with suppress(OSError):
                connection.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # a client that has disconnected is not an error of this process
        except Exception:
            log.exception("http request failed")
        finally:
            self._end(connection, place)

    def _end(self, connection: socket.socket, place: threading.BoundedSemaphore) -> None:
        del self._open[connection], self._heads[connection]
        connection.close()
        place.release()

    def _end_late(self) -> None:
        """Called twice a second by the thread that accepts."""
        now_s = time.monotonic()
        for connection, deadline_s in [*self._open.items()]:
            if deadline_s < now_s:
                with suppress(OSError):  # it has ended meanwhile
                    socket.socket.shutdown(connection, socket.SHUT_RDWR)


def _path_of(head: bytes) -> str:
    """The path in the first line of a request; empty if it has none."""
    words = head.split(b"\n", 1)[0].split()
    return words[1].split(b"?", 1)[0].decode("latin-1") if len(words) > 1 else ""
