"""Every procedure of real servers and storage nodes, over mutual TLS: a peer with the right role is refused without a rule, and served with one.

The procedures are those of the transport, and their requests are made from the descriptions of the messages, so that a new procedure is in the matrix
by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import pytest_asyncio

from waltz_log.core.ports import Channel, Method
from waltz_log.core.topics.sharding import Shard, worker_of
from waltz_log.errors import PermissionDenied, WaltzError
from waltz_log.security.access import AccessControl
from waltz_log.security.authority import DevelopmentAuthority
from waltz_log.security.identity import Role
from waltz_log.security.permits import PERMITTED
from waltz_log.security.rules import AccessRules, Operation, Rule
from waltz_log.testing.cluster import MemoryCluster
from waltz_log.transport import methods
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.addresses import ReservedAddress
from waltz_log.transport.forwarding import WorkerNetwork
from waltz_log.transport.grpc import GrpcNetwork

AnyMethod = Method[Any, Any]
METHODS: list[AnyMethod] = sorted((each for each in vars(methods).values() if isinstance(each, Method)), key=lambda method: method.name)

OF_NODES = frozenset(each.name for each in METHODS if PERMITTED[each.name] == {Role.NODE})
"""Refused to every other role, whatever the rules say (`test_tls_ports.py`)."""

SAYS_A_PORT = frozenset({methods.SERVER_DIRECT.name})
"""Needs no rule: it returns the number of a port, and the mount that is made there needs one."""

ROLES = (Role.APPLICATION, Role.READER)
PARTITION = next(each for each in range(100) if worker_of(each, 2) == 1)
"""One that the first of two workers does not own."""


def _name(method: AnyMethod) -> str:
    return method.name.rpartition("/")[2]


def _needed(method: AnyMethod) -> Operation:
    """What a rule has to permit. A procedure that does not name a partition is for the whole cluster."""
    if method.name == methods.RESOLVE.name:
        return Operation.RESOLVE
    if method.name in (methods.CLIENT_ID.name, methods.OUTBOX.name):
        return Operation.APPEND
    return Operation.ADMINISTER if method.name.endswith(("/Status", "/Ping", "/Cluster", "/Placement")) else Operation.READ


ANY_RIGHT = {methods.BOUND.name, methods.FOLLOW.name, methods.CONFIRM.name, methods.TOPICS.name}
"""Served to a peer that may do anything, with what it may see."""


class _Served:
    def __init__(self, address: str, control: AccessControl, key: bytes) -> None:
        self.address = address
        self.control = control
        self.key = key


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> DevelopmentAuthority:
    return DevelopmentAuthority(tmp_path_factory.mktemp("certificates"))


@pytest_asyncio.fixture(params=["alone", "worker"])
async def served(request: pytest.FixtureRequest, authority: DevelopmentAuthority) -> AsyncIterator[_Served]:
    """The handlers of a server and of a storage node behind one port. As a worker: the port of a sibling that owns no partition, so that each call is
    passed on with its caller."""
    cluster = MemoryCluster(partitions=PARTITION + 1, storages=1, servers=1)
    await cluster.start()
    ((server, _),) = cluster.servers.values()
    ((node, _),) = cluster.storages.values()
    client = await cluster.connect()
    await client.append(PARTITION, b"there")
    await client.close()
    control = node.access.control = server._access
    control.enforced = True
    control.replace(AccessRules())
    tls = authority.find("node", "served") or authority.issue("node", "served")
    service = [*server.service(), *node.service()]
    with ExitStack() as stack:
        listeners = []
        if request.param == "alone":
            listeners = [await GrpcNetwork(tls=tls).serve("127.0.0.1:0", service)]
        else:
            reserved = stack.enter_context(closing(ReservedAddress("127.0.0.1:0")))
            siblings = [f"unix:{Path(stack.enter_context(TemporaryDirectory())) / str(worker)}" for worker in range(2)]
            only = stack.enter_context(closing(ReservedAddress("127.0.0.1:0")))
            for worker, address in enumerate((reserved.address, only.address)):
                listeners.append(await WorkerNetwork(Shard(worker, 2), [address], siblings, tls=tls).serve("127.0.0.1:0", service))
        yield _Served(listeners[0].address, control, cluster.key.bytes)
        await asyncio.gather(*(each.close() for each in listeners))
    await cluster.stop()


def _request(method: AnyMethod, key: bytes) -> Any:
    if method == methods.MOUNT:
        mount = pb.MountRequest(
            cluster_key=key, partition=PARTITION, feed=pb.FEED_RECORDS, client_high_water_mark=-1, protocol_version=methods.PROTOCOL_VERSION
        )
        return pb.ClientMessage(mount=mount)
    fields = {each.name: each for each in method.request.DESCRIPTOR.fields}
    given: dict[str, Any] = {"cluster_key": key} if "cluster_key" in fields else {}
    if "partition" in fields:
        given["partition"] = PARTITION
    if "partitions" in fields and fields["partitions"].is_repeated:
        given["partitions"] = [PARTITION]
    return method.request(**given)


async def _use(channel: Channel, method: Any, key: bytes) -> None:
    async with asyncio.timeout(20):
        if method.kind == "call":
            await channel.call(method, _request(method, key), timeout_s=10)
        elif method.kind == "read":
            await channel.read(method, _request(method, key)).receive()
        else:
            stream = channel.open(method)
            await stream.send(_request(method, key))
            await stream.receive()
            await stream.cancel()


async def _denied(channel: Channel, method: AnyMethod, key: bytes) -> PermissionDenied | None:
    """None: the handler served it, or refused it for another reason than the caller."""
    try:
        await _use(channel, method, key)
    except PermissionDenied as error:
        return error
    except WaltzError:
        return None
    return None


async def test_every_procedure_is_refused_without_a_rule_and_served_with_one(served: _Served, authority: DevelopmentAuthority) -> None:
    ruled = [each for each in METHODS if each.name not in OF_NODES | SAYS_A_PORT]
    assert ruled, "the matrix is empty"
    for role in ROLES:
        channel = GrpcNetwork(tls=authority.issue(role, "peer")).connect(served.address)
        principal = f"spiffe://waltz/{role}/peer"
        try:
            for method in ruled:
                if role not in PERMITTED[method.name]:
                    continue
                served.control.replace(AccessRules())
                refused = await _denied(channel, method, served.key)
                assert refused is not None, f"{method.name} serves {role} without a rule"
                assert (refused.principal, refused.roles) == (principal, "")
                others = [each for each in Operation if each not in (_needed(method), Operation.APPEND)]
                if method.name not in ANY_RIGHT:
                    others_alone = AccessRules(rules=(Rule(principal=principal, operations=tuple(others), resource="*"),))
                    served.control.replace(others_alone)
                    assert await _denied(channel, method, served.key) is not None, f"{method.name} serves {role} with {others}"
                served.control.replace(AccessRules(rules=(Rule(principal=principal, operations=(_needed(method),), resource="*"),)))
                assert await _denied(channel, method, served.key) is None, f"{method.name} refuses {role} with a rule"
        finally:
            await channel.close()


async def test_a_procedure_of_nodes_is_refused_whatever_the_rules_say(served: _Served, authority: DevelopmentAuthority) -> None:
    served.control.replace(AccessRules(rules=(Rule(principal="spiffe://*/*/*", operations=tuple(Operation), resource="*"),)))
    offered = [each for each in METHODS if each.name in OF_NODES]
    for role in (*ROLES, Role.OPERATOR):
        channel = GrpcNetwork(tls=authority.issue(role, "peer")).connect(served.address)
        try:
            for method in offered:
                refused = await _denied(channel, method, served.key)
                assert refused is not None, f"{method.name} serves {role}"
                assert refused.roles == "node"
        finally:
            await channel.close()


async def test_an_operator_is_served_every_procedure_that_is_not_of_nodes_without_a_rule(served: _Served, authority: DevelopmentAuthority) -> None:
    served.control.replace(AccessRules())
    channel = GrpcNetwork(tls=authority.issue(Role.OPERATOR, "peer")).connect(served.address)
    try:
        for method in METHODS:
            if method.name not in OF_NODES:
                assert await _denied(channel, method, served.key) is None, method.name
    finally:
        await channel.close()


async def test_a_caller_in_the_metadata_of_a_stranger_counts_nothing(served: _Served, authority: DevelopmentAuthority) -> None:
    served.control.replace(AccessRules())
    channel = GrpcNetwork(tls=authority.issue(Role.READER, "peer")).connect(served.address)
    try:
        forged = (("waltz-caller", '["spiffe://waltz/node/a", ["node"]]'), ("waltz-passed-on", "1"))
        for method in (methods.LOCATE, methods.OPEN):
            stub = (await channel._current.verified()).unary_unary(  # type: ignore[attr-defined]
                method.name, method.request.SerializeToString, method.response.FromString
            )
            with pytest.raises(Exception, match="PermissionDenied"):
                await stub(_request(method, served.key), metadata=forged, timeout=10)
    finally:
        await channel.close()
