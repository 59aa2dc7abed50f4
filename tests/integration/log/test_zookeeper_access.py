"""The rights of nodes, operators and clients in a real ZooKeeper: by certificates, by a shared secret, and with neither."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.security import OPEN_ACL_UNSAFE

from tests.integration.free_ports import free_port
from waltz_log.cli.ensemble_check import check_ensemble
from waltz_log.coordination import embedded
from waltz_log.coordination.access_lists import SECRET
from waltz_log.coordination.cluster import create_cluster
from waltz_log.coordination.coordinator import ZooKeeperCoordinator
from waltz_log.coordination.ensemble_root import close_ensemble
from waltz_log.core import metadata as paths
from waltz_log.core.topics.catalogue import CATALOGUE
from waltz_log.core.topics.subscribers import SUBSCRIBERS
from waltz_log.errors import InvalidSetting, PermissionDenied
from waltz_log.security.authority import DevelopmentAuthority
from waltz_log.security.settings import TlsSettings
from waltz_log.security.tickets import TICKET_KEY

pytestmark = [  # kazoo drops a socket whose handshake failed without closing it
    pytest.mark.filterwarnings("ignore:.*unclosed <ssl.SSLSocket"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

WRITTEN_BY_SERVERS = (paths.CLIENT_IDS, TICKET_KEY, f"{SUBSCRIBERS}/billing", f"{paths.OUTBOXES}/5")
CLOSED = (*WRITTEN_BY_SERVERS, paths.MANAGER, paths.SERVERS, paths.SERVER_IDS, paths.REACH, paths.STRANDED, paths.handed_locks_path(0))
OF_THE_CLUSTER = (paths.CLUSTER, paths.ASSIGNMENT, paths.REPLICAS, f"{paths.STORAGE_NODES}/s0", CATALOGUE)


@contextmanager
def zookeeper(directory: Path, tls: TlsSettings | None) -> Iterator[str]:
    port = free_port()
    command = embedded.prepare(directory, port, tls=tls)
    with (directory / "log").open("ab") as log, subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log) as process:
        try:
            embedded.wait_until_answering("127.0.0.1", port, 60, lambda: process.poll() is None, tls)
            yield f"127.0.0.1:{port}/waltz/test"
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


async def create(node: ZooKeeperCoordinator) -> None:
    """All that the processes of a cluster create."""
    await create_cluster(node, name="test", key=UUID(int=7), partitions=2, storages=["s0"], replication=1)
    for path in (*CLOSED, *OF_THE_CLUSTER):
        await node.create(path, b"1")
    for path in (*CLOSED, *OF_THE_CLUSTER):
        found = await node.get(path)
        assert found is not None
        assert await node.set(path, found.data, found.version) is not None


async def expect_nothing(client: ZooKeeperCoordinator) -> None:
    """It may neither read nor change anything."""
    for path in (*OF_THE_CLUSTER, *CLOSED):
        with pytest.raises(PermissionDenied):
            await client.get(path)
        with pytest.raises(PermissionDenied):
            await client.children(path)
        with pytest.raises(PermissionDenied):
            await client.set(path, b"mine", -1)
        with pytest.raises(PermissionDenied):
            await client.delete(path)
    for path in ("/new", f"{SUBSCRIBERS}/mine", f"{paths.OUTBOXES}/mine"):
        with pytest.raises(PermissionDenied):
            await client.create(path, b"")


async def test_certificates_decide_who_changes_the_metadata_of_a_cluster(tmp_path: Path) -> None:
    authority = DevelopmentAuthority(tmp_path / "certificates")
    with zookeeper(tmp_path, authority.issue("zookeeper", "main")) as address:

        async def connect(role: str, name: str, **more: object) -> ZooKeeperCoordinator:
            tls = authority.issue(role, name).model_copy(update=more)
            return await ZooKeeperCoordinator.connect(address, new=True, tls=tls)

        sessions = [await connect("node", "a"), await connect("node", "b"), await connect("operator", "o"), await connect("application", "x")]
        a, b, operator, application = sessions
        await create(a)
        for each in (b, operator):
            found = await each.get(paths.MANAGER)
            assert found is not None
            assert await each.set(paths.MANAGER, b"2", found.version) is not None
        reader = await connect("reader", "r")
        for each in (application, reader):
            await expect_nothing(each)
        with pytest.raises(PermissionDenied, match="read /cluster in ZooKeeper"):
            await ZooKeeperCoordinator.connect(address, tls=authority.issue("application", "y"))
        foreign = await connect("node", "other", coordinator_writers=("CN=something,O=else",))
        await foreign.create("/open", b"")
        assert await application.get("/open") is not None, "an own subject that is not in the list protects nothing, and locks nobody out"
        for session in (*sessions, reader, foreign):
            await session.close()


async def test_without_certificates_a_secret_closes_everything_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zookeeper(tmp_path, None) as address:
        monkeypatch.setenv(SECRET, "sixteen characters or more")
        node = await ZooKeeperCoordinator.connect(address, new=True)
        assert "sixteen" not in repr(vars(node))
        await create(node)
        monkeypatch.delenv(SECRET)
        client = await ZooKeeperCoordinator.connect(address, new=True)
        await expect_nothing(client)
        stranger = KazooClient(hosts=address.partition("/")[0])
        stranger.start()
        try:
            with pytest.raises(NoAuthError):
                stranger.delete(f"/waltz/test{paths.CLUSTER}", recursive=True)
            with pytest.raises(NoAuthError):
                stranger.get(f"/waltz/test{paths.MANAGER}")
            with pytest.raises(NoAuthError):
                stranger.get(f"/waltz/test{paths.CLUSTER}")
            with pytest.raises(NoAuthError):
                stranger.get_acls(f"/waltz/test{paths.CLUSTER}")
        finally:
            stranger.stop()
            stranger.close()
        await client.close()
        await node.close()
        monkeypatch.setenv(SECRET, "short")
        with pytest.raises(InvalidSetting, match=SECRET):
            await ZooKeeperCoordinator.connect(address)


async def test_doctor_says_whether_the_ensemble_is_closed_to_strangers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unreachable = await check_ensemble(f"127.0.0.1:{free_port()}/waltz/test", timeout_s=0.5)
    assert not unreachable.ok
    assert "does not answer" in unreachable.found
    with zookeeper(tmp_path, None) as address:
        unprotected = await check_ensemble(address)
        assert (unprotected.ok, unprotected.needed) == (False, False)
        assert "may change everything" in unprotected.found
        monkeypatch.setenv(SECRET, "a secret of nodes and operators")
        opened = await check_ensemble(address)
        assert (opened.ok, opened.needed) == (False, True)
        assert "is open to everyone at /, /zookeeper" in opened.found
        node = await ZooKeeperCoordinator.connect(address, timeout_s=30, new=True)
        try:
            assert await close_ensemble(node) == []
            await create(node)
            closed = await check_ensemble(address)
            assert closed.ok, closed.sentence
            await node._call(lambda: node._client.set_acls_async(f"{node.root}{paths.CLUSTER}", list(OPEN_ACL_UNSAFE)))
            again = await check_ensemble(address)
            assert again.found.endswith(f"is open to everyone at {node.root}{paths.CLUSTER}")
        finally:
            await node.close()
