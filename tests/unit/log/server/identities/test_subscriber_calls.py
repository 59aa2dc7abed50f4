"""Subscribers through log servers: whose each is, how many there may be, and entries that are none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from waltz_log.cli.topics.lag import Asked, find_readers
from waltz_log.cli.topics.subscribers import subscriber_facts
from waltz_log.client import ClientSettings
from waltz_log.client.feed.subscriber_entries import remove_entry, set_entry_marks, subscriber_entries
from waltz_log.client.feed.subscribers import Subscribers
from waltz_log.coordination.subscribers import read_subscriber_entries, register_subscriber, remove_subscriber
from waltz_log.core.topics.subscribers import LABELS_MAX, SUBSCRIBERS, Subscriber, UnreadableSubscriber
from waltz_log.errors import InvalidRequest, PermissionDenied, ProtocolViolation, Unavailable
from waltz_log.security.identity import Identity, Role
from waltz_log.security.rules import AccessRules, Operation, Rule
from waltz_log.server.identities import subscriber_calls
from waltz_log.testing.cluster import MemoryCluster
from waltz_log.transport import methods
from waltz_log.transport import waltz_pb2 as pb

SETTINGS = ClientSettings(retry_base_s=0.001, retry_cap_s=0.02)
GARBAGE = (
    b"",
    b"x",
    b"{}",
    b"[" * 9999,
    b'{"name":"other","marks":{},"told":{},"created_ms":0,"seen_ms":0}',
    b'{"name":"NAME","marks":{"0":"1"},"told":{},"created_ms":0,"seen_ms":0}',
    b'{"name":"NAME","marks":{"0":-2},"told":{},"created_ms":0,"seen_ms":0}',
    b'{"name":"NAME","marks":{"x":1},"told":{},"created_ms":0,"seen_ms":0}',
    b'{"name":"NAME","marks":{},"told":{"a":1},"created_ms":0,"seen_ms":0}',
    b'{"name":"NAME","marks":{},"told":[],"created_ms":0,"seen_ms":0}',
    b'{"name":"NAME","marks":{},"told":{},"created_ms":0,"seen_ms":1e400}',
    b'{"name":"NAME","marks":{},"told":{},"created_ms":0,"seen_ms":999999999999999999}',
    b'{"name":"NAME","marks":{"0":99999999999999999999},"told":{},"created_ms":0,"seen_ms":0}',
)


def _identity(host: str) -> Identity:
    role, _, name = ("operator-tools" if host == "client" else host).partition("-")
    return Identity(f"spiffe://waltz/{role}/{name}", frozenset({Role(role)}))


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    made = MemoryCluster(partitions=2, storages=1, servers=1, identities=_identity)
    await made.start()
    await _grant(made, "reader/a", "log:0")
    await _grant(made, "reader/b", "log:0-1")
    try:
        yield made
    finally:
        await made.stop()


async def _grant(cluster: MemoryCluster, who: str, resource: str) -> None:
    rule = Rule(principal=f"spiffe://waltz/{who}", operations=(Operation.READ,), resource=resource)
    await cluster.change_access(lambda found: found.granted(rule))
    async with asyncio.timeout(5):
        while any(rule not in (server._access.rules or AccessRules()).rules for server, _ in cluster.servers.values()):
            await asyncio.sleep(0.001)


@asynccontextmanager
async def _of(cluster: MemoryCluster, host: str) -> AsyncIterator[Subscribers]:
    async with await Subscribers.connect_over(cluster.seeds, cluster.network.host(host), SETTINGS, 3.0) as found:
        yield found


async def test_a_subscriber_is_its_principals_alone_and_does_not_exist_for_others(cluster: MemoryCluster) -> None:
    async with _of(cluster, "reader-a") as a, _of(cluster, "reader-b") as b, _of(cluster, "operator-o") as operator:
        mine = await a.register("billing", {0: -1}, {"host": "one"})
        assert mine.principal == "spiffe://waltz/reader/a"
        with pytest.raises(PermissionDenied):
            await b.register("billing", {0: -1})
        for refused in (b.report("billing", {0: 5}), b.report("unknown", {0: 5}), b.remove("billing"), b.remove("unknown")):
            with pytest.raises(InvalidRequest, match=r"no such subscriber: (billing|unknown); it was never registered, or removed"):
                await refused
        assert await b.list() == []
        assert [each.name for each in await a.list()] == ["billing"]
        assert (await a.report("billing", {0: 3})).marks == {0: 3}
        assert [each.name for each in await operator.list()] == ["billing"]
        with pytest.raises(InvalidRequest, match="no such subscriber: billing"):
            await set_entry_marks(b._owners, "billing", {0: 0}, 3.0)
        assert (await set_entry_marks(a._owners, "billing", {0: 0}, 3.0)).marks == {0: 0}
        assert (await set_entry_marks(operator._owners, "billing", {0: 3}, 3.0)).marks == {0: 3}
        assert (await operator.remove("billing")).marks == {0: 3}
        assert await a.list() == []


async def test_a_subscriber_holds_only_what_its_principal_may_read(cluster: MemoryCluster) -> None:
    async with _of(cluster, "reader-a") as a:
        for register in (a.register("x", {1: -1}), a.register("x", {0: -1, 1: -1}), a.register_at_start("x", [0, 1])):
            with pytest.raises(PermissionDenied, match="log:1"):
                await register
        channel = cluster.network.host("reader-without").connect(next(iter(cluster.servers.values()))[0].address)
        for action in (1, 2, 3, 4, 5, 6):
            request = pb.SubscribersRequest(cluster_key=cluster.key.bytes, action=action, name="x")  # type: ignore[arg-type]
            with pytest.raises(PermissionDenied):
                await channel.call(methods.SUBSCRIBERS, request, timeout_s=5)
        assert (await a.register_at_start("x", [0])).marks == {0: -1}


async def test_an_older_subscriber_is_bound_to_the_first_that_reports_and_may_read_all_of_it(cluster: MemoryCluster) -> None:
    session = cluster.ensemble.session()
    await register_subscriber(session, Subscriber("older", {0: -1, 1: -1}, {}, 0, 0))
    async with _of(cluster, "reader-a") as a, _of(cluster, "reader-b") as b:
        with pytest.raises(InvalidRequest, match="no such subscriber"):
            await a.report("older", {0: 1})
        assert (await b.report("older", {0: 1})).principal == "spiffe://waltz/reader/b"
        with pytest.raises(PermissionDenied):
            await a.register("older", {0: -1})


async def test_sizes_and_counts_are_bounded(cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriber_calls, "SUBSCRIBERS_OF_PRINCIPAL_MAX", 2)
    monkeypatch.setattr(subscriber_calls, "SUBSCRIBERS_MAX", 3)
    async with _of(cluster, "reader-a") as a, _of(cluster, "reader-b") as b:
        for labels in ({str(each): "" for each in range(LABELS_MAX + 1)}, {"a" * 65: ""}, {"a": "b" * 4097}, {"": "x"}):
            with pytest.raises(InvalidRequest, match="label"):
                await a.register("x", {0: -1}, labels)
        for name in ("", "a/b", "-a", "a" * 129, "é"):
            with pytest.raises(InvalidRequest, match="not a subscriber's name"):
                await a.register(name, {0: -1})
        with pytest.raises(PermissionDenied):
            await b.register("x", {2: -1})
        for name in ("one", "two"):
            await a.register(name, {0: -1})
        with pytest.raises(Unavailable, match="this principal has 2"):
            await a.register("three", {0: -1})
        await a.register("two", {0: 4})
        await b.register("three", {0: -1})
        with pytest.raises(Unavailable, match="the cluster has 3"):
            await b.register("four", {0: -1})


async def test_columns_that_fit_nothing_are_violations(cluster: MemoryCluster) -> None:
    address = next(iter(cluster.servers.values()))[0].address
    channel = cluster.network.host("reader-a").connect(address)
    for partitions, marks in ((b"123", b""), (bytes(4), b"1"), (bytes(8), bytes(8))):
        action = pb.SubscribersRequest.ACTION_REGISTER
        request = pb.SubscribersRequest(cluster_key=cluster.key.bytes, action=action, name="x", partitions=partitions, marks=marks)
        with pytest.raises(ProtocolViolation):
            await channel.call(methods.SUBSCRIBERS, request, timeout_s=5)


@pytest.mark.parametrize("garbage", GARBAGE)
async def test_one_malformed_entry_is_skipped_reported_and_removable(garbage: bytes) -> None:
    cluster = MemoryCluster(storages=1, servers=1)
    await cluster.start()
    session = cluster.ensemble.session()
    client = await cluster.connect(SETTINGS)
    try:
        await client.append(0, b"there")
        await register_subscriber(session, Subscriber("sound", {0: -1}, {}, 0, 0))
        for name in ("broken", "not a name \x1b"):
            await session.create(f"{SUBSCRIBERS}/{name}", garbage.replace(b"NAME", name.encode()))
        found, unreadable = await read_subscriber_entries(session)
        assert [each.name for each in found] == ["sound"]
        assert sorted(each.name for each in unreadable) == ["broken", "not a name \x1b"]
        async with _of(cluster, "client") as subscribers:
            readers, problems = await find_readers(subscribers._owners, Asked(), None, 5.0)
            assert [each.name for each in readers] == ["sound"]
            assert sorted(problems) == ["broken", "not a name \x1b"]
            assert [each.name for each in await subscribers.list()] == ["sound"]
            facts = await subscriber_facts(subscribers._owners, await subscribers.list(), now_ms=1)
            assert [each["name"] for each in facts] == ["sound"]
            with pytest.raises(InvalidRequest, match="not a valid subscriber"):
                await subscribers.register("broken", {0: -1})
            gone = await remove_entry(subscribers._owners, "broken", 5.0, dry_run=True)
            assert isinstance(gone, UnreadableSubscriber)
            assert len((await subscriber_entries(subscribers._owners, 5.0))[1]) == 2, "a dry run removes nothing"
            assert await remove_entry(subscribers._owners, "broken", 5.0) == gone
        assert isinstance(await remove_subscriber(session, "not a name \x1b"), UnreadableSubscriber)
        assert await read_subscriber_entries(session) == (found, [])
    finally:
        await client.close()
        await cluster.stop()
