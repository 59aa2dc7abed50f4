"""To whom a process connects as ZooKeeper: to a server whose certificate says that it is, of a configured authority."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from waltz_log.coordination import embedded
from waltz_log.coordination.coordinator import ZooKeeperCoordinator
from waltz_log.coordination.secure_connection import SecureConnections
from waltz_log.errors import ClusterUnavailable
from waltz_log.security.authority import DevelopmentAuthority
from waltz_log.security.certificates import Certificates
from waltz_log.security.settings import TlsSettings

pytestmark = [pytest.mark.timeout(60), pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]


@pytest.fixture
def authority(tmp_path: Path) -> DevelopmentAuthority:
    return DevelopmentAuthority(tmp_path / "ours")


@contextmanager
def _serving(tls: TlsSettings) -> Iterator[tuple[int, list[bytes]]]:
    """A server that keeps what it is sent: its port, and the bytes."""
    sent: list[bytes] = []
    context = Certificates(tls).mutual_context()
    listening = socket.create_server(("127.0.0.1", 0))
    over = threading.Event()

    def serve() -> None:
        while not over.is_set():
            try:
                plain, _ = listening.accept()
                with plain, context.wrap_socket(plain, server_side=True) as connection:
                    connection.settimeout(5)
                    while data := connection.recv(4096):
                        sent.append(data)
            except OSError:
                continue  # the client refused the certificate, or the test is over

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield listening.getsockname()[1], sent
    finally:
        over.set()
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join()


@pytest.mark.parametrize("role", ["node", "operator", "application", "reader"])
def test_a_server_with_another_name_than_zookeepers_is_sent_nothing(authority: DevelopmentAuthority, role: str) -> None:
    connections = SecureConnections(Certificates(authority.issue("node", "a")))
    with _serving(authority.issue(role, "late", serve=True)) as (port, sent):
        with pytest.raises(ConnectionAbortedError, match=rf"spiffe://waltz/{role}/late answers there, which is not ZooKeeper: .*zookeeper/NAME"):
            connections.create(("127.0.0.1", port), hostname="localhost", timeout=5)
        assert not embedded.answers("127.0.0.1", port, tls=authority.find("node", "a"))
    assert sent == []


def test_a_zookeeper_of_another_authority_or_that_may_not_serve_is_refused(authority: DevelopmentAuthority, tmp_path: Path) -> None:
    own = authority.issue("node", "a")
    other = DevelopmentAuthority(tmp_path / "theirs").issue("zookeeper", "main")
    foreign = other.model_copy(update={"authorities": own.authorities})
    for served, reason in ((foreign, "is not accepted"), (authority.issue("zookeeper", "late", serve=False), "may not serve")):
        connections = SecureConnections(Certificates(own))
        with _serving(served) as (port, sent), pytest.raises(ssl.SSLError):
            connections.create(("127.0.0.1", port), hostname="localhost", timeout=5)
        assert reason in (connections.refusal or "")
        assert sent == []


def test_zookeeper_is_accepted_under_its_name_or_a_configured_one(authority: DevelopmentAuthority) -> None:
    own = authority.issue("node", "a")
    for served, names in (
        (authority.issue("zookeeper", "main"), own.coordinators),
        (authority.issue("node", "zk"), ("spiffe://waltz/node/zk",)),
    ):
        connections = SecureConnections(Certificates(own.model_copy(update={"coordinators": names})))
        with _serving(served) as (port, sent):
            with connections.create(("127.0.0.1", port), hostname="localhost", timeout=5) as connection:
                connection.sendall(b"hello")
                deadline = time.monotonic() + 10
                while not sent and time.monotonic() < deadline:
                    time.sleep(0.01)
            assert sent == [b"hello"]
        assert connections.refusal is None


async def test_a_session_with_an_application_at_zookeepers_address_fails_with_the_reason(authority: DevelopmentAuthority) -> None:
    with (
        _serving(authority.issue("application", "late", serve=True)) as (port, sent),
        pytest.raises(ClusterUnavailable, match="application/late answers there, which is not ZooKeeper"),
    ):
        await ZooKeeperCoordinator.connect(f"127.0.0.1:{port}/waltz", timeout_s=2, tls=authority.issue("node", "a"))
    assert sent == []
