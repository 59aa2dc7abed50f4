"""Every kind of port over mutual TLS, with each kind of certificate: one table, and a search of the source for what opens a port.

A module that opens a port and is in no row fails the test, and so does a row that does not say what happens to each of the peers. The procedures
behind a port of gRPC have generated tests of their own, which rows name.
"""

from __future__ import annotations

import ast
import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
from prometheus_client import CollectorRegistry

from tests.integration.log.console.served_console import serve_console
from tests.integration.log.matrix_ports import assert_test_exists
from tests.integration.log.test_zookeeper_access import zookeeper
from waltz_delta.pipelines.metrics_port import MetricsSettings, serve_metrics
from waltz_log.core.ports import AnyMethod, StreamMethod
from waltz_log.core.topics.sharding import Shard
from waltz_log.monitoring.endpoint import serve_http
from waltz_log.monitoring.monitored import Monitored
from waltz_log.monitoring.settings import HttpSettings
from waltz_log.processes.socket_folder import SocketFolder
from waltz_log.security.access import AccessControl
from waltz_log.security.authority import DevelopmentAuthority
from waltz_log.security.certificates import Certificates
from waltz_log.security.settings import TlsSettings, tls_environment
from waltz_log.testing import SyncInMemoryCluster
from waltz_log.transport import methods
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.addresses import ReservedAddress
from waltz_log.transport.admitted import Gate
from waltz_log.transport.connection_limits import ConnectionLimits
from waltz_log.transport.direct.connection import DirectListener
from waltz_log.transport.forwarding import WorkerNetwork
from waltz_log.transport.grpc import GrpcNetwork

ROOT = Path(__file__).parents[3]
HOST = "127.0.0.1"
PROMETHEUS = "spiffe://waltz/reader/prometheus"
WAITS = b"the port waits for more"

PATIENT = ConnectionLimits(handshake_s=600)
"""Ends no connection while a test waits."""


class Peer(StrEnum):
    NO_CERTIFICATE = "no certificate"
    ANOTHER_AUTHORITY = "another authority"
    EXPIRED = "expired"
    WRONG_ROLE = "wrong role"
    NO_PERMISSION = "no permission"
    RIGHT = "right"


class Certificate(NamedTuple):
    """Of a peer that the port itself must refuse."""

    role: str
    name: str


class CoveredBy(NamedTuple):
    """The port admits the peer, and this test shows that it can do nothing."""

    test: str


class CannotBe(NamedTuple):
    """Why there is no such peer."""

    reason: str


@dataclass(frozen=True, slots=True)
class Row:
    """`said`: what makes the port answer a peer that it admits; `served`: whether an answer is that one."""

    open: Callable[[TlsSettings, Path], AbstractAsyncContextManager[int]]
    said: bytes
    served: Callable[[bytes], bool]
    right: Certificate
    wrong_role: Certificate | CoveredBy
    no_permission: Certificate | CoveredBy | CannotBe


# ---- the kinds of ports ----------------------------------------------------------------------------------------------------------------------------


async def _ping(_request: Any) -> pb.PingResponse:
    return pb.PingResponse()


async def _read_all(stream: Any) -> None:
    while await stream.receive() is not None:
        pass


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


@asynccontextmanager
async def _grpc(tls: TlsSettings, _: Path) -> AsyncIterator[int]:
    listener = await GrpcNetwork(-1, tls=tls).serve(f"{HOST}:0", [methods.PING.served_by(_ping)])
    try:
        yield _port(listener.address)
    finally:
        await listener.close()


@asynccontextmanager
async def _worker(tls: TlsSettings, _: Path) -> AsyncIterator[int]:
    with TemporaryDirectory() as folder, closing(ReservedAddress(f"{HOST}:0")) as reserved:
        network = WorkerNetwork(Shard(0, 1), [reserved.address], [f"unix:{Path(folder) / '0'}"], direct_port=-1, tls=tls)
        listener = await network.serve(f"{HOST}:0", [methods.PING.served_by(_ping)])
        try:
            yield _port(reserved.address)
        finally:
            await listener.close()


def _direct(method: StreamMethod[Any, Any]) -> Callable[[TlsSettings, Path], AbstractAsyncContextManager[int]]:
    @asynccontextmanager
    async def opened(tls: TlsSettings, _: Path) -> AsyncIterator[int]:
        listener = DirectListener(f"{HOST}:0", 0, [method.served_by(_read_all)], Gate(Certificates(tls)), PATIENT)
        await listener.open()
        try:
            yield listener._port
        finally:
            await listener.close()

    return opened


@asynccontextmanager
async def _metrics(tls: TlsSettings, _: Path) -> AsyncIterator[int]:
    with serve_http(HttpSettings(port=0, tls=True, clients=(PROMETHEUS,)), Monitored("storage"), Certificates(tls)) as served:
        assert served.port is not None
        yield served.port


@asynccontextmanager
async def _pipelines(tls: TlsSettings, _: Path) -> AsyncIterator[int]:
    with serve_metrics(MetricsSettings(port=0, clients=(PROMETHEUS,)), CollectorRegistry(), tls_environment(tls)) as port:
        yield port


@asynccontextmanager
async def _console(tls: TlsSettings, _: Path) -> AsyncIterator[int]:
    with (
        SyncInMemoryCluster(partitions=1, storages=1, servers=1) as cluster,
        serve_console(cluster, tls=tls, control=AccessControl(enforced=True)) as served,
    ):
        yield _port(served.url)


@asynccontextmanager
async def _zookeeper(tls: TlsSettings, folder: Path) -> AsyncIterator[int]:
    with zookeeper(folder, tls) as cluster:
        yield _port(cluster.partition("/")[0])


def _get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n".encode()


def _is_page(answer: bytes) -> bool:
    return answer.split(b" ")[1:2] == [b"200"]


def _is_frame_of_settings(answer: bytes) -> bool:
    return answer[3:4] == b"\x04"


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))


def _greeting(method: AnyMethod) -> bytes:
    name = method.name.encode()
    return b"\x57" + (len(name) + 1).to_bytes(4, "big") + b"\x01" + name


TRANSPORT = "tests/unit/log/transport"
EACH_ROLE = CoveredBy(f"{TRANSPORT}/test_tls_ports.py::test_each_role_is_served_what_the_table_permits_and_denied_the_rest")
EACH_RULE = CoveredBy(f"{TRANSPORT}/test_permissions_at_ports.py::test_every_procedure_is_refused_without_a_rule_and_served_with_one")
ROLE_OF_A_MOUNT = CoveredBy(f"{TRANSPORT}/test_direct_appends.py::test_a_direct_mount_is_judged_by_the_name_in_the_certificate")
RULE_OF_A_MOUNT = CoveredBy(f"{TRANSPORT}/test_direct_appends.py::test_a_direct_mount_needs_a_rule_as_one_over_grpc_does")
PAYLOADS = CoveredBy("tests/integration/log/console/test_console_access.py::test_a_reader_sees_payloads_of_the_topics_that_it_may_read")
METADATA = CoveredBy("tests/integration/log/test_zookeeper_access.py::test_certificates_decide_who_changes_the_metadata_of_a_cluster")

APPLICATION, OTHER_READER, READER = Certificate("application", "orders"), Certificate("reader", "other"), Certificate("reader", "prometheus")

ROWS = {
    "grpc": Row(_grpc, PREFACE, _is_frame_of_settings, APPLICATION, EACH_ROLE, EACH_RULE),
    "grpc of a worker": Row(_worker, PREFACE, _is_frame_of_settings, APPLICATION, EACH_ROLE, EACH_RULE),
    "direct": Row(
        _direct(methods.REPLICATE),
        _greeting(methods.REPLICATE),
        WAITS.__eq__,
        Certificate("node", "b"),
        APPLICATION,
        CannotBe("only nodes are admitted, and no rule restricts a node"),
    ),
    "direct of a log server": Row(_direct(methods.MOUNT), _greeting(methods.MOUNT), WAITS.__eq__, APPLICATION, ROLE_OF_A_MOUNT, RULE_OF_A_MOUNT),
    "metrics": Row(_metrics, _get("/metrics"), _is_page, READER, APPLICATION, OTHER_READER),
    "metrics of pipelines": Row(_pipelines, _get("/metrics"), _is_page, READER, APPLICATION, OTHER_READER),
    "console": Row(_console, _get("/livez"), _is_page, READER, APPLICATION, PAYLOADS),
    "zookeeper": Row(_zookeeper, b"srvr", lambda answer: b"Zookeeper version" in answer, Certificate("operator", "a"), METADATA, METADATA),
}

DIRECT = {"direct", "direct of a log server"}

SIBLINGS = "siblings of a worker"
"""A unix socket, without TLS: who may open its folder is a process of the same node."""

OPENED_BY = {
    "log/waltz_log/console/serving.py": {"console"},
    "log/waltz_log/coordination/embedded.py": {"zookeeper"},
    "log/waltz_log/monitoring/endpoint.py": {"metrics"},
    "log/waltz_log/monitoring/http_server.py": {"metrics", "metrics of pipelines"},
    "log/waltz_log/transport/accepting.py": {*DIRECT, "console"},
    "log/waltz_log/transport/addresses.py": {"grpc of a worker"},
    "log/waltz_log/transport/direct/connection.py": DIRECT,
    "log/waltz_log/transport/grpc_channels.py": {"grpc", "grpc of a worker", SIBLINGS},
    "sink/waltz_delta/pipelines/metrics_port.py": {"metrics of pipelines"},
}
"""Each module under `platform` that opens a port, with the kinds of ports."""

SERVES_NOTHING = {
    "log/waltz_log/cli/checks.py": "whether a port can be opened",
    "log/waltz_log/processes/ports.py": "holds a port, at which it never listens",
    "spark_source/pyspark_waltz/testing.py": "a stub for tests, on the loopback",
}


# ---- the search ------------------------------------------------------------------------------------------------------------------------------------

OPENS = {
    *("bind", "create_server", "create_unix_server", "start_unix_server", "add_secure_port", "add_insecure_port", "add_http2_port"),
    *("HTTPServer", "ThreadingHTTPServer", "TCPServer", "ThreadingTCPServer", "MonitoringServer", "TlsAcceptor", "asyncio.start_server"),
    *("uvicorn.Server", "uvicorn.run"),
}
"""What is called, or inherited from, to open a port."""


def _names(called: ast.expr) -> Iterator[str]:
    if isinstance(called, ast.Name):
        yield called.id
    elif isinstance(called, ast.Attribute):
        yield called.attr
        if isinstance(called.value, ast.Name):
            yield f"{called.value.id}.{called.attr}"


def _opens(node: ast.AST) -> bool:
    named = [node.func] if isinstance(node, ast.Call) else node.bases if isinstance(node, ast.ClassDef) else []
    names = {name for each in named for name in _names(each)}
    return bool(names & OPENS) or (isinstance(node, ast.Constant) and "clientPort=" in str(node.value))


def _modules_that_open_a_port() -> set[str]:
    platform = ROOT / "platform"
    return {str(each.relative_to(platform)) for each in platform.rglob("*.py") if any(map(_opens, ast.walk(ast.parse(each.read_text()))))}


def test_each_module_that_opens_a_port_has_a_row() -> None:
    assert _modules_that_open_a_port() == {*OPENED_BY, *SERVES_NOTHING}, "add a row for the port, or say in SERVES_NOTHING why it is none"
    assert set().union(*OPENED_BY.values()) == {*ROWS, SIBLINGS}


@pytest.mark.parametrize("kind", ROWS)
def test_a_test_that_a_row_names_exists(kind: str) -> None:
    row = ROWS[kind]
    for each in (row.wrong_role, row.no_permission):
        if isinstance(each, CoveredBy):
            assert_test_exists(each.test)


# ---- the matrix ------------------------------------------------------------------------------------------------------------------------------------


def _files(peer: Peer, row: Row, authority: DevelopmentAuthority, elsewhere: DevelopmentAuthority) -> TlsSettings | None:
    match peer:
        case Peer.NO_CERTIFICATE:
            return None
        case Peer.ANOTHER_AUTHORITY:
            return elsewhere.issue(*row.right)
        case Peer.EXPIRED:
            return DevelopmentAuthority(authority.directory, now=datetime.now(UTC) - timedelta(days=3)).issue(row.right.role, "late", days=2)
        case Peer.WRONG_ROLE | Peer.NO_PERMISSION:
            certificate = row.wrong_role if peer is Peer.WRONG_ROLE else row.no_permission
            assert isinstance(certificate, Certificate)
            return authority.issue(*certificate)
        case Peer.RIGHT:
            return authority.issue(*row.right)


def _ask(port: int, said: bytes, tls: TlsSettings | None, authorities: Path, wait_s: float) -> bytes:
    """The beginning of what the port answers; empty if it ends the connection, `WAITS` if it does neither within `wait_s`."""
    context = ssl.create_default_context(cafile=str(authorities))
    context.set_alpn_protocols(["h2"] if said == PREFACE else [])
    if tls is not None:
        context.load_cert_chain(tls.certificate, tls.key)
    try:
        with socket.create_connection((HOST, port), timeout=20) as plain, context.wrap_socket(plain, server_hostname=HOST) as connection:
            connection.sendall(said)
            connection.settimeout(wait_s)
            return connection.recv(4096)
    except TimeoutError:
        return WAITS
    except OSError:
        return b""


SERVED_AS = {"console": "operator", "zookeeper": "zookeeper"}
"""What the certificate of a port says, where it is not a node's."""


@pytest.mark.parametrize("kind", ROWS)
async def test_a_port_serves_the_right_peer_and_no_other(kind: str, tmp_path: Path) -> None:
    row = ROWS[kind]
    authority, elsewhere = DevelopmentAuthority(tmp_path / "ours"), DevelopmentAuthority(tmp_path / "elsewhere")
    (tmp_path / "served").mkdir()
    found = {}
    async with row.open(authority.issue(SERVED_AS.get(kind, "node"), "served", serve=True), tmp_path / "served") as port:
        for peer in Peer:
            decided = {Peer.WRONG_ROLE: row.wrong_role, Peer.NO_PERMISSION: row.no_permission}.get(peer)
            if not isinstance(decided, CoveredBy | CannotBe):
                files = _files(peer, row, authority, elsewhere)
                wait_s = 1.0 if peer is Peer.RIGHT and row.served == WAITS.__eq__ else 20.0
                answer = await asyncio.to_thread(_ask, port, row.said, files, authority.certificate, wait_s)
                found[peer] = "served" if row.served(answer) else answer
    assert found.pop(Peer.RIGHT) == "served"
    for peer, given in found.items():
        assert given != "served", f"{kind} serves a peer with {peer}"
        refusal = given == b"" or (isinstance(given, bytes) and (given.split(b" ")[1:2] == [b"403"] or b"PermissionDenied" in given))
        assert refusal, f"{kind} answers a peer with {peer}: {given!r}"


def test_only_processes_of_the_same_user_open_the_sockets_of_siblings() -> None:
    with closing(SocketFolder()) as folder:
        assert folder.path.stat().st_mode & 0o077 == 0
