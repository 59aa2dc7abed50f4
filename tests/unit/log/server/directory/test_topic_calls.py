"""Topics through log servers: who sees one, who creates, changes and deletes one, and what the others learn."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any, Protocol

import pytest

from waltz_log.cli.topics import lag, topic_facts
from waltz_log.client import ClientSettings
from waltz_log.client.feed.subscribers import Subscribers
from waltz_log.client.inspection.usable_bounds import bounds_with_upkeep, usable_bounds
from waltz_log.client.owners.owners import Owners
from waltz_log.client.topics.topic_directory import find_topic
from waltz_log.coordination import topic_creation
from waltz_log.coordination.topics import read_catalogue
from waltz_log.core.topics.topic_names import TopicName
from waltz_log.errors import ClusterUnavailable, InvalidRequest, NoSuchTopic, PermissionDenied, WaltzError
from waltz_log.security.identity import Identity, Role
from waltz_log.security.rules import AccessRules, Operation, Rule, decide, parse_resource
from waltz_log.server.directory import topic_calls
from waltz_log.server.partition.partition import Partition
from waltz_log.testing.cluster import MemoryCluster
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.methods import TOPICS

READER, MANAGER, STRANGER = "reader-orders", "application-manager", "application-stranger"
LIST, CREATE, ALTER, DELETE = (getattr(pb.TopicsRequest, f"ACTION_{each}") for each in ("LIST", "CREATE", "ALTER", "DELETE"))


def _identity(host: str) -> Identity:
    role, _, name = ("operator-tools" if host == "client" else host).partition("-")
    return Identity(f"spiffe://waltz/{role}/{name}", frozenset({Role(role)}))


def _rule(host: str, operation: str, resource: str) -> Rule:
    return Rule(principal=_identity(host).principal, operations=(Operation(operation),), resource=resource)


RULES = (
    _rule(READER, "read", "shop/orders"),
    _rule(MANAGER, "manage", "shop/new*"),
    _rule(MANAGER, "append", "shop/orders"),
    _rule(STRANGER, "append", "log:7"),
)


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    made = MemoryCluster(partitions=8, storages=1, servers=2, identities=_identity)
    await made.start()
    await made.create_topic("shop/orders", log_partitions=(0,))
    await made.create_topic("bank/bills", log_partitions=(1,))

    def granted(found: AccessRules) -> AccessRules:
        for rule in RULES:
            found = found.granted(rule)
        return found

    await made.change_access(granted)
    controls = [server._access for server, _ in made.servers.values()]
    async with asyncio.timeout(20):
        while not all(each.rules is not None and len(each.rules.rules) == len(RULES) for each in controls):
            await asyncio.sleep(0.01)
    yield made
    await made.stop()


class Ask(Protocol):
    async def __call__(self, host: str, action: Any, topic: str = "", **more: Any) -> pb.TopicsResponse: ...


@asynccontextmanager
async def reached(cluster: MemoryCluster, host: str) -> AsyncIterator[Owners]:
    owners = Owners(cluster.seeds, cluster.network.host(host), ClientSettings(), random.Random(0))
    await owners.open()
    try:
        yield owners
    finally:
        await owners.close()


@pytest.fixture
def ask(cluster: MemoryCluster) -> Ask:
    async def asked(host: str, action: Any, topic: str = "", **more: Any) -> pb.TopicsResponse:
        async with reached(cluster, host) as owners:
            request = pb.TopicsRequest(cluster_key=cluster.key.bytes, action=action, topic=topic, **more)
            return await owners.call_any(TOPICS, request, timeout_s=10)

    return asked


def names(answer: pb.TopicsResponse) -> list[str]:
    return sorted(json.loads(each.row)[0] for each in answer.topics)


async def refused(work: Awaitable[Any], kind: type[WaltzError]) -> str:
    with pytest.raises(kind) as found:
        await work
    assert type(found.value) is kind
    return str(found.value)


PLAN = pb.TopicPlan(partitions=1, type="regular")


# ---- who sees a topic ------------------------------------------------------------------------------------------------------------------------------


async def test_each_call_that_shows_topics_shows_those_of_the_caller_alone(cluster: MemoryCluster, ask: Ask) -> None:
    """The map, the list, the description and the lag."""
    for host, seen in {"client": ["bank/bills", "shop/orders"], READER: ["shop/orders"], MANAGER: ["shop/orders"], STRANGER: []}.items():
        assert names(await ask(host, LIST)) == seen, host
        async with reached(cluster, host) as owners:
            assert sorted(map(str, owners.catalogue.topics)) == seen, host
            for name in ("shop/orders", "bank/bills"):
                if name in seen:
                    (place,) = await topic_facts.partition_facts(owners, await find_topic(owners, TopicName.parse(name), 5.0), 5.0)
                    assert place["high_water_mark"] == -1
                else:
                    hidden = await refused(find_topic(owners, TopicName.parse(name), 5.0), NoSuchTopic)
                    missing = await refused(find_topic(owners, TopicName.parse(f"{name[:-1]}x"), 5.0), NoSuchTopic)
                    assert hidden.replace(name, "") == missing.replace(f"{name[:-1]}x", ""), "the same answer"
            partitions = {"shop/orders": 0, "bank/bills": 1}
            of_topics = [partition for partition in await usable_bounds(owners) if partition in partitions.values()]
            assert sorted(of_topics) == sorted(partitions[name] for name in seen), "the lag of no other partition"
            for name in partitions.keys() - seen:
                await refused(bounds_with_upkeep(owners, [partitions[name]]), PermissionDenied)


async def test_a_principal_without_any_right_is_shown_no_list(cluster: MemoryCluster) -> None:
    channel = cluster.network.host("application-other").connect(cluster.servers["server-0"][0].address)
    for action in (LIST, CREATE, ALTER, DELETE):
        request = pb.TopicsRequest(cluster_key=cluster.key.bytes, action=action, topic="shop/orders", plan=PLAN)
        await refused(channel.call(TOPICS, request, timeout_s=10), PermissionDenied)


async def test_lag_shows_no_mark_of_a_partition_without_a_right(cluster: MemoryCluster) -> None:
    asked = lag.Asked(tables=("table",))
    for host, marks in {"client": {0: -1, 1: -1}, READER: {0: -1, 1: None}}.items():
        async with reached(cluster, host) as owners:
            (table,), problems = await lag.find_readers(owners, asked, lambda path, key: {0: -1, 1: -1}, 5.0)
            assert not problems
            assert {each.partition: each.high_water_mark for each in table.places} == marks
            assert table.places[1].topic == ("bank/bills/0" if host == "client" else "")


async def test_the_name_of_another_principals_subscriber_is_not_shown(cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds up retention, which the topic's readers may know."""
    upkeep = Partition.upkeep
    monkeypatch.setattr(Partition, "upkeep", lambda self: type(upkeep(self))(held_by="subscriber billing"))
    for host, held_by in {"client": "subscriber billing", READER: "subscriber"}.items():
        async with reached(cluster, host) as owners:
            topic = await find_topic(owners, TopicName("shop", "orders"), 5.0)
            (place,) = await topic_facts.partition_facts(owners, topic, 5.0)
            assert place["held_by"] == held_by


async def test_only_the_own_subscribers_are_described(cluster: MemoryCluster) -> None:
    async with reached(cluster, "client") as owners:
        await Subscribers(owners).register("billing", {0: -1})
    for host, seen in {"client": ["billing"], READER: [], MANAGER: []}.items():
        async with reached(cluster, host) as owners:
            topic = await find_topic(owners, TopicName("shop", "orders"), 5.0)
            (place,) = await topic_facts.partition_facts(owners, topic, 5.0)
            assert list(place["subscribers"]) == seen


async def test_a_principal_with_many_creations_does_not_keep_another_from_its_own(cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each waits for the owners of log partitions; here those of one principal never end."""
    waiting = 0

    async def planned(coordinator: Any, network: Any, plan: Any, **more: Any) -> Any:
        nonlocal waiting
        if plan.name.namespace != "shop":
            return await unchanged(coordinator, network, plan, **more)
        waiting += 1
        return await asyncio.get_running_loop().create_future()

    unchanged = topic_creation.plan_topic
    monkeypatch.setattr(topic_calls, "plan_topic", planned)
    address = cluster.servers["server-0"][0].address

    async def create(host: str, topic: str) -> pb.TopicsResponse:
        request = pb.TopicsRequest(cluster_key=cluster.key.bytes, action=CREATE, topic=topic, plan=PLAN, dry_run=True)
        return await cluster.network.host(host).connect(address).call(TOPICS, request, timeout_s=10)

    many = [asyncio.ensure_future(create(MANAGER, f"shop/new{number}")) for number in range(20)]
    async with asyncio.timeout(10):
        while waiting < topic_calls.CREATING_MAX // 2:
            await asyncio.sleep(0.001)
    assert names(await create("client", "bank/new")) == ["bank/new"]
    assert waiting == topic_calls.CREATING_MAX // 2
    for each in many:
        each.cancel()
    await asyncio.gather(*many, return_exceptions=True)


async def test_the_list_is_answered_while_the_coordinator_is_away(cluster: MemoryCluster, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_calls, "READ_S", 0.05)
    for _, session in cluster.servers.values():
        cluster.ensemble.cut(session)
    assert names(await ask(READER, LIST)) == ["shop/orders"]


@pytest.mark.parametrize("fails", [False, True], ids=["hangs", "fails"])
async def test_a_coordinator_that_does_not_answer_the_list_delays_it_little(
    cluster: MemoryCluster, ask: Ask, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """Its session does not know yet."""

    async def silent(_: Any) -> Any:
        if fails:
            raise ClusterUnavailable(address="coordinator", reason="no answer")
        await asyncio.sleep(60)

    monkeypatch.setattr(topic_calls, "READ_S", 0.05)
    monkeypatch.setattr(topic_calls, "read_catalogue", silent)
    began_s = asyncio.get_running_loop().time()
    assert names(await ask(READER, LIST)) == ["shop/orders"]
    assert asyncio.get_running_loop().time() - began_s < 5.0


# ---- who changes one -------------------------------------------------------------------------------------------------------------------------------


async def test_a_topic_is_created_changed_and_deleted_with_the_right_to_manage_it(cluster: MemoryCluster, ask: Ask) -> None:
    planned = await ask(MANAGER, CREATE, "shop/new", plan=PLAN, dry_run=True)
    assert names(planned) == ["shop/new"]
    assert not planned.contents, "what log partitions hold is for callers that may administer"
    assert names(await ask("client", LIST)) == ["bank/bills", "shop/orders"]
    await ask(MANAGER, CREATE, "shop/new", plan=PLAN, policies={"retention_ms": "-1", "keep_for_subscribers": "false"})
    assert names(await ask(MANAGER, CREATE, "shop/new", plan=PLAN, policies={"retention_ms": "-1", "keep_for_subscribers": "false"})) == ["shop/new"]
    assert names(await ask(MANAGER, LIST)) == ["shop/new", "shop/orders"]
    session = cluster.ensemble.session()
    found = (await read_catalogue(session)).find(TopicName("shop", "new"))
    assert (found.policies.retention_ms, found.policies.keep_for_subscribers) == (-1, False)
    changed = await ask(MANAGER, ALTER, "shop/new", policies={"durability": "quorum_memory"})
    assert [json.loads(each.row)[5]["durability"] for each in (changed.before, changed.topics[0])] == ["quorum_sync", "quorum_memory"]
    await ask(MANAGER, DELETE, "shop/new", dry_run=True)
    assert TopicName("shop", "new") in (await read_catalogue(session)).topics
    await ask(MANAGER, DELETE, "shop/new")
    assert TopicName("shop", "new") not in (await read_catalogue(session)).topics


@pytest.mark.parametrize("host", [READER, MANAGER, STRANGER])
async def test_without_the_right_a_topic_that_exists_is_like_one_that_does_not(cluster: MemoryCluster, ask: Ask, host: str) -> None:
    before = (await cluster.ensemble.session().get("/topics")).data  # type: ignore[union-attr]
    for action in (CREATE, ALTER, DELETE):
        there = await refused(ask(host, action, "bank/bills", plan=PLAN, policies={"retention_ms": "-1"}), PermissionDenied)
        missing = await refused(ask(host, action, "bank/other", plan=PLAN, policies={"retention_ms": "-1"}), PermissionDenied)
        assert there.replace("bank/bills", "") == missing.replace("bank/other", "")
    assert (await cluster.ensemble.session().get("/topics")).data == before  # type: ignore[union-attr]


async def test_an_unknown_topic_suggests_none_that_the_caller_does_not_see(cluster: MemoryCluster, ask: Ask) -> None:
    await cluster.create_topic("shop/newest")
    assert "did you mean shop/newest" in await refused(ask(MANAGER, DELETE, "shop/newes"), NoSuchTopic)
    await cluster.change_access(lambda found: found.granted(_rule(STRANGER, "manage", "bank/billz")))
    async with asyncio.timeout(20):
        while True:
            try:
                text = await refused(ask(STRANGER, DELETE, "bank/billz"), NoSuchTopic)
                break
            except PermissionDenied:
                await asyncio.sleep(0.01)
    assert "bills" not in text


async def test_log_partitions_are_named_by_administrators_alone(cluster: MemoryCluster, ask: Ask) -> None:
    plan = pb.TopicPlan(partitions=1, type="regular", log_partitions=[5])
    assert "name log partitions" in await refused(ask(MANAGER, CREATE, "shop/new", plan=plan), PermissionDenied)
    answer = await ask("client", CREATE, "shop/new", plan=plan, dry_run=True)
    assert [each.partition for each in answer.contents] == [5]
    assert json.loads((await ask("client", CREATE, "shop/new", plan=plan)).topics[0].row)[2] == [5]


async def test_what_one_principal_may_have_is_bounded(cluster: MemoryCluster, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    wide = pb.TopicPlan(partitions=5, type="regular")
    assert "half of the 8 log partitions" in await refused(ask(MANAGER, CREATE, "shop/new", plan=wide), InvalidRequest)
    large = pb.TopicPlan(partitions=1, type="regular", properties={"note": "x" * 5000})
    assert "at most 4096 bytes" in await refused(ask(MANAGER, CREATE, "shop/new", plan=large), InvalidRequest)
    monkeypatch.setattr(topic_calls, "MANAGED_TOPICS_MAX", 1)
    await ask(MANAGER, CREATE, "shop/new1", plan=PLAN)
    assert "manages 1 topics, which is the limit" in await refused(ask(MANAGER, CREATE, "shop/new2", plan=PLAN), InvalidRequest)
    await ask(MANAGER, CREATE, "shop/new1", plan=PLAN)
    await ask("client", CREATE, "shop/new2", plan=PLAN)


async def test_a_lack_of_partitions_does_not_show_what_the_others_hold(cluster: MemoryCluster, ask: Ask) -> None:
    writer = await cluster.connect()
    for partition in range(2, 8):
        await writer.append(partition, b"data")
    await writer.close()
    text = await refused(ask(MANAGER, CREATE, "shop/new", plan=PLAN), InvalidRequest)
    assert "the topic needs 1 log partitions and 0 are free and empty; an operator can add some" in text
    assert "these hold data: 2 (1 transactions)" in await refused(ask("client", CREATE, "shop/new", plan=PLAN), InvalidRequest)


# ---- the operation --------------------------------------------------------------------------------------------------------------------------------


def test_no_role_but_operators_may_manage_without_a_rule() -> None:
    for host, may in {"client": True, "node-a": True, MANAGER: False, READER: False}.items():
        assert decide(None, _identity(host), Operation.MANAGE, parse_resource("shop/new")) is may
    rules = AccessRules().granted(_rule(READER, "manage", "shop/*"))
    assert decide(rules, _identity(READER), Operation.MANAGE, parse_resource("shop/new"))
    assert not decide(rules, _identity(READER), Operation.MANAGE, parse_resource("bank/new"))
    assert not decide(rules, _identity(READER), Operation.READ, parse_resource("shop/new"))


@pytest.mark.parametrize("resource", ["shop/new:0-3", "log", "log:0-7"])
def test_the_right_to_manage_is_for_whole_topics(resource: str) -> None:
    with pytest.raises(InvalidRequest, match="manage is for whole topics"):
        AccessRules().granted(_rule(MANAGER, "manage", resource))
