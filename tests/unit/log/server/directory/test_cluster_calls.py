"""What callers that may administer see of the coordinator through a log server, and decide there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from waltz_log.console.reading.cluster_values import ClusterValues
from waltz_log.console.reading.link import ClusterLink
from waltz_log.console.reading.sampling import Sampler
from waltz_log.coordination.survey import survey
from waltz_log.coordination.topics import read_catalogue
from waltz_log.core import metadata as paths
from waltz_log.core.metadata import Assignment
from waltz_log.core.ports import CallMethod
from waltz_log.core.topics.topic_names import TopicName
from waltz_log.errors import InvalidRequest, PermissionDenied
from waltz_log.security.access import AccessControl
from waltz_log.security.identity import Identity, Role
from waltz_log.security.rules import AccessRules, Operation, Rule
from waltz_log.testing.cluster import MemoryCluster
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.methods import CLUSTER, PLACEMENT

PLACE = pb.PlacementRequest
OPERATOR, MONITOR, READER = "operator-tools", "reader-monitor", "reader-orders"


def _identity(host: str) -> Identity:
    role, _, name = (OPERATOR if host == "client" else host).partition("-")
    return Identity(f"spiffe://waltz/{role}/{name}", frozenset({Role(role)}))


RULES = (
    Rule(principal=_identity(MONITOR).principal, operations=(Operation.ADMINISTER,), resource="*"),
    Rule(principal=_identity(READER).principal, operations=(Operation.READ,), resource="shop/orders"),
)


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    made = MemoryCluster(partitions=4, storages=3, servers=2, identities=_identity)
    await made.start()
    await made.create_topic("shop/orders")
    await made.create_topic("bank/bills")
    for rule in RULES:
        await made.change_access(lambda found, rule=rule: found.granted(rule))  # type: ignore[misc]
    controls = [server._access for server, _ in made.servers.values()]
    async with asyncio.timeout(20):
        while not all(each.rules is not None and len(each.rules.rules) == 2 for each in controls):
            await asyncio.sleep(0.01)
    yield made
    await made.stop()


async def call(cluster: MemoryCluster, host: str, method: CallMethod[Any, Any], request: Any, server: str = "server-0") -> Any:
    request.cluster_key = cluster.key.bytes
    return await cluster.network.host(host).connect(cluster.servers[server][0].address).call(method, request, timeout_s=10)


async def values(cluster: MemoryCluster, host: str = MONITOR) -> ClusterValues:
    return ClusterValues(await call(cluster, host, CLUSTER, pb.ClusterRequest()))


async def test_a_survey_through_a_server_is_that_of_the_coordinator(cluster: MemoryCluster) -> None:
    session, network = cluster.ensemble.session(), cluster.network.host(OPERATOR)
    through, direct = await survey(await values(cluster), network, "memory"), await survey(session, network, "memory")
    assert through.partitions == direct.partitions
    assert [each.session >= 0 for each in through.partitions] == [True] * 4
    assert [(each.name, each.answers) for each in through.storages] == [(each.name, each.answers) for each in direct.storages]
    assert [(each.server_id, each.answers) for each in through.servers] == [(each.server_id, each.answers) for each in direct.servers]
    assert await read_catalogue(await values(cluster)) == await read_catalogue(session)


async def test_only_callers_that_may_administer_see_it_and_place_owners(cluster: MemoryCluster) -> None:
    """It names every topic and has every rule."""
    for host in (READER, "application-orders", "reader-other"):
        with pytest.raises(PermissionDenied):
            await values(cluster, host)
        for action in PLACE.Action.values():
            with pytest.raises(PermissionDenied):
                await call(cluster, host, PLACEMENT, PLACE(action=action, partitions=[0], server="server-1"))
    for host in (OPERATOR, MONITOR):
        assert (await read_catalogue(await values(cluster, host))).find(TopicName("bank", "bills"))


async def test_what_is_written_before_a_call_is_seen_by_it(cluster: MemoryCluster) -> None:
    session = cluster.ensemble.session()
    for number in range(20):
        await session.create(f"{paths.STORAGE_NODES}/new-{number:02}", b"{}")
        assert f"new-{number:02}" in await (await values(cluster)).children(paths.STORAGE_NODES)


async def test_a_read_that_began_before_a_call_is_not_its_answer(cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = cluster.servers["server-0"][0]._cluster_calls
    began, goes_on = asyncio.Event(), asyncio.Event()
    read = calls.read

    async def slow() -> None:
        await read()
        began.set()
        await goes_on.wait()

    monkeypatch.setattr(calls, "read", slow)
    first = asyncio.create_task(values(cluster))
    await began.wait()
    await cluster.ensemble.session().create(f"{paths.STORAGE_NODES}/late", b"{}")
    second = asyncio.create_task(values(cluster))
    await asyncio.sleep(0.05)
    goes_on.set()
    assert "late" not in await (await first).children(paths.STORAGE_NODES)
    assert "late" in await (await second).children(paths.STORAGE_NODES)


async def test_calls_of_the_same_moment_share_one_read(cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = cluster.servers["server-0"][0]._cluster_calls
    reads = 0
    read = calls.read

    async def counted() -> None:
        nonlocal reads
        reads += 1
        await read()

    monkeypatch.setattr(calls, "read", counted)
    await asyncio.gather(*(values(cluster) for _ in range(50)))
    assert reads <= 3


async def test_while_the_coordinator_is_away_a_server_answers_what_it_knows(cluster: MemoryCluster) -> None:
    """Also a server that was never asked before, of topics that were created since it started, with the age of what it read."""
    before = await read_catalogue(await values(cluster, OPERATOR))
    server, session = cluster.servers["server-1"]
    async with asyncio.timeout(20):
        while server._topics.catalogue != before:
            await asyncio.sleep(0.01)
    cluster.ensemble.cut(session)
    await asyncio.sleep(0.05)
    found = ClusterValues(await call(cluster, OPERATOR, CLUSTER, pb.ClusterRequest(), "server-1"))
    assert found.age_s >= 0.05
    assert await read_catalogue(found) == before
    surveyed = await survey(found, cluster.network.host(OPERATOR), "memory")
    assert surveyed.complete, surveyed.missing


async def test_owners_are_moved_released_and_servers_drained_and_readmitted(cluster: MemoryCluster) -> None:
    session = cluster.ensemble.session()
    address = cluster.servers["server-1"][0].address
    number = cluster.servers["server-1"][0].server_id

    async def assignment() -> Assignment:
        node = await session.get(paths.ASSIGNMENT)
        assert node is not None
        return Assignment.from_bytes(node.data)

    before = await assignment()
    planned = await call(cluster, MONITOR, PLACEMENT, PLACE(action=PLACE.ACTION_DRAIN, server=address, dry_run=True))
    assert {each.before for each in planned.moves} == {number}
    assert await assignment() == before, "a dry run changes nothing"
    moved = await call(cluster, MONITOR, PLACEMENT, PLACE(action=PLACE.ACTION_MOVE, partitions=[0], server=str(number)))
    assert (await assignment()).moved == {0: address}
    assert {each.partition: each.after for each in moved.moves}.get(0, number) == number
    await call(cluster, MONITOR, PLACEMENT, PLACE(action=PLACE.ACTION_RELEASE, partitions=[0]))
    assert (await assignment()).moved == {}
    await call(cluster, MONITOR, PLACEMENT, PLACE(action=PLACE.ACTION_DRAIN, server=address))
    assert (await assignment()).drained == (address,)
    await call(cluster, MONITOR, PLACEMENT, PLACE(action=PLACE.ACTION_READMIT, server=address))
    assert (await assignment()).drained == ()
    with pytest.raises(InvalidRequest, match="no log server is registered at"):
        await call(cluster, MONITOR, PLACEMENT, PLACE(action=PLACE.ACTION_DRAIN, server="nowhere:1"))
    with pytest.raises(InvalidRequest, match="partitions at most"):
        await call(cluster, MONITOR, PLACEMENT, PLACE(action=PLACE.ACTION_RELEASE, partitions=[0] * 4097))


# ---- the console -----------------------------------------------------------------------------------------------------------------------------------


async def test_the_console_keeps_the_rules_and_its_topics(cluster: MemoryCluster) -> None:
    control = AccessControl(enforced=True)
    link = ClusterLink(cluster.seeds, cluster.network.host(OPERATOR))
    async with asyncio.timeout(20), link.keeping_rules(control):
        while control.rules is None or len(control.rules.rules) != 2:
            await asyncio.sleep(0.01)
        assert {control.topic_of(partition) for partition in range(4)} == {"shop/orders", "bank/bills", ""}

        def revoked(found: AccessRules) -> AccessRules:
            return found.revoked(_identity(READER).principal)

        await cluster.change_access(revoked)
        began_s = asyncio.get_running_loop().time()
        while len(control.rules.rules) != 1:
            await asyncio.sleep(0.01)
        assert asyncio.get_running_loop().time() - began_s < 2.0, "the map of the cluster has the version of the rules"
    await link.close()


async def test_the_console_shows_nothing_with_a_certificate_that_may_not_administer(cluster: MemoryCluster) -> None:
    link = ClusterLink(cluster.seeds, cluster.network.host(READER))
    sampler = Sampler(link, cluster.clock, 1.0)
    await sampler._survey()
    assert sampler._sample is None
    assert "no rule permits spiffe://waltz/reader/orders to administer the cluster" in str(sampler.error)
    await link.close()


async def test_the_console_surveys_the_nodes_when_no_server_answers_any_more(cluster: MemoryCluster) -> None:
    link = ClusterLink(cluster.seeds, cluster.network.host(OPERATOR))
    sampler = Sampler(link, cluster.clock, 1.0)
    await sampler._survey()
    assert (sampler.error, sampler.warning) == (None, None)
    for name in ("server-0", "server-1"):
        await cluster.kill_server(name)
    await cluster.kill_storage("storage-1")
    await sampler._survey()
    assert sampler.error is None
    assert "no log server answers, so owners and topics are those of an earlier survey" in str(sampler.warning)
    assert sampler._sample is not None
    assert [(each.name, each.answers) for each in sampler._sample.survey.storages] == [("storage-0", True), ("storage-1", False), ("storage-2", True)]
    await link.close()
