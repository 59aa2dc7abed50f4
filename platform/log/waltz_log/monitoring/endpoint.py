"""The HTTP endpoint of a serving process: `/livez`, `/readyz`, `/metrics`, in separate threads (decision 41).

The event loop gives a snapshot of its statistics when it is asked, and does nothing else for the endpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http import HTTPStatus
from urllib.parse import parse_qs

from waltz_log.errors import InvalidSetting
from waltz_log.monitoring.http_server import MonitoringHandler, MonitoringServer
from waltz_log.monitoring.monitored import Finding, Monitored
from waltz_log.monitoring.readiness import Check, is_ready, report
from waltz_log.monitoring.settings import OFF, HttpSettings
from waltz_log.security.certificates import Certificates

__all__ = ["serve_http"]

Exposition = Callable[[Finding, str], tuple[bytes, str]]


@contextmanager
def serve_http(settings: HttpSettings, monitored: Monitored, certificates: Certificates | None = None) -> Iterator[HttpSettings]:
    """Serves within the context and gives the settings with the real port. Raises `OSError` where it cannot listen, and `InvalidSetting` for settings
    that need certificates where there are none."""
    if settings.tls and certificates is None:
        raise InvalidSetting(name="http.tls", reason="needs the block `tls` with the files of this node's certificate", nearest=None)
    if settings.clients and not settings.tls:
        raise InvalidSetting(name="http.clients", reason="needs http.tls: without it nothing shows who a client is", nearest=None)
    with ExitStack() as stack:
        ports: dict[str, int] = {}
        if settings.address is not None:
            ports["port"] = stack.enter_context(_listening(settings, monitored, certificates if settings.tls else None).serving())
        if settings.probe_port != OFF:
            probes = HttpSettings(port=settings.probe_port)
            ports["probe_port"] = stack.enter_context(_listening(probes, monitored, None, name="http.probe_port", metrics=False).serving())
        yield settings.model_copy(update=ports)


def _listening(
    settings: HttpSettings, monitored: Monitored, certificates: Certificates | None, *, name: str = "http.port", metrics: bool = True
) -> _Server:
    exposition: Exposition | None = None
    if metrics:
        from waltz_log.monitoring.exposition import exposition  # only here: a node without an endpoint does not load prometheus_client

    try:
        return _Server(settings, monitored, exposition, certificates)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is no address"
        advice = f"choose another http.host or {name}; port 0 is a free one"
        raise OSError(f"cannot listen on {settings.address} for http: {reason} ({advice})") from None


class _Server(MonitoringServer):
    """`exposition` None: it has no metrics."""

    def __init__(self, settings: HttpSettings, monitored: Monitored, exposition: Exposition | None, certificates: Certificates | None) -> None:
        self.monitored = monitored
        self.exposition = exposition
        super().__init__(settings.host, settings.port, _Handler, certificates, probes=True, clients=settings.clients)


class _Handler(MonitoringHandler):
    @property
    def _endpoint(self) -> _Server:
        assert isinstance(self.server, _Server)
        return self.server

    def do_GET(self) -> None:
        path, query = self.target()
        if path == "/livez":
            self._checks("livez", self._endpoint.monitored.liveness(), query)
        elif path == "/readyz":
            self._checks("readyz", self._endpoint.monitored.find().checks, query)
        elif self._endpoint.exposition is None:
            self.send(HTTPStatus.NOT_FOUND, b"not found\n")
        elif path == "/metrics" and not self.is_named():
            self.send(HTTPStatus.FORBIDDEN, b"http.clients does not name this client's certificate\n")
        elif path == "/metrics":
            body, content_type = self._endpoint.exposition(self._endpoint.monitored.find(), self.headers.get("Accept") or "")
            self.send(HTTPStatus.OK, body, content_type)
        elif path == "/":
            self.send(HTTPStatus.OK, b"/livez\n/readyz\n/readyz?verbose\n/metrics\n")
        else:
            self.send(HTTPStatus.NOT_FOUND, b"not found\n")

    def _checks(self, what: str, checks: tuple[Check, ...], query: str) -> None:
        verbose = "verbose" in parse_qs(query, keep_blank_values=True)
        status = HTTPStatus.OK if is_ready(checks) else HTTPStatus.SERVICE_UNAVAILABLE
        text = report(what, checks, verbose=verbose) if self.is_named() else f"{status.phrase.lower()}\n"
        self.send(status, text.encode())
