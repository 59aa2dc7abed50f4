"""How a client finds the cluster by its servers, and stays with the newest state: names, dead and silent servers, other clusters, stale servers."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any
from uuid import UUID

import pytest

from waltz_log.client import ClientSettings, Subscribers, WaltzClient
from waltz_log.client.owners import following, seeds
from waltz_log.client.owners.following import Following
from waltz_log.client.owners.owners import Owners
from waltz_log.client.owners.seeds import NamedServers
from waltz_log.core.cluster_map import assignment_items, parameters_items
from waltz_log.core.metadata import Assignment, ClusterParameters, Ownership
from waltz_log.core.ports import Sender
from waltz_log.errors import ClusterKeyMismatch, ClusterUnavailable, InvalidSetting, PermissionDenied, Unavailable
from waltz_log.testing.cluster import CLUSTER_KEY, MemoryCluster
from waltz_log.testing.in_memory import InMemoryCluster
from waltz_log.testing.known_servers import KnownServers
from waltz_log.testing.network import MemoryNetwork
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.given_name import given_name
from waltz_log.transport.methods import BOUND, FOLLOW

OTHER = UUID(int=7)
FAST: dict[str, Any] = {"retry_base_s": 0.001, "retry_cap_s": 0.01, "connect_timeout_s": 5.0}


class Server:
    """A server that answers what a test says."""

    def __init__(self, key: bytes = CLUSTER_KEY.bytes) -> None:
        self.key = key
        self.requests: list[pb.FollowRequest] = []
        self.answers: asyncio.Queue[pb.FollowResponse | Exception | None] = asyncio.Queue()
        self.address = ""

    async def listen(self, network: MemoryNetwork, name: str = "server") -> None:
        self.address = (await network.serve(f"{name}:0", [FOLLOW.served_by(self._follow)])).address

    async def _follow(self, request: pb.FollowRequest, stream: Sender[pb.FollowResponse]) -> None:
        self.requests.append(request)
        while (answer := await self.answers.get()) is not None:
            if isinstance(answer, Exception):
                raise answer
            await stream.send(answer)

    def say(self, version: int, owner: int = 1, *, base: int = -1, epoch: int = 0, age_ms: int = 0, more: bool = False) -> None:
        addresses = {1: self.address} if base < 0 else {}
        owners = assignment_items(Assignment({0: Ownership(owner, version)}, addresses))
        parts = [pb.MapPart(source="assignment", base=base, version=version, items=[pb.MapItem(name=n, value=v) for n, v in owners.items()])]
        if base < 0:
            items = parameters_items(ClusterParameters("test", CLUSTER_KEY, 1, epoch))
            parts.append(pb.MapPart(source="cluster", base=-1, version=1, items=[pb.MapItem(name=n, value=v) for n, v in items.items()]))
        self.answers.put_nowait(pb.FollowResponse(cluster_key=self.key, epoch=epoch, age_ms=age_ms, parts=parts, more=more))

    def beat(self, age_ms: int = 0) -> None:
        self.answers.put_nowait(pb.FollowResponse(cluster_key=self.key, age_ms=age_ms))


Follow = Callable[..., Awaitable[Following]]


@pytest.fixture
def network() -> MemoryNetwork:
    return MemoryNetwork()


@pytest.fixture
async def follow(network: MemoryNetwork) -> AsyncIterator[Follow]:
    made: list[Following] = []

    async def open(addresses: Sequence[str], **settings: Any) -> Following:
        found = Following(KnownServers(lambda: addresses), network, ClientSettings(**(FAST | settings)), random.Random(1), lambda _: None)
        made.append(found)
        await found.open()
        return found

    yield open
    for each in made:
        await each.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


def owner(found: Following) -> int | None:
    return found.map.assignment.partitions[0].server_id


async def test_one_living_server_among_dead_ones_is_enough(network: MemoryNetwork, follow: Follow) -> None:
    server = Server()
    await server.listen(network)
    server.say(5)
    found = await follow(["gone:1", "gone:2", server.address, "gone:3"])
    assert (owner(found), found.server) == (1, server.address)


async def test_a_server_that_never_answers_costs_a_bounded_time(network: MemoryNetwork, follow: Follow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "FIRST_ANSWER_S", 0.05)
    silent, server = Server(), Server()
    await silent.listen(network)
    await server.listen(network)
    server.say(5)
    found = await follow([silent.address, server.address])
    assert found.server == server.address


async def test_a_server_that_falls_silent_is_left(network: MemoryNetwork, follow: Follow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "SILENCE_S", 0.05)
    server, other = Server(), Server()
    await server.listen(network)
    await other.listen(network)
    server.say(5)
    addresses = [server.address]
    found = await follow(addresses)
    addresses[:] = [other.address]
    other.say(6, owner=2)
    await until(lambda: owner(found) == 2)


async def test_a_lower_version_is_never_applied(network: MemoryNetwork, follow: Follow) -> None:
    server, stale = Server(), Server()
    await server.listen(network)
    await stale.listen(network)
    server.say(50, owner=5)
    addresses = [server.address]
    found = await follow(addresses)
    addresses[:] = [stale.address]
    stale.say(40, owner=4)
    server.answers.put_nowait(None)
    await until(lambda: found.server == stale.address)
    assert owner(found) == 5
    assert {each.source: each.version for each in stale.requests[0].versions} == {"assignment": 50, "cluster": 1}
    stale.say(60, owner=6, base=40)
    await until(lambda: owner(found) == 6)


async def test_a_lost_difference_reads_everything_again(network: MemoryNetwork, follow: Follow) -> None:
    server = Server()
    await server.listen(network)
    server.say(5)
    found = await follow([server.address])
    server.say(9, owner=9, base=7)
    await until(lambda: len(server.requests) == 2)
    server.say(9, owner=9)
    await until(lambda: owner(found) == 9)
    assert not server.requests[1].versions, "everything is asked for"


async def test_several_messages_are_applied_together(network: MemoryNetwork, follow: Follow) -> None:
    server = Server()
    await server.listen(network)
    server.say(5)
    found = await follow([server.address])
    server.say(6, owner=6, base=5, more=True)
    await asyncio.sleep(0.05)
    assert owner(found) == 1
    server.beat()
    await until(lambda: owner(found) == 6)


async def test_a_new_epoch_replaces_everything(network: MemoryNetwork, follow: Follow) -> None:
    server = Server()
    await server.listen(network)
    server.say(900, owner=9)
    found = await follow([server.address])
    server.say(3, owner=3, epoch=1)
    await until(lambda: owner(found) == 3)
    server.say(999, owner=9)
    server.say(4, owner=4, base=3, epoch=1)
    await until(lambda: owner(found) == 4)


async def test_an_address_of_another_cluster_costs_that_address_alone(network: MemoryNetwork, follow: Follow) -> None:
    server, other = Server(), Server(b"x" * 16)
    await server.listen(network)
    await other.listen(network)
    server.say(5)
    addresses = [server.address]
    found = await follow(addresses)
    addresses[:] = [other.address, server.address]
    for _ in range(3):
        other.say(9, owner=9)
    server.answers.put_nowait(None)
    server.say(6, owner=6)
    await until(lambda: owner(found) == 6)
    assert all(request.cluster_key == CLUSTER_KEY.bytes for request in other.requests)


async def test_with_a_configured_key_an_address_of_another_cluster_is_refused_and_no_key_is_shown(network: MemoryNetwork, follow: Follow) -> None:
    other = Server(OTHER.bytes)
    await other.listen(network)
    other.say(9, owner=9)
    with pytest.raises(ClusterKeyMismatch) as refused:
        await follow([other.address], cluster_key=CLUSTER_KEY, connect_timeout_s=60)
    assert refused.value.facts == {"where": other.address}
    assert not any(text in f"{refused.value} {refused.value!r}" for key in (OTHER, CLUSTER_KEY) for text in (str(key), key.hex))
    assert other.requests[0].cluster_key == CLUSTER_KEY.bytes, "so that a server of another cluster refuses it before it answers"


async def test_with_a_configured_key_the_cluster_is_found_among_addresses_of_others(network: MemoryNetwork, follow: Follow) -> None:
    server, others = Server(), [Server(OTHER.bytes) for _ in range(4)]
    for each in (server, *others):
        await each.listen(network)
        for _ in range(3):
            each.say(5, owner=1 if each is server else 9)
    found = await follow([each.address for each in (*others, server)], cluster_key=CLUSTER_KEY)
    assert (found.server, owner(found)) == (server.address, 1)


async def test_addresses_of_another_cluster_do_not_end_the_wait_for_a_server_of_this_one(network: MemoryNetwork, follow: Follow) -> None:
    server, others = Server(), [Server(OTHER.bytes) for _ in range(4)]
    for each in (server, *others):
        await each.listen(network)
    for each in others:
        for _ in range(20):
            each.say(9, owner=9)
    for _ in range(3):
        server.answers.put_nowait(Unavailable(reason="the server is not ready"))
    server.say(5)
    found = await follow([each.address for each in (server, *others)], cluster_key=CLUSTER_KEY)
    assert (found.server, owner(found)) == (server.address, 1)


async def test_a_client_with_another_key_gets_nothing_from_a_cluster() -> None:
    async with InMemoryCluster(partitions=1) as cluster:
        for connect in (WaltzClient.connect_over, Subscribers.connect_over):
            with pytest.raises(ClusterKeyMismatch):
                await connect(cluster.seeds, cluster.network, ClientSettings(cluster_key=OTHER))
        async with await WaltzClient.connect_over(cluster.seeds, cluster.network, ClientSettings(cluster_key=cluster.key)) as client:
            await client.append(0, b"x")


async def test_a_server_cut_off_for_long_is_left_for_another(network: MemoryNetwork, follow: Follow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "STALE_S", 0.05)
    server, fresh = Server(), Server()
    await server.listen(network)
    await fresh.listen(network)
    server.say(5, age_ms=100)
    addresses = [server.address]
    found = await follow(addresses)
    addresses.append(fresh.address)
    fresh.say(6, owner=6)
    for _ in range(100):
        server.beat(age_ms=60_000)
        await asyncio.sleep(0.002)
    await until(lambda: owner(found) == 6)


async def test_final_errors_are_raised_at_once(network: MemoryNetwork, follow: Follow) -> None:
    server = Server()
    await server.listen(network)
    server.answers.put_nowait(PermissionDenied(principal="p", operation="follow", resource="*"))
    with pytest.raises(PermissionDenied):
        await follow([server.address], connect_timeout_s=60)


async def test_without_any_server_the_error_names_the_address_and_the_reason(follow: Follow) -> None:
    with pytest.raises(ClusterUnavailable, match=r"no log server answers within 0\.1 s; the last error: .*refused: address=gone:1: address=memory"):
        await follow(["gone:1"], connect_timeout_s=0.1)


async def test_a_server_that_is_behind_is_passed_over(network: MemoryNetwork, follow: Follow) -> None:
    behind, server = Server(), Server()
    await behind.listen(network)
    await server.listen(network)
    for _ in range(50):
        behind.answers.put_nowait(Unavailable(reason="this server knows an older state of the cluster"))
    server.say(5)
    found = await follow([behind.address, server.address])
    assert found.server == server.address


async def test_the_address_that_failed_last_is_tried_last(network: MemoryNetwork, follow: Follow) -> None:
    server, refusing = Server(), Server()
    await server.listen(network)
    await refusing.listen(network, "refusing")
    for _ in range(50):
        refusing.answers.put_nowait(Unavailable(reason="not now"))
    rounds = 20
    for _ in range(rounds):
        server.say(5)
        server.answers.put_nowait(None)
    server.say(6, owner=6)
    found = await follow([refusing.address, server.address])
    await until(lambda: owner(found) == 6)
    assert len(server.requests) == rounds + 1
    assert len(refusing.requests) <= 1, "at first, nothing is known of it"


async def test_the_named_servers_come_first_again_when_all_learned_ones_fail(network: MemoryNetwork, follow: Follow) -> None:
    """A cluster that moved: nothing that was learned answers any more, and the names lead to it."""
    old, moved = Server(), Server()
    await old.listen(network, "old")
    await moved.listen(network, "moved")
    old.say(5)
    addresses = [old.address]
    found = await follow(addresses)
    addresses[:] = [moved.address]
    moved.say(6, owner=6)
    for _ in range(50):
        old.answers.put_nowait(Unavailable(reason="it moved"))
    await until(lambda: owner(found) == 6)
    assert len(old.requests) <= 3, "the stream that ended, and one round"
    assert found.server == moved.address


async def test_followers_of_servers_that_end_return_at_different_times(network: MemoryNetwork) -> None:
    servers = [Server() for _ in range(20)]
    made = []
    for seed, server in enumerate(servers):
        await server.listen(network)
        server.say(5)
        seeds = KnownServers(lambda address=server.address: [address])  # type: ignore[misc]
        made.append(Following(seeds, network, ClientSettings(retry_base_s=0.5), random.Random(seed), lambda _: None))
        await made[-1].open()
    began_s = asyncio.get_running_loop().time()
    for server in servers:
        server.answers.put_nowait(None)
    returned: dict[int, float] = {}
    async with asyncio.timeout(20):
        while len(returned) < len(servers):
            await asyncio.sleep(0.002)
            now_s = asyncio.get_running_loop().time() - began_s
            returned |= {at: now_s for at, server in enumerate(servers) if len(server.requests) == 2 and at not in returned}
    assert max(returned.values()) - min(returned.values()) > 0.25, "spread over the first pause, of 0.5 s"
    for each in made:
        await each.close()


async def test_an_owner_with_an_older_session_is_not_believed(network: MemoryNetwork) -> None:
    """The map may still name it, and it may not know yet that it was replaced."""
    server = Server()
    sessions = [5, 3, 3, 6]

    async def bound(request: pb.BoundRequest) -> pb.BoundResponse:
        session = sessions.pop(0)
        return pb.BoundResponse(bounds=[pb.Bound(partition=0, session=session, high_water_mark=100 - session)])

    server.address = (await network.serve("server:0", [FOLLOW.served_by(server._follow), BOUND.served_by(bound)])).address
    server.say(5)
    owners = Owners(KnownServers(lambda: [server.address]), network, ClientSettings(**FAST), random.Random(1))
    await owners.open()
    assert (await owners.bound(0, 5)).session == 5
    assert (await owners.bound(0, 5)).session == 6
    assert not sessions
    await owners.close()


# ---- names -----------------------------------------------------------------------------------------------------------------------------------------


def resolving(monkeypatch: pytest.MonkeyPatch, names: dict[str, list[str] | Exception]) -> None:
    async def getaddrinfo(host: str, port: int, **_: object) -> list[Any]:
        found = names[host]
        if isinstance(found, Exception):
            raise found
        return [(socket.AF_INET6 if ":" in each else socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in found]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)


async def test_each_address_of_a_name_is_tried_and_keeps_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    resolving(monkeypatch, {"headless": ["10.0.0.1", "10.0.0.2", "fd00::1"], "gone": socket.gaierror(-2, "Name or service not known")})
    found = await NamedServers("gone:5101,headless:5101").resolve()
    assert found == ["10.0.0.1:5101", "10.0.0.2:5101", "[fd00::1]:5101"]
    assert {given_name(each) for each in found} == {"headless"}


async def test_names_are_resolved_again_and_one_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    names: dict[str, list[str] | Exception] = {"a": ["10.0.0.1"], "b": socket.gaierror(-2, "Name or service not known")}
    resolving(monkeypatch, names)
    servers = NamedServers("a:1,b:2")
    assert await servers.resolve() == ["10.0.0.1:1"]
    names |= {"a": socket.gaierror(-3, "Temporary failure"), "b": ["10.0.0.2"]}
    assert await servers.resolve() == ["10.0.0.2:2"]
    names |= {"b": socket.gaierror(-2, "Name or service not known")}
    with pytest.raises(ClusterUnavailable, match=r"no name resolves: a: .*Temporary failure; b: .*not known"):
        await servers.resolve()


async def test_the_address_of_zookeeper_is_a_final_error_that_names_the_right_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    async def four_letters(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = await reader.read(4)
        writer.write(b"Zookeeper version: 3.9.4" if asked == b"srvr" else b"?")
        writer.close()

    server = await asyncio.start_server(four_letters, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(InvalidSetting, match=rf"cluster is the address of ZooKeeper, 127\.0\.0\.1:{port}: clients need log servers, host:port"):
        await WaltzClient.connect(f"127.0.0.1:{port}", ClientSettings(connect_timeout_s=30))
    server.close()
    assert not await seeds._is_zookeeper(f"127.0.0.1:{port}")


async def test_the_address_with_a_root_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(InvalidSetting, match="is the address of a coordinator"):
        await WaltzClient.connect("127.0.0.1:2181/waltz")


# ---- ZooKeeper is away -----------------------------------------------------------------------------------------------------------------------------


async def test_new_clients_append_and_read_while_the_coordinator_is_away() -> None:
    cluster = MemoryCluster(partitions=2, servers=2)
    await cluster.start()
    first = await cluster.connect()
    await first.append(0, b"before")
    for _, session in cluster.servers.values():
        cluster.ensemble.cut(session)
    late = await cluster.connect(seed=2)
    assert (await late.append(0, b"while away")).transaction_id == 1
    assert [transaction.data for transaction in await late.fetch(0, [0, 1])] == [b"before", b"while away"]
    for _, session in cluster.servers.values():
        cluster.ensemble.heal(session)
    for client in (first, late):
        await client.close()
    await cluster.stop()
