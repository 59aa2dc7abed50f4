"""The metrics port of a job over HTTPS: named clients read it, everyone else gets nothing, and plain text stays on the local machine."""

from __future__ import annotations

import ssl
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from tests.unit.log.monitoring.test_endpoint_tls import PROMETHEUS, ask, ask_plainly
from waltz_delta.pipelines.metrics_port import MetricsSettings, serve_metrics
from waltz_log.errors import InvalidSetting
from waltz_log.monitoring.exposition import ProcessMetrics
from waltz_log.security.authority import DevelopmentAuthority
from waltz_log.security.settings import TlsSettings, tls_environment

ANOTHER_LOOPBACK = "127.1"
"""The socket listens at 127.0.0.1, but the text is no address that is known to be of the loopback, as the name of a host would be."""


@pytest.fixture
def authority(tmp_path: Path) -> DevelopmentAuthority:
    return DevelopmentAuthority(tmp_path / "ours")


@pytest.fixture
def job(authority: DevelopmentAuthority) -> TlsSettings:
    return authority.issue("application", "ingest", serve=True)


@contextmanager
def serving(settings: MetricsSettings, environment: Mapping[str, str]) -> Iterator[int]:
    registry = CollectorRegistry()
    registry.register(ProcessMetrics())
    with serve_metrics(settings, registry, environment) as port:
        yield port


def is_refused(port: int, tls: TlsSettings | None, authorities: Path) -> bool:
    """In the handshake, before any answer."""
    try:
        ask(port, "/metrics", tls, authorities)
    except OSError:  # also what ssl raises
        return True
    return False


@pytest.mark.parametrize("host", ["127.0.0.1", ANOTHER_LOOPBACK])
def test_only_named_clients_with_a_certificate_of_the_authority_read_metrics(
    authority: DevelopmentAuthority, job: TlsSettings, tmp_path: Path, host: str
) -> None:
    theirs = DevelopmentAuthority(tmp_path / "theirs").issue("reader", "prometheus")
    with serving(MetricsSettings(port=0, host=host, clients=(PROMETHEUS,)), tls_environment(job)) as port:
        status, text = ask(port, "/metrics", authority.issue("reader", "prometheus"), authority.certificate)
        assert status == 200
        assert "waltz_build" in {family.name.removesuffix("_info") for family in text_string_to_metric_families(text)}
        status, text = ask(port, "/metrics", authority.issue("reader", "other"), authority.certificate)
        assert (status, "waltz_build" in text) == (403, False)
        assert is_refused(port, None, authority.certificate)
        assert is_refused(port, theirs, authority.certificate)
        assert b"waltz" not in ask_plainly(port)


def test_handshakes_below_tls_1_3_are_refused(authority: DevelopmentAuthority, job: TlsSettings) -> None:
    reader = authority.issue("reader", "prometheus")
    with serving(MetricsSettings(port=0, clients=(PROMETHEUS,)), tls_environment(job)) as port:
        context = ssl.create_default_context(cafile=str(authority.certificate))
        context.load_cert_chain(reader.certificate, reader.key)
        url = f"https://localhost:{port}/metrics"
        with urllib.request.urlopen(url, timeout=10, context=context) as answer:
            assert answer.status == 200
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises(OSError, match="protocol version"):
            urllib.request.urlopen(url, timeout=10, context=context)


def test_replaced_files_are_used_for_the_next_connection(authority: DevelopmentAuthority, job: TlsSettings, tmp_path: Path) -> None:
    new = DevelopmentAuthority(tmp_path / "new")
    old_reader, new_reader = authority.issue("reader", "prometheus"), new.issue("reader", "prometheus")
    files = TlsSettings(certificate=job.certificate, key=job.key, authorities=tmp_path / "authorities.pem")
    files.authorities.write_bytes(authority.certificate.read_bytes())
    with serving(MetricsSettings(port=0, clients=(PROMETHEUS,)), tls_environment(files)) as port:
        assert ask(port, "/metrics", old_reader, authority.certificate)[0] == 200
        made = new.issue("application", "ingest", serve=True)
        for before, after in ((files.certificate, made.certificate), (files.key, made.key), (files.authorities, new.certificate)):
            before.write_bytes(after.read_bytes())
        deadline = time.monotonic() + 10
        while is_refused(port, new_reader, new.certificate):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert is_refused(port, old_reader, new.certificate)


def test_plain_text_stays_on_the_local_machine_unless_the_operator_permits_it(job: TlsSettings) -> None:
    with serving(MetricsSettings(port=0), {}) as port:
        assert b"waltz_build_info" in ask_plainly(port)
    for environment in ({}, tls_environment(job)):
        with (
            pytest.raises(InvalidSetting, match=r"--metrics-client is required, because 127\.1:0 can be reached from other machines"),
            serving(MetricsSettings(port=0, host=ANOTHER_LOOPBACK), environment),
        ):
            pass
    with serving(MetricsSettings(port=0, host=ANOTHER_LOOPBACK, insecure=True), {}) as port:
        assert b"waltz_build_info" in ask_plainly(port)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "10.0.0.5", "metrics.example.org"])
def test_nothing_listens_where_other_machines_read_plain_text(host: str) -> None:
    with pytest.raises(InvalidSetting, match="--metrics-client is required"), serving(MetricsSettings(port=0, host=host), {}):
        pass


def test_named_clients_need_the_certificate_of_the_job() -> None:
    for insecure in (False, True):
        settings = MetricsSettings(port=0, clients=(PROMETHEUS,), insecure=insecure)
        with pytest.raises(InvalidSetting, match="--metrics-client needs the job's certificate"), serving(settings, {}):
            pass
