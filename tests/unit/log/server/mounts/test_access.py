"""Topics that name who may append and who may read: at servers and at storage nodes, at once and for those who are mounted already."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from waltz_log.client import ClientSettings, Receipt, WaltzClient
from waltz_log.coordination.topics import change_catalogue
from waltz_log.core.topics.access import CLUSTER_PRINCIPAL, allowed, check_access_properties, check_principal, expect_allowed
from waltz_log.core.topics.catalogue import Catalogue
from waltz_log.core.topics.topic_names import TopicName
from waltz_log.errors import Fenced, InvalidSetting, NotAllowed, OutcomeUnknown, OutOfRange, ReplicaFenced, WaltzError
from waltz_log.security.access import AccessControl
from waltz_log.security.audit_log import AuditSettings, open_audit
from waltz_log.security.callers import calling
from waltz_log.security.denial_limit import DENIALS_MAX
from waltz_log.security.identity import Identity, Role
from waltz_log.storage.node.read_access import OpenedBy, ReadAccess
from waltz_log.testing import InMemoryCluster
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.methods import OPEN, READ, READ_VIEW, TRANSACTIONS

TOPICS = ("shop/secret",)
PROPERTIES = {"allow-append": "writer, both", "allow-read": "reader,both"}


def test_principals_are_named_by_properties_and_without_them_any_principal_may() -> None:
    assert allowed({}, "append") == ()
    assert allowed(PROPERTIES, "append") == ("both", "writer")
    for principal in (None, "", "reader", "anybody", CLUSTER_PRINCIPAL):
        expect_allowed("a/b", (), "append", principal)
        with pytest.raises(NotAllowed) as raised:
            expect_allowed("a/b", ("both", "writer"), "append", principal)
        assert raised.value.facts == {"action": "append", "topic": "a/b", "principal": principal or None}
    expect_allowed("a/b", ("reader",), "read", CLUSTER_PRINCIPAL)


@pytest.mark.parametrize(
    "properties", [{"allow-reed": "ada"}, {"allow-read": ""}, {"allow-read": "ada,,bob"}, {"allow-append": "a da"}, {"allow-read": "waltz/cluster"}]
)
def test_an_access_property_that_matches_no_principal_or_all_by_mistake_is_refused(properties: dict[str, str]) -> None:
    with pytest.raises(InvalidSetting):
        check_access_properties(properties)
    with pytest.raises(InvalidSetting):
        Catalogue().with_new(TopicName("a", "b"), type="regular", partitions=1, pool=range(1), now_ms=0, properties=properties)


def test_a_principal_is_a_name_that_a_property_can_hold() -> None:
    assert check_principal("svc-orders@shop") == "svc-orders@shop"
    for name in ("", "a b", "a,b", "x" * 129, CLUSTER_PRINCIPAL):
        with pytest.raises(InvalidSetting):
            check_principal(name)
        with pytest.raises(InvalidSetting):
            ClientSettings(principal=name)


# ---- a cluster -------------------------------------------------------------------------------------------------------------------------------------


@pytest.fixture
async def cluster() -> AsyncIterator[InMemoryCluster]:
    async with InMemoryCluster(partitions=3, servers=1, storages=1) as made:
        yield made


async def create(cluster: InMemoryCluster, name: str = "shop/secret", **properties: str) -> None:
    def change(catalogue: Catalogue) -> Any:
        return catalogue.with_new(TopicName.parse(name), type="regular", partitions=1, pool=range(3), now_ms=0, properties=properties)

    await change_catalogue(cluster.ensemble.session(), change)


async def known(cluster: InMemoryCluster, partition: int = 0) -> None:
    """Until server and storage node have heard of the topic."""
    async with asyncio.timeout(20):
        ((server, _),) = cluster.servers.values()
        ((node, _),) = cluster.storages.values()
        while server._topics.of(partition) is None or (reported := node.access.of(partition)) is None or reported.topic != "shop/secret":
            await asyncio.sleep(0.005)


async def connect(cluster: InMemoryCluster, principal: str | None) -> WaltzClient:
    return await cluster.client(ClientSettings(topics=TOPICS, principal=principal, retry_base_s=0.001, retry_cap_s=0.02, append_timeout_s=20.0))


async def may(work: Any) -> bool:
    try:
        async with asyncio.timeout(20):
            await work
    except NotAllowed:
        return False
    return True


async def test_who_may_append_and_read_is_as_the_properties_say(cluster: InMemoryCluster) -> None:
    await create(cluster, **PROPERTIES)
    await known(cluster)
    filler = await connect(cluster, "both")
    await filler.append(0, b"there")
    found = {}
    for principal in (None, "writer", "reader", "both", "stranger"):
        client = await connect(cluster, principal)
        found[principal] = (await may(client.append(0, b"x")), await may(anext(client.feed(0))), await may(client.append(1, b"of no topic")))
    assert found == {
        None: (False, False, True),
        "writer": (True, False, True),
        "reader": (False, True, True),
        "both": (True, True, True),
        "stranger": (False, False, True),
    }


async def test_any_principal_appends_to_a_topic_that_names_readers_alone(cluster: InMemoryCluster) -> None:
    await create(cluster, **{"allow-read": "reader"})
    await known(cluster)
    client = await connect(cluster, None)
    assert await may(client.append(0, b"x"))
    assert not await may(anext(client.feed(0)))


async def test_single_transactions_and_replicas_are_closed_to_the_same(cluster: InMemoryCluster) -> None:
    await create(cluster, **PROPERTIES)
    await known(cluster)
    await (await connect(cluster, "both")).append(0, b"there")
    ((server, _),) = cluster.servers.values()
    ((_, storage),) = cluster.storages.values()
    to_server, to_storage = cluster.network.connect(server.address), cluster.network.connect(storage.address)
    key = cluster.key.bytes

    async def read(principal: str) -> None:
        request = pb.ReadRequest(cluster_key=key, partition=0, session=0, fence=-1, last_transaction_id=0, max_bytes=100, principal=principal)
        stream = to_storage.read(READ, request)
        answer = await stream.receive()
        assert answer is not None
        assert answer.blocks[0].first_transaction_id == 0

    for principal, allows in (("reader", True), ("both", True), (CLUSTER_PRINCIPAL, True), ("writer", False), ("", False)):
        request = pb.TransactionRequest(partition=0, first_transaction_id=0, count=1, cluster_key=key, principal=principal)
        assert await may(to_server.call(TRANSACTIONS, request, timeout_s=10)) == allows
        assert await may(read(principal)) == allows


async def test_a_range_of_a_topics_partitions_has_readers_and_writers_of_its_own(cluster: InMemoryCluster) -> None:
    def change(catalogue: Catalogue) -> Any:
        properties = {"0:allow-append": "writer", "0:allow-read": "reader", "1:allow-append": "other"}
        return catalogue.with_new(TopicName.parse("shop/secret"), type="regular", partitions=2, pool=range(3), now_ms=0, properties=properties)

    await change_catalogue(cluster.ensemble.session(), change)
    await known(cluster)
    await known(cluster, 1)
    found = {}
    for principal in ("writer", "other", "reader"):
        client = await connect(cluster, principal)
        found[principal] = tuple([await may(client.append(partition, b"x")) for partition in (0, 1)])
    assert found == {"writer": (True, False), "other": (False, True), "reader": (False, False)}
    assert [await may(anext((await connect(cluster, name)).feed(0))) for name in ("reader", "other")] == [True, False]
    assert await may(anext((await connect(cluster, None)).feed(1))), "no property says who may read partition 1"


async def test_a_guessed_fence_does_not_open_a_replica_and_the_owner_still_reads_it(cluster: InMemoryCluster) -> None:
    await create(cluster, **PROPERTIES)
    await known(cluster)
    await (await connect(cluster, "both")).append(0, b"there")
    ((node, storage),) = cluster.storages.values()
    to_storage, key = cluster.network.connect(storage.address), cluster.key.bytes
    session = node.statistics().partitions[0].fence  # public: every status shows it
    stolen = node.access.of(0)
    assert stolen is not None

    async def read(fence: int, token: bytes, asked: int = 0) -> None:
        request = pb.ReadRequest(cluster_key=key, session=asked, fence=fence, owner_token=token, last_transaction_id=0, max_bytes=100)
        assert await to_storage.read(READ, request).receive() is not None

    async def read_view(fence: int, token: bytes) -> None:
        await to_storage.read(READ_VIEW, pb.ReadViewRequest(cluster_key=key, fence=fence, owner_token=token)).receive()

    for fence in (1, session, session + 1, 1 << 60):
        for token in (b"", b"x", bytes(16), bytes(64)):
            for work in (read(fence, token), read(fence, token, session), read(session, token, -1), read_view(fence, token)):
                with pytest.raises((NotAllowed, Fenced)):
                    await work
    with pytest.raises(NotAllowed):
        await read(session + 1, stolen.token)
    # A stranger that opens the owner's session itself neither replaces the token nor removes the readers.
    for token in (b"", b"mine"):
        with pytest.raises(ReplicaFenced, match="another owner"):
            await to_storage.call(OPEN, pb.OpenRequest(cluster_key=key, session=session, owner_token=token), timeout_s=10)
        with pytest.raises(NotAllowed):
            await read(session, token)
    assert node.statistics().partitions[0].fence == session
    await read(session, stolen.token)
    await read(session, stolen.token, -1)
    with pytest.raises(OutOfRange):  # allowed; there is no view
        await read_view(session, stolen.token)


async def test_the_owner_copies_a_restricted_partition_to_a_replica_that_comes_back() -> None:
    async with InMemoryCluster(partitions=3, servers=1, storages=3) as cluster:
        await create(cluster, **PROPERTIES)
        client = await connect(cluster, "both")
        await client.append(0, b"first")
        await cluster.kill_storage("storage-2")
        for number in range(20):
            await client.append(0, b"%d" % number)
        ((name, _),) = cluster.servers.items()
        await cluster.kill_server(name)
        await cluster.start_server(name)  # a new owner, which has nothing in memory
        await cluster.start_storage("storage-2")
        await client.append(0, b"last")
        async with asyncio.timeout(30):
            while cluster.storages["storage-2"][0].statistics().partitions[0].last_transaction_id < 21:
                await asyncio.sleep(0.01)
        reported = cluster.storages["storage-2"][0].access.of(0)
        assert reported is not None
        assert (reported.topic, reported.readers, len(reported.token)) == ("shop/secret", ("both", "reader"), 16)


async def test_who_was_mounted_before_the_topic_was_made_is_sent_away(cluster: InMemoryCluster) -> None:
    early = await connect(cluster, None)
    await early.append(0, b"before")
    feed = early.feed(0)
    assert (await anext(feed)).data == b"before"
    waiting = asyncio.ensure_future(may(anext(feed)))
    await create(cluster, **PROPERTIES)
    await known(cluster)
    assert not await waiting
    assert not await may(early.append(0, b"after"))
    assert await may((await connect(cluster, "writer")).append(0, b"by one who may"))


async def test_a_storage_node_that_starts_again_learns_who_may_read_from_the_owner(cluster: InMemoryCluster) -> None:
    await create(cluster, **PROPERTIES)
    await known(cluster)
    await (await connect(cluster, "both")).append(0, b"there")
    await cluster.kill_storage("storage-0")
    await cluster.start_storage("storage-0")
    await known(cluster)


async def test_an_unknown_outcome_is_settled_by_one_who_may_append_and_not_read(cluster: InMemoryCluster) -> None:
    await create(cluster, **PROPERTIES)
    await known(cluster)
    client = await connect(cluster, "writer")
    cluster.lose_next_answer(0)
    with pytest.raises(OutcomeUnknown) as raised:
        await client.append(0, b"x")
    assert await client.resolve(raised.value) == Receipt(0, 0, 0)


async def test_waiting_appends_fail_immediately_when_access_is_refused(cluster: InMemoryCluster) -> None:
    await create(cluster, **PROPERTIES)
    await known(cluster)
    client = await connect(cluster, "stranger")
    futures = [await client.append_nowait(0, b"%d" % n) for n in range(10)]
    async with asyncio.timeout(10):
        errors = await asyncio.gather(*futures, return_exceptions=True)
    assert all(isinstance(error, WaltzError) for error in errors)
    assert all(isinstance(error, NotAllowed) for error in errors)


# ---- the audit log ---------------------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def audited(tmp_path: Path) -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """The lines since the last call, without their times."""
    file = tmp_path / "audit.jsonl"
    open_audit(AuditSettings(file=file))
    seen = 0

    def new() -> list[dict[str, Any]]:
        nonlocal seen
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        fresh, seen = lines[seen:], len(lines)
        return [{name: value for name, value in line.items() if name != "time"} for line in fresh]

    yield new
    open_audit(None)


def denial(stated_by: str, operation: str = "read") -> dict[str, Any]:
    named = {"stated_by": stated_by} if stated_by else {}
    return {"event": "request denied", "principal": None, "operation": operation, "resource": "shop/secret", **named}


async def test_each_denial_by_a_topics_properties_is_audited(cluster: InMemoryCluster, audited: Callable[[], list[dict[str, Any]]]) -> None:
    await create(cluster, **PROPERTIES)
    await known(cluster)
    await (await connect(cluster, "both")).append(0, b"there")
    ((server, _),) = cluster.servers.values()
    ((node, storage),) = cluster.storages.values()
    to_server, to_storage, key = cluster.network.connect(server.address), cluster.network.connect(storage.address), cluster.key.bytes
    session = node.statistics().partitions[0].fence
    assert not audited()
    for principal, fence, token in (("stranger", -1, b""), ("", session, b"guessed"), ("writer", session + 1, b""), ("stranger", session - 1, b"")):
        read = pb.ReadRequest(cluster_key=key, fence=fence, owner_token=token, last_transaction_id=0, max_bytes=100, principal=principal)
        view = pb.ReadViewRequest(cluster_key=key, fence=fence, owner_token=token, principal=principal)
        with pytest.raises((NotAllowed, Fenced)):
            await to_storage.read(READ, read).receive()
        assert audited() == [denial(principal)], (principal, fence)
        with pytest.raises((NotAllowed, Fenced)):
            await to_storage.read(READ_VIEW, view).receive()
        assert audited() == [denial(principal)], (principal, fence)
    transactions = pb.TransactionRequest(partition=0, first_transaction_id=0, count=1, cluster_key=key, principal="stranger")
    assert not await may(to_server.call(TRANSACTIONS, transactions, timeout_s=10))
    assert audited() == [denial("stranger")]
    assert not await may((await connect(cluster, "reader")).append(0, b"x"))
    assert audited() == [denial("reader", "append")]
    allowed_read = pb.ReadRequest(cluster_key=key, fence=-1, last_transaction_id=0, max_bytes=100, principal="reader")
    assert await to_storage.read(READ, allowed_read).receive() is not None
    assert not audited()


async def test_denials_of_many_stated_names_share_one_limit(cluster: InMemoryCluster, audited: Callable[[], list[dict[str, Any]]]) -> None:
    await create(cluster, **PROPERTIES)
    await known(cluster)
    ((_, storage),) = cluster.storages.values()
    to_storage = cluster.network.connect(storage.address)
    for number in range(100):
        request = pb.ReadRequest(cluster_key=cluster.key.bytes, fence=-1, max_bytes=100, principal=f"stranger-{number}")
        with pytest.raises(NotAllowed):
            await to_storage.read(READ, request).receive()
    assert len(audited()) == DENIALS_MAX


@pytest.mark.parametrize(
    ("role", "fence", "recorded"), [(Role.READER, -1, True), (Role.READER, 4, True), (Role.NODE, -1, True), (Role.NODE, 4, False)]
)
def test_a_denial_over_tls_names_the_proven_principal_and_a_replaced_owner_is_not_one(
    audited: Callable[[], list[dict[str, Any]]], role: Role, fence: int, recorded: bool
) -> None:
    access = ReadAccess(AccessControl(enforced=True))
    access.record(0, OpenedBy(5, b"token", "shop/secret", ("spiffe://waltz/reader/a",)), clean_session=5)
    peer = Identity(f"spiffe://waltz/{role}/b", frozenset({role}))
    with calling(peer), pytest.raises((NotAllowed, Fenced)):
        access.expect_reader(0, peer.principal, fence=fence, token=b"other", newest_session=5)
    expected = {"event": "request denied", "principal": peer.principal, "operation": "read", "resource": "shop/secret"}
    assert audited() == ([expected] if recorded else [])
