"""Certificate files: what is refused at start, and what happens when they change under a running process."""

from __future__ import annotations

import os
import re
import ssl
import stat
import time
from pathlib import Path
from typing import Any  # settings of several types, which the model checks

import pytest
from cryptography import x509
from structlog.testing import capture_logs

from waltz_log.cli.certificates.certificates import create
from waltz_log.errors import InvalidRequest, InvalidSetting
from waltz_log.processes.protection import check_protection
from waltz_log.security.authority import DevelopmentAuthority
from waltz_log.security.certificates import CHECK_S, DAY_S, Certificates
from waltz_log.security.identity import Role
from waltz_log.security.serving_certificate import expect_serving_certificate
from waltz_log.security.settings import TlsSettings, chosen_tls, expect_protected, tls_environment
from waltz_log.storage.base.settings import StorageSettings


@pytest.fixture
def authority(tmp_path: Path) -> DevelopmentAuthority:
    return DevelopmentAuthority(tmp_path / "certificates")


@pytest.fixture
def settings(authority: DevelopmentAuthority) -> TlsSettings:
    return authority.issue("node", "a")


def _next_check(certificates: Certificates) -> None:
    certificates._checked_s = time.monotonic() - CHECK_S


# ---- at start --------------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["certificate", "key", "authorities"])
def test_a_missing_file_is_named(settings: TlsSettings, name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match=rf"tls.{name}: .*{tmp_path / 'missing'} cannot be read: No such file"):
        Certificates(settings.model_copy(update={name: tmp_path / "missing"}))


def test_a_key_of_another_certificate_is_refused(authority: DevelopmentAuthority, settings: TlsSettings) -> None:
    other = authority.issue("node", "b")
    with pytest.raises(InvalidSetting, match=r"node-b.key is not the key of .*node-a.pem: name the two files"):
        Certificates(settings.model_copy(update={"key": other.key}))


@pytest.mark.parametrize("name", ["certificate", "key", "authorities"])
def test_a_file_that_is_not_pem_is_named(settings: TlsSettings, name: str, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("not PEM")
    with pytest.raises(InvalidSetting, match=r"wrong.pem"):
        Certificates(settings.model_copy(update={name: wrong}))


def test_an_expired_certificate_is_refused_with_its_date(settings: TlsSettings) -> None:
    with pytest.raises(InvalidSetting, match=r"expired on \d{4}-\d\d-\d\d .* UTC: replace it, or correct this machine's clock"):
        Certificates(settings, now_s=lambda: time.time() + 366 * DAY_S)


def test_a_clock_a_day_behind_is_reported_as_the_clock(settings: TlsSettings) -> None:
    with pytest.raises(InvalidSetting, match="which this machine's clock has not reached: correct the clock"):
        Certificates(settings, now_s=lambda: time.time() - DAY_S)


def test_a_certificate_that_expires_soon_is_reported(authority: DevelopmentAuthority) -> None:
    with capture_logs() as logs:
        Certificates(authority.issue("node", "a", days=3))
    assert [(each["event"], each["days"]) for each in logs] == [("certificate expires soon", 3.0)]


# ---- while serving ---------------------------------------------------------------------------------------------------------------------------------


def test_a_new_pair_is_used_from_the_next_check_on(authority: DevelopmentAuthority, settings: TlsSettings) -> None:
    certificates = Certificates(settings)
    before = certificates.current()
    authority.issue("node", "a")
    assert certificates.current() is before
    _next_check(certificates)
    after = certificates.current()
    assert after.certificate != before.certificate
    assert certificates.version == 2


def test_an_unusable_file_keeps_the_previous_pair_and_is_reported_once(settings: TlsSettings) -> None:
    certificates = Certificates(settings)
    before = certificates.current()
    settings.certificate.write_text("not PEM")
    with capture_logs() as logs:
        for _ in range(4):
            _next_check(certificates)
            assert certificates.current() is before
    assert [each["event"] for each in logs] == ["new certificate refused, the previous one stays in use"]
    assert "node-a.pem" in logs[0]["reason"]


def test_half_of_a_rotation_is_not_reported_and_the_rest_is_used(authority: DevelopmentAuthority, settings: TlsSettings) -> None:
    certificates = Certificates(settings)
    old_key = settings.key.read_bytes()
    authority.issue("node", "a")
    new_key = settings.key.read_bytes()
    settings.key.write_bytes(old_key)
    with capture_logs() as logs:
        _next_check(certificates)
        assert certificates.version == 1
        settings.key.write_bytes(new_key)
        _next_check(certificates)
        certificates.current()
    assert certificates.version == 2
    assert [each["event"] for each in logs] == ["certificate reloaded"]


def test_contexts_demand_a_certificate_and_tls_1_3(settings: TlsSettings) -> None:
    certificates = Certificates(settings)
    for context in (certificates.server_context(), certificates.client_context()):
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.minimum_version is ssl.TLSVersion.TLSv1_3
    assert certificates.client_context().check_hostname


def test_a_key_is_in_no_representation(settings: TlsSettings) -> None:
    pem = Certificates(settings).current()
    assert "PRIVATE" not in repr(pem)
    assert "PRIVATE" not in repr(settings)


# ---- settings --------------------------------------------------------------------------------------------------------------------------------------


def test_the_environment_names_the_three_files(settings: TlsSettings) -> None:
    assert chosen_tls(None, tls_environment(settings)) == settings
    assert chosen_tls(None, {}) is None
    assert chosen_tls(settings, {}) is settings


def test_an_environment_with_one_of_three_files_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="WALTZ_TLS_KEY needs WALTZ_TLS_CERTIFICATE, WALTZ_TLS_AUTHORITIES beside it"):
        chosen_tls(None, {"WALTZ_TLS_KEY": "key.pem"})


@pytest.mark.parametrize("listen", ["127.0.0.1:1", "localhost:1", "[::1]:1", "127.8.9.1:0"])
def test_plain_text_is_allowed_on_this_machine(listen: str) -> None:
    expect_protected(listen, None, insecure=False)


@pytest.mark.parametrize("listen", ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "node.example.com:1"])
def test_plain_text_elsewhere_needs_the_word_insecure(listen: str, settings: TlsSettings) -> None:
    with pytest.raises(InvalidSetting, match=r"tls is required, because .* can be reached from other machines"):
        expect_protected(listen, None, insecure=False)
    expect_protected(listen, None, insecure=True)
    expect_protected(listen, settings, insecure=False)


@pytest.mark.parametrize(
    ("host", "address"), [("0.0.0.0", "0.0.0.0:1"), ("::", "[::]:1"), ("10.0.0.1", "10.0.0.1:1"), ("node.example.com", "node.example.com:1")]
)
def test_plain_metrics_elsewhere_need_the_word_insecure(host: str, address: str, settings: TlsSettings) -> None:
    def check(**changes: Any) -> None:
        node = {"coordinator": "127.0.0.1:1/a", "name": "s", "directory": "d", "listen": "127.0.0.1:1", "http": {"host": host, "port": 1}}
        check_protection(StorageSettings.model_validate({**node, **changes}))

    with pytest.raises(InvalidSetting, match=rf"http.tls is required, because {re.escape(address)} can be reached from other machines"):
        check()
    with capture_logs() as events:
        check(insecure=True)
    assert address in [each["listen"] for each in events if each["event"] == "connections are not protected"]
    check(tls=settings, http={"host": host, "port": 1, "tls": True})
    check(http={"host": "127.0.0.1", "port": 1})
    check(http={"host": host})


def test_a_node_with_tls_refuses_plain_metrics_for_other_machines(settings: TlsSettings) -> None:
    node = {
        "coordinator": "127.0.0.1:1/a",
        "name": "s",
        "directory": "d",
        "listen": "10.0.0.1:1",
        "tls": settings,
        "http": {"host": "10.0.0.1", "port": 1},
    }
    with pytest.raises(InvalidSetting, match=r"http.tls is required, because 10.0.0.1:1 can be reached"):
        check_protection(StorageSettings.model_validate(node))
    assert check_protection(StorageSettings.model_validate(node | {"http": {"host": "10.0.0.1", "port": 1, "tls": True}})) is not None


# ---- what a certificate may be used for ------------------------------------------------------------------------------------------------------------


def _usages(files: TlsSettings) -> set[str]:
    found = x509.load_pem_x509_certificate(files.certificate.read_bytes()).extensions.get_extension_for_class(x509.ExtendedKeyUsage)
    return {each._name for each in found.value}


@pytest.mark.parametrize("role", [*Role, "zookeeper"])
def test_only_nodes_and_zookeeper_serve_unless_it_is_asked_for(authority: DevelopmentAuthority, role: str) -> None:
    serves = role in ("node", "zookeeper")
    assert _usages(authority.issue(role, "a")) == ({"serverAuth", "clientAuth"} if serves else {"clientAuth"})
    assert _usages(authority.issue(role, "a", serve=True)) == {"serverAuth", "clientAuth"}
    asked = create(authority.directory, [f"{role}/b"], hosts=None, days=1, serve=True)
    assert (asked, _usages(authority.find(role, "b") or pytest.fail("not issued"))) == (0, {"serverAuth", "clientAuth"})


@pytest.mark.parametrize("role", ["operator", "application", "reader", "zookeeper", "guest"])
@pytest.mark.parametrize("serve", [True, False])
def test_a_node_does_not_start_with_the_certificate_of_another_role(authority: DevelopmentAuthority, role: str, serve: bool) -> None:
    node = {"coordinator": "127.0.0.1:1/a", "name": "s", "directory": "d", "listen": "10.0.0.1:1", "tls": authority.issue(role, "a", serve=serve)}
    wanted = rf"tls.certificate.*{role}-a.pem is of spiffe://waltz/{role}/a.*: a node needs a certificate with one URI spiffe://DOMAIN/node/NAME"
    with pytest.raises(InvalidSetting, match=wanted):
        check_protection(StorageSettings.model_validate(node))


def test_a_node_does_not_start_with_a_certificate_that_may_not_serve(authority: DevelopmentAuthority) -> None:
    node = {"coordinator": "127.0.0.1:1/a", "name": "s", "directory": "d", "listen": "10.0.0.1:1", "tls": authority.issue("node", "a", serve=False)}
    with pytest.raises(InvalidSetting, match=r"node-a.pem is of spiffe://waltz/node/a and may not serve: .* usages serverAuth and clientAuth"):
        check_protection(StorageSettings.model_validate(node))


def test_the_console_needs_a_certificate_that_may_serve(authority: DevelopmentAuthority) -> None:
    expect_serving_certificate(Certificates(authority.issue("operator", "console", serve=True)), "the console")
    with pytest.raises(InvalidSetting, match=r"operator-console.pem may not serve, and the console does: .*`waltz certificate create --serve`"):
        expect_serving_certificate(Certificates(authority.issue("operator", "console")), "the console")


def test_a_new_certificate_of_another_name_is_not_used(authority: DevelopmentAuthority, settings: TlsSettings) -> None:
    """Peers expect the name that the process announced, and ZooKeeper grants rights by it."""
    certificates = Certificates(settings)
    before = certificates.current()
    other = authority.issue("node", "b")
    settings.certificate.write_bytes(other.certificate.read_bytes())
    settings.key.write_bytes(other.key.read_bytes())
    with capture_logs() as logs:
        for _ in range(3):
            _next_check(certificates)
            assert certificates.current() is before
    refused = [each["reason"] for each in logs if each["event"] == "new certificate refused, the previous one stays in use"]
    assert len(refused) == 1
    assert "is now of spiffe://waltz/node/b, and this process began as spiffe://waltz/node/a: restart it" in refused[0]
    assert certificates.principal == "spiffe://waltz/node/a"
    authority.issue("node", "a")
    _next_check(certificates)
    assert certificates.current() is not before


# ---- the development authority ----------------------------------------------------------------------------------------------------


def test_keys_are_readable_by_their_user_alone(authority: DevelopmentAuthority, settings: TlsSettings) -> None:
    assert stat.S_IMODE(os.stat(authority.directory).st_mode) == 0o700
    for key in (settings.key, authority.directory / "authority.key"):
        assert stat.S_IMODE(os.stat(key).st_mode) == 0o600
        assert key.read_text().startswith("-----BEGIN PRIVATE KEY-----")  # PKCS#8, which ZooKeeper wants


def test_an_authority_is_kept(authority: DevelopmentAuthority) -> None:
    assert DevelopmentAuthority(authority.directory).certificate.read_bytes() == authority.certificate.read_bytes()
    assert authority.find("node", "a") is None
    assert authority.issue("node", "a") == authority.find("node", "a")


def test_an_authority_without_its_key_is_refused(authority: DevelopmentAuthority) -> None:
    (authority.directory / "authority.key").unlink()
    with pytest.raises(InvalidRequest, match="does not hold a whole authority"):
        DevelopmentAuthority(authority.directory)


def test_another_process_gets_the_names_of_its_peers_too(settings: TlsSettings) -> None:
    assert set(tls_environment(settings)) == {"WALTZ_TLS_CERTIFICATE", "WALTZ_TLS_KEY", "WALTZ_TLS_AUTHORITIES"}
    named = settings.model_copy(update={"nodes": ("spiffe://*/machine/*", "n-*"), "coordinators": ("zk-*",)})
    found = chosen_tls(None, tls_environment(named))
    assert found is not None
    assert (found.nodes, found.coordinators) == (named.nodes, named.coordinators)
