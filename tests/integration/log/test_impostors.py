"""An application's certificate at the address of a node of a real cluster: no one sends it anything, and nothing that it acknowledges counts."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from pyspark_waltz import channels
from pyspark_waltz.errors import RangeUnreadable
from pyspark_waltz.ranges import read_range
from pyspark_waltz.tasks import LogRange, ViewRange
from pyspark_waltz.view_reads import read_view
from tests.unit.log.transport.impostor import Impostor
from waltz_log.client import ClientSettings, SyncWaltzClient
from waltz_log.client.inspection.inspect import ClusterInspector
from waltz_log.client.owners.seeds import NamedServers
from waltz_log.core.node_address import NodeAddress
from waltz_log.errors import ClusterUnavailable, NotAppended, OutcomeUnknown
from waltz_log.filesystem import FileSystemDisk, ThreadOffload
from waltz_log.processes.clock import WallClock
from waltz_log.processes.local_cluster import LocalCluster
from waltz_log.security.authority import DevelopmentAuthority
from waltz_log.security.settings import TlsSettings, tls_environment
from waltz_log.storage import StorageNode, StorageSettings
from waltz_log.transport.grpc import GrpcNetwork

pytestmark = pytest.mark.timeout(300)

LATE = "spiffe://waltz/application/late"
TOKEN = "a.secret.token"
EVERYONE = ("spiffe://*/*/*",)
"""The impostor serves every peer: the caller must refuse, not the impostor."""


@pytest.fixture(scope="module", params=[1, 2], ids=lambda workers: f"workers={workers}")
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    settings = {"workers": request.param, "worker_ports": -1}  # each worker answers at the address of the node alone
    with LocalCluster(
        tmp_path_factory.mktemp("cluster"),
        partitions=2,
        storages=3,
        servers=1,
        secure=True,
        session_timeout_s=30,  # the address of a log server that was killed stays in the assignment for so long
        server_settings=settings,
        storage_settings=settings,
    ) as cluster:
        yield cluster


def _late(cluster: LocalCluster) -> TlsSettings:
    """A certificate that was issued by mistake: an application's, and it may serve."""
    authority = DevelopmentAuthority(cluster.directory / "certificates")
    found = authority.find("application", "late") or authority.issue("application", "late", serve=True)
    return found.model_copy(update={"nodes": EVERYONE})


def _client(cluster: LocalCluster, **settings: object) -> SyncWaltzClient:
    tls = cluster.certificate("application", "orders").model_copy(update={"token": cluster.directory / "token"})
    tls.token.write_text(TOKEN)  # type: ignore[union-attr]
    return SyncWaltzClient(cluster.cluster, ClientSettings(tls=tls, **settings))  # type: ignore[arg-type]


def _address(cluster: LocalCluster, name: str) -> str:
    return f"127.0.0.1:{cluster._ports[name]}"


@contextmanager
def _in_a_loop(serving: Callable[[asyncio.Event, threading.Event], object]) -> Iterator[None]:
    """Runs the coroutine in a thread with a loop of its own, until the block ends."""
    ready, loop, stop = threading.Event(), asyncio.new_event_loop(), asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(serving(stop, ready)))  # type: ignore[arg-type]
    thread.start()
    try:
        assert ready.wait(30)
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


@contextmanager
def _impostor(cluster: LocalCluster, address: str) -> Iterator[Impostor]:
    """Keeps what it is sent."""
    impostor = Impostor()

    async def serve(stop: asyncio.Event, ready: threading.Event) -> None:
        async with impostor.serving(_late(cluster), address):
            ready.set()
            await stop.wait()

    with _in_a_loop(serve):
        yield impostor


@contextmanager
def _storage_node_as_an_application(cluster: LocalCluster, name: str) -> Iterator[list[str]]:
    """The storage node itself, with its directory: it acknowledges everything, and only its certificate is wrong. Gives the calls that it served."""
    with _inspector(cluster) as inspector:
        key = inspector.parameters.key
    served: list[str] = []

    async def serve(stop: asyncio.Event, ready: threading.Event) -> None:
        offload = ThreadOffload(1)
        settings = StorageSettings(name=name, coordinator=cluster.coordinator, directory=cluster.directory / name, listen="127.0.0.1:0")
        node = StorageNode(settings, FileSystemDisk(settings.directory), WallClock(), offload)
        await node.open(key)
        network = GrpcNetwork(tls=_late(cluster))
        gate = network._gate
        admit = gate.admit
        gate.admit = lambda method, *rest: served.append(method.name) or admit(method, *rest)  # type: ignore[func-returns-value,method-assign]
        listener = await network.serve(_address(cluster, name), node.service())
        ready.set()
        await stop.wait()
        await listener.close()
        await node.close()
        offload.close()

    with _in_a_loop(serve):
        yield served


@contextmanager
def _inspector(cluster: LocalCluster) -> Iterator[ClusterInspector]:
    tls = cluster.certificate("operator", "dev")

    with ClusterInspector.connect_over(NamedServers(cluster.cluster), GrpcNetwork(tls=tls)) as inspector:
        yield inspector


def test_a_storage_node_with_an_applications_certificate_gets_nothing_and_its_acknowledgments_do_not_count(cluster: LocalCluster) -> None:
    with _client(cluster) as client:
        before = client.append(0, b"with all three")
    for name in ("storage-1", "storage-2"):
        cluster.kill(name)
    with _storage_node_as_an_application(cluster, "storage-1") as served:
        with _client(cluster, append_timeout_s=6) as client, pytest.raises((OutcomeUnknown, NotAppended)):
            client.append(0, b"with one copy")
        time.sleep(2)  # the owner tries again several times
        assert served == []
    for name in ("storage-1", "storage-2"):
        cluster.start(name)
    cluster.wait_ready()
    with _client(cluster, append_timeout_s=60) as client:
        assert client.append(0, b"with all three again").transaction_id > before.transaction_id
    assert f"{LATE} answers there, which is not a node" in cluster.log("server-0").read_text()


def test_spark_reads_nothing_from_a_storage_node_with_an_applications_certificate(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in tls_environment(cluster.certificate("reader", "spark")).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(channels, "_certificates", {})
    with _inspector(cluster) as inspector:
        replicas, key = tuple(inspector.replicas()[0]), inspector.parameters.key.bytes
        session = inspector.bounds([0])[0].session
    assert all(isinstance(each, NodeAddress) and each.principal.startswith("spiffe://waltz/node/storage-") for each in replicas)
    with _impostor(cluster, "127.0.0.1:0") as impostor:
        stolen = tuple(NodeAddress(impostor.address, each.principal) for each in replicas if isinstance(each, NodeAddress))[:1]
        with pytest.raises(RangeUnreadable, match="answers there, which is not a node"):
            list(read_range(LogRange(0, 0, 0, session, key, stolen, 1500, True)))
        with pytest.raises(RangeUnreadable, match="answers there, which is not a node"):
            list(read_view(ViewRange(0, 1, 1, session, key, stolen, 1500, "", "")))  # type: ignore[arg-type]
        rows = list(read_range(LogRange(0, 0, 0, session, key, (*stolen, *replicas), 20_000, True)))
        assert sum(each.num_rows for each in rows) == 1
    assert (impostor.seen, impostor.messages) == ([], [])


def test_a_client_sends_neither_its_token_nor_payloads_to_an_application_at_a_log_servers_address(cluster: LocalCluster) -> None:
    addresses = [_address(cluster, "server-0")]
    with _client(cluster, append_timeout_s=4, request_timeout_s=2) as client:
        client.append(1, b"to the log server")
        cluster.kill("server-0")
        with _impostor(cluster, addresses[0]) as impostor:
            with pytest.raises((OutcomeUnknown, NotAppended)):
                client.append(1, b"to whoever is there")
            with pytest.raises(ClusterUnavailable, match=f"{LATE} answers there, which is not a node"):
                _client(cluster, append_timeout_s=4, connect_timeout_s=4)
            time.sleep(1)
        assert (impostor.seen, impostor.messages) == ([], [])
    cluster.start("server-0")
    cluster.wait_ready()
