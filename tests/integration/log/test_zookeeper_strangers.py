"""What a certificate of the authority that is in no list may do in a real ZooKeeper, and what a renewal of ZooKeeper's own certificate needs."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import pytest
from cryptography import x509
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoAuthError
from kazoo.security import OPEN_ACL_UNSAFE

from tests.integration.free_ports import free_port
from waltz_log.coordination.access_lists import SECRET
from waltz_log.coordination.cluster import create_cluster
from waltz_log.coordination.coordinator import ZooKeeperCoordinator
from waltz_log.coordination.ensemble_root import ENSEMBLE_NODES, close_ensemble
from waltz_log.coordination.served_identity import ServedIdentity
from waltz_log.security.authority import DevelopmentAuthority
from waltz_log.security.certificates import Certificates
from waltz_log.security.settings import TlsSettings, tls_environment

pytestmark = [  # kazoo drops a socket whose handshake failed without closing it
    pytest.mark.filterwarnings("ignore:.*unclosed <ssl.SSLSocket"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

FLOOD = 600
"""Of 0.9 MB each. ZooKeeper keeps the last 500 requests that write, the refused ones too: 135 of them ended a process with 256 MB of heap."""


@contextmanager
def zookeeper(directory: Path, tls: TlsSettings | None, **more: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """`waltz zookeeper` with these certificates: its address, and the process."""
    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "waltz_log.cli", "zookeeper", "--directory", str(directory), "--listen", address]
    environment = {**os.environ, **({} if tls is None else tls_environment(tls)), **more}
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("ready zookeeper")
            yield address, process
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0


@contextmanager
def client(address: str, tls: TlsSettings | None) -> Iterator[KazooClient]:
    files = {} if tls is None else {"use_ssl": True, "certfile": str(tls.certificate), "keyfile": str(tls.key), "ca": str(tls.authorities)}
    made = KazooClient(hosts=address, **files)
    made.start(30)
    try:
        yield made
    finally:
        made.stop()
        made.close()


def expect_closed(stranger: KazooClient) -> None:
    """It may create and change nothing anywhere, and end nothing."""
    changes: tuple[Callable[[str], object], ...] = (
        lambda path: stranger.set_acls(path, OPEN_ACL_UNSAFE),
        lambda path: stranger.set(path, b"x" * 900_000),
    )
    for folder in ("/", "/zookeeper", "/zookeeper/quota", "/waltz", "/waltz/test"):
        for number in range(FLOOD if folder == "/" else 1):
            with pytest.raises(NoAuthError):
                stranger.create(f"{folder.rstrip('/')}/flood{number}", b"x" * 900_000)
        for change in changes:
            with pytest.raises(NoAuthError):
                change(folder)
    with pytest.raises((NoAuthError, KazooException)):
        stranger.delete("/zookeeper/quota")


async def created(address: str, tls: TlsSettings | None) -> None:
    node = await ZooKeeperCoordinator.connect(f"{address}/waltz/test", new=True, tls=tls)
    await create_cluster(node, name="test", key=UUID(int=7), partitions=1, storages=["s0"], replication=1)
    assert not [path for path in ENSEMBLE_NODES if await node.is_open(path)]
    assert await close_ensemble(node) == []
    await node.close()


async def test_a_certificate_of_no_listed_subject_creates_nothing_in_zookeeper(tmp_path: Path) -> None:
    authority = DevelopmentAuthority(tmp_path / "certificates")
    with zookeeper(tmp_path / "data", authority.issue("zookeeper", "main")) as (address, process):
        await created(address, authority.issue("node", "a"))
        with client(address, authority.issue("stranger", "s")) as stranger:
            expect_closed(stranger)
        assert process.poll() is None
        await (await ZooKeeperCoordinator.connect(f"{address}/waltz/test", tls=authority.issue("node", "a"))).close()


async def test_without_the_secret_a_client_creates_nothing_at_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "sixteen characters or more"
    with zookeeper(tmp_path / "data", None, **{SECRET: secret}) as (address, process):
        with monkeypatch.context() as patched:
            patched.setenv(SECRET, secret)
            await created(address, None)
        with client(address, None) as stranger:
            expect_closed(stranger)
        assert process.poll() is None


async def test_the_root_of_an_ensemble_that_serves_others_too_is_reported_and_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zookeeper(tmp_path / "data", None) as (address, _):
        with client(address, None) as other:
            other.create("/brokers", b"of another application")
        unprotected = await ZooKeeperCoordinator.connect(f"{address}/waltz/test", new=True)
        assert await close_ensemble(unprotected) == [], "nodes cannot prove who they are, so nothing can be closed"
        await unprotected.close()
        monkeypatch.setenv(SECRET, "sixteen characters or more")
        node = await ZooKeeperCoordinator.connect(f"{address}/waltz/test", new=True)
        assert await close_ensemble(node) == list(ENSEMBLE_NODES)
        await node.close()
        with client(address, None) as other:
            other.create("/more", b"as before")


# ---- renewals --------------------------------------------------------------------------------------------------------------------------------------


def served_serial(address: str, tls: TlsSettings) -> str:
    """The serial number of the certificate that a new connection is served with; empty: none is served."""
    host, _, port = address.rpartition(":")
    context = Certificates(tls).client_context()
    try:
        with socket.create_connection((host, int(port)), timeout=5) as plain, context.wrap_socket(plain, server_hostname=host) as connection:
            found = connection.getpeercert()
            connection.sendall(b"srvr")
            served = b"Zookeeper version" in connection.recv(4096)
    except (OSError, ssl.SSLError):
        return ""
    return str((found or {}).get("serialNumber", "")).lstrip("0") if served else ""


def until_served(address: str, tls: TlsSettings, wanted: str, timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while (found := served_serial(address, tls)) != wanted:
        assert time.monotonic() < deadline, f"served with {found}, not {wanted}"
        time.sleep(0.2)


def serial(tls: TlsSettings) -> str:
    return f"{x509.load_pem_x509_certificate(tls.certificate.read_bytes()).serial_number:X}"


async def test_zookeeper_serves_a_renewed_certificate_without_a_restart(tmp_path: Path) -> None:
    authority = DevelopmentAuthority(tmp_path / "certificates")
    own, node = authority.issue("zookeeper", "main"), authority.issue("node", "a")
    with zookeeper(tmp_path / "data", own) as (address, _):
        session = await ZooKeeperCoordinator.connect(f"{address}/waltz/test", new=True, tls=node)
        await session.create("/alive", b"", ephemeral=True)
        until_served(address, node, serial(own))
        renewed = authority.issue("zookeeper", "main")
        until_served(address, node, serial(renewed))
        assert (tmp_path / "data" / "identity.pem").stat().st_mode & 0o777 == 0o600
        assert await session.get("/alive") is not None
        await session.close()


async def test_a_change_of_the_authority_is_in_use_within_seconds_and_ends_no_session(tmp_path: Path) -> None:
    old, new = (DevelopmentAuthority(tmp_path / name) for name in ("old", "new"))
    both = tmp_path / "both.pem"
    both.write_bytes(old.certificate.read_bytes())
    own, node = (old.issue(*each).model_copy(update={"authorities": both}) for each in (("zookeeper", "main"), ("node", "a")))
    with zookeeper(tmp_path / "data", own) as (address, _):
        session = await ZooKeeperCoordinator.connect(f"{address}/waltz/test", new=True, tls=node, timeout_s=60)
        await session.create("/alive", b"", ephemeral=True)
        both.write_bytes(old.certificate.read_bytes() + new.certificate.read_bytes())
        other = new.issue("node", "b").model_copy(update={"authorities": both})
        until_served(address, other, serial(own))
        assert await session.get("/alive") is not None
        assert not session.ended
        later = await ZooKeeperCoordinator.connect(f"{address}/waltz/test", new=True, tls=other, timeout_s=60)
        assert await later.get("/alive") is not None
        await later.close()
        await session.close()


def test_a_link_in_place_of_the_identity_is_replaced_and_not_written_through(tmp_path: Path) -> None:
    own = DevelopmentAuthority(tmp_path / "certificates").issue("zookeeper", "main")
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "identity.pem").symlink_to(victim)
    (tmp_path / "identity.pem.new").symlink_to(victim)
    served = ServedIdentity(tmp_path, own)
    assert victim.read_text() == "mine"
    assert b"PRIVATE KEY" in served.identity.read_bytes()
    assert not served.identity.is_symlink()
