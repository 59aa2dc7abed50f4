"""A call ends with the token that permitted it, and another one begins with the next token."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from structlog.testing import capture_logs

from tests.unit.log.security.test_tokens import _Issuer, _settings
from waltz_log.client import ClientSettings, WaltzClient
from waltz_log.core.ports import Channel, Listener, Service
from waltz_log.core.topics.sharding import Shard
from waltz_log.errors import NotAllowed, NotAppended, OutcomeUnknown, PermissionDenied, Unavailable
from waltz_log.security import changing_file, tokens
from waltz_log.security.authority import DevelopmentAuthority
from waltz_log.security.callers import caller
from waltz_log.testing.cluster import MemoryCluster
from waltz_log.transport import methods
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.addresses import ReservedAddress
from waltz_log.transport.forwarding import WorkerNetwork
from waltz_log.transport.grpc import GrpcNetwork

LASTS_S = 1.5

pytestmark = pytest.mark.timeout(60)


class _Cluster:
    """A node, and the token file of a client of it. `ended`: the principals whose mounts are over."""

    def __init__(self, folder: Path) -> None:
        self.issuer = _Issuer(folder / "keys.json")
        self.authority = DevelopmentAuthority(folder / "authority")
        self.token = folder / "token"
        self.address = ""
        self.ended: list[str] = []

    async def mount(self, stream: methods.ServedMountStream) -> None:
        identity = caller()
        assert identity is not None
        try:
            while await stream.receive() is not None:
                await stream.send(pb.ServerMessage(mounted=pb.MountResponse(generation=1)))
        finally:
            self.ended.append(identity.principal)

    @asynccontextmanager
    async def serving(self, kind: str) -> AsyncIterator[_Cluster]:
        """By one process, or by a worker that owns no partition and passes each mount on."""
        tls = self.authority.issue("node", "a").model_copy(update={"tokens": _settings(self.issuer)})
        service = [methods.MOUNT.served_by(self.mount)]
        with ExitStack() as stack:
            if kind == "alone":
                listeners = [await GrpcNetwork(tls=tls).serve("127.0.0.1:0", service)]
            else:
                reserved = [stack.enter_context(closing(ReservedAddress("127.0.0.1:0"))) for _ in range(2)]
                folder = Path(stack.enter_context(TemporaryDirectory()))
                siblings = [f"unix:{folder / str(worker)}" for worker in range(2)]
                listeners = [
                    await WorkerNetwork(Shard(worker, 2), [each.address], siblings, tls=tls).serve("127.0.0.1:0", service)
                    for worker, each in enumerate(reserved)
                ]
            self.address = listeners[0].address
            yield self
            await asyncio.gather(*(each.close() for each in listeners))

    @asynccontextmanager
    async def mounted(self) -> AsyncIterator[methods.MountStream]:
        tls = self.authority.issue("application", "jobs").model_copy(update={"token": self.token})
        channel = GrpcNetwork(tls=tls).connect(self.address)
        stream = channel.open(methods.MOUNT)
        await stream.send(pb.ClientMessage(mount=pb.MountRequest(client_id=1, partition=1)))
        await stream.receive()
        try:
            yield stream
        finally:
            await channel.close()


@pytest.fixture(autouse=True)
def _exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "LEEWAY_S", 0.0)
    monkeypatch.setattr(changing_file, "CHECK_S", 0.0)


@pytest.mark.parametrize("kind", ["alone", "worker"])
async def test_a_stream_ends_when_its_token_expires_and_the_next_token_opens_another(kind: str, tmp_path: Path) -> None:
    async with _Cluster(tmp_path).serving(kind) as cluster:
        cluster.token.write_text(cluster.issuer.sign(exp=time.time() + LASTS_S))
        async with cluster.mounted() as stream:
            began_s = time.monotonic()
            with pytest.raises(Unavailable, match="the token of this call is not valid any more, it has expired"):
                await stream.receive()
            assert time.monotonic() - began_s < LASTS_S + 2
        async with asyncio.timeout(10):
            while not cluster.ended:
                await asyncio.sleep(0.01)
        assert cluster.ended == ["jobs/nightly"]
        with pytest.raises(PermissionDenied, match="the token is refused, it has expired"):
            async with cluster.mounted():
                raise AssertionError("an expired token opens nothing")
        cluster.token.write_text(cluster.issuer.sign(exp=time.time() + 600))
        async with cluster.mounted() as stream:
            await stream.send(pb.ClientMessage())
            assert await stream.receive() is not None


@pytest.mark.parametrize("kind", ["alone", "worker"])
async def test_a_stream_ends_when_its_key_leaves_the_set_and_no_other_one_does(kind: str, tmp_path: Path) -> None:
    async with _Cluster(tmp_path).serving(kind) as cluster:
        cluster.token.write_text(cluster.issuer.sign(exp=time.time() + 600))
        plain = cluster.authority.issue("application", "other")
        channel = GrpcNetwork(-1, tls=plain).connect(cluster.address)
        untouched = channel.open(methods.MOUNT)
        await untouched.send(pb.ClientMessage(mount=pb.MountRequest(partition=1)))
        await untouched.receive()
        async with cluster.mounted() as stream:
            cluster.issuer.__post_init__()
            with pytest.raises(Unavailable, match="its key is no longer among the node's keys"):
                async with asyncio.timeout(10):
                    await stream.receive()
        await untouched.send(pb.ClientMessage())
        assert await untouched.receive() is not None
        await channel.close()


class _Redirected:
    """The network of a client to which the cluster announces the addresses of a network in memory."""

    def __init__(self, network: GrpcNetwork, address: str) -> None:
        self._network = network
        self._address = address

    def connect(self, _address: str) -> Channel:
        return self._network.connect(self._address)

    async def serve(self, address: str, service: Service) -> Listener:
        raise AssertionError("a client serves nothing")


async def test_a_client_appends_on_across_the_ends_of_its_tokens_and_is_refused_without_another(tmp_path: Path) -> None:
    issuer, authority, path = _Issuer(tmp_path / "keys.json"), DevelopmentAuthority(tmp_path / "authority"), tmp_path / "token"
    cluster = MemoryCluster(partitions=1, storages=1, servers=1)
    await cluster.start()
    ((server, _),) = cluster.servers.values()
    tls = authority.issue("node", "a").model_copy(update={"tokens": _settings(issuer)})
    listener = await GrpcNetwork(tls=tls).serve("127.0.0.1:0", server.service())

    def renew() -> None:
        new = path.with_suffix(".new")
        new.write_text(issuer.sign(exp=time.time() + LASTS_S))
        new.replace(path)

    renew()
    network = GrpcNetwork(tls=authority.issue("application", "jobs").model_copy(update={"token": path}))
    client = await WaltzClient.connect_over(cluster.seeds, _Redirected(network, listener.address), ClientSettings(append_timeout_s=20))
    try:
        async with asyncio.timeout(40):
            ids: list[int] = []
            began_s = time.monotonic()
            with capture_logs() as logs:
                while time.monotonic() - began_s < 4 * LASTS_S:
                    ids.append((await client.append(0, b"%d" % len(ids))).transaction_id)
                    renew()
                    await asyncio.sleep(0.05)
            assert ids == list(range(ids[0], ids[0] + len(ids))), "each append is in the log once"
            assert [each["event"] for each in logs].count("call ended with its token") >= 2
            await asyncio.sleep(LASTS_S + 1)
            with pytest.raises((NotAllowed, NotAppended, OutcomeUnknown)):
                await client.append(0, b"too late", timeout_s=3)
    finally:
        await client.close()
        await listener.close()
        await cluster.stop()
