"""The console reads the metrics of jobs that serve them over HTTPS, with its own certificate."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import httpx
import pytest
from prometheus_client import CollectorRegistry, Gauge

from tests.integration.log.console.served_console import serve_console
from waltz_delta.console.extension import make_extension
from waltz_delta.pipelines.metrics_port import MetricsSettings, serve_metrics
from waltz_log.console.settings import ConsoleSettings
from waltz_log.errors import InvalidSetting
from waltz_log.security.authority import DevelopmentAuthority
from waltz_log.security.certificates import Certificates
from waltz_log.security.settings import TlsSettings, tls_environment
from waltz_log.testing import SyncInMemoryCluster

CONSOLE = "spiffe://waltz/operator/console"
PIPELINE = """
source: {{cluster: "127.0.0.1:1/none", topic: shop/orders}}
checkpoint: {folder}/checkpoint
outputs:
  - decode: {{format: json, columns: "order STRING"}}
    target: {{table: {folder}/orders}}
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[SyncInMemoryCluster]:
    with SyncInMemoryCluster() as cluster:
        yield cluster


@pytest.fixture
def authority(tmp_path: Path) -> DevelopmentAuthority:
    return DevelopmentAuthority(tmp_path / "authority")


@pytest.fixture
def files(authority: DevelopmentAuthority, monkeypatch: pytest.MonkeyPatch) -> TlsSettings:
    """The console's, named by its environment."""
    found = authority.issue("operator", "console", serve=True)
    for name, value in tls_environment(found).items():
        monkeypatch.setenv(name, value)
    return found


@contextmanager
def job(tls: TlsSettings, client: str = CONSOLE) -> Iterator[str]:
    """The address of its metrics."""
    registry = CollectorRegistry()
    phases = Gauge("waltz_pipeline_phase_seconds", "of the last batch", ["pipeline", "phase"], registry=registry)
    phases.labels("shop", "addBatch").set(2.5)
    with serve_metrics(MetricsSettings(port=0, clients=(client,)), registry, tls_environment(tls)) as port:
        yield f"https://localhost:{port}/metrics"


def pipelines_page(cluster: SyncInMemoryCluster, folder: Path, addresses: tuple[str, ...], tls: TlsSettings | None = None) -> str:
    (folder / "pipelines").mkdir()
    (folder / "pipelines" / "shop.yaml").write_text(PIPELINE.format(folder=folder))
    pages = make_extension(ConsoleSettings(cluster="memory:1", pipelines=(str(folder / "pipelines"),), pipeline_metrics=addresses, tls=tls))
    assert pages is not None
    with serve_console(cluster, extensions=[pages]) as served, httpx.Client(base_url=served.url, timeout=20) as browser:
        return browser.get("/pipelines").text


def test_metrics_are_read_over_https_with_the_certificate_of_the_environment(
    cluster: SyncInMemoryCluster, authority: DevelopmentAuthority, files: TlsSettings, tmp_path: Path
) -> None:
    with job(authority.issue("application", "ingest", serve=True)) as address:
        page = pipelines_page(cluster, tmp_path, (address,))
    assert "addBatch" in page
    assert "2.5 s" in page


def test_metrics_are_read_over_https_with_the_certificate_of_the_settings(
    cluster: SyncInMemoryCluster, authority: DevelopmentAuthority, tmp_path: Path
) -> None:
    with job(authority.issue("application", "ingest", serve=True)) as address:
        page = pipelines_page(cluster, tmp_path, (address,), authority.issue("operator", "console", serve=True))
    assert "addBatch" in page


def test_a_job_that_does_not_name_the_console_or_is_not_trusted_is_a_problem_on_the_page(
    cluster: SyncInMemoryCluster, authority: DevelopmentAuthority, files: TlsSettings, tmp_path: Path
) -> None:
    stranger = DevelopmentAuthority(tmp_path / "theirs").issue("application", "ingest", serve=True)
    with job(authority.issue("application", "ingest", serve=True), "spiffe://waltz/reader/prometheus") as unnamed, job(stranger) as untrusted:
        page = pipelines_page(cluster, tmp_path, (unnamed, untrusted))
    assert "addBatch" not in page
    assert f"{unnamed}: HTTP Error 403" in page
    assert f"{untrusted}: " in page
    assert "certificate verify failed" in page


@pytest.mark.parametrize("role", ["reader", "node", "zookeeper"])
def test_a_peer_that_cannot_be_a_job_is_not_asked(
    cluster: SyncInMemoryCluster, authority: DevelopmentAuthority, files: TlsSettings, tmp_path: Path, role: str
) -> None:
    with redirecting(Certificates(authority.issue(role, "late", serve=True)), "https://localhost/") as other:
        page = pipelines_page(cluster, tmp_path, (other,))
    assert f"spiffe://waltz/{role}/late answers there, which is neither an application nor an operator" in page


def test_a_redirection_is_not_followed(cluster: SyncInMemoryCluster, authority: DevelopmentAuthority, files: TlsSettings, tmp_path: Path) -> None:
    with (
        job(authority.issue("application", "ingest", serve=True)) as address,
        redirecting(Certificates(authority.issue("application", "other", serve=True)), address) as other,
    ):
        page = pipelines_page(cluster, tmp_path, (other,))
    assert "addBatch" not in page
    assert f"{other}: HTTP Error 302" in page


@contextmanager
def redirecting(certificates: Certificates, to: str) -> Iterator[str]:
    class Redirecting(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(302)
            self.send_header("Location", to)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Redirecting) as server:
        context: ssl.SSLContext = certificates.mutual_context()
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"https://localhost:{server.server_port}/metrics"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("given", [{}, {"WALTZ_TLS_KEY": "/etc/waltz/console.key"}])
def test_an_https_address_needs_a_certificate(given: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InvalidSetting, match="WALTZ_TLS_CERTIFICATE"):
        make_extension(ConsoleSettings(cluster="a:1/b", pipeline_metrics=("https://10.0.0.7:9301/metrics",)))
