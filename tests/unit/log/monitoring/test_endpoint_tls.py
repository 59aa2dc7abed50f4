"""The endpoint over TLS: who reads metrics, who only probes, and that slow and foreign clients end."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.unit.log.monitoring.test_endpoint import _gives, _Process
from waltz_log.core.status.storage_statistics import NodeStatistics
from waltz_log.errors import InvalidSetting
from waltz_log.monitoring import arriving_requests
from waltz_log.monitoring.endpoint import serve_http
from waltz_log.monitoring.monitored import Monitored
from waltz_log.monitoring.settings import HttpSettings
from waltz_log.security.authority import DevelopmentAuthority
from waltz_log.security.certificates import Certificates, earliest_expiry_s
from waltz_log.security.settings import TlsSettings

PROMETHEUS = "spiffe://waltz/reader/prometheus"


@pytest.fixture
def authority(tmp_path: Path) -> DevelopmentAuthority:
    return DevelopmentAuthority(tmp_path / "ours")


@pytest.fixture
def monitored(node: NodeStatistics) -> Iterator[Monitored]:
    found = Monitored("storage")
    process = _Process(found)
    process.serve(_gives(node))
    yield found
    process.end()


def ask(port: int, path: str, tls: TlsSettings | None, authorities: Path) -> tuple[int, str]:
    context = ssl.create_default_context(cafile=str(authorities))
    if tls is not None:
        context.load_cert_chain(tls.certificate, tls.key)
    with socket.create_connection(("127.0.0.1", port), timeout=10) as plain, context.wrap_socket(plain, server_hostname="localhost") as secured:
        secured.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
        answer = b""
        while part := secured.recv(65536):
            answer += part
    head, _, body = answer.decode().partition("\r\n\r\n")
    return int(head.split()[1]), body


def ask_plainly(port: int) -> bytes:
    """All that plain HTTP gets."""
    answer = b""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as plain, suppress(ConnectionResetError):
        plain.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        while part := plain.recv(65536):
            answer += part
    return answer


def test_metrics_are_for_the_clients_that_are_named_and_probes_need_no_certificate(authority: DevelopmentAuthority, monitored: Monitored) -> None:
    settings = HttpSettings(port=0, tls=True, clients=(PROMETHEUS,))
    with serve_http(settings, monitored, Certificates(authority.issue("node", "a"))) as http:

        def asked(path: str, tls: TlsSettings | None) -> tuple[int, str]:
            return ask(http.port, path, tls, authority.certificate)

        for tls in (None, authority.issue("reader", "prometheus"), authority.issue("reader", "other")):
            assert asked("/livez", tls)[0] == 200
        status, text = asked("/metrics", authority.find("reader", "prometheus"))
        assert status == 200
        assert "waltz_storage_starts" in {family.name for family in text_string_to_metric_families(text)}
        for tls in (None, authority.find("reader", "other")):
            assert asked("/metrics", tls)[0] == 403
            assert "partition" not in asked("/readyz?verbose", tls)[1]


def test_a_certificate_that_is_foreign_or_expired_and_plain_http_get_nothing(
    authority: DevelopmentAuthority, monitored: Monitored, tmp_path: Path
) -> None:
    foreign = DevelopmentAuthority(tmp_path / "theirs").issue("operator", "intruder")
    expired = DevelopmentAuthority(authority.directory, now=datetime.now(UTC) - timedelta(days=3)).issue("operator", "late", days=2)
    with serve_http(HttpSettings(port=0, tls=True), monitored, Certificates(authority.issue("node", "a"))) as http:
        for tls in (foreign, expired):
            with pytest.raises((ssl.SSLError, OSError)):
                ask(http.port, "/metrics", tls, authority.certificate)
        assert b"waltz" not in ask_plainly(http.port)
        assert ask(http.port, "/metrics", None, authority.certificate)[0] == 200


def test_a_new_certificate_is_served_and_its_expiry_is_shown(authority: DevelopmentAuthority) -> None:
    certificates = Certificates(authority.issue("node", "a", days=1))
    before = earliest_expiry_s()
    assert before == pytest.approx(time.time() + 86_400, abs=60)
    authority.issue("node", "a", days=30)
    deadline = time.monotonic() + 10
    while earliest_expiry_s() == before:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert earliest_expiry_s() == pytest.approx(time.time() + 30 * 86_400, abs=60)
    assert certificates.version == 2


@pytest.mark.parametrize("said", [b"", b"G", b"\x16\x03\x01"])
def test_a_client_that_says_little_is_ended(
    authority: DevelopmentAuthority, monitored: Monitored, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(arriving_requests, "ARRIVING_S", 0.5)
    for settings in (HttpSettings(port=0, tls=True), HttpSettings(port=0)):
        with (
            serve_http(settings, monitored, Certificates(authority.issue("node", "a"))) as http,
            socket.create_connection(("127.0.0.1", http.port), timeout=10) as plain,
        ):
            plain.sendall(said)
            began_s = time.monotonic()
            while plain.recv(4096):
                pass
            assert time.monotonic() - began_s < 5


@pytest.mark.parametrize(("settings", "name"), [({"tls": True}, "http.tls"), ({"clients": ("x",)}, "http.clients")])
def test_settings_that_need_a_certificate_are_refused_without_one(settings: Any, name: str) -> None:
    with pytest.raises(InvalidSetting) as raised, serve_http(HttpSettings(port=0, **settings), Monitored("server")):
        pass
    assert raised.value.name == name


def test_a_probe_is_answered_while_hundreds_of_handshakes_are_half_open(authority: DevelopmentAuthority, monitored: Monitored) -> None:
    with serve_http(HttpSettings(port=0, tls=True), monitored, Certificates(authority.issue("node", "a"))) as http:
        half_open = []
        for number in range(200):
            half_open.append(socket.create_connection(("127.0.0.1", http.port), timeout=10))
            half_open[-1].sendall(b"\x16\x03\x01\x02\x00\x01"[: number % 7])
        try:
            began_s = time.monotonic()
            assert ask(http.port, "/livez", None, authority.certificate)[0] == 200
            assert time.monotonic() - began_s < arriving_requests.ARRIVING_S / 2, "no place had to become free"
        finally:
            for each in half_open:
                each.close()
