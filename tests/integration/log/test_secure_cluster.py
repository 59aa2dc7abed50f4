"""A real cluster over mutual TLS, ZooKeeper and workers included: who gets in, who does not, and what rotation and kills cost."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Self

import grpc
import pytest
import yaml
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.integration.in_process import waltz
from tests.unit.log.monitoring.test_endpoint_tls import ask
from verification.tls_scan.ports import HOST, Kind, ports_of
from verification.tls_scan.stranger import welcome_of
from waltz_log.client import ClientSettings, SyncWaltzClient, TopicRecord
from waltz_log.coordination.access import change_rules
from waltz_log.coordination.coordinator import ZooKeeperCoordinator
from waltz_log.coordination.survey import survey
from waltz_log.errors import ClusterUnavailable, NoSuchTopic, NotAllowed, NotAppended, OutcomeUnknown, PermissionDenied, WaltzError
from waltz_log.processes.local_cluster import LocalCluster
from waltz_log.security.authority import DevelopmentAuthority
from waltz_log.security.rules import AccessRules, Operation, Rule
from waltz_log.security.settings import TlsSettings
from waltz_log.transport.grpc import GrpcNetwork

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore:.*unclosed <ssl.SSLSocket"),  # kazoo drops a socket whose handshake failed without closing it
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

ROTATIONS = 8
ROTATION_S = 0.7
"""Longer than the pause between two reads of the files, so that each certificate is used."""


LATENESS_STEP_S = 0.01

PROMETHEUS = "spiffe://waltz/reader/prometheus"
SERVING = health_pb2.HealthCheckResponse.SERVING


@pytest.fixture(scope="module", params=[1, 2], ids=lambda workers: f"workers={workers}")
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    settings = {"workers": request.param, "http": {"port": 0, "tls": True, "clients": [PROMETHEUS]}}
    directory = tmp_path_factory.mktemp("cluster")
    audited = {**settings, "audit": {"file": str(directory / "audit.jsonl")}}
    with LocalCluster(
        directory,
        partitions=7,
        storages=3,
        servers=2,
        secure=True,
        session_timeout_s=6,  # long enough for a busy machine: no test here waits for an expiry
        server_settings=audited,
        storage_settings=settings,
    ) as cluster:
        yield cluster


def _client(cluster: LocalCluster, role: str, name: str = "test", **settings: object) -> SyncWaltzClient:
    return SyncWaltzClient(cluster.cluster, ClientSettings(tls=cluster.certificate(role, name), append_timeout_s=60, **settings))  # type: ignore[arg-type]


def _waltz(cluster: LocalCluster, *arguments: str, role: str = "operator") -> subprocess.CompletedProcess[str]:
    return waltz(*arguments, variables=cluster.variables(role, "dev"))


def test_an_application_appends_and_a_reader_reads(cluster: LocalCluster) -> None:
    with _client(cluster, "application") as application, _client(cluster, "reader") as reader:
        receipts = [application.append(partition, b"booked") for partition in range(4)]
        for receipt in receipts:
            transaction = next(iter(reader.feed(receipt.partition, after=receipt.transaction_id - 1)))
            assert transaction.data == b"booked"
        with pytest.raises((PermissionDenied, NotAppended), match=r"spiffe://waltz/reader/test has no role for /waltz.Server/ClientId"):
            reader.append(0, b"not allowed", timeout_s=10)


def test_a_client_without_a_certificate_of_the_cluster_does_not_get_in(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> None:
    foreign = DevelopmentAuthority(tmp_path_factory.mktemp("other")).issue("operator", "intruder")
    for tls in (None, foreign):
        with pytest.raises(ClusterUnavailable):
            SyncWaltzClient(cluster.cluster, ClientSettings(tls=tls, connect_timeout_s=3))
    gc.collect()  # the sockets that kazoo dropped, here and not in another test


def test_no_port_shakes_hands_below_tls_1_3_or_serves_a_client_without_a_certificate(cluster: LocalCluster) -> None:
    """`make tls-scan` tries more, with programs that scan."""
    files = cluster.certificate("application", "old")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_cert_chain(files.certificate, files.key)
    context.load_verify_locations(files.authorities)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    ports = [*ports_of(cluster, set(asyncio.run(_http_ports(cluster)).values()))]
    assert {port.kind for port in ports} == set(Kind) - {Kind.CONSOLE}
    for port in ports:
        context.set_alpn_protocols(["h2"] if port.kind is Kind.GRPC else [])
        with socket.create_connection((HOST, port.number), 10) as plain, pytest.raises((ssl.SSLError, ConnectionError)):
            context.wrap_socket(plain, server_hostname=HOST)
        assert welcome_of(port) is None, port


def test_a_topic_admits_the_names_in_certificates_and_not_those_in_messages(cluster: LocalCluster) -> None:
    made = _waltz(
        cluster, "topic", "create", cluster.cluster, "shop/orders", "--partitions=1", "--property=allow-append=spiffe://waltz/application/orders"
    )
    assert made.returncode == 0, made.stderr
    try:
        with _client(cluster, "application", "orders") as orders, _client(cluster, "application", "other", principal="spiffe") as other:
            assert orders.topic("shop/orders").append(b"bought", partition=0).transaction_id >= 0
            with pytest.raises(NotAllowed, match="spiffe://waltz/application/other may not append"):
                other.topic("shop/orders").append(b"not allowed", partition=0, timeout_s=10)
    finally:
        assert _waltz(cluster, "topic", "delete", cluster.cluster, "shop/orders").returncode == 0


def test_the_status_is_for_operators(cluster: LocalCluster) -> None:
    assert _waltz(cluster, "cluster", "status", cluster.coordinator).returncode == 0
    denied = _waltz(cluster, "cluster", "status", cluster.coordinator, role="reader")
    assert denied.returncode != 0
    assert "Traceback" not in denied.stderr


async def _http_ports(cluster: LocalCluster) -> dict[str, int]:
    """The port of the HTTP endpoint of each node, as the status shows it."""
    tls = cluster.certificate("operator", "test")
    coordinator = await ZooKeeperCoordinator.connect(cluster.coordinator, tls=tls)
    try:
        found = await survey(coordinator, GrpcNetwork(tls=tls), cluster.coordinator)
    finally:
        await coordinator.close()
    addresses = {f"server-{each.server_id}": each.statistics.http for each in found.servers if each.answers}
    addresses |= {each.name: each.statistics.http for each in found.storages if each.answers}
    return {name: int(str(address).rpartition(":")[2]) for name, address in addresses.items()}


def test_each_node_serves_health_and_metrics_over_https_and_names_nothing_to_strangers(cluster: LocalCluster, tmp_path: Path) -> None:
    nodes = len(cluster.storage_names) + len(cluster.server_names)
    ports: dict[str, int] = {}

    def found() -> bool:  # not by each survey of a busy machine
        ports.update(asyncio.run(_http_ports(cluster)))
        return len(ports) == nodes

    wait_until(found)
    authorities = cluster.certificate("reader", "prometheus").authorities
    foreign = DevelopmentAuthority(tmp_path).issue("reader", "prometheus")
    for name, port in ports.items():

        def asked(path: str, tls: TlsSettings | None, port: int = port) -> tuple[int, str]:
            return ask(port, path, tls, authorities)

        metrics = "waltz_server_cluster_partitions" if name.startswith("server") else "waltz_storage_disk_free_bytes"
        named = cluster.certificate("reader", "prometheus")
        wait_until(lambda asked=asked, named=named: asked("/readyz", named)[0] == 200)  # type: ignore[misc]
        assert asked("/livez", named) == (200, "livez check passed\n")
        assert "[+]process ok" in asked("/readyz?verbose", named)[1]
        status, text = asked("/metrics", named)
        assert (status, f"\n{metrics} " in text, "\nwaltz_certificate_expiry_timestamp_seconds 1" in text) == (200, True, True)
        for tls in (None, cluster.certificate("operator", "test")):
            assert asked("/livez", tls) == (200, "ok\n")
            wait_until(lambda asked=asked, tls=tls: asked("/readyz?verbose", tls) == (200, "ok\n"))  # type: ignore[misc]
            assert asked("/metrics", tls)[0] == 403
        with pytest.raises(OSError):  # refused in the handshake, or the connection is closed after it
            asked("/livez", foreign)
        with socket.create_connection(("127.0.0.1", port), timeout=10) as plain, suppress(ConnectionResetError):
            plain.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            assert b"waltz" not in plain.recv(4096)


def test_grpc_health_answers_certificates_of_the_cluster(cluster: LocalCluster, tmp_path: Path) -> None:
    foreign = DevelopmentAuthority(tmp_path).issue("application", "test")
    for name in (*cluster.storage_names, *cluster.server_names):
        wait_until(lambda name=name: _grpc_health(cluster, name, cluster.certificate("reader", "prober")) == SERVING)  # type: ignore[misc]
        for tls in (None, foreign):
            with pytest.raises(grpc.RpcError) as refused:
                _grpc_health(cluster, name, tls)
            assert refused.value.code() == grpc.StatusCode.UNAVAILABLE


def _grpc_health(cluster: LocalCluster, name: str, tls: TlsSettings | None) -> int:
    address = yaml.safe_load((cluster.directory / "conf" / f"{name}.yaml").read_text())["listen"]
    authorities = cluster.certificate("reader", "prober").authorities.read_bytes()
    own = (None, None) if tls is None else (tls.key.read_bytes(), tls.certificate.read_bytes())
    with grpc.secure_channel(address, grpc.ssl_channel_credentials(authorities, *own)) as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
        return int(answer.status)


def test_rules_of_access_hold_at_servers_and_storage_nodes_and_a_revocation_is_out_within_a_second(cluster: LocalCluster) -> None:
    name = "spiffe://waltz/{}"
    for topic in ("rules/orders", "rules/bills"):
        assert _waltz(cluster, "topic", "create", cluster.cluster, topic, "--partitions=1").returncode == 0
    try:
        unknown = _waltz(cluster, "access", "grant", cluster.coordinator, name.format("application/orders"), "append", "rules/oders")
        assert (unknown.returncode, unknown.stderr) == (2, "waltz: no such topic: rules/oders (did you mean rules/orders?)\n")
        granted = _waltz(cluster, "access", "grant", cluster.coordinator, name.format("application/orders"), "append,read", "rules/orders")
        assert "This is the first rule" in granted.stdout, granted.stderr
        assert _waltz(cluster, "access", "grant", cluster.coordinator, name.format("reader/reports"), "read", "rules/*").returncode == 0
        assert "rules/orders" in _waltz(cluster, "access", "list", cluster.coordinator).stdout
        assert _waltz(cluster, "access", "test", cluster.coordinator, name.format("reader/reports"), "read", "rules/orders:0").returncode == 0
        assert _waltz(cluster, "access", "test", cluster.coordinator, name.format("reader/other"), "read", "rules/orders:0").returncode == 1
        with (
            _client(cluster, "application", "orders") as orders,
            _client(cluster, "reader", "reports") as reports,
        ):
            handle = orders.topic("rules/orders")
            wait_until(lambda: not _permitted(lambda: _client(cluster, "application", "billing").close()))
            handle.append(b"first", partition=0)
            assert not _permitted(lambda: orders.topic("rules/bills").append(b"x", partition=0, timeout_s=10))
            reading = Rule(principal=name.format("reader/reports"), operations=(Operation.READ,), resource="rules/*")
            _change_rules(cluster, lambda found: found.granted(reading))
            with Lateness() as lateness:
                needed_s = _seconds_until_a_feed_ends(cluster, reports, name.format("reader/reports"))
            assert needed_s < 1.0 + 2 * lateness.seconds, "a server and this process may each have waited for a processor"
            assert not _permitted(lambda: next(iter(reports.topic("rules/orders").feed())))
            lines = [json.loads(line) for file in cluster.directory.glob("audit.jsonl*") if file.is_file() for line in file.read_text().splitlines()]
            assert {"topic created", "access granted", "access revoked", "request denied"} <= {line["event"] for line in lines}
            handle.append(b"second", partition=0)
    finally:
        assert _waltz(cluster, "access", "reset", cluster.coordinator, "--yes").returncode == 0
        for topic_name in ("rules/orders", "rules/bills"):
            assert _waltz(cluster, "topic", "delete", cluster.cluster, topic_name).returncode == 0


class Lateness:
    """How long a thread that always wants to run had to wait for a processor, in total: `seconds`, after the block."""

    def __enter__(self) -> Self:
        self.seconds = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._measure)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _measure(self) -> None:
        before_s = time.monotonic()
        while not self._ended.wait(LATENESS_STEP_S):
            now_s = time.monotonic()
            self.seconds += max(0.0, now_s - before_s - LATENESS_STEP_S)
            before_s = now_s


def _seconds_until_a_feed_ends(cluster: LocalCluster, reader: SyncWaltzClient, principal: str) -> float:
    """After its principal may not read any more."""
    feeds: list[Iterator[TopicRecord]] = []

    def reads() -> None:
        feeds[:] = [iter(reader.topic("rules/orders").feed())]
        assert next(feeds[0]).value == b"first"

    wait_until(lambda: _permitted(reads))
    ended: list[float] = []
    waiting = threading.Thread(target=lambda: ended.append(time.monotonic()) if not _permitted(lambda: next(feeds[0])) else None)
    waiting.start()
    _change_rules(cluster, lambda found: found.revoked(principal))
    revoked = time.monotonic()
    waiting.join(30)
    assert ended, "the feed goes on"
    return ended[0] - revoked


def _change_rules(cluster: LocalCluster, change: Callable[[AccessRules], AccessRules]) -> None:
    """Without the start of a command, so that the time after it is that of the nodes alone."""

    async def run() -> None:
        coordinator = await ZooKeeperCoordinator.connect(cluster.coordinator, tls=cluster.certificate("operator", "test"))
        try:
            await change_rules(coordinator, change)
        finally:
            await coordinator.close()

    asyncio.run(run())


def _permitted(work: Callable[[], object]) -> bool:
    try:
        work()
    except NoSuchTopic:
        return False  # a topic without a right is unknown
    except (PermissionDenied, NotAppended, OutcomeUnknown) as error:
        if "no rule permits" not in str(error):
            raise
        return False
    return True


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_rotations_and_a_killed_storage_node_fail_no_append(cluster: LocalCluster) -> None:
    stop, appended, failed = threading.Event(), [0], list[WaltzError]()

    def append(client: SyncWaltzClient) -> None:
        while not stop.is_set():
            try:
                client.append(appended[0] % 4, b"rotating")
                appended[0] += 1
            except WaltzError as error:
                failed.append(error)

    authority = DevelopmentAuthority(cluster.directory / "certificates")
    with _client(cluster, "application", "rotating") as client:
        client.append(0, b"first")
        worker = threading.Thread(target=append, args=(client,))
        worker.start()
        try:
            for number in range(ROTATIONS):
                for name in (*cluster.storage_names, *cluster.server_names):
                    authority.issue("node", name)
                authority.issue("application", "rotating")
                if number == ROTATIONS // 2:
                    cluster.kill("storage-1")
                    cluster.start("storage-1")
                time.sleep(ROTATION_S)
            cluster.wait_ready()
            before, deadline = appended[0], time.monotonic() + 60
            while appended[0] < before + 100 and time.monotonic() < deadline:
                time.sleep(0.05)
        finally:
            stop.set()
            worker.join()
    assert failed == []
    assert appended[0] >= before + 100
    for name in cluster.storage_names:
        assert "certificate reloaded" in cluster.log(name).read_text() or name == "storage-1"
