"""To whom a process sends calls, streams and tokens: to the node that the cluster announces for an address, and to no one else."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tests.unit.log.transport.impostor import Impostor, relay
from waltz_log.core.node_address import NodeAddress
from waltz_log.core.ports import Channel, Listener
from waltz_log.errors import ConnectionLost
from waltz_log.security import peers
from waltz_log.security.authority import DevelopmentAuthority
from waltz_log.security.certificates import Certificates
from waltz_log.security.settings import TlsSettings
from waltz_log.transport import grpc_channels, methods
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.grpc import GrpcNetwork
from waltz_log.transport.verified_peer import VerifiedPeer, verify_peer

NODE, OTHER = "spiffe://waltz/node/a", "spiffe://waltz/node/b"
APPENDS = pb.MountRequest(client_id=1, partition=0, feed=pb.FEED_NONE)

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def authority(tmp_path: Path) -> DevelopmentAuthority:
    return DevelopmentAuthority(tmp_path / "certificates")


@pytest.fixture
def client(authority: DevelopmentAuthority, tmp_path: Path) -> TlsSettings:
    (tmp_path / "token").write_text("a.secret.token")
    return authority.issue("application", "orders").model_copy(update={"token": tmp_path / "token"})


async def _ping(_request: pb.PingRequest) -> pb.PingResponse:
    return pb.PingResponse()


async def _mount(stream: methods.ServedMountStream) -> None:
    await stream.receive()
    await stream.send(pb.ServerMessage(mounted=pb.MountResponse(generation=1)))
    await stream.receive()


@asynccontextmanager
async def _node(tls: TlsSettings, address: str = "127.0.0.1:0") -> AsyncIterator[Listener]:
    listener = await GrpcNetwork(tls=tls).serve(address, [methods.PING.served_by(_ping), methods.MOUNT.served_by(_mount)])
    try:
        yield listener
    finally:
        await listener.close()


async def _call(channel: Channel) -> None:
    await channel.call(methods.PING, pb.PingRequest(), timeout_s=10)


async def _read(channel: Channel) -> None:
    await channel.read(methods.READ, pb.ReadRequest()).receive()


async def _stream(channel: Channel) -> None:
    stream = channel.open(methods.REPLICATE)
    await stream.send(pb.ReplicateRequest())
    await stream.receive()


async def _direct(channel: Channel) -> None:
    stream = channel.open(methods.MOUNT)
    await stream.send(pb.ClientMessage(mount=APPENDS))
    await stream.receive()


USES = [_call, _read, _stream, _direct]


async def _refusal(tls: TlsSettings, address: str, use: Callable[..., object] = _call) -> str:
    channel = GrpcNetwork(tls=tls).connect(address)
    try:
        async with asyncio.timeout(20):
            with pytest.raises(ConnectionLost) as refused:
                await use(channel)  # type: ignore[misc]
        return refused.value.reason
    finally:
        await channel.close()


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("announced", [None, NODE, "spiffe://waltz/application/late"])
async def test_an_application_at_a_nodes_address_is_sent_nothing(
    authority: DevelopmentAuthority, client: TlsSettings, use: Callable[..., object], announced: str | None
) -> None:
    async with Impostor().serving(authority.issue("application", "late", serve=True)) as impostor:
        address = impostor.address if announced is None else NodeAddress(impostor.address, announced)
        reason = await _refusal(client, address, use)
    assert "spiffe://waltz/application/late answers there, which is not a node" in reason
    assert "URI spiffe://DOMAIN/node/NAME" in reason
    assert (impostor.seen, impostor.messages) == ([], [])


@pytest.mark.parametrize("use", USES)
async def test_another_node_than_the_announced_one_is_sent_nothing(
    authority: DevelopmentAuthority, client: TlsSettings, use: Callable[..., object]
) -> None:
    async with Impostor().serving(authority.issue("node", "b")) as impostor:
        reason = await _refusal(client, NodeAddress(impostor.address, NODE), use)
    assert f"{OTHER} answers there, and the cluster announces {NODE}" in reason
    assert (impostor.seen, impostor.messages) == ([], [])


@pytest.mark.parametrize("role", ["operator", "application", "reader"])
async def test_a_clients_certificate_may_not_serve(authority: DevelopmentAuthority, client: TlsSettings, role: str) -> None:
    async with Impostor().serving(authority.issue(role, "late")) as impostor:
        reason = await _refusal(client, impostor.address)
    assert "its certificate may not serve: a node needs a certificate with" in reason
    assert impostor.seen == []


async def test_a_node_that_announces_no_name_is_refused(authority: DevelopmentAuthority, client: TlsSettings) -> None:
    async with _node(authority.issue("node", "a")) as listener:
        assert "registered without a name: start it with the settings tls" in await _refusal(client, NodeAddress(listener.address, ""))


async def test_the_announced_node_gets_calls_streams_and_the_token(authority: DevelopmentAuthority, client: TlsSettings) -> None:
    async with _node(authority.issue("node", "a")) as listener:
        assert isinstance(listener.address, NodeAddress)
        assert listener.address.principal == NODE
        channel = GrpcNetwork(tls=client).connect(listener.address)
        stream = channel.open(methods.MOUNT)
        await stream.send(pb.ClientMessage(mount=APPENDS))
        assert await stream.receive() == pb.ServerMessage(mounted=pb.MountResponse(generation=1))
        await channel.close()
    async with Impostor().serving(authority.issue("node", "a")) as node:
        channel = GrpcNetwork(tls=client).connect(NodeAddress(node.address, NODE))
        await _call(channel)
        await channel.close()
    assert [each["authorization"] for _, each in node.seen] == ["Bearer a.secret.token"]


async def test_a_relay_that_shows_a_node_and_then_an_impostor_is_sent_nothing(authority: DevelopmentAuthority, client: TlsSettings) -> None:
    """The relay has no key of a node: it may only choose with whom the client shakes hands."""
    async with (
        _node(authority.issue("node", "a")) as listener,
        Impostor().serving(authority.issue("application", "late", serve=True)) as impostor,
        relay(str(listener.address), impostor.address) as address,
    ):
        assert "application/late" in await _refusal(client, NodeAddress(address, NODE))
    assert (impostor.seen, impostor.messages) == ([], [])


async def test_a_process_that_follows_a_verified_node_at_its_address_is_sent_nothing(authority: DevelopmentAuthority, client: TlsSettings) -> None:
    network = GrpcNetwork(tls=client)
    async with _node(authority.issue("node", "a")) as listener:
        channel = network.connect(listener.address)
        await _call(channel)
    async with Impostor().serving(authority.issue("application", "late", serve=True), listener.address) as impostor:
        with pytest.raises(ConnectionLost, match="application/late answers there"):
            await _call(channel)
    async with _node(authority.issue("node", "a"), listener.address):  # with a new key
        await _call(channel)
    await channel.close()
    assert impostor.seen == []


async def test_another_process_at_the_direct_port_is_sent_nothing(
    authority: DevelopmentAuthority, client: TlsSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = client.model_copy(update={"token": None})
    for certificate in (authority.issue("application", "late", serve=True), authority.issue("node", "b")):
        impostor = Impostor()
        async with impostor.listening(certificate) as port, _node(authority.issue("node", "a")) as listener:
            monkeypatch.setattr(listener._direct, "_port", port)  # type: ignore[attr-defined]
            channel = GrpcNetwork(tls=files).connect(listener.address)
            stream = channel.open(methods.MOUNT)
            await stream.send(pb.ClientMessage(mount=APPENDS))
            assert await stream.receive() == pb.ServerMessage(mounted=pb.MountResponse(generation=1))
            assert "CallStream" in type(stream._stream).__name__  # type: ignore[attr-defined]  # over gRPC
            await channel.close()
        assert impostor.messages == []


async def test_a_node_whose_authority_is_between_the_trusted_one_and_itself_is_verified(authority: DevelopmentAuthority, client: TlsSettings) -> None:
    async with _node(_with_intermediate(authority)) as listener:
        channel = GrpcNetwork(tls=client).connect(listener.address)
        await _call(channel)
        await channel.close()


async def test_a_refused_peer_is_logged_once(
    authority: DevelopmentAuthority, client: TlsSettings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(peers, "_logged", type(peers._logged)())
    async with Impostor().serving(authority.issue("application", "late", serve=True)) as impostor:
        for _ in range(3):
            await _refusal(client, impostor.address)
    shown = capsys.readouterr()
    assert (shown.out + shown.err).count("peer refused") == 1


def _with_intermediate(authority: DevelopmentAuthority) -> TlsSettings:
    """The certificate of a node that an authority signed which the trusted one signed. The trusted one may sign authorities, unlike a development
    authority."""
    folder, now = authority.directory, datetime.datetime.now(datetime.UTC)
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(3)]
    names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, each)]) for each in ("root", "between", "node")]
    made = []
    for index, (key, name) in enumerate(zip(keys, names, strict=True)):
        signer = max(0, index - 1)
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(names[signer])
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=index < 2, path_length=None), critical=True)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(keys[signer].public_key()), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        )
        if index == 2:
            san = [x509.UniformResourceIdentifier(NODE), x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
            usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
            builder = builder.add_extension(x509.SubjectAlternativeName(san), critical=False)
            builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        made.append(builder.sign(keys[signer], hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    authority.certificate.write_bytes(authority.certificate.read_bytes() + made[0])
    (folder / "chain.pem").write_bytes(made[2] + made[1])
    key_file = folder / "chain.key"
    key_file.write_bytes(keys[2].private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    return TlsSettings(certificate=folder / "chain.pem", key=key_file, authorities=authority.certificate)


async def test_a_peer_that_stalls_after_it_was_verified_costs_no_more_than_the_time_of_the_call(
    authority: DevelopmentAuthority, client: TlsSettings
) -> None:
    async with _node(authority.issue("node", "a")) as listener:
        silent = await asyncio.start_server(_say_nothing, "127.0.0.1", 0)
        async with relay(str(listener.address), f"127.0.0.1:{silent.sockets[0].getsockname()[1]}") as address:
            channel = GrpcNetwork(tls=client).connect(NodeAddress(address, NODE))
            began_s = asyncio.get_running_loop().time()
            with pytest.raises(ConnectionLost, match="no TLS handshake within 1 s"):
                await channel.call(methods.PING, pb.PingRequest(), timeout_s=1)
            assert asyncio.get_running_loop().time() - began_s < 3
            await channel.close()
        silent.close()


async def test_many_calls_at_once_verify_the_peer_once(authority: DevelopmentAuthority, client: TlsSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    verified: list[str] = []
    verify = verify_peer

    async def counted(address: str, certificates: Certificates) -> VerifiedPeer:
        verified.append(address)
        return await verify(address, certificates)

    monkeypatch.setattr(grpc_channels, "verify_peer", counted)
    async with _node(authority.issue("node", "a")) as listener:
        channel = GrpcNetwork(tls=client).connect(listener.address)
        await asyncio.gather(*(_call(channel) for _ in range(50)))
        await channel.close()
        with pytest.raises(ConnectionLost, match="the channel was closed here"):
            await _call(channel)
    assert verified == [listener.address]


async def _say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()
