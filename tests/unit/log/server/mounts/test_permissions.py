"""Rules of access in a whole cluster: at servers and storage nodes, under open mounts, feeds and reads, and how a denial is worded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from waltz_log.client import ClientSettings, TopicHandle, WaltzClient
from waltz_log.core import metadata as paths
from waltz_log.core.metadata import StorageNodeEntry
from waltz_log.core.topics.access import CLUSTER_PRINCIPAL
from waltz_log.errors import NoSuchTopic, NotAllowed, OutcomeUnknown, PermissionDenied, Unavailable, WaltzError
from waltz_log.security.access import AccessControl
from waltz_log.security.callers import calling
from waltz_log.security.identity import Identity, Role
from waltz_log.security.rules import AccessRules, Operation, Rule
from waltz_log.testing.cluster import MemoryCluster
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.methods import BOUND, LOCATE, PING, READ, READ_VIEW, RESOLVE, SERVER_STATUS, STORAGE_STATUS, TRANSACTIONS

PARTITIONS = 4
ORDERS = 0
"""The log partition of shop/orders. Partition 1 is that of shop/bills; 2 and 3 belong to no topic."""
BEYOND = 1000
"""A partition that the cluster does not have."""


def _identity(host: str) -> Identity:
    role, _, name = ("operator-tools" if host == "client" else host).partition("-")
    return Identity(f"spiffe://waltz/{role}/{name}", frozenset({Role(role)}))


def _rule(host: str, resource: str, *operations: str) -> Rule:
    return Rule(principal=_identity(host).principal, operations=tuple(map(Operation, operations)), resource=resource)


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    made = MemoryCluster(partitions=PARTITIONS, storages=1, servers=1, identities=_identity)
    await made.start()
    await made.create_topic("shop/orders", log_partitions=(ORDERS,))
    await made.create_topic("shop/bills", log_partitions=(1,))
    try:
        yield made
    finally:
        await made.stop()


class _Clients:
    def __init__(self, cluster: MemoryCluster) -> None:
        self._cluster = cluster
        self._open: list[WaltzClient] = []

    async def connect(self, host: str, **settings: Any) -> WaltzClient:
        quick = ClientSettings(retry_base_s=0.001, retry_cap_s=0.02, append_timeout_s=20.0, **settings)
        self._open.append(await self._cluster.connect(quick, host=host))
        return self._open[-1]

    async def close(self) -> None:
        for each in self._open:
            await each.close()


@pytest.fixture
async def clients(cluster: MemoryCluster) -> AsyncIterator[_Clients]:
    made = _Clients(cluster)
    try:
        yield made
    finally:
        await made.close()


async def _grant(cluster: MemoryCluster, *rules: Rule) -> None:
    def change(found: AccessRules) -> AccessRules:
        for rule in rules:
            found = found.granted(rule)
        return found

    await cluster.change_access(change)
    await _known(cluster)


async def _revoke(cluster: MemoryCluster, host: str, *operations: str) -> None:
    await cluster.change_access(lambda found: found.revoked(_identity(host).principal, [Operation(each) for each in operations]))
    await _known(cluster)


async def _known(cluster: MemoryCluster) -> None:
    """Until all nodes have the rules of the coordinator."""
    node = await cluster.ensemble.session().get("/access")
    assert node is not None
    wanted = AccessRules.from_bytes(node.data)
    controls = [server._access for server, _ in cluster.servers.values()] + [storage.access.control for storage, _ in cluster.storages.values()]
    async with asyncio.timeout(20):
        while any(each.rules != wanted for each in controls):
            await asyncio.sleep(0.001)


async def _may(work: Any) -> bool:
    try:
        async with asyncio.timeout(20):
            await work
    except PermissionDenied:
        return False
    return True


async def _topic(client: WaltzClient, name: str) -> TopicHandle | None:
    """None: the client does not learn that it exists."""
    try:
        return await client.topic(name)
    except NoSuchTopic:
        return None


async def _storage_address(cluster: MemoryCluster) -> str:
    node = await cluster.ensemble.session().get(f"{paths.STORAGE_NODES}/storage-0")
    assert node is not None
    return StorageNodeEntry.from_bytes(node.data).address


class _Raw:
    """Messages as a peer on that host can send them, whatever the library would do."""

    def __init__(self, cluster: MemoryCluster, host: str, server: str, storage: str) -> None:
        self._key = cluster.key.bytes
        network = cluster.network.host(host)
        self._server, self._storage = network.connect(server), network.connect(storage)

    async def ask(self, what: str, partition: int, **more: Any) -> Any:
        about: dict[str, Any] = {"cluster_key": self._key, "partition": partition, **more}
        if what == "bound":
            return await self._server.call(BOUND, pb.BoundRequest(cluster_key=self._key, partitions=[partition]), timeout_s=10)
        if what == "resolve":
            return await self._server.call(RESOLVE, pb.ResolveRequest(**about, client_id=1, last_sequence=1, since=-1), timeout_s=10)
        if what == "transactions":
            return await self._server.call(TRANSACTIONS, pb.TransactionRequest(**about, count=1), timeout_s=10)
        if what == "locate":
            return await self._storage.call(LOCATE, pb.LocateRequest(**about, last_transaction_id=-1), timeout_s=10)
        if what == "read":
            return await self._storage.read(READ, pb.ReadRequest(**about, last_transaction_id=0)).receive()
        return await self._storage.read(READ_VIEW, pb.ReadViewRequest(**about)).receive()


async def _raw(cluster: MemoryCluster, host: str) -> _Raw:
    ((server, _),) = cluster.servers.values()
    return _Raw(cluster, host, server.address, await _storage_address(cluster))


READS = ("transactions", "locate", "read", "view")
EVERY = ("bound", "resolve", *READS)


async def test_without_a_rule_roles_alone_decide(cluster: MemoryCluster, clients: _Clients) -> None:
    application, reader = await clients.connect("application-orders"), await clients.connect("reader-reports")
    await application.append(2, b"x")
    assert (await anext(reader.feed(2))).data == b"x"
    assert not await _may(reader.append(2, b"x"))


async def test_two_applications_may_do_what_the_rules_say_and_nothing_else(cluster: MemoryCluster, clients: _Clients) -> None:
    await _grant(cluster, _rule("application-orders", "shop/orders", "append", "read"), _rule("application-billing", "shop/*", "read"))
    orders, billing = await clients.connect("application-orders"), await clients.connect("application-billing")
    operator = await clients.connect("operator-ada")
    topics = {
        name: (await _topic(client, "shop/orders"), await _topic(client, "shop/bills"))
        for name, client in (("orders", orders), ("billing", billing), ("ada", operator))
    }
    appends, reads = {}, {}
    for each in topics["ada"]:
        assert each is not None
        await each.append(b"there", partition=0)
    for name, pair in topics.items():
        appends[name] = tuple([each is not None and await _may(each.append(b"x", partition=0)) for each in pair])
        reads[name] = tuple([each is not None and await _may(anext(each.feed())) for each in pair])
    assert topics["orders"][1] is None, "a topic without a right is unknown"
    assert appends == {"orders": (True, False), "billing": (False, False), "ada": (True, True)}
    assert reads == {"orders": (True, False), "billing": (True, True), "ada": (True, True)}
    assert [await _may(orders.append(partition, b"x")) for partition in (2, 3)] == [False, False]


async def test_a_denied_append_names_its_resource_even_where_the_principal_may_append_nowhere(cluster: MemoryCluster, clients: _Clients) -> None:
    """The client id, which comes before the first mount, is denied then, and it has no resource."""
    await _grant(cluster, _rule("application-billing", "*", "read"))
    billing = await clients.connect("application-billing")
    with pytest.raises(PermissionDenied) as of_topic:
        await (await billing.topic("shop/orders")).append(b"refund", partition=0)
    with pytest.raises(PermissionDenied) as of_partition:
        await billing.append(3, b"refund")
    assert (of_topic.value.operation, of_topic.value.resource) == ("append", "shop/orders")
    assert (of_partition.value.operation, of_partition.value.resource) == ("append", "log:3")


async def test_partitions_of_no_topic_are_granted_by_number(cluster: MemoryCluster, clients: _Clients) -> None:
    await _grant(cluster, _rule("application-orders", "log:2", "append"))
    client = await clients.connect("application-orders")
    assert [await _may(client.append(partition, b"x")) for partition in (2, 3)] == [True, False]
    await _grant(cluster, _rule("application-orders", "log", "append"))
    assert await _may(client.append(3, b"x"))


async def test_every_procedure_with_a_partition_is_denied_alike_whether_it_exists_or_not(cluster: MemoryCluster) -> None:
    await _grant(cluster, _rule("application-orders", "shop/orders", "append", "read"))
    raw = await _raw(cluster, "application-other")
    for what in EVERY:
        messages = []
        for partition in (ORDERS, 2, BEYOND):
            with pytest.raises(PermissionDenied) as raised:
                await raw.ask(what, partition)
            assert raised.value.principal == "spiffe://waltz/application/other"
            messages.append(str(raised.value).replace(f"log:{partition}", "log:N"))
        assert len(set(messages)) == 1, messages
        assert "no rule permits spiffe://waltz/application/other to" in messages[0]


async def test_a_topic_is_denied_alike_whether_it_exists_or_not(cluster: MemoryCluster) -> None:
    await _grant(cluster, _rule("application-orders", "shop/orders", "append", "read"))
    raw = await _raw(cluster, "application-other")
    messages = set()
    for topic in ("shop/orders", "shop/bills", "no/such"):
        with pytest.raises(PermissionDenied) as raised:
            await raw.ask("transactions", ORDERS, topic=topic, topic_epoch=1)
        messages.add(str(raised.value).replace(topic, "TOPIC"))
    assert messages == {"permission denied: no rule permits spiffe://waltz/application/other to read TOPIC"}


async def test_storage_nodes_enforce_the_same_rules_for_direct_reads(cluster: MemoryCluster, clients: _Clients) -> None:
    await _grant(cluster, _rule("application-orders", "shop/orders", "append"), _rule("reader-reports", "shop/orders", "read"))
    await (await (await clients.connect("application-orders")).topic("shop/orders")).append(b"there", partition=0)
    reports, orders = await _raw(cluster, "reader-reports"), await _raw(cluster, "application-orders")
    for what in ("transactions", "locate", "read"):
        await reports.ask(what, ORDERS)
        with pytest.raises(PermissionDenied, match=f"no rule permits spiffe://waltz/application/orders to read log:{ORDERS}"):
            await orders.ask(what, ORDERS)
    assert not await _may(orders.ask("resolve", ORDERS)), "the right to append settles the principal's own client ids alone"
    await _grant(cluster, _rule("application-orders", "shop/orders", "resolve"))
    assert await _may(orders.ask("resolve", ORDERS))
    assert not await _may(reports.ask("resolve", ORDERS))


async def test_a_principal_in_a_message_and_a_stolen_fence_open_nothing(cluster: MemoryCluster, clients: _Clients) -> None:
    await _grant(cluster, _rule("application-orders", "shop/orders", "append", "read"))
    await (await (await clients.connect("application-orders")).topic("shop/orders")).append(b"there", partition=0)
    raw = await _raw(cluster, "application-other")
    ((node, _),) = cluster.storages.values()
    opened = node.access.of(ORDERS)
    assert opened is not None
    for principal in ("spiffe://waltz/application/orders", CLUSTER_PRINCIPAL, ""):
        for what in ("transactions", "read", "view"):
            owner = {} if what == "transactions" else {"fence": opened.session, "owner_token": opened.token}
            with pytest.raises(PermissionDenied):
                await raw.ask(what, ORDERS, principal=principal, **owner)


async def test_a_revocation_ends_open_mounts_and_feeds_and_a_grant_opens_them_again(cluster: MemoryCluster, clients: _Clients) -> None:
    await _grant(cluster, _rule("application-orders", "shop/orders", "append", "read"), _rule("reader-reports", "shop/orders", "read"))
    orders, reports = await clients.connect("application-orders"), await clients.connect("reader-reports")
    topic, feed = await orders.topic("shop/orders"), (await reports.topic("shop/orders")).feed()
    await topic.append(b"first", partition=0)
    assert (await anext(feed)).value == b"first"
    waiting = asyncio.ensure_future(_may(anext(feed)))
    await _revoke(cluster, "reader-reports")
    async with asyncio.timeout(1.0):
        assert not await waiting
    await _revoke(cluster, "application-orders", "append")
    with pytest.raises((OutcomeUnknown, PermissionDenied)):  # it may be on its way when the mount ends
        await topic.append(b"not any more", partition=0)
    with pytest.raises(PermissionDenied, match="to append shop/orders"):
        await topic.append(b"not any more", partition=0)
    await _grant(cluster, _rule("application-orders", "shop/orders", "append"), _rule("reader-reports", "shop/orders", "read"))
    await topic.append(b"again", partition=0)
    from_the_start = (await reports.topic("shop/orders")).feed()
    found = [(await anext(from_the_start)).value for _ in range(2)]
    assert found == [b"first", b"again"], "what was refused is not in the log"


async def test_appends_under_way_when_the_right_is_lost_are_not_lost_silently(cluster: MemoryCluster, clients: _Clients) -> None:
    await _grant(cluster, _rule("application-orders", "shop/orders", "append"))
    orders, operator = await clients.connect("application-orders"), await clients.connect("operator-ada")
    topic = await orders.topic("shop/orders")
    await topic.append(b"0", partition=0)
    results: list[Any] = []

    async def append() -> None:
        for number in range(1, 400):
            try:
                results.append((number, await topic.append(b"%d" % number, partition=0)))
            except WaltzError as error:
                results.append((number, error))
                return

    tasks = [asyncio.ensure_future(append()) for _ in range(20)]
    while len(results) < 100:
        await asyncio.sleep(0)
    await _revoke(cluster, "application-orders", "append")
    await asyncio.gather(*tasks)
    errors = [each for _, each in results if isinstance(each, WaltzError)]
    assert len(errors) == len(tasks)
    assert all(isinstance(each, PermissionDenied | OutcomeUnknown) for each in errors)
    committed = (await operator.high_water_mark(ORDERS)) + 1
    answered = 1 + sum(1 for _, each in results if not isinstance(each, WaltzError))
    unknown = sum(1 for each in errors if isinstance(each, OutcomeUnknown))
    assert answered <= committed <= answered + unknown, "a refused append is in the log, or an answered one is not"


async def test_a_read_of_a_replica_ends_when_the_right_is_lost(cluster: MemoryCluster, clients: _Clients) -> None:
    await _grant(cluster, _rule("application-orders", "log", "append"), _rule("reader-reports", "log", "read"))
    writer = await clients.connect("application-orders")
    for number in range(40):
        await writer.append(2, b"%d" % number)
    stream = (
        cluster.network.host("reader-reports")
        .connect(await _storage_address(cluster))
        .read(READ, pb.ReadRequest(cluster_key=cluster.key.bytes, partition=2, session=0, last_transaction_id=39, max_bytes=1))
    )
    assert await stream.receive() is not None
    await _revoke(cluster, "reader-reports")
    answers = 0
    with pytest.raises(PermissionDenied):
        while await stream.receive() is not None:
            answers += 1
    assert answers < 30, "the read went on to its end"


async def test_the_status_needs_a_role_or_a_rule(cluster: MemoryCluster) -> None:
    ((server, _),) = cluster.servers.values()
    storage = await _storage_address(cluster)

    async def ask(host: str) -> list[bool]:
        network = cluster.network.host(host)
        ping = pb.PingRequest(cluster_key=cluster.key.bytes)
        return [
            await _may(network.connect(server.address).call(SERVER_STATUS, pb.ServerStatusRequest(), timeout_s=10)),
            await _may(network.connect(storage).call(STORAGE_STATUS, pb.StorageStatusRequest(), timeout_s=10)),
            await _may(network.connect(storage).call(PING, ping, timeout_s=10)),
        ]

    assert await ask("application-monitoring") == [False] * 3
    assert await ask("operator-ada") == [True] * 3
    await _grant(cluster, _rule("application-monitoring", "*", "administer"))
    assert await ask("application-monitoring") == [True] * 3
    assert await ask("application-other") == [False] * 3
    raw = await _raw(cluster, "application-monitoring")
    assert not await _may(raw.ask("read", ORDERS)), "who sees the status does not read"


async def test_an_answer_about_all_partitions_lists_those_that_the_caller_may_see(cluster: MemoryCluster, clients: _Clients) -> None:
    operator = await clients.connect("operator-ada")
    for partition in range(2, PARTITIONS):
        await operator.append(partition, b"x")
    await (await operator.topic("shop/orders")).append(b"x", partition=0)
    await _grant(cluster, _rule("reader-reports", "shop/orders", "read"), _rule("reader-reports", "log:3", "read"))
    ((server, _),) = cluster.servers.values()
    found = (
        await cluster.network.host("reader-reports").connect(server.address).call(BOUND, pb.BoundRequest(cluster_key=cluster.key.bytes), timeout_s=10)
    )
    assert sorted(each.partition for each in found.bounds) == [ORDERS, 3]


async def test_the_partitions_of_one_topic_can_have_rules_of_their_own() -> None:
    cluster = MemoryCluster(partitions=4, storages=1, servers=1, identities=_identity)
    await cluster.start()
    clients = _Clients(cluster)
    try:
        await cluster.create_topic("shop/orders", 3, log_partitions=(3, 1, 2))
        await _grant(cluster, _rule("application-orders", "shop/orders:0-1", "append"))
        topic = await (await clients.connect("application-orders")).topic("shop/orders")
        assert [await _may(topic.append(b"x", partition=each)) for each in range(3)] == [True, True, False]
        with pytest.raises(PermissionDenied, match="to append shop/orders:2"):
            await topic.append(b"x", partition=2)
    finally:
        await clients.close()
        await cluster.stop()


async def test_a_restarted_storage_node_denies_before_any_owner_has_opened_it(cluster: MemoryCluster) -> None:
    await _grant(cluster, _rule("reader-reports", "log:2", "read"))
    ((name, _),) = cluster.servers.items()
    await cluster.kill_server(name)
    await cluster.kill_storage("storage-0")
    await cluster.start_storage("storage-0")
    storage = await _storage_address(cluster)
    for host, allowed in (("reader-other", False), ("reader-reports", True)):
        request = pb.ReadRequest(cluster_key=cluster.key.bytes, partition=2, session=0, last_transaction_id=-1)
        assert await _may(cluster.network.host(host).connect(storage).read(READ, request).receive()) == allowed
    await cluster.start_server(name)


def test_a_process_that_has_not_read_the_rules_yet_permits_only_nodes_and_operators() -> None:
    control = AccessControl(enforced=True)
    for host, error in (("reader-a", Unavailable), ("application-a", Unavailable), ("node-a", None), ("operator-a", None)):
        with calling(_identity(host)):
            if error is None:
                control.expect(0, Operation.READ)
            else:
                with pytest.raises(error, match="not known to this server yet"):
                    control.expect(0, Operation.READ)
    control.replace(AccessRules())
    with pytest.raises(NotAllowed, match="a client whose certificate contains no name"):
        control.expect(0, Operation.READ)


async def test_rules_that_cannot_be_read_change_nothing(cluster: MemoryCluster, clients: _Clients) -> None:
    await _grant(cluster, _rule("application-orders", "log:2", "append"))
    client = await clients.connect("application-orders")
    await client.append(2, b"x")
    session = cluster.ensemble.session()
    ((server, _),) = cluster.servers.values()
    seen = server._access.version
    await session.set("/access", b"not rules", -1)
    async with asyncio.timeout(20):
        while server._access.version == seen:
            await asyncio.sleep(0.001)
    await client.append(2, b"x")
    assert not await _may(client.append(3, b"x"))
