"""Every procedure, at gRPC's port and at the direct one, with each kind of certificate: who is served, who is refused and how."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import pytest_asyncio

from waltz_log.core.ports import Channel, Method
from waltz_log.core.topics.sharding import Shard
from waltz_log.errors import ConnectionLost, PermissionDenied, ProtocolViolation
from waltz_log.security.authority import DevelopmentAuthority
from waltz_log.security.certificates import Certificates
from waltz_log.security.identity import Role
from waltz_log.security.permits import PERMITTED
from waltz_log.security.settings import TlsSettings
from waltz_log.transport import methods
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.addresses import ReservedAddress
from waltz_log.transport.admitted import Gate
from waltz_log.transport.forwarding import WorkerNetwork
from waltz_log.transport.grpc import GrpcNetwork

AnyMethod = Method[Any, Any]
METHODS: list[AnyMethod] = sorted((each for each in vars(methods).values() if isinstance(each, Method)), key=lambda method: method.name)
DIRECT_PORT_MIN = 1


def _id(method: AnyMethod) -> str:
    return method.name.rpartition("/")[2]


class _Node:
    """Serves every procedure, and keeps the principals of the requests."""

    def __init__(self) -> None:
        self.principals: list[str] = []

    def service(self) -> list[Any]:
        return [method.served_by(self._handler(method)) for method in METHODS if method not in methods.DIRECT_PORT_CALLS.values()]  # type: ignore[attr-defined]

    def _handler(self, method: AnyMethod) -> Any:
        async def call(request: Any) -> Any:
            self.principals.append(getattr(request, "principal", ""))
            return method.response()

        async def read(request: Any, _stream: Any) -> None:
            self.principals.append(getattr(request, "principal", ""))

        async def stream(stream: Any) -> None:
            message = await stream.receive()
            if method == methods.MOUNT and message is not None:
                self.principals.append(message.mount.principal)

        return {"call": call, "read": read, "stream": stream}[method.kind]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> DevelopmentAuthority:
    return DevelopmentAuthority(tmp_path_factory.mktemp("certificates"))


@pytest_asyncio.fixture(params=["alone", "worker"])
async def served(request: pytest.FixtureRequest, authority: DevelopmentAuthority) -> AsyncIterator[tuple[_Node, str]]:
    node = _Node()
    tls = authority.find("node", "served") or authority.issue("node", "served")
    with ExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory())
        if request.param == "alone":
            network = GrpcNetwork(tls=tls)
        else:
            reserved = stack.enter_context(closing(ReservedAddress("127.0.0.1:0")))
            network = WorkerNetwork(Shard(0, 1), [reserved.address], [f"unix:{Path(folder) / '0'}"], tls=tls)
        listener = await network.serve(
            "127.0.0.1:0", [each for each in node.service() if request.param == "alone" or "Status" not in each.method.name]
        )
        address = listener.address
        try:
            yield node, address
        finally:
            await listener.close()


def _request(method: AnyMethod) -> Any:
    return pb.ClientMessage(mount=pb.MountRequest(principal="stated")) if method == methods.MOUNT else method.request()


async def _use(channel: Channel, method: Any) -> None:
    """Returns if the procedure is served; raises what refuses it."""
    if method.kind == "call":
        await channel.call(method, _request(method), timeout_s=10)
        return
    if method.kind == "read":
        receiver = channel.read(method, _request(method))
    else:
        # Over gRPC: `open` would ask for the direct port, which has its own tests below.
        receiver = stream = channel._stream(method)  # type: ignore[attr-defined]
        await stream.send(_request(method))
    assert await receiver.receive() is None


async def _attempt(address: str, tls: TlsSettings | Certificates | None, method: AnyMethod) -> None:
    channel = GrpcNetwork(tls=tls).connect(address)
    try:
        async with asyncio.timeout(20):
            await _use(channel, method)
    finally:
        await channel.close()


def test_the_matrix_covers_every_procedure() -> None:
    assert {method.name for method in METHODS} == set(PERMITTED)


async def test_each_role_is_served_what_the_table_permits_and_denied_the_rest(served: tuple[_Node, str], authority: DevelopmentAuthority) -> None:
    node, address = served
    offered = [method for method in METHODS if "Status" not in method.name]
    for role in (*Role, "guest"):
        tls = authority.issue(role, "peer")
        channel = GrpcNetwork(tls=tls).connect(address)
        try:
            for method in offered:
                if role in PERMITTED[method.name]:
                    await _use(channel, method)
                else:
                    with pytest.raises(PermissionDenied, match=f"spiffe://waltz/{role}/peer has no role for {method.name}"):
                        await _use(channel, method)
        finally:
            await channel.close()
    assert "stated" not in node.principals
    assert {f"spiffe://waltz/{role}/peer" for role in Role} <= set(node.principals)


@pytest.mark.parametrize("kind", ["none", "another authority", "expired"])
async def test_a_peer_without_a_valid_certificate_is_served_nothing(
    served: tuple[_Node, str], authority: DevelopmentAuthority, kind: str, tmp_path: Path
) -> None:
    node, address = served
    files: TlsSettings | Certificates | None = None
    if kind == "expired":
        files = _expired(authority)
    elif kind == "another authority":
        files = DevelopmentAuthority(tmp_path / "other").issue("node", "a").model_copy(update={"authorities": authority.certificate})
    for method in METHODS:
        with pytest.raises(ConnectionLost):
            await _attempt(address, files, method)
    assert node.principals == []


def _expired(authority: DevelopmentAuthority) -> Certificates:
    """Of a client that ignores its own clock."""
    before = datetime.now(UTC) - timedelta(days=9)
    files = DevelopmentAuthority(authority.directory, now=before).issue("node", "expired", days=1)
    return Certificates(files, now_s=lambda: before.timestamp())


async def test_a_connection_below_tls_1_3_is_refused(authority: DevelopmentAuthority) -> None:
    class OldContext:
        def auth_context(self) -> dict[str, list[bytes]]:
            return {"ssl_tls_version": [b"TLSv1.2"], "peer_uri": [b"spiffe://waltz/node/a"]}

    with pytest.raises(ProtocolViolation, match=r"TLS 1.3 is required, the connection has TLSv1.2"):
        Gate(Certificates(authority.issue("node", "old"))).identity(OldContext())


async def test_a_client_refuses_a_server_of_another_authority(served: tuple[_Node, str], tmp_path: Path) -> None:
    stranger = DevelopmentAuthority(tmp_path / "other").issue("node", "a")
    with pytest.raises(ConnectionLost):
        await _attempt(served[1], stranger, methods.PING)


async def test_a_client_refuses_a_server_whose_certificate_names_another_host(authority: DevelopmentAuthority) -> None:
    listener = await GrpcNetwork(tls=authority.issue("node", "elsewhere", hosts=("other.example.com",))).serve("127.0.0.1:0", _Node().service())
    try:
        with pytest.raises(ConnectionLost):
            await _attempt(listener.address, authority.issue("node", "peer"), methods.PING)
    finally:
        await listener.close()


# ---- the connections beside gRPC -------------------------------------------------------------------------------------------------------------------


async def _direct_port(address: str, authority: DevelopmentAuthority) -> int:
    channel = GrpcNetwork(tls=authority.issue("node", "asks")).connect(address)
    try:
        return int((await channel.call(methods.STORAGE_DIRECT, pb.ReplicateRequest(), timeout_s=10)).port)
    finally:
        await channel.close()


async def test_the_direct_port_serves_nodes_alone(served: tuple[_Node, str], authority: DevelopmentAuthority) -> None:
    port = await _direct_port(served[1], authority)
    assert port >= DIRECT_PORT_MIN
    outcomes = {}
    for role in Role:
        tls = authority.issue(role, "direct")
        context = ssl.create_default_context(cafile=str(tls.authorities))
        context.load_cert_chain(tls.certificate, tls.key)
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        name = methods.REPLICATE.name.encode()
        writer.write(b"\x57" + (len(name) + 1).to_bytes(4, "big") + b"\x01" + name)
        await writer.drain()
        try:
            async with asyncio.timeout(1.0 if role is Role.NODE else 20):
                outcomes[role] = await reader.read(4096)
        except TimeoutError:
            outcomes[role] = b"waits for the opening"
        writer.close()
    assert outcomes.pop(Role.NODE) == b"waits for the opening"
    for answer in outcomes.values():
        assert b"PermissionDenied" in answer


async def test_the_direct_port_ends_a_connection_in_plain_text_and_one_without_a_certificate(
    served: tuple[_Node, str], authority: DevelopmentAuthority
) -> None:
    port = await _direct_port(served[1], authority)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"\x00\x00\x00\x00\x05hello")
    assert b"Replicate" not in await asyncio.wait_for(reader.read(), 20)
    writer.close()
    context = ssl.create_default_context(cafile=str(authority.certificate))
    with pytest.raises((ssl.SSLError, ConnectionError, OSError)):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        writer.write(b"hello")
        await writer.drain()
        if not await asyncio.wait_for(reader.read(), 20):
            raise ConnectionResetError


# ---- an authority that is not trusted any more -----------------------------------------------------------------------------------------------------


async def test_a_certificate_of_a_removed_authority_is_refused_at_new_connections(tmp_path: Path) -> None:
    old, new = DevelopmentAuthority(tmp_path / "old"), DevelopmentAuthority(tmp_path / "new")
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(old.certificate.read_bytes() + new.certificate.read_bytes())
    listener = await GrpcNetwork(tls=new.issue("node", "a").model_copy(update={"authorities": trusted})).serve("127.0.0.1:0", _Node().service())
    stolen = old.issue("application", "stolen").model_copy(update={"authorities": new.certificate})
    try:
        await _attempt(listener.address, stolen, methods.BOUND)
        trusted.write_bytes(new.certificate.read_bytes())
        async with asyncio.timeout(20):
            with pytest.raises(ConnectionLost):
                while True:
                    await _attempt(listener.address, stolen, methods.BOUND)
        await _attempt(listener.address, new.issue("application", "good"), methods.BOUND)
    finally:
        await listener.close()


# ---- rotation --------------------------------------------------------------------------------------------------------------------------------------


async def test_rotations_while_calls_and_streams_run_fail_none(authority: DevelopmentAuthority) -> None:
    node_tls, peer_tls = authority.issue("node", "rotating"), authority.issue("application", "rotating")
    node = _Node()
    listener = await GrpcNetwork(tls=node_tls).serve("127.0.0.1:0", node.service())
    channel = GrpcNetwork(tls=peer_tls).connect(listener.address)
    calls = 0
    try:
        for _ in range(6):
            authority.issue("node", "rotating")
            authority.issue("application", "rotating")
            ends = asyncio.get_running_loop().time() + 0.6
            while asyncio.get_running_loop().time() < ends:
                await _use(channel, methods.BOUND)
                calls += 1
        assert calls > 6
        version = channel._current._certificates.version  # type: ignore[attr-defined]
        assert version >= 4
    finally:
        await channel.close()
        await listener.close()
