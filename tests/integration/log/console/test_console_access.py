"""The console over HTTPS: which certificates it accepts, and what the principal of each may see and do."""

from __future__ import annotations

import json
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from tests.integration.log.console.served_console import ServedConsole, serve_console
from waltz_log.coordination.access import topics_of
from waltz_log.errors import ClusterUnavailable
from waltz_log.security.access import AccessControl
from waltz_log.security.audit_log import AuditSettings, open_audit
from waltz_log.security.authority import DevelopmentAuthority
from waltz_log.security.rules import AccessRules, Operation, Rule
from waltz_log.security.settings import TlsSettings
from waltz_log.testing import SyncInMemoryCluster

SECRET = b"the password is swordfish"
ORDER = b"three chairs"
POLICY = {"topic": "shop/orders", "policy": "retention_bytes", "value": "5000000"}


def _rules(*granted: tuple[str, Operation, str]) -> AccessRules:
    return AccessRules(rules=tuple(Rule(principal=f"spiffe://waltz/{name}", operations=(each,), resource=where) for name, each, where in granted))


GRANTED = _rules(
    ("reader/reports", Operation.READ, "shop/orders"),
    ("application/orders", Operation.READ, "shop/*"),
    ("reader/oncall", Operation.ADMINISTER, "*"),
)


class Site:
    """A console and the certificates of its visitors."""

    def __init__(self, served: ServedConsole, authority: DevelopmentAuthority, control: AccessControl, audit: Path) -> None:
        self.served, self.authority, self.control, self.audit = served, authority, control, audit
        self.orders = self.secrets = ""

    @contextmanager
    def browser(self, tls: TlsSettings | None) -> Iterator[httpx.Client]:
        context = ssl.create_default_context(cafile=str(self.authority.certificate))
        if tls is not None:
            context.load_cert_chain(tls.certificate, tls.key)
        with httpx.Client(base_url=self.served.url, timeout=20, verify=context, headers={"origin": self.served.url}) as client:
            yield client

    @contextmanager
    def visitor(self, role: str, name: str) -> Iterator[httpx.Client]:
        with self.browser(self.authority.find(role, name) or self.authority.issue(role, name)) as client:
            yield client

    def audited(self) -> list[dict[str, str]]:
        return [json.loads(line) for line in self.audit.read_text().splitlines()]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    authority = DevelopmentAuthority(folder / "certificates")
    open_audit(AuditSettings(file=folder / "audit.jsonl"))
    control = AccessControl(enforced=True)
    with SyncInMemoryCluster(partitions=4, storages=3, servers=2) as cluster:
        for name in ("shop/orders", "shop/secrets"):
            cluster.create_topic(name, 1)
        client = cluster.client()
        client.topic("shop/orders").append(ORDER)
        client.topic("shop/secrets").append(SECRET)
        with serve_console(cluster, tls=authority.issue("operator", "console", serve=True), allow_actions=True, control=control) as served:
            site = Site(served, authority, control, folder / "audit.jsonl")
            with site.visitor("operator", "ann") as browser:
                for topic in ("orders", "secrets"):
                    places: list[str] = []
                    while not places:  # a page without a survey does not show it; the timeout of the test ends this
                        places = re.findall(r'class="id" href="(/transactions/\d+/\d+)"', browser.get(f"/transactions?topic=shop/{topic}").text)
                    (place,) = places
                    setattr(site, topic, place)
            yield site
    open_audit(None)


@pytest.fixture
def known(site: Site) -> Site:
    """With the rules that most tests need."""
    sample = site.served.console.sampler._sample
    assert sample is not None
    site.control.replace(GRANTED, topics_of(sample.catalogue))
    return site


def _expired(authority: DevelopmentAuthority) -> TlsSettings:
    return DevelopmentAuthority(authority.directory, now=datetime.now(UTC) - timedelta(days=3)).issue("operator", "late", days=2)


@pytest.mark.parametrize("kind", ["none", "another authority", "expired", "not valid yet"])
def test_without_a_valid_certificate_nothing_is_served(known: Site, kind: str, tmp_path: Path) -> None:
    tomorrow = DevelopmentAuthority(known.authority.directory, now=datetime.now(UTC) + timedelta(days=1))
    makers: dict[str, Callable[[], TlsSettings | None]] = {
        "none": lambda: None,
        "another authority": lambda: DevelopmentAuthority(tmp_path).issue("operator", "intruder"),
        "expired": lambda: _expired(known.authority),
        "not valid yet": lambda: tomorrow.issue("operator", "early"),
    }
    tls = makers[kind]()
    for path in ("/", "/livez", "/static/console.js"):
        with known.browser(tls) as browser, pytest.raises(httpx.TransportError):
            browser.get(path)


def test_plain_http_and_an_older_tls_get_nothing(known: Site) -> None:
    address = ("127.0.0.1", int(known.served.url.rpartition(":")[2]))
    with pytest.raises(httpx.TransportError):
        httpx.get(known.served.url.replace("https", "http"), timeout=20)
    context = ssl.create_default_context(cafile=str(known.authority.certificate))
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with socket.create_connection(address, timeout=20) as plain, pytest.raises(ssl.SSLError):
        context.wrap_socket(plain, server_hostname="127.0.0.1")


def test_a_browser_is_checked_at_each_connection(known: Site) -> None:
    tls = known.authority.issue("operator", "ann")
    address = ("127.0.0.1", int(known.served.url.rpartition(":")[2]))
    context = ssl.create_default_context(cafile=str(known.authority.certificate))
    context.load_cert_chain(tls.certificate, tls.key)
    session = None
    for _ in range(2):
        with (
            socket.create_connection(address, timeout=20) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1", session=session) as secured,
        ):
            secured.sendall(b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            assert secured.recv(4096).startswith(b"HTTP/1.1 200")
            assert not secured.session_reused
            session = secured.session
            assert session is None or not session.has_ticket


@pytest.mark.parametrize(("role", "name"), [("application", "other"), ("application", "orders"), ("guest", "ann")])
def test_who_has_no_role_for_the_console_is_refused_and_audited(known: Site, role: str, name: str) -> None:
    with known.visitor(role, name) as browser:
        for path in ("/", "/topics", known.orders, f"{known.orders}/raw", "/no/such/page", "/transactions/tail"):
            answer = browser.get(path)
            expected = f"permission denied: spiffe://waltz/{role}/{name} has no role for the console: roles=node, operator, reader\n"
            assert (answer.status_code, answer.text) == (403, expected)
    denials = [each for each in known.audited() if each.get("principal") == f"spiffe://waltz/{role}/{name}"]
    assert {(each["event"], each["operation"]) for each in denials} == {("request denied", "the console")}


def test_a_reader_sees_payloads_of_the_topics_that_it_may_read(known: Site) -> None:
    with known.visitor("reader", "reports") as browser:
        for path in (known.orders, "/transactions", "/transactions?text=chairs"):
            assert ORDER.decode() in browser.get(path).text, path
        assert browser.get(f"{known.orders}/raw").content == ORDER
        for path in (
            known.secrets,
            "/transactions",
            "/topics/shop/secrets",
            "/transactions?topic=shop/secrets",
            "/transactions/more?topic=shop/secrets",
        ):
            answer = browser.get(path)
            assert answer.status_code == 200
            assert "swordfish" not in answer.text, path
        assert 'class="id"' not in browser.get("/transactions?text=swordfish").text, "what matches would say what the payload holds"
        refused = browser.get(f"{known.secrets}/raw")
        assert refused.status_code == 403
        assert "no rule permits spiffe://waltz/reader/reports to read" in refused.text
    (line,) = [each for each in known.audited() if each.get("principal") == "spiffe://waltz/reader/reports" and each["operation"] == "read"]
    assert line["event"] == "request denied"


def test_a_revocation_hides_payloads_at_the_next_page(known: Site) -> None:
    with known.visitor("reader", "reports") as browser:
        assert ORDER.decode() in browser.get(known.orders).text
        known.control.replace(_rules())
        assert ORDER.decode() not in browser.get(known.orders).text
        assert browser.get(f"{known.orders}/raw").status_code == 403


def test_the_rules_are_confirmed_before_each_request_of_a_caller_who_needs_one(known: Site) -> None:
    confirmed = 0

    async def confirm() -> None:
        nonlocal confirmed
        confirmed += 1
        known.control.replace(_rules())  # the coordinator has newer ones, of which no watch has reported yet

    async def refuse() -> None:
        raise ClusterUnavailable(address="zookeeper", reason="no answer")

    try:
        known.control.confirm = confirm
        with (
            known.visitor("reader", "reports") as reader,
            known.visitor("operator", "ann") as operator,
            known.visitor("application", "x") as stranger,
        ):
            assert operator.get(f"{known.secrets}/raw").content == SECRET
            assert stranger.get("/").status_code == 403
            assert confirmed == 0, "no rule applies to an operator, and a stranger costs the coordinator nothing"
            assert reader.get(f"{known.orders}/raw").status_code == 403
            assert confirmed == 1
            known.control.confirm = refuse
            assert reader.get(f"{known.orders}/raw").status_code == 503
            assert operator.get(f"{known.secrets}/raw").content == SECRET
    finally:
        known.control.confirm = None


def test_before_the_rules_are_known_only_operators_see_payloads(site: Site) -> None:
    site.control._known = False
    with site.visitor("reader", "reports") as reader, site.visitor("operator", "ann") as operator:
        assert ORDER.decode() not in reader.get(site.orders).text
        assert reader.get(f"{site.orders}/raw").status_code == 503
        assert reader.get("/actions/change-policy", params=POLICY).status_code == 503
        assert operator.get(f"{site.secrets}/raw").content == SECRET


def _change(browser: httpx.Client, token: str, value: str) -> httpx.Response:
    return browser.post("/actions/change-policy", data={**POLICY, "value": value, "token": token})


def test_operators_and_who_may_administer_act_and_readers_do_not(known: Site) -> None:
    token = known.served.console.token.value
    with known.visitor("reader", "reports") as reader:
        assert "/actions" not in reader.get("/topics/shop/orders").text
        for answer in (reader.get("/actions/change-policy", params=POLICY), _change(reader, token, "5000000")):
            assert (answer.status_code, answer.text) == (
                403,
                "permission denied: no rule permits spiffe://waltz/reader/reports to administer the cluster\n",
            )
        assert "5000000" not in reader.get("/topics/shop/orders").text
    for (role, name), value in {("operator", "ann"): "6000000", ("reader", "oncall"): "7000000"}.items():
        with known.visitor(role, name) as browser:
            page = browser.get("/topics/shop/orders").text
            assert "/actions" in page
            assert f"spiffe://waltz/{role}/{name}" in page
            assert _change(browser, token, value).status_code == 303
            assert value in browser.get("/topics/shop/orders").text
            assert browser.post("/actions/change-policy", data=POLICY, headers={"origin": "https://evil.example"}).status_code == 403
    lines = known.audited()
    assert [(each["principal"], each["change"]) for each in lines if each["event"] == "console action"] == [
        ("spiffe://waltz/operator/ann", "policy retention_bytes of shop/orders to 6000000"),
        ("spiffe://waltz/reader/oncall", "policy retention_bytes of shop/orders to 7000000"),
    ]
    assert {"event": "request denied", "principal": "spiffe://waltz/reader/reports", "operation": "administer"}.items() <= next(
        each for each in lines if each.get("operation") == "administer"
    ).items()


def test_a_new_certificate_is_served_and_a_broken_one_is_not(known: Site, capfd: pytest.CaptureFixture[str]) -> None:
    authority = known.authority
    address = ("127.0.0.1", int(known.served.url.rpartition(":")[2]))
    tls = authority.issue("operator", "ann")
    context = ssl.create_default_context(cafile=str(authority.certificate))
    context.load_cert_chain(tls.certificate, tls.key)

    def serial() -> object:
        with socket.create_connection(address, timeout=20) as plain, context.wrap_socket(plain, server_hostname="127.0.0.1") as secured:
            return (secured.getpeercert() or {})["serialNumber"]

    def wait_for(changed: Callable[[], bool]) -> None:
        until = time.monotonic() + 60
        while not changed():
            assert time.monotonic() < until
            time.sleep(0.1)

    first = serial()
    authority.issue("operator", "console", serve=True)
    wait_for(lambda: serial() != first)
    second = serial()
    own = authority.find("operator", "console")
    assert own is not None
    own.key.write_bytes(authority.issue("operator", "other").key.read_bytes())
    said: list[str] = []

    def reported() -> bool:
        said.append(capfd.readouterr().err)
        return serial() == second and "the previous one stays in use" in "".join(said)

    wait_for(reported)
    assert f"{own.key} is not the key of {own.certificate}" in "".join(said)
    assert serial() == second
    authority.issue("operator", "console", serve=True)
    wait_for(lambda: serial() != second)
