"""Client ids, outboxes and subscribers that a request carries: own, foreign and unknown, for every procedure that can carry one, from every role.

A foreign one is answered as one that does not exist: the same class of error and the same words. The procedures are found by the fields of their
requests, so one that carries a name and has no row fails the test. `test_strangers_matrix.py` does the same for partitions and topics.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import pytest
import pytest_asyncio
from google.protobuf.descriptor import Descriptor

from tests.integration.log.matrix_ports import Connect, assert_test_exists, served_at_ports
from waltz_log.client import WaltzClient
from waltz_log.client.feed.subscribers import Subscribers
from waltz_log.core.ports import AnyMethod, CallMethod, Channel, StreamMethod
from waltz_log.errors import WaltzError
from waltz_log.security.identity import Identity, Role
from waltz_log.security.rules import Operation, Rule
from waltz_log.testing.cluster import CLUSTER_KEY, MemoryCluster
from waltz_log.transport import methods
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.direct.connection import DirectListener

pytestmark = pytest.mark.asyncio(loop_scope="module")

METHODS: dict[str, AnyMethod] = {each.name: each for each in (getattr(methods, name) for name in methods.__all__) if hasattr(each, "served_by")}

NAMING = {"client_id", "ticket", "nonce", "outbox", "subscriber", "name"}
"""The fields of requests in which one of them is carried."""

NEVER_GIVEN = 1_000_000

HOSTS = ("application-own", "application-bare", "reader-own", "reader-bare", "operator-other", "node-other", "stranger-x")
"""`own` may append and read, `bare` has a role and no rule, `stranger` a certificate without a role."""


class Carried(NamedTuple):
    client_id: int
    ticket: str = ""
    nonce: str = "none"
    epoch: int = 1
    subscriber: str = "nothing-there"


Make: TypeAlias = Callable[[bytes, Carried], Any]

HERE = "tests/integration/log/test_carried_names_matrix.py"
BY_ROLE = "tests/unit/log/transport/test_tls_ports.py::test_each_role_is_served_what_the_table_permits_and_denied_the_rest"
"""For nodes alone: the role decides."""


def _mount(key: bytes, carried: Carried, **more: Any) -> pb.ClientMessage:
    about = {"cluster_key": key, "protocol_version": methods.PROTOCOL_VERSION, "client_high_water_mark": -1, "mount_sequence": 1}
    return pb.ClientMessage(mount=pb.MountRequest(**{**about, **more}, client_id=carried.client_id, ticket=carried.ticket))


def _outbox(action: Any) -> Make:
    def make(key: bytes, carried: Carried) -> pb.OutboxRequest:
        record = pb.OutboxRecord(epoch=carried.epoch, nonce=carried.nonce, partitions=[0])
        return pb.OutboxRequest(cluster_key=key, action=action, client_id=carried.client_id, ticket=carried.ticket, version=1, record=record)

    return make


def _subscriber(action: Any) -> Make:
    return lambda key, carried: pb.SubscribersRequest(
        cluster_key=key, action=action, name=carried.subscriber, partitions=bytes(4), marks=(5).to_bytes(8, "big")
    )


ROWS: dict[AnyMethod, dict[str, Make]] = {
    methods.MOUNT: {
        "appends": _mount,
        "fences all": lambda key, carried: _mount(key, carried, mount_sequence=2**62),
        "appends nothing": lambda key, carried: _mount(key, carried, appends_nothing=True, mount_sequence=2**62 + 1),
    },
    methods.RESOLVE: {
        "": lambda key, carried: pb.ResolveRequest(cluster_key=key, client_id=carried.client_id, ticket=carried.ticket, last_sequence=9, since=-1),
    },
    methods.OUTBOX: {
        "reads": _outbox(pb.OutboxRequest.ACTION_READ),
        "writes": _outbox(pb.OutboxRequest.ACTION_WRITE),
        "adopts": _outbox(pb.OutboxRequest.ACTION_ADOPT),
    },
    methods.SUBSCRIBERS: {
        "reports": _subscriber(pb.SubscribersRequest.ACTION_REPORT),
        "sets": _subscriber(pb.SubscribersRequest.ACTION_SET),
        "removes": _subscriber(pb.SubscribersRequest.ACTION_REMOVE),
    },
}

ELSEWHERE: dict[AnyMethod, str] = {
    methods.SERVER_DIRECT: f"{HERE}::test_at_real_ports_and_over_direct_connections_it_is_the_same",
    methods.STORAGE_DIRECT: BY_ROLE,
    methods.REPLICATE: BY_ROLE,
}
"""Procedures whose requests can carry one, and the test that has their rows."""

PERMITTED = {(methods.RESOLVE, ""), (methods.MOUNT, "appends nothing"), *((methods.SUBSCRIBERS, each) for each in ("reports", "sets", "removes"))}
"""To operators and nodes, whatever principal it belongs to."""

CASES = [
    (method, case, host)
    for method, cases in ROWS.items()
    for case in cases
    for host in HOSTS
    if not (host.startswith(("operator", "node")) and (method, case) in PERMITTED)
]


def _fields(message: Descriptor, seen: frozenset[str] = frozenset()) -> Iterator[str]:
    for field in message.fields:
        yield field.name
        if field.message_type is not None and field.message_type.full_name not in seen:
            yield from _fields(field.message_type, seen | {message.full_name})


async def test_every_procedure_that_carries_one_has_a_row() -> None:
    carry = {each for each in METHODS.values() if NAMING & {*_fields(each.request.DESCRIPTOR)}}
    assert carry <= ROWS.keys() | ELSEWHERE.keys()
    assert not ROWS.keys() & ELSEWHERE.keys()


def _identity(host: str) -> Identity:
    role, _, name = ("operator-tools" if host == "client" else host).partition("-")
    return Identity(f"spiffe://waltz/{role}/{name}", frozenset() if role == "stranger" else frozenset({Role(role)}))


class Victim(NamedTuple):
    """What belongs to the principals that are attacked. Each host has ids of its own, in `own`."""

    carried: Carried
    own: dict[str, Carried]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster() -> AsyncIterator[MemoryCluster]:
    made = MemoryCluster(partitions=1, storages=1, servers=1, identities=_identity)
    await made.start()
    try:
        operations = (Operation.APPEND, Operation.READ)
        rules = [Rule(principal=f"spiffe://waltz/*/{name}", operations=operations, resource="log") for name in ("own", "victim")]
        for rule in rules:
            await made.change_access(lambda found, rule=rule: found.granted(rule))  # type: ignore[misc]
        controls = [server._access for server, _ in made.servers.values()] + [storage.access.control for storage, _ in made.storages.values()]
        async with asyncio.timeout(20):
            while not all(each.rules is not None and len(each.rules.rules) == len(rules) for each in controls):
                await asyncio.sleep(0.01)
        yield made
    finally:
        await made.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def victim(cluster: MemoryCluster) -> AsyncIterator[Victim]:
    client = await cluster.connect(host="application-victim")
    try:
        await client.append(0, b"mine")
        own = {"application-own": await _outbox_of(cluster, "application-own", "own-nonce", "own")}
        async with await Subscribers.connect_over(cluster.seeds, cluster.network.host("reader-own")) as subscribers:
            await subscribers.register("reads", {0: -1})
        own["reader-own"] = Carried(NEVER_GIVEN, subscriber="reads")
        yield Victim(await _outbox_of(cluster, "application-victim", "victim-nonce", "billing", client), own)
    finally:
        await client.close()


async def _outbox_of(cluster: MemoryCluster, host: str, nonce: str, subscriber: str, client: WaltzClient | None = None) -> Carried:
    """A client id with an outbox, and a subscriber, of that principal."""
    channel = _connect(cluster)(host)
    if client is None:
        given = await channel.call(methods.CLIENT_ID, pb.ClientIdRequest(cluster_key=cluster.key.bytes), timeout_s=10)
        carried = Carried(given.client_id, given.ticket, nonce, subscriber=subscriber)
    else:
        carried = Carried(client.client_id, client._owners.ticket_of(client.client_id), nonce, subscriber=subscriber)
    await channel.call(methods.OUTBOX, _version_0(_outbox(pb.OutboxRequest.ACTION_WRITE)(cluster.key.bytes, carried)), timeout_s=10)
    async with await Subscribers.connect_over(cluster.seeds, cluster.network.host(host)) as subscribers:
        await subscribers.register(subscriber, {0: -1})
    return carried


def _version_0(request: pb.OutboxRequest) -> pb.OutboxRequest:
    request.version = 0
    return request


def _connect(cluster: MemoryCluster) -> Connect:
    ((server, _),) = cluster.servers.values()
    return lambda host: cluster.network.host(host).connect(server.address)


async def _answer(channel: Channel, method: AnyMethod, make: Make, carried: Carried) -> tuple[str, str]:
    """The class and the text of an error without what the request named, or `answer` and its bytes."""
    request, found = make(CLUSTER_KEY.bytes, carried), None
    try:
        if isinstance(method, CallMethod):
            found = await channel.call(method, request, timeout_s=10)
        else:
            assert isinstance(method, StreamMethod)
            stream = channel.open(method)
            await stream.send(request)
            found = await stream.receive()
            await stream.cancel()
    except WaltzError as error:
        return type(error).__name__, str(error).replace(str(carried.client_id), "NAMED").replace(carried.subscriber, "NAMED")
    return "answer", "" if found is None else repr(found.SerializeToString())


@pytest.mark.parametrize(("method", "case", "host"), CASES, ids=[f"{method.name} {case} {host}" for method, case, host in CASES])
async def test_what_is_another_principals_looks_like_what_does_not_exist(
    cluster: MemoryCluster, victim: Victim, method: AnyMethod, case: str, host: str
) -> None:
    await _expect_alike(_connect(cluster)(host), victim, method, ROWS[method][case], victim.own.get(host, Carried(NEVER_GIVEN)))


@pytest.mark.parametrize("kind", ["alone", "worker"])
async def test_at_real_ports_and_over_direct_connections_it_is_the_same(
    cluster: MemoryCluster, victim: Victim, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mount that only appends has a direct connection, and shows the ticket of another principal there."""
    direct: list[str] = []
    serve = DirectListener._serve

    async def noted(*arguments: Any) -> None:
        direct.append("mount")
        await serve(*arguments)

    monkeypatch.setattr(DirectListener, "_serve", noted)
    async with served_at_ports(cluster, tmp_path, kind) as connect:
        for method, case, host in CASES:
            await _expect_alike(connect(host), victim, method, ROWS[method][case], victim.own.get(host, Carried(NEVER_GIVEN)))
    assert direct


async def _expect_alike(channel: Channel, victim: Victim, method: AnyMethod, make: Make, own: Carried) -> None:
    stolen = victim.carried
    answers = {
        "unknown": await _answer(channel, method, make, Carried(NEVER_GIVEN)),
        "unknown with the own ticket": await _answer(channel, method, make, Carried(NEVER_GIVEN, own.ticket)),
        "foreign with its ticket": await _answer(channel, method, make, stolen._replace(nonce="guessed")),
        "foreign with the own ticket": await _answer(channel, method, make, stolen._replace(ticket=own.ticket, nonce="guessed")),
        "foreign without a ticket": await _answer(channel, method, make, stolen._replace(ticket="", nonce="guessed")),
    }
    assert len(set(answers.values())) == 1, answers
    kind, text = answers["unknown"]
    assert kind != "answer"
    for secret in ("victim", "billing", stolen.nonce, stolen.ticket):
        assert secret not in text


@pytest.mark.parametrize("case", ["adopts", "reads", "resolves", "writes"])
async def test_what_is_the_callers_is_served(cluster: MemoryCluster, victim: Victim, case: str) -> None:
    """The matrix compares refusals: it would be satisfied by a server that refuses everything. `writes` is last: it replaces the record."""
    own = victim.own["application-own"]
    method, make = (methods.RESOLVE, ROWS[methods.RESOLVE][""]) if case == "resolves" else (methods.OUTBOX, ROWS[methods.OUTBOX][case])
    found = await _answer(_connect(cluster)("application-own"), method, make, own._replace(epoch=1 if case == "adopts" else 2))
    assert found[0] == "answer", found


@pytest.mark.parametrize("case", ROWS[methods.MOUNT])
async def test_a_mount_under_the_own_id_is_served(cluster: MemoryCluster, victim: Victim, case: str) -> None:
    own = victim.own["application-own"]
    assert (await _answer(_connect(cluster)("application-own"), methods.MOUNT, ROWS[methods.MOUNT][case], own))[0] == "answer"


async def test_an_operator_resolves_for_others(cluster: MemoryCluster, victim: Victim) -> None:
    assert (await _answer(_connect(cluster)("operator-other"), methods.RESOLVE, ROWS[methods.RESOLVE][""], victim.carried._replace(ticket="")))[
        0
    ] == "answer"


async def test_a_subscriber_of_another_principal_cannot_be_claimed(cluster: MemoryCluster, victim: Victim) -> None:
    """That its name is in use is all that a principal with a right to the partition learns."""
    register = _subscriber(pb.SubscribersRequest.ACTION_REGISTER)
    kind, text = await _answer(_connect(cluster)("reader-own"), methods.SUBSCRIBERS, register, victim.carried)
    assert kind == "PermissionDenied"
    assert "victim" not in text
    listed = await _answer(
        _connect(cluster)("reader-own"), methods.SUBSCRIBERS, _subscriber(pb.SubscribersRequest.ACTION_LIST), victim.own["reader-own"]
    )
    assert "billing" not in listed[1]
    assert "reads" in listed[1]


@pytest.mark.parametrize("named", sorted({*ELSEWHERE.values()}))
async def test_a_test_that_stands_for_a_row_exists(named: str) -> None:
    assert_test_exists(named)
