"""What a server sends to clients that follow the cluster: everything at first, then changes; by their rights; within bounds."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import pytest

from waltz_log.client.owners.following import stated_versions
from waltz_log.coordination.topics import change_catalogue
from waltz_log.core import metadata as paths
from waltz_log.core.cluster_map import EVERYTHING, ClusterMap, MapPart
from waltz_log.core.metadata import Assignment
from waltz_log.core.status.server_statistics import FollowerStatistics
from waltz_log.core.topics.catalogue import Catalogue, Topic
from waltz_log.core.topics.topic_names import TopicName
from waltz_log.errors import ClusterKeyMismatch, ClusterUnavailable, PermissionDenied, QuotaExceeded, Unavailable, WaltzError
from waltz_log.monitoring.server_families import SERVER
from waltz_log.security.identity import Identity, Role
from waltz_log.security.rules import Operation, Rule
from waltz_log.server.directory import directory, followers
from waltz_log.server.node.server import LogServer
from waltz_log.statistics import merge
from waltz_log.testing.cluster import MemoryCluster
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.methods import CONFIRM, FOLLOW


class Follower:
    """A client's end, message by message."""

    def __init__(self, cluster: MemoryCluster, server: str = "server-0", *, host: str = "client", map: ClusterMap | None = None) -> None:
        self.map = map or ClusterMap()
        self.messages: list[pb.FollowResponse] = []
        self._key = cluster.key.bytes
        self._channel = cluster.network.host(host).connect(cluster.servers[server][0].address)
        self._stream: Any = None

    async def receive(self, versions: Mapping[str, int] | None = None, *, epoch: int | None = None) -> set[str]:
        """Applies the next answer; returns which sources changed."""
        if self._stream is None:
            foreign = [pb.MapVersion(source=source, version=version) for source, version in (versions or {}).items()]
            about = stated_versions(self.map) if versions is None else foreign
            request = pb.FollowRequest(cluster_key=self._key, epoch=max(0, self.map.epoch) if epoch is None else epoch, versions=about)
            self._stream = self._channel.read(FOLLOW, request)
        parts: list[MapPart] = []
        while True:
            async with asyncio.timeout(20):
                message = await self._stream.receive()
            if message is None:
                raise EOFError
            self.messages.append(message)
            parts += [MapPart(p.source, p.base, p.version, {i.name: i.value for i in p.items}, tuple(p.removed)) for p in message.parts]
            if not message.more:
                return self.map.apply(message.epoch, parts)

    async def until(self, condition: Callable[[ClusterMap], bool]) -> None:
        while not condition(self.map):
            await self.receive()

    async def confirm(self) -> pb.ConfirmResponse:
        return await self._channel.call(CONFIRM, pb.ConfirmRequest(cluster_key=self._key), timeout_s=20)

    async def close(self) -> None:
        if self._stream is not None:
            await self._stream.cancel()


def _identity(host: str) -> Identity:
    role, _, name = ("operator-tools" if host == "client" else host).partition("-")
    return Identity(f"spiffe://waltz/{role}/{name}", frozenset({Role(role)}))


def _rule(host: str, resource: str) -> Rule:
    return Rule(principal=_identity(host).principal, operations=(Operation.READ,), resource=resource)


@pytest.fixture
async def make() -> AsyncIterator[Callable[..., Awaitable[MemoryCluster]]]:
    made: list[MemoryCluster] = []

    async def start(**about: Any) -> MemoryCluster:
        cluster = MemoryCluster(**{"partitions": 4, "storages": 2, "servers": 2, **about})
        made.append(cluster)
        await cluster.start()
        return cluster

    yield start
    for cluster in made:
        await cluster.stop()


def replicas_of(map: ClusterMap, partition: int) -> list[str]:
    entries = [map.node(name) for name in map.replicas.replicas[partition]]
    return [entry.address for entry in entries if entry is not None]


async def _add_topic(cluster: MemoryCluster, name: str) -> None:
    """Whether its partitions are open does not matter here."""

    def change(found: Catalogue) -> tuple[Catalogue, Topic]:
        return found.with_new(TopicName.parse(name), type="regular", partitions=1, pool=range(4), now_ms=1)

    await change_catalogue(cluster.ensemble.session(), change)


Make = Callable[..., Awaitable[MemoryCluster]]


def _owned(map: ClusterMap) -> bool:
    return len([p for p in range(4) if map.assignment.address_of(p)]) == 4


async def test_the_first_answer_holds_everything_and_changes_follow(make: Make) -> None:
    cluster = await make()
    await _add_topic(cluster, "shop/orders")
    follower = Follower(cluster)
    await follower.receive()
    assert follower.map.parameters.key == cluster.key
    assert replicas_of(follower.map, 3) == [listener.address for _, listener in cluster.storages.values()]
    await follower.until(lambda map: [str(name) for name in map.catalogue.topics] == ["shop/orders"])
    await follower.until(_owned)
    await _add_topic(cluster, "shop/bills")
    await follower.until(lambda map: len(map.catalogue.topics) == 2)
    await cluster.delete_topic("shop/orders")
    await follower.until(lambda map: list(map.catalogue.topics) == [TopicName.parse("shop/bills")])
    await cluster.kill_server("server-1")
    await follower.until(lambda map: _owned(map) and len(map.assignment.addresses) == 1)
    await cluster.stop_storage("storage-1")
    await cluster.start_storage("storage-1")
    await follower.until(lambda map: replicas_of(map, 0)[1] == cluster.storages["storage-1"][1].address)
    assert len([m for m in follower.messages if any(part.base < 0 for part in m.parts)]) == 1, "everything is sent once"
    await follower.close()


async def test_a_follower_that_has_other_items_of_the_same_number_gets_the_whole_source(make: Make) -> None:
    """A coordinator that was restored, and not adopted yet, gives numbers again."""
    cluster = await make(servers=1)
    first = Follower(cluster)
    await first.until(_owned)
    await first.close()
    other = ClusterMap()
    version = first.map.versions["assignment"]
    other.apply(first.map.epoch, [MapPart("assignment", EVERYTHING, version, {"p/0": b"[9,9]", "p/77": b"[9,9]"})])
    again = Follower(cluster, map=other)
    await again.receive()
    assert (again.map.versions["assignment"], again.map._items["assignment"]) == (version, first.map._items["assignment"])
    await again.close()


async def test_a_follower_that_returns_gets_what_changed_alone(make: Make) -> None:
    cluster = await make()
    first = Follower(cluster)
    await first.until(_owned)
    await first.close()
    again = Follower(cluster, map=first.map)
    assert await again.receive() == set()
    assert not again.messages[0].parts
    await again.close()
    await _add_topic(cluster, "shop/orders")
    later = Follower(cluster, map=first.map)
    await later.until(lambda map: len(map.catalogue.topics) == 1)
    assert {part.source for message in later.messages for part in message.parts} == {"topics"}
    await later.close()


async def test_a_follower_of_another_epoch_gets_everything(make: Make) -> None:
    cluster = await make()
    session = cluster.ensemble.session()
    node = await session.get(paths.CLUSTER)
    assert node is not None
    await session.set(paths.CLUSTER, node.data[:-1] + b',"epoch":7}', node.version)
    follower = Follower(cluster)
    await follower.until(lambda map: map.epoch == 7)
    await follower.close()
    other = Follower(cluster)
    await other.receive({"assignment": 2**40, "topics": 2**40}, epoch=3)
    assert other.map.parameters.epoch == 7
    assert {part.base for part in other.messages[0].parts} == {-1}
    await other.close()


async def test_a_version_from_the_future_waits_a_bounded_time(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followers, "BEHIND_S", 0.05)
    cluster = await make()
    for stated, epoch in (({"assignment": 2**62}, 0), ({"made up": 1}, 0), ({}, 9)):
        with pytest.raises(Unavailable, match="an older state of the cluster"):
            await Follower(cluster).receive(stated, epoch=epoch)
    server = cluster.servers["server-0"][0]
    assert server._followers is not None
    assert server._followers.count == 0


async def test_another_clusters_key_is_refused(make: Make) -> None:
    cluster = await make()
    follower = Follower(cluster)
    follower._key = b"another cluster!"
    with pytest.raises(ClusterKeyMismatch):
        await follower.receive()
    with pytest.raises(ClusterKeyMismatch):
        await follower.confirm()


# ---- rights ------------------------------------------------------------------------------


async def test_a_topic_without_a_right_is_unknown(make: Make) -> None:
    cluster = await make(identities=_identity, servers=1)
    await _add_topic(cluster, "shop/orders")
    await _add_topic(cluster, "shop/bills")
    await cluster.change_access(lambda found: found.granted(_rule("application-orders", "shop/orders")))
    await cluster.change_access(lambda found: found.granted(_rule("application-other", "log:0")))
    follower, stranger, operator = (Follower(cluster, host=host) for host in ("application-orders", "application-other", "operator-tools"))
    await follower.until(lambda map: [str(name) for name in map.catalogue.topics] == ["shop/orders"])
    await stranger.until(lambda map: not map.catalogue.topics)
    nobody = Follower(cluster, host="application-nobody")
    for refused in (nobody.receive(), nobody.confirm()):
        with pytest.raises(PermissionDenied):
            await refused
    await operator.until(lambda map: len(map.catalogue.topics) == 2)
    await _add_topic(cluster, "shop/secret")
    await operator.until(lambda map: len(map.catalogue.topics) == 3)
    await cluster.change_access(lambda found: found.granted(_rule("application-other", "shop/bills")))
    await stranger.until(lambda map: [str(name) for name in map.catalogue.topics] == ["shop/bills"])
    await cluster.change_access(lambda found: found.revoked(_identity("application-orders").principal, [Operation.READ]))
    with pytest.raises(PermissionDenied):
        await follower.until(lambda map: False)
    sent = b"".join(message.SerializeToString() for each in (follower, stranger) for message in each.messages[1:])
    assert b"secret" not in sent
    for each in (follower, stranger, operator):
        await each.close()


async def test_a_right_that_changed_between_two_streams_is_seen(make: Make) -> None:
    cluster = await make(identities=_identity, servers=1)
    await _add_topic(cluster, "shop/orders")
    await _add_topic(cluster, "shop/bills")
    await cluster.change_access(lambda found: found.granted(_rule("application-a", "shop/orders")))
    first = Follower(cluster, host="application-a")
    await first.until(lambda map: len(map.catalogue.topics) == 1)
    await first.close()
    await cluster.change_access(lambda found: found.granted(_rule("application-a", "shop/bills")))
    again = Follower(cluster, host="application-a", map=first.map)
    await again.until(lambda map: len(map.catalogue.topics) == 2)
    await again.close()


async def test_what_a_follower_does_not_see_moves_its_version_on(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else changes of other topics would make its version too old for a difference."""
    cluster = await make(identities=_identity, servers=1)
    await cluster.change_access(lambda found: found.granted(_rule("application-a", "shop/own")))
    follower = Follower(cluster, host="application-a")
    await follower.until(lambda map: "topics" in map.versions)
    before = follower.map.versions["topics"]
    await _add_topic(cluster, "other/hidden")
    await follower.until(lambda map: map.versions["topics"] > before)
    hidden = follower.map.versions["topics"]
    await _add_topic(cluster, "shop/own")
    await follower.until(lambda map: map.versions["topics"] > hidden)
    assert [str(name) for name in follower.map.catalogue.topics] == ["shop/own"]
    last = [part for part in follower.messages[-1].parts if part.source == "topics"]
    assert [part.base for part in last] == [hidden], "a difference"
    assert "hidden" not in str(follower.messages)
    await follower.close()


async def test_a_slow_follower_gets_several_changes_as_one_difference(make: Make) -> None:
    cluster = await make(servers=1)
    slow, other = Follower(cluster), Follower(cluster)
    for each in (slow, other):
        await each.until(_owned)
    seen = len(slow.messages)
    for name in ("shop/a", "shop/b", "shop/c"):
        await _add_topic(cluster, name)
        await other.until(lambda map, name=name: TopicName.parse(name) in map.catalogue.topics)  # type: ignore[misc]
    await slow.until(lambda map: len(map.catalogue.topics) == 3)
    topics = [part for message in slow.messages[seen:] for part in message.parts if part.source == "topics"]
    assert all(part.base >= 0 for part in topics), "nothing is listed again"
    for each in (slow, other):
        await each.close()


async def test_confirmations_of_one_moment_share_a_read(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = await make(servers=1)
    followers_ = [Follower(cluster) for _ in range(50)]
    served = cluster.servers["server-0"][0]._directory
    reads = 0
    confirm = served._confirm

    async def counted(*more: str) -> None:
        nonlocal reads
        reads += bool(more)
        await confirm(*more)

    monkeypatch.setattr(served, "_confirm", counted)
    await asyncio.gather(*(each.confirm() for each in followers_))
    assert 1 <= reads <= 3


async def test_followers_with_the_same_rights_share_bytes(make: Make) -> None:
    cluster = await make(servers=1)
    some = [Follower(cluster) for _ in range(5)]
    for each in some:
        await each.until(_owned)
    served = cluster.servers["server-0"][0]._followers
    assert served is not None
    assert served.count == 5
    await _add_topic(cluster, "shop/orders")
    for each in some:
        await each.until(lambda map: len(map.catalogue.topics) == 1)
    assert len(served._shared) == 1
    for each in some:
        await each.close()


# ---- bounds ------------------------------------------------------------------------------


async def test_one_principal_is_at_most_half_of_the_followers(make: Make) -> None:
    cluster = await make(identities=_identity, servers=1, settings={"followers_max": 4})
    await cluster.change_access(lambda found: found.granted(Rule(principal="spiffe://waltz/*/*", operations=(Operation.READ,), resource="log:0")))
    some = [Follower(cluster, host="application-a") for _ in range(2)]
    for each in some:
        await each.receive()
    with pytest.raises(QuotaExceeded, match="followers_max"):
        await Follower(cluster, host="application-a").receive()
    others = [Follower(cluster, host=f"application-{name}") for name in "bc"]
    for each in others:
        await each.receive()
    with pytest.raises(QuotaExceeded, match="followers_max"):
        await Follower(cluster, host="application-d").receive()
    await some[0].close()
    async with asyncio.timeout(20):
        while cluster.servers["server-0"][0]._followers.count > 3:  # type: ignore[union-attr]
            await asyncio.sleep(0.001)
    last = Follower(cluster, host="application-d")
    await last.receive()
    for each in (*some, *others, last):
        await each.close()


async def test_a_follower_that_does_not_read_is_ended(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followers, "SEND_S", 0.05)
    monkeypatch.setattr(followers, "HEARTBEAT_S", 0.001)
    cluster = await make(servers=1)
    served = cluster.servers["server-0"][0]._followers
    assert served is not None
    follower = Follower(cluster)
    await follower.receive()
    async with asyncio.timeout(20):
        while served.count:
            await asyncio.sleep(0.01)
    with pytest.raises(WaltzError):
        for _ in range(1000):
            await follower.receive()


class Noted(Counter[str]):
    """Followers by principal. `highest`: how many each ever had, also on a machine that is too busy to see it."""

    def __init__(self) -> None:
        super().__init__()
        self.highest: dict[str, int] = {}

    def __setitem__(self, principal: str, count: int) -> None:
        self.highest[principal] = max(count, self.highest.get(principal, 0))
        super().__setitem__(principal, count)


@pytest.mark.parametrize("versions", [{}, {"assignment": 2**60}], ids=["from the beginning", "from a version of the future"])
async def test_a_hostile_client_that_follows_4608_times_and_never_reads_is_bounded(
    make: Make, versions: Mapping[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as one connection may have streams. Others are served meanwhile, and what it holds ends."""
    monkeypatch.setattr(followers, "HEARTBEAT_S", 0.05)
    monkeypatch.setattr(followers, "SEND_S", 0.5)
    monkeypatch.setattr(followers, "BEHIND_S", 0.5)
    cluster = await make(identities=_identity, servers=1, settings={"followers_max": 1000})
    await cluster.change_access(lambda found: found.granted(Rule(principal="spiffe://waltz/*/*", operations=(Operation.READ,), resource="log:0")))
    server = cluster.servers["server-0"][0]
    served = server._followers
    assert served is not None
    noted = Noted()
    monkeypatch.setattr(served._counts, "_open", noted)
    honest = Follower(cluster, host="application-honest")
    await honest.until(_owned)
    stated = [pb.MapVersion(source=source, version=version) for source, version in versions.items()]
    request = pb.FollowRequest(cluster_key=cluster.key.bytes, versions=stated)
    channel = cluster.network.host("application-hostile").connect(server.address)
    streams = [channel.read(FOLLOW, request) for _ in range(4608)]
    hostile = _identity("application-hostile").principal
    async with asyncio.timeout(60):
        while hostile not in noted.highest or noted[hostile]:  # until all of them are refused or ended
            assert len(served._shared) <= followers.SHARED_MAX
            late = Follower(cluster, host="application-late")
            await late.until(_owned)
            await late.close()
            await honest.receive()
    assert noted.highest[hostile] == 500
    assert served.statistics().refused > 0
    for stream in streams:
        await stream.cancel()
    await honest.close()


async def test_a_stream_ends_after_its_time(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followers, "LIFE_S", (0.05, 0.1))
    cluster = await make(servers=1)
    follower = Follower(cluster)
    with pytest.raises(EOFError):
        while True:
            await follower.receive()


async def test_a_server_reports_its_followers_what_it_sent_them_and_how_old_its_knowledge_is(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "CONFIRM_PERIOD_S", 0.01)
    cluster = await make(servers=1, settings={"followers_max": 2})
    server, session = cluster.servers["server-0"]
    assert _reported(server)["waltz_server_followers"] == 0
    some = [Follower(cluster) for _ in range(2)]
    for each in some:
        await each.until(_owned)
    with pytest.raises(QuotaExceeded):
        await Follower(cluster).receive()
    found = _reported(server)
    assert found["waltz_server_followers"] == 2
    assert found["waltz_server_follower_refusals_total"] == 1
    assert found["waltz_server_follower_sent_bytes_total"] >= sum(message.ByteSize() for each in some for message in each.messages)
    assert found["waltz_server_knowledge_age_seconds"] < 5
    cluster.ensemble.cut(session)
    before = _reported(server)["waltz_server_knowledge_age_seconds"]
    await asyncio.sleep(0.3)
    assert _reported(server)["waltz_server_knowledge_age_seconds"] >= before + 0.25
    for each in some:
        await each.close()


def test_the_followers_of_several_workers_are_added_and_the_oldest_knowledge_counts() -> None:
    both = merge([FollowerStatistics(3, 100, 1, 0.5), FollowerStatistics(4, 50, 0, 7.25)])
    assert both == FollowerStatistics(7, 150, 1, 7.25)


def _reported(server: LogServer) -> dict[str, float]:
    """The metrics without labels."""
    found = server.statistics()
    return {each.name: value for each in SERVER if not each.labels for _, value in each.samples(found) if isinstance(value, int | float)}


# ---- the age of what a server knows ------------------------------------------------------------------------------


async def test_a_server_that_is_cut_off_admits_followers_and_says_how_old_it_is(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followers, "HEARTBEAT_S", 0.02)
    monkeypatch.setattr(directory, "CONFIRM_PERIOD_S", 0.01)
    cluster = await make(servers=1)
    fresh = Follower(cluster)
    await fresh.until(_owned)
    await fresh.receive()
    assert fresh.messages[-1].age_ms < 500
    cluster.ensemble.cut(cluster.servers["server-0"][1])
    late = Follower(cluster)
    await late.until(_owned)
    before = late.messages[-1].age_ms
    await asyncio.sleep(0.3)
    for _ in range(30):
        await late.receive()
    assert late.messages[-1].age_ms >= before + 250
    cluster.ensemble.heal(cluster.servers["server-0"][1])
    while late.messages[-1].age_ms >= 250:
        await late.receive()
    await fresh.close()
    await late.close()


async def test_a_version_is_of_the_node_that_was_read(make: Make) -> None:
    """The watches lag; the confirmation reads only the cluster's parameters, and claims nothing for the assignment."""
    cluster = await make(servers=1)
    follower = Follower(cluster)
    await follower.until(_owned)
    session = cluster.ensemble.session()
    cluster.ensemble.lag(cluster.servers["server-0"][1])
    known = await session.get(paths.ASSIGNMENT)
    assert known is not None
    await session.set(paths.ASSIGNMENT, Assignment().to_bytes(), known.version)
    growing = await session.get(paths.CLUSTER)
    assert growing is not None
    await session.set(paths.CLUSTER, growing.data, growing.version)
    await follower.confirm()
    await follower.until(lambda map: map.versions["cluster"] > known.changed)
    assert follower.map.versions["assignment"] == known.changed
    assert follower.map.assignment.partitions
    cluster.ensemble.catch_up(cluster.servers["server-0"][1])
    await follower.until(lambda map: map.versions["assignment"] > known.changed)
    await follower.close()


async def test_a_confirmation_knows_what_another_process_wrote_before(make: Make) -> None:
    cluster = await make(servers=1)
    follower = Follower(cluster)
    await follower.until(_owned)
    cluster.ensemble.lag(cluster.servers["server-0"][1])
    await _add_topic(cluster, "shop/orders")
    answers = await asyncio.gather(*(follower.confirm() for _ in range(10)))
    wanted = {each.source: each.version for each in answers[0].versions}
    await follower.until(lambda map: map.holds(0, wanted))
    assert len(follower.map.catalogue.topics) == 1
    cluster.ensemble.catch_up(cluster.servers["server-0"][1])
    await follower.close()


async def test_a_confirmation_fails_while_the_coordinator_is_away(make: Make) -> None:
    cluster = await make(servers=1)
    session = cluster.servers["server-0"][1]
    session._timeout_s = 0.05
    cluster.ensemble.cut(session)
    with pytest.raises(ClusterUnavailable):
        await Follower(cluster).confirm()
    cluster.ensemble.heal(session)
    assert (await Follower(cluster).confirm()).versions


async def test_a_node_that_cannot_be_read_changes_nothing(make: Make) -> None:
    cluster = await make(servers=1)
    follower = Follower(cluster)
    await follower.until(_owned)
    session = cluster.ensemble.session()
    path = f"{paths.STORAGE_NODES}/storage-0"
    node = await session.get(path)
    assert node is not None
    await session.set(path, b'{"address": 7', node.version)
    await _add_topic(cluster, "shop/orders")
    await follower.until(lambda map: len(map.catalogue.topics) == 1)
    assert len(replicas_of(follower.map, 0)) == 2
    await session.set(path, node.data, -1)
    await follower.until(lambda map: map.versions["node/storage-0"] > node.changed)
    await follower.close()
