"""Which mounts come over a connection of their own, as whom, and what a mount does where it cannot have one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.unit.log.security.test_tokens import _Issuer, _settings
from waltz_log.core.ports import Channel
from waltz_log.errors import PermissionDenied, QuotaExceeded
from waltz_log.security.authority import DevelopmentAuthority
from waltz_log.security.callers import caller
from waltz_log.security.rules import AccessRules, Operation, Rule
from waltz_log.security.settings import TlsSettings
from waltz_log.testing.cluster import MemoryCluster
from waltz_log.transport import methods
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.connection_limits import ConnectionLimits, PrincipalConnections
from waltz_log.transport.direct import connection as direct
from waltz_log.transport.direct.codec import OPENING_BYTES_MAX
from waltz_log.transport.grpc import GrpcNetwork

PATIENCE_S = 30

APPENDS = pb.MountRequest(client_id=1, partition=0, feed=pb.FEED_NONE)


class _Server:
    """Accepts each mount, and keeps over what it came and whose it is."""

    def __init__(self) -> None:
        self.ways: list[str] = []
        self.principals: list[str] = []
        self.callers: list[str] = []

    async def mount(self, stream: methods.ServedMountStream) -> None:
        message = await stream.receive()
        assert message is not None
        inner = getattr(stream, "_stream", stream)
        self.ways.append("direct" if "Direct" in type(inner).__name__ else "grpc")
        self.principals.append(message.mount.principal)
        identity = caller()
        self.callers.append("" if identity is None else identity.principal)
        await stream.send(pb.ServerMessage(mounted=pb.MountResponse(generation=1)))
        await stream.receive()


@asynccontextmanager
async def _served(tls: TlsSettings | None = None, limits: ConnectionLimits | None = None) -> AsyncIterator[tuple[_Server, Any]]:
    server = _Server()
    listener = await GrpcNetwork(limits=limits or ConnectionLimits(), tls=tls).serve("127.0.0.1:0", [methods.MOUNT.served_by(server.mount)])
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield server, listener
    finally:
        await listener.close()


async def _mounted(channel: Channel, request: pb.MountRequest) -> methods.MountStream:
    stream = channel.open(methods.MOUNT)
    await stream.send(pb.ClientMessage(mount=request))
    answer = await stream.receive()
    assert answer is not None
    assert answer.mounted.generation == 1
    return stream


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (APPENDS, "direct"),
        (pb.MountRequest(client_id=1, on_disk=True, topic="shop/orders", principal="a" * 200, topics=["shop/a", "shop/b"]), "direct"),
        (pb.MountRequest(client_id=0, feed=pb.FEED_RECORDS), "grpc"),
        (pb.MountRequest(client_id=1, feed=pb.FEED_HEADERS), "grpc"),
        (pb.MountRequest(client_id=1, appends_nothing=True), "grpc"),
        (pb.MountRequest(client_id=1, topics=["a" * 200] * (OPENING_BYTES_MAX // 200 + 1)), "grpc"),
    ],
    ids=["appends", "with names", "reads", "appends and reads", "resolves", "large"],
)
async def test_a_mount_that_only_appends_has_a_connection_of_its_own(request_: pb.MountRequest, expected: str) -> None:
    async with _served() as (server, listener):
        channel = GrpcNetwork().connect(listener.address)
        await _mounted(channel, request_)
        assert server.ways == [expected]
        await channel.close()


async def test_a_server_that_does_not_know_the_question_serves_the_mount_over_grpc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct.DirectListener, "service", [])
    async with _served() as (server, listener):
        channel = GrpcNetwork().connect(listener.address)
        for _ in range(2):
            await _mounted(channel, APPENDS)
        assert server.ways == ["grpc", "grpc"]
        await channel.close()


async def test_a_direct_mount_is_judged_by_the_name_in_the_certificate(tmp_path: Path) -> None:
    authority = DevelopmentAuthority(tmp_path)
    async with _served(authority.issue("node", "a")) as (server, listener):
        channel = GrpcNetwork(tls=authority.issue("application", "orders")).connect(listener.address)
        await _mounted(channel, pb.MountRequest(client_id=1, principal="somebody else"))
        assert (server.ways, server.principals, server.callers) == (["direct"], *2 * (["spiffe://waltz/application/orders"],))
        await channel.close()
        reader = GrpcNetwork(tls=authority.issue("reader", "reports")).connect(listener.address)
        with pytest.raises(PermissionDenied, match=r"spiffe://waltz/reader/reports has no role for /waltz\.Server/Mount"):
            await _mounted(reader, APPENDS)
        assert len(server.ways) == 1
        await reader.close()


async def test_a_client_with_a_token_mounts_as_the_subject_of_the_token(tmp_path: Path) -> None:
    """A direct connection shows the certificate alone, so such a client stays with gRPC."""
    issuer, authority, path = _Issuer(tmp_path / "keys.json"), DevelopmentAuthority(tmp_path / "authority"), tmp_path / "token"
    path.write_text(issuer.sign(exp=4_000_000_000))
    node = authority.issue("node", "a").model_copy(update={"tokens": _settings(issuer)})
    async with _served(node) as (server, listener):
        channel = GrpcNetwork(tls=authority.issue("application", "orders").model_copy(update={"token": path})).connect(listener.address)
        await _mounted(channel, APPENDS)
        assert (server.ways, server.principals, server.callers) == (["grpc"], *2 * (["jobs/nightly"],))
        await channel.close()


async def test_a_principal_has_a_limited_number_of_direct_connections_and_a_node_any_number(tmp_path: Path) -> None:
    authority = DevelopmentAuthority(tmp_path)
    async with _served(authority.issue("node", "a"), ConnectionLimits(per_principal=2)) as (server, listener):
        client = GrpcNetwork(tls=authority.issue("application", "orders")).connect(listener.address)
        streams = [await _mounted(client, APPENDS) for _ in range(4)]
        assert server.ways == ["direct"] * 2 + ["grpc"] * 2
        other = GrpcNetwork(tls=authority.issue("application", "billing")).connect(listener.address)
        await _mounted(other, APPENDS)
        assert server.ways[-1] == "direct"
        node = GrpcNetwork(tls=authority.issue("node", "b")).connect(listener.address)
        for _ in range(3):
            await _mounted(node, APPENDS)
            assert server.ways[-1] == "direct"
        await streams[0].cancel()
        while server.ways[-1] != "direct" or len(server.ways) < 9:  # when the server has heard of it there is room again
            await _mounted(client, APPENDS)
        for channel in (client, other, node):
            await channel.close()


async def test_mounts_that_begin_together_share_the_limit_and_none_fails(tmp_path: Path) -> None:
    authority = DevelopmentAuthority(tmp_path)
    async with _served(authority.issue("node", "a"), ConnectionLimits(per_principal=2)) as (server, listener):
        client = GrpcNetwork(tls=authority.issue("application", "orders")).connect(listener.address)
        await asyncio.gather(*(_mounted(client, APPENDS) for _ in range(6)))
        assert sorted(server.ways) == ["direct"] * 2 + ["grpc"] * 4
        await client.close()


async def test_a_principal_that_connects_without_asking_is_held_to_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = DevelopmentAuthority(tmp_path)
    async with _served(authority.issue("node", "a"), ConnectionLimits(per_principal=1)) as (server, listener):
        client = GrpcNetwork(tls=authority.issue("application", "orders")).connect(listener.address)
        await _mounted(client, APPENDS)
        monkeypatch.setattr(PrincipalConnections, "is_full", lambda *_: False)
        with pytest.raises(QuotaExceeded, match="connections_per_principal"):
            await _mounted(client, APPENDS)
        assert server.ways == ["direct"]
        await client.close()


async def test_a_direct_mount_needs_a_rule_as_one_over_grpc_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a real server: refused without a rule, served with one, and ended when the rule is withdrawn."""
    authority, cluster = DevelopmentAuthority(tmp_path), MemoryCluster(partitions=1, storages=1, servers=1)
    ways: list[str] = []
    serve = direct.DirectListener._serve

    async def noted(*arguments: Any) -> None:
        ways.append("direct")
        await serve(*arguments)

    monkeypatch.setattr(direct.DirectListener, "_serve", noted)
    await cluster.start()
    ((server, _),) = cluster.servers.values()
    client = await cluster.connect()
    await client.append(0, b"there")
    await client.close()
    control = server._access
    control.enforced = True
    control.replace(AccessRules())
    listener = await GrpcNetwork(tls=authority.issue("node", "a")).serve("127.0.0.1:0", server.service())
    principal = "spiffe://waltz/application/orders"
    channel = GrpcNetwork(tls=authority.issue("application", "orders")).connect(listener.address)
    request = pb.MountRequest(
        protocol_version=methods.PROTOCOL_VERSION, cluster_key=cluster.key.bytes, client_id=7, mount_sequence=1, client_high_water_mark=-1
    )

    async def mount() -> methods.MountStream:
        stream = channel.open(methods.MOUNT)
        await stream.send(pb.ClientMessage(mount=request))
        answer = await stream.receive()
        assert answer is not None
        assert answer.WhichOneof("kind") == "mounted"
        return stream

    try:
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(PermissionDenied) as refused:
                await mount()
            assert refused.value.facts["principal"] == principal
            control.replace(AccessRules(rules=(Rule(principal=principal, operations=(Operation.APPEND,), resource="*"),)))
            with pytest.raises(PermissionDenied, match="the client id of another principal"):
                await mount()
            given = await channel.call(methods.CLIENT_ID, pb.ClientIdRequest(cluster_key=cluster.key.bytes), timeout_s=PATIENCE_S)
            request.client_id, request.ticket = given.client_id, given.ticket
            stream = await mount()
            control.replace(AccessRules())
            server._access_changed()
            with pytest.raises(PermissionDenied):
                await stream.receive()
            assert ways == ["direct", "direct", "direct"]
    finally:
        await channel.close()
        await listener.close()
        await cluster.stop()
