"""What a principal without a right learns: every procedure, for partitions and topics that are its own, another principal's, or do not exist.

The answer for what belongs to another principal is the same as for what does not exist: the same class of error and the same words. A procedure
without a row fails the test. Ports and certificates have a table of their own (`test_every_port.py`), and so have the routes of the console, below.

Client ids, outboxes and subscribers have a matrix of their own (`test_carried_names_matrix.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import pytest
import pytest_asyncio

from tests.integration.log.matrix_ports import Connect, assert_test_exists, served_at_ports
from waltz_log.core.ports import AnyMethod, Channel
from waltz_log.errors import WaltzError
from waltz_log.security.identity import Identity, Role
from waltz_log.security.permits import PERMITTED
from waltz_log.security.rules import Operation, Rule
from waltz_log.testing.cluster import CLUSTER_KEY, MemoryCluster
from waltz_log.transport import methods
from waltz_log.transport import waltz_pb2 as pb

pytestmark = pytest.mark.asyncio(loop_scope="module")

METHODS: dict[str, AnyMethod] = {each.name: each for each in (getattr(methods, name) for name in methods.__all__) if hasattr(each, "served_by")}

ORDERS, BILLS, FREE, BEYOND = 0, 1, 2, 1000
"""Log partitions: of shop/orders, of shop/bills, of no topic, and one that the cluster does not have."""


class Named(NamedTuple):
    """What a request names."""

    partition: int
    topic: str


OWN = Named(ORDERS, "shop/orders")
OTHERS = {
    "foreign": Named(BILLS, "shop/bills"),
    "foreign by the own topic's name": Named(BILLS, "shop/orders"),
    "of no topic": Named(FREE, "shop/none"),
    "unknown": Named(BEYOND, "shop/none"),
}

Make: TypeAlias = Callable[[dict[str, Any], Named], Any]
"""A request of the procedure: from the fields that most have, and what it names."""


def _mount(about: dict[str, Any], named: Named, **more: Any) -> pb.ClientMessage:
    return pb.ClientMessage(mount=pb.MountRequest(**about, protocol_version=methods.PROTOCOL_VERSION, client_high_water_mark=-1, **more))


def _topics(about: dict[str, Any], named: Named, action: pb.TopicsRequest.Action.ValueType, **more: Any) -> pb.TopicsRequest:
    """The list is compared in the tests of topics: it names what the caller sees."""
    return pb.TopicsRequest(cluster_key=about["cluster_key"], action=action, topic=named.topic, **more)


ROWS: dict[AnyMethod, dict[str, Make]] = {
    methods.MOUNT: {
        "reads": lambda about, named: _mount(about, named, feed=pb.FEED_RECORDS),
        "reads a topic": lambda about, named: _mount(about, named, feed=pb.FEED_RECORDS, topic=named.topic),
        "beyond its end": lambda about, named: pb.ClientMessage(
            mount=pb.MountRequest(**about, protocol_version=methods.PROTOCOL_VERSION, client_high_water_mark=10**6, feed=pb.FEED_RECORDS)
        ),
    },
    methods.BOUND: {
        "names it": lambda about, named: pb.BoundRequest(cluster_key=about["cluster_key"], partitions=[named.partition]),
        "with its upkeep": lambda about, named: pb.BoundRequest(cluster_key=about["cluster_key"], partitions=[named.partition], upkeep=True),
    },
    methods.RESOLVE: {"": lambda about, named: pb.ResolveRequest(**about, client_id=7, last_sequence=1, since=-1)},
    methods.TRANSACTIONS: {
        "": lambda about, named: pb.TransactionRequest(**about, count=1),
        "beyond its end": lambda about, named: pb.TransactionRequest(**about, first_transaction_id=10**6, count=1),
        "of a topic": lambda about, named: pb.TransactionRequest(**about, count=1, topic=named.topic),
    },
    methods.TRACES: {"": lambda about, named: pb.TracesRequest(**about, last_transaction_id=10**6, count_max=10)},
    methods.READ: {
        "": lambda about, named: pb.ReadRequest(**about, last_transaction_id=10**6),
        "beyond its end": lambda about, named: pb.ReadRequest(**about, first_transaction_id=10**6, last_transaction_id=10**6),
        "as an owner": lambda about, named: pb.ReadRequest(**about, session=-1, fence=1, last_transaction_id=10**6, owner_token=b"guessed"),
    },
    methods.LOCATE: {"": lambda about, named: pb.LocateRequest(**about, last_transaction_id=10**6)},
    methods.READ_VIEW: {"": lambda about, named: pb.ReadViewRequest(**about)},
    # For nodes alone: the role decides before the request is judged.
    methods.OPEN: {"": lambda about, named: pb.OpenRequest(**about, session=10**6, topic=named.topic)},
    methods.SET_LOW_WATER_MARK: {"": lambda about, named: pb.LowWaterMarkRequest(**about, session=1)},
    methods.KEEP_PROGRESS: {"": lambda about, named: pb.LowWaterMarkRequest(**about, session=1)},
    methods.KEEP_CLIENT_IDS: {"": lambda about, named: pb.KeepClientIdsRequest(cluster_key=about["cluster_key"])},
    methods.TRUNCATE: {"": lambda about, named: pb.TruncateRequest(**about, session=1)},
    methods.REPLICATE: {"": lambda about, named: pb.ReplicateRequest(open=pb.ReplicateOpen(**about, session=1))},
    methods.DESCRIBE: {"": lambda about, named: pb.DescribeRequest(**about)},
    methods.TRIM: {"": lambda about, named: pb.TrimRequest(**about)},
    methods.BEGIN: {"": lambda about, named: pb.BeginRequest(**about)},
    methods.COMPACT: {"": lambda about, named: pb.CompactRequest(**about)},
    methods.LOAD_VIEW: {"": lambda about, named: pb.LoadViewRequest()},
    methods.DROP_VIEW: {"": lambda about, named: pb.DropViewRequest(**about)},
    # Of the whole cluster: the answer depends on the caller's rights alone.
    methods.FOLLOW: {"": lambda about, named: pb.FollowRequest(cluster_key=about["cluster_key"])},
    methods.CONFIRM: {"": lambda about, named: pb.ConfirmRequest(cluster_key=about["cluster_key"])},
    methods.TOPICS: {
        "creates": lambda about, named: _topics(about, named, pb.TopicsRequest.ACTION_CREATE, plan=pb.TopicPlan(partitions=1, type="regular")),
        "alters": lambda about, named: _topics(about, named, pb.TopicsRequest.ACTION_ALTER, policies={"retention_ms": "-1"}),
        "deletes": lambda about, named: _topics(about, named, pb.TopicsRequest.ACTION_DELETE),
    },
    methods.CLUSTER: {"": lambda about, named: pb.ClusterRequest(cluster_key=about["cluster_key"])},
    methods.PLACEMENT: {
        "": lambda about, named: pb.PlacementRequest(
            cluster_key=about["cluster_key"], action=pb.PlacementRequest.ACTION_MOVE, partitions=[named.partition], server="0"
        )
    },
    methods.SERVER_STATUS: {"": lambda about, named: pb.ServerStatusRequest()},
    methods.STORAGE_STATUS: {"": lambda about, named: pb.StorageStatusRequest()},
    methods.PING: {"": lambda about, named: pb.PingRequest(cluster_key=about["cluster_key"])},
}

PORTS = "tests/integration/log/test_every_port.py::test_a_port_serves_the_right_peer_and_no_other"
CARRIED = "tests/integration/log/test_carried_names_matrix.py::test_what_is_another_principals_looks_like_what_does_not_exist"

ELSEWHERE: dict[AnyMethod, str] = {
    methods.SERVER_DIRECT: PORTS,  # the mount behind it is the row above
    methods.STORAGE_DIRECT: PORTS,
    methods.CLIENT_ID: "tests/unit/log/server/mounts/test_permissions.py::test_two_applications_may_do_what_the_rules_say_and_nothing_else",
    methods.OUTBOX: CARRIED,
    methods.SUBSCRIBERS: CARRIED,
}
"""Procedures that name no partition, or whose port has a table, and the test that has their rows."""

AGED = (methods.FOLLOW, methods.CONFIRM)
"""Their answers name nothing that the request names, and say how old they are."""

HOSTS = ("application-orders", "reader-orders", "application-other", "reader-other", "stranger-other")
"""Two principals with rights to shop/orders, two with none, and a certificate without a role."""

PRIVILEGED = ("operator-other", "node-other")
"""They may do everything that their role permits, and are refused the rest like every other host."""

CASES = [
    (method, case, host)
    for method, cases in ROWS.items()
    for case in cases
    for host in (*HOSTS, *PRIVILEGED)
    if host in HOSTS or Role(host.partition("-")[0]) not in PERMITTED[method.name]
]

READING = [methods.MOUNT, methods.TRANSACTIONS, methods.READ, methods.LOCATE, methods.BOUND, methods.TRACES]


def _identity(host: str) -> Identity:
    role, _, name = ("operator-tools" if host == "client" else host).partition("-")
    return Identity(f"spiffe://waltz/{role}/{name}", frozenset() if role == "stranger" else frozenset({Role(role)}))


async def test_every_procedure_has_a_row() -> None:
    assert ROWS.keys() | ELSEWHERE.keys() == set(METHODS.values())
    assert not ROWS.keys() & ELSEWHERE.keys()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster() -> AsyncIterator[MemoryCluster]:
    made = MemoryCluster(partitions=4, storages=1, servers=1, identities=_identity)
    await made.start()
    try:
        await made.create_topic("shop/orders", log_partitions=(ORDERS,))
        await made.create_topic("shop/bills", log_partitions=(BILLS,), properties={"allow-read": "spiffe://waltz/operator/tools"})
        client = await made.connect()
        for partition, topic in ((ORDERS, "shop/orders"), (BILLS, "shop/bills")):
            for number in range(3 + partition):
                await (await client.topic(topic)).append(b"secret of %d" % number, partition=0)
        await client.append(FREE, b"secret")
        await client.close()
        operations = tuple(map(Operation, ("append", "read", "resolve")))
        rules = [Rule(principal=_identity(host).principal, operations=operations, resource="shop/orders") for host in HOSTS[:2]]

        def granted(found: Any) -> Any:
            for rule in rules:
                found = found.granted(rule)
            return found

        await made.change_access(granted)
        await _known(made)
        yield made
    finally:
        await made.stop()


async def _known(cluster: MemoryCluster) -> None:
    """Until all nodes have the rules."""
    controls = [server._access for server, _ in cluster.servers.values()] + [storage.access.control for storage, _ in cluster.storages.values()]
    async with asyncio.timeout(20):
        while not all(each.rules is not None and len(each.rules.rules) == 2 for each in controls):
            await asyncio.sleep(0.01)


def _connect(cluster: MemoryCluster, method: AnyMethod) -> Connect:
    ((server, _),) = cluster.servers.values()
    ((_, storage),) = cluster.storages.values()
    return lambda host: cluster.network.host(host).connect(server.address if "/waltz.Server/" in method.name else storage.address)


async def _answer(channel: Any, method: AnyMethod, make: Make, named: Named) -> tuple[str, str]:
    """The class and the text of an error, or `answer` and the bytes of what came first, without what the request named."""
    request = make({"cluster_key": CLUSTER_KEY.bytes, "partition": named.partition}, named)
    try:
        if method.kind == "call":
            found = await channel.call(method, request, timeout_s=10)
        elif method.kind == "read":
            found = await channel.read(method, request).receive()
        else:
            stream = channel.open(method)
            await stream.send(request)
            found = await stream.receive()
            await stream.cancel()
    except WaltzError as error:
        text = str(error)
        for what in (f"log:{named.partition}", f"partition={named.partition}", named.topic):
            text = text.replace(what, "NAMED")
        return type(error).__name__, text
    return "answer", "" if found is None else repr(found.SerializeToString())


@pytest.mark.parametrize(("method", "case", "host"), CASES, ids=[f"{method.name} {case} {host}" for method, case, host in CASES])
async def test_what_is_not_the_callers_looks_like_what_does_not_exist(cluster: MemoryCluster, method: AnyMethod, case: str, host: str) -> None:
    await _expect_alike(_connect(cluster, method)(host), method, ROWS[method][case], host)


@pytest.mark.parametrize("kind", ["alone", "worker"])
async def test_at_real_ports_it_is_the_same(cluster: MemoryCluster, kind: str, tmp_path: Path) -> None:
    async with served_at_ports(cluster, tmp_path, kind) as connect:
        for method, case, host in CASES:
            await _expect_alike(connect(host), method, ROWS[method][case], host)


async def _expect_alike(channel: Channel, method: AnyMethod, make: Make, host: str) -> None:
    answers = {what: await _answer(channel, method, make, named) for what, named in OTHERS.items()}
    if host.endswith("-other"):
        answers["own of another principal"] = await _answer(channel, method, make, OWN)
    by_own_name = answers.pop("foreign by the own topic's name")
    compared = {kind if method in AGED and kind == "answer" else (kind, text) for kind, text in answers.values()}
    assert len(compared) == 1, (method.name, host, answers)
    for kind, text in (*answers.values(), by_own_name):
        assert "bills" not in text, "the name of a topic"
        assert "secret" not in text, "a payload"
        assert str(CLUSTER_KEY) not in text or method == methods.FOLLOW, "a client that knows the address learns it here"
        assert "last=" not in text, "a mark of the log"
        assert kind != "answer" or method in AGED


@pytest.mark.parametrize("host", HOSTS[:2])
@pytest.mark.parametrize("method", READING)
async def test_a_principal_with_the_right_is_answered(cluster: MemoryCluster, method: AnyMethod, host: str) -> None:
    """The matrix compares refusals: it would be satisfied by a node that refuses everything."""
    make = next(iter(ROWS[method].values()))
    assert (await _answer(_connect(cluster, method)(host), method, make, OWN))[0] == "answer"


@pytest.mark.parametrize("host", PRIVILEGED)
@pytest.mark.parametrize("method", READING)
async def test_an_operator_and_a_node_are_answered_for_every_topic(cluster: MemoryCluster, method: AnyMethod, host: str) -> None:
    make = next(iter(ROWS[method].values()))
    for named in (OWN, OTHERS["of no topic"]):
        assert (await _answer(_connect(cluster, method)(host), method, make, named))[0] == "answer", named


async def test_naming_the_own_topic_does_not_show_whose_a_partition_is(cluster: MemoryCluster) -> None:
    channel, make = _connect(cluster, methods.MOUNT)("application-orders"), ROWS[methods.MOUNT]["reads a topic"]
    foreign, free, beyond = [await _answer(channel, methods.MOUNT, make, Named(each, "shop/orders")) for each in (BILLS, FREE, BEYOND)]
    assert foreign == free == beyond


@pytest.mark.parametrize("named", sorted({*ELSEWHERE.values()}))
async def test_a_test_that_stands_for_a_row_exists(named: str) -> None:
    assert_test_exists(named)
