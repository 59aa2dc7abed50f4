"""A client id belongs to the principal that got it: at every call that carries one, at every owner, after every restart."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator
from typing import Any

import pytest

from waltz_log.client import ClientSettings, WaltzClient
from waltz_log.core.formats.records import encode_record
from waltz_log.core.mount_sequences import RESOLVING, resolving_above
from waltz_log.errors import OutcomeUnknown, PermissionDenied, Unavailable, WaltzError
from waltz_log.security.identity import Identity, Role
from waltz_log.security.rules import AccessRules, Operation, Rule
from waltz_log.testing.cluster import MemoryCluster
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.methods import CLIENT_ID, MOUNT, PROTOCOL_VERSION, RESOLVE

SETTINGS = ClientSettings(retry_base_s=0.001, retry_cap_s=0.02, append_timeout_s=10.0, request_timeout_s=2.0)
EPOCHS_END = (1 << 62) + 1
"""A mount sequence above all that any client reaches."""


def _identity(host: str) -> Identity:
    role, _, name = ("operator-tools" if host == "client" else host).partition("-")
    return Identity(f"spiffe://waltz/{role}/{name}", frozenset({Role(role)}))


@pytest.fixture(params=["roles alone", "rules"])
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[MemoryCluster]:
    made = MemoryCluster(storages=1, servers=1, identities=_identity)
    await made.start()
    if request.param == "rules":
        await _grant(made, "spiffe://waltz/application/*", Operation.APPEND, Operation.READ)
    try:
        yield made
    finally:
        await made.stop()


async def _grant(cluster: MemoryCluster, principal: str, *operations: Operation) -> None:
    rule = Rule(principal=principal, operations=operations, resource="log")
    await cluster.change_access(lambda found: found.granted(rule))
    async with asyncio.timeout(5):
        while any(rule not in (server._access.rules or AccessRules()).rules for server, _ in cluster.servers.values()):
            await asyncio.sleep(0.001)


@pytest.fixture
async def victim(cluster: MemoryCluster) -> AsyncIterator[WaltzClient]:
    client = await cluster.connect(SETTINGS, host="application-victim")
    await client.append(0, b"mine")
    try:
        yield client
    finally:
        await client.close()


def _mount(client_id: int, *, ticket: str = "", sequence: int = EPOCHS_END, resolves: bool = False) -> pb.MountRequest:
    return pb.MountRequest(
        cluster_key=MemoryCluster().key.bytes,
        protocol_version=PROTOCOL_VERSION,
        client_id=client_id,
        ticket=ticket,
        mount_sequence=sequence,
        client_high_water_mark=-1,
        appends_nothing=resolves,
    )


async def _mounts(cluster: MemoryCluster, host: str, request: pb.MountRequest) -> pb.ServerMessage | None:
    ((server, _),) = cluster.servers.values()
    stream = cluster.network.host(host).connect(server.address).open(MOUNT)
    try:
        await stream.send(pb.ClientMessage(mount=request))
        async with asyncio.timeout(5):
            return await stream.receive()
    finally:
        await stream.cancel()


async def _calls(cluster: MemoryCluster, host: str, method: Any, request: Any) -> Any:
    ((server, _),) = cluster.servers.values()
    return await cluster.network.host(host).connect(server.address).call(method, request, timeout_s=5)


async def _id_of(cluster: MemoryCluster, host: str) -> pb.ClientIdResponse:
    found: pb.ClientIdResponse = await _calls(cluster, host, CLIENT_ID, pb.ClientIdRequest(cluster_key=cluster.key.bytes))
    return found


def _ticket(client: WaltzClient) -> str:
    return client._owners.ticket_of(client.client_id)


async def _denied(work: Any) -> str:
    with pytest.raises(PermissionDenied) as raised:
        await work
    return str(raised.value)


async def test_another_principals_id_is_refused_like_one_that_was_never_given(cluster: MemoryCluster, victim: WaltzClient) -> None:
    own = await _id_of(cluster, "application-other")
    stolen, never = victim.client_id, own.client_id + 500
    for ask in (
        lambda of, ticket: _mounts(cluster, "application-other", _mount(of, ticket=ticket)),
        lambda of, ticket: _mounts(cluster, "application-other", _mount(of, ticket=ticket, resolves=True)),
        lambda of, ticket: _mounts(cluster, "application-other", _mount(of, ticket=ticket, resolves=True, sequence=RESOLVING)),
        lambda of, ticket: _calls(
            cluster,
            "application-other",
            RESOLVE,
            pb.ResolveRequest(cluster_key=cluster.key.bytes, client_id=of, ticket=ticket, last_sequence=9, since=-1),
        ),
    ):
        # The ticket of the victim is bound to its principal; the intruder's own to another id.
        shown = [(stolen, ""), (stolen, _ticket(victim)), (stolen, own.ticket), (never, ""), (never, own.ticket), (-1, own.ticket)]
        messages = {await _denied(ask(of, ticket)) for of, ticket in shown}
        assert len(messages) == 1, messages
    await victim.append(0, b"still mine")
    assert [each.data for each in (await _read(victim, 1))] == [b"mine", b"still mine"]


async def _read(client: WaltzClient, last: int) -> list[Any]:
    found: list[Any] = []
    async for each in client.feed(0):
        found.append(each)
        if each.transaction_id == last:
            break
    return found


async def test_a_forged_append_reaches_no_log(cluster: MemoryCluster, victim: WaltzClient) -> None:
    ((server, _),) = cluster.servers.values()
    stream = cluster.network.host("application-other").connect(server.address).open(MOUNT)
    await stream.send(pb.ClientMessage(mount=_mount(victim.client_id, ticket=_ticket(victim))))
    record = encode_record(victim.client_id, 1, 0, 2, 0, b"forged")
    frame = pb.AppendFrame(generation=1, lengths=len(record).to_bytes(4, "big"), marks=(0).to_bytes(8, "big"), records=record)
    with pytest.raises(WaltzError):
        await stream.send(pb.ClientMessage(append=frame))
        await stream.receive()
    receipt = await victim.append(0, b"second")
    assert receipt.transaction_id == 1
    assert [each.data for each in await _read(victim, 1)] == [b"mine", b"second"]


async def test_the_binding_survives_owners_and_servers(cluster: MemoryCluster, victim: WaltzClient) -> None:
    await cluster.kill_server("server-0")
    await cluster.start_server("server-0")
    await victim.append(0, b"again")
    await _denied(_mounts(cluster, "application-other", _mount(victim.client_id, ticket=_ticket(victim))))


async def test_a_process_of_the_same_principal_resolves_with_the_ticket_in_the_error(cluster: MemoryCluster, victim: WaltzClient) -> None:
    made = OutcomeUnknown(partition=0, client_id=victim.client_id, sequence=1, since=-1, reason="test", ticket=_ticket(victim))
    error: OutcomeUnknown = pickle.loads(pickle.dumps(made))
    assert _ticket(victim) not in str(error)
    assert error.part(0, 1).ticket == error.ticket
    same = await cluster.connect(SETTINGS, host="application-victim", seed=1)
    other = await cluster.connect(SETTINGS, host="application-other", seed=2)
    try:
        with pytest.raises(PermissionDenied):
            await other.resolve(error)
        found = await same.resolve(error)
        assert found is not None
        assert found.transaction_id == 0
    finally:
        await same.close()
        await other.close()


async def test_who_may_resolve_for_others_fences_no_client_for_good(cluster: MemoryCluster, victim: WaltzClient) -> None:
    await _grant(cluster, "spiffe://waltz/application/victim", Operation.APPEND, Operation.READ)
    await _grant(cluster, "spiffe://waltz/application/repairs", Operation.RESOLVE)
    never = OutcomeUnknown(partition=0, client_id=victim.client_id, sequence=9, since=-1, reason="test")
    newest = victim._producers.by_key[0]._mount_sequence
    for sequence in (EPOCHS_END, newest + 1, EPOCHS_END | RESOLVING, resolving_above(newest) + 1):
        await _denied(_mounts(cluster, "application-repairs", _mount(victim.client_id, sequence=sequence, resolves=True)))
    await _denied(_mounts(cluster, "application-repairs", _mount(victim.client_id, sequence=resolving_above(newest))))
    repairs = await cluster.connect(SETTINGS, host="application-repairs")
    try:
        assert await repairs.resolve(never) is None
    finally:
        await repairs.close()
    await victim.append(0, b"goes on")


async def test_an_operator_resolves_for_others_and_appends_as_none(cluster: MemoryCluster, victim: WaltzClient) -> None:
    operator = await cluster.connect(SETTINGS, host="operator-tools")
    try:
        there = OutcomeUnknown(partition=0, client_id=victim.client_id, sequence=1, since=-1, reason="test")
        assert await operator.resolve(there) is not None
    finally:
        await operator.close()
    await _denied(_mounts(cluster, "operator-tools", _mount(victim.client_id)))


async def test_a_reader_gets_no_id_and_needs_none(cluster: MemoryCluster, victim: WaltzClient) -> None:
    await _denied(_id_of(cluster, "reader-reports"))
    if any(server._access.rules for server, _ in cluster.servers.values()):
        await _grant(cluster, "spiffe://waltz/reader/*", Operation.READ)
    reader = await cluster.connect(SETTINGS, host="reader-reports")
    try:
        assert [each.data for each in await _read(reader, 0)] == [b"mine"]
        with pytest.raises(PermissionDenied):
            await reader.append(0, b"")
    finally:
        await reader.close()


async def test_an_unreadable_key_of_tickets_opens_nothing(cluster: MemoryCluster, victim: WaltzClient) -> None:
    session = cluster.ensemble.session()
    await session.set("/ids/ticket_key", b"[" * 5000, -1)
    await cluster.kill_server("server-0")
    await cluster.start_server("server-0")
    with pytest.raises(Unavailable, match="client ids cannot be checked"):
        await _mounts(cluster, "application-other", _mount(victim.client_id, ticket=_ticket(victim)))
    with pytest.raises(Unavailable):
        await _id_of(cluster, "application-other")


async def test_without_tls_ids_are_checked_by_none() -> None:
    cluster = MemoryCluster(storages=1, servers=1)
    await cluster.start()
    client = await cluster.connect(SETTINGS)
    try:
        await client.append(0, b"mine")
        answered = await _mounts(cluster, "other", _mount(client.client_id))
        assert answered is not None
        assert answered.HasField("mounted")
    finally:
        await client.close()
        await cluster.stop()
