"""Connections of strangers to the console: they get no place for long, and the page answers meanwhile."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import ssl
import time
from collections.abc import Iterator

import httpx
import pytest

from tests.integration.log.console.served_console import serve_console
from waltz_log.console import serving
from waltz_log.security.access import AccessControl
from waltz_log.security.authority import DevelopmentAuthority
from waltz_log.testing import SyncInMemoryCluster
from waltz_log.transport import accepting

STRANGERS = 150
BEGINNING = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> DevelopmentAuthority:
    return DevelopmentAuthority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def cluster() -> Iterator[SyncInMemoryCluster]:
    with SyncInMemoryCluster(partitions=1, storages=1, servers=1) as cluster:
        yield cluster


@contextlib.contextmanager
def _console(cluster: SyncInMemoryCluster, authority: DevelopmentAuthority | None) -> Iterator[tuple[tuple[str, int], ssl.SSLContext]]:
    """Its address, and the context of an operator's browser."""
    context = ssl.create_default_context()
    if authority is None:
        served = serve_console(cluster)
    else:
        served = serve_console(cluster, tls=authority.issue("operator", "console", serve=True), control=AccessControl(enforced=True))
        browser = authority.issue("operator", "ann")
        context = ssl.create_default_context(cafile=str(authority.certificate))
        context.load_cert_chain(browser.certificate, browser.key)
    with served as console:
        yield ("127.0.0.1", int(console.url.rpartition(":")[2])), context


def _open(strangers: list[socket.socket]) -> list[socket.socket]:
    """Those whose connection the console has not closed."""
    poll = select.poll()
    for each in strangers:
        poll.register(each, select.POLLRDHUP)
    closed = {descriptor for descriptor, _ in poll.poll(0)}
    return [each for each in strangers if each.fileno() not in closed]


def _wait_until_open(strangers: list[socket.socket], most: int) -> None:
    until = time.monotonic() + 60
    while len(found := _open(strangers)) > most:
        assert time.monotonic() < until, f"{len(found)} connections of {len(strangers)} are open, at most {most} should be"
        time.sleep(0.05)


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("secure", [True, False], ids=["tls", "plain"])
@pytest.mark.parametrize("said", [b"", BEGINNING], ids=["nothing", "a part of a request"])
def test_strangers_occupy_so_many_places_and_keep_no_browser_away(
    cluster: SyncInMemoryCluster, authority: DevelopmentAuthority, secure: bool, said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "HANDSHAKE_S", 600)  # no deadline closes what another limit does not
    monkeypatch.setattr(serving, "REQUEST_TIMEOUT_S", 600)
    most = accepting.HANDSHAKES_MAX if secure else serving.CONNECTIONS_MAX
    with _console(cluster, authority if secure else None) as (address, context), contextlib.ExitStack() as stack:
        before = _descriptors()
        strangers = [stack.enter_context(socket.create_connection(address, timeout=20)) for _ in range(STRANGERS)]
        for each in strangers:
            with contextlib.suppress(OSError):  # closed already
                each.sendall(said)
        _wait_until_open(strangers, most)
        assert _descriptors() - before - STRANGERS < most + 16
        for _ in range(5):
            with httpx.Client(base_url=f"http{'s' if secure else ''}://127.0.0.1:{address[1]}", timeout=60, verify=context) as browser:
                assert browser.get("/livez").status_code == 200
        if secure and said:  # which is no handshake
            _wait_until_open(strangers, 0)


@pytest.mark.parametrize("secure", [True, False], ids=["tls", "plain"])
def test_a_connection_that_makes_no_request_is_closed_at_its_deadline(
    cluster: SyncInMemoryCluster, authority: DevelopmentAuthority, secure: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "HANDSHAKE_S", 2.0)  # of which a browser's handshake needs a part
    monkeypatch.setattr(serving, "REQUEST_TIMEOUT_S", 0.5)
    form = b"POST /x HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 9\r\n\r\na"
    with _console(cluster, authority if secure else None) as (address, context), contextlib.ExitStack() as stack:
        connections = []
        for said in (None, b"", BEGINNING, b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" + BEGINNING, form):
            connection = stack.enter_context(socket.create_connection(address, timeout=60))
            if secure and said is not None:
                connection = stack.enter_context(context.wrap_socket(connection, server_hostname="127.0.0.1"))
            with contextlib.suppress(ConnectionError, ssl.SSLEOFError):  # closed already
                connection.sendall(said or b"")
            connections.append(connection)
        for connection in connections:
            with contextlib.suppress(ConnectionResetError, ssl.SSLEOFError):
                while connection.recv(4096):  # a timeout fails the test
                    pass


def test_an_answer_may_take_longer_than_a_request(cluster: SyncInMemoryCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "REQUEST_TIMEOUT_S", 1.0)
    with _console(cluster, None) as (address, _), socket.create_connection(address, timeout=60) as browser:
        browser.sendall(b"GET /transactions/tail HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert browser.recv(4096).startswith(b"HTTP/1.1 200")
        browser.settimeout(1.0)
        until = time.monotonic() + 1.5
        while time.monotonic() < until:
            with contextlib.suppress(TimeoutError):
                assert browser.recv(4096), "the live tail was cut"
