"""The port where a job serves the metrics of its pipelines: plain HTTP on the local machine, or HTTPS for the clients that are named.

HTTPS uses the certificate that the job has for the log (`WALTZ_TLS_…`). Other than at a node there are no probes, so each client needs a certificate
of a trusted authority.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Final

from waltz_log.errors import InvalidSetting
from waltz_log.loggers import get_logger
from waltz_log.monitoring.http_server import MonitoringHandler, MonitoringServer
from waltz_log.security.certificates import Certificates
from waltz_log.security.serving_certificate import expect_serving_certificate
from waltz_log.security.settings import chosen_tls, expect_plain_allowed

if TYPE_CHECKING:  # prometheus-client is optional
    from prometheus_client import CollectorRegistry

__all__ = ["METRICS_HOST", "MetricsSettings", "serve_metrics"]

log = get_logger(__name__)

METRICS_HOST: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """Where a job publishes its metrics. `clients`: names in certificates, with `*` for any text without a slash; with them the port serves HTTPS to
    these clients alone. `insecure` permits plain text for other machines."""

    port: int | None = None
    file: Path | None = None
    host: str = METRICS_HOST
    clients: tuple[str, ...] = ()
    insecure: bool = False

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@contextmanager
def serve_metrics(settings: MetricsSettings, registry: CollectorRegistry, environment: Mapping[str, str] = os.environ) -> Iterator[int]:
    """Serves within the context, and gives the real port. Raises `InvalidSetting` for an address that it cannot listen at, for unusable certificates,
    and for plain text where other machines can read it."""
    certificates = _certificates(settings, environment)
    try:
        server = _Server(settings, certificates, registry)
    except (OSError, UnicodeError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidSetting(name="--metrics-port", reason=f"cannot listen at {settings.address}: {reason}", nearest=None) from None
    with server.serving() as port:
        yield port


def _certificates(settings: MetricsSettings, environment: Mapping[str, str]) -> Certificates | None:
    """None: plain HTTP."""
    if settings.clients:
        tls = chosen_tls(None, environment)
        if tls is None:
            reason = "needs the job's certificate: set WALTZ_TLS_CERTIFICATE, WALTZ_TLS_KEY and WALTZ_TLS_AUTHORITIES"
            raise InvalidSetting(name="--metrics-client", reason=reason, nearest=None)
        certificates = Certificates(tls)
        expect_serving_certificate(certificates, "a job with --metrics-client")
        return certificates
    remedy = "name the clients that read the metrics over HTTPS, listen at 127.0.0.1, or pass --insecure"
    if expect_plain_allowed(settings.address, setting="--metrics-client", remedy=remedy, insecure=settings.insecure):
        log.warning("connections are not protected", listen=settings.address, advice="pass --metrics-client; see the pipelines guide")
    return None


class _Server(MonitoringServer):
    def __init__(self, settings: MetricsSettings, certificates: Certificates | None, registry: CollectorRegistry) -> None:
        self.registry = registry
        super().__init__(settings.host, settings.port or 0, _Handler, certificates, clients=settings.clients)


class _Handler(MonitoringHandler):
    def do_GET(self) -> None:
        from prometheus_client.exposition import choose_encoder

        assert isinstance(self.server, _Server)
        if not self.is_named():
            self.send(HTTPStatus.FORBIDDEN, b"--metrics-client does not name this client's certificate\n")
        elif self.target()[0] in ("/", "/metrics"):
            encode, content_type = choose_encoder(self.headers.get("Accept") or "")
            self.send(HTTPStatus.OK, encode(self.server.registry), content_type)
        else:
            self.send(HTTPStatus.NOT_FOUND, b"not found\n")
