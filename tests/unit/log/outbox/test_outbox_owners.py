"""An outbox belongs to the principal that made it. One that was made before there were tickets, or without TLS, is bound at its first claim."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

from tests.unit.log.outbox.bench import Bench, bench, run, until
from waltz_log.client import Intent
from waltz_log.core.metadata import outbox_path
from waltz_log.core.outbox_record import EPOCH_MAX, OutboxRecord, follows
from waltz_log.errors import InvalidRequest, PermissionDenied, ProtocolViolation, Unavailable, WaltzError
from waltz_log.outbox.ledger import Identity as OutboxIdentity
from waltz_log.security.identity import Identity, Role
from waltz_log.server.identities import outbox_records
from waltz_log.testing.disk import SimulatedDisk
from waltz_log.testing.held_network import HeldNetwork
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.methods import CLIENT_ID, OUTBOX

READ, WRITE, ADOPT = pb.OutboxRequest.ACTION_READ, pb.OutboxRequest.ACTION_WRITE, pb.OutboxRequest.ACTION_ADOPT


def _identity(host: str) -> Identity:
    return Identity(f"spiffe://waltz/application/{host}", frozenset({Role.APPLICATION}))


def _as(b: Bench, host: str) -> None:
    b.network = HeldNetwork(b.cluster.network.host(host))


async def _with_tls(b: Bench) -> None:
    """The cluster's nodes are started again with certificates."""
    b.cluster.network.identities = partial(b.cluster._identity, _identity)
    for name in list(b.cluster.servers):
        await b.cluster.kill_server(name)
        await b.cluster.start_server(name)


async def _forwarded(b: Bench, disk: SimulatedDisk, data: bytes) -> tuple[int, int]:
    async with b.outbox(disk) as outbox:
        await outbox.submit(Intent.data(0, data))
        await outbox.flush()
        found = outbox.statistics()
        assert found.client_id is not None
        return found.client_id, found.epoch


async def _calls(b: Bench, host: str, method: Any, **request: Any) -> Any:
    address = next(iter(b.cluster.servers.values()))[0].address
    return await b.cluster.network.host(host).connect(address).call(method, method.request(cluster_key=b.cluster.key.bytes, **request), timeout_s=5)


async def _record(b: Bench, client_id: int) -> dict[str, Any]:
    node = await b.cluster.ensemble.session().get(outbox_path(client_id))
    assert node is not None
    found: dict[str, Any] = json.loads(node.data)
    return found


def _without_ticket(identity: OutboxIdentity) -> bytes:
    """As it was encoded before there were tickets."""
    fields = [identity.cluster_key, identity.client_id, identity.epoch, identity.nonce, identity.claim, list(identity.partitions)]
    return json.dumps(fields).encode()


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("ticket", [False, True])
def test_an_older_directory_continues_and_is_bound_at_its_first_claim(tls: bool, ticket: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with bench() as b:
            disk = SimulatedDisk()
            with monkeypatch.context() as patch:
                if not ticket:
                    patch.setattr(OutboxIdentity, "encode", _without_ticket)
                client_id, _ = await _forwarded(b, disk, b"before")
            if tls:
                await _with_tls(b)
            copy = disk.fork()
            _as(b, "orders")
            assert await _forwarded(b, disk, b"after") == (client_id, 2)
            assert (await _record(b, client_id)).get("principal", "") == ("spiffe://waltz/application/orders" if tls else "")
            assert await _forwarded(b, disk, b"again") == (client_id, 3)
            if tls:
                await _refused(b, "other", copy)
                await _refused(b, "other", disk.fork())
            assert await _data(b) == [b"before", b"after", b"again"]

    run(main)


async def _data(b: Bench) -> list[bytes]:
    client = await b.cluster.connect(host="orders")
    try:
        found: list[bytes] = []
        mark = await client.high_water_mark(0)
        async for each in client.feed(0):
            found.append(each.data)
            if each.transaction_id >= mark:
                return found
    finally:
        await client.close()
    return []


async def _refused(b: Bench, host: str, disk: SimulatedDisk) -> None:
    """The outbox keeps its intents and forwards none."""
    _as(b, host)
    async with b.outbox(disk) as outbox:
        await outbox.submit(Intent.data(0, b"stolen"))
        await until(lambda: "permission denied" in outbox.statistics().error)
        assert outbox.statistics().forwarded == 0


def test_a_directory_that_never_claimed_its_id_gets_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with bench() as b:
            disk = SimulatedDisk()
            with monkeypatch.context() as patch:
                patch.setattr(OutboxIdentity, "encode", _without_ticket)
                patch.setattr("waltz_log.outbox.session.claim", _created_alone)
                async with b.outbox(disk) as outbox:
                    await until(lambda: "claim is planned to fail" in outbox.statistics().error)
                    unclaimed = outbox.statistics().client_id
            await _with_tls(b)
            _as(b, "orders")
            client_id, epoch = await _forwarded(b, disk, b"first")
            assert client_id != unclaimed
            assert epoch == 1

    run(main)


async def _created_alone(owners: Any, ledger: Any, writer: Any, nonce: Any) -> Any:
    from waltz_log.outbox.outbox_identity import _create_identity

    if ledger.identity is None:
        await _create_identity(owners, ledger, writer, str(owners.parameters.key))
    raise Unavailable(reason="claim is planned to fail")


def test_no_principal_reads_changes_or_adopts_anothers_outbox_nor_learns_that_it_exists() -> None:
    async def main() -> None:
        async with bench(identities=_identity) as b:
            _as(b, "victim")
            client_id, _ = await _forwarded(b, SimulatedDisk(), b"mine")
            own = await _calls(b, "other", CLIENT_ID)
            before = await _record(b, client_id)
            guess = pb.OutboxRecord(epoch=2, nonce="guessed", partitions=[0])
            messages = set()
            for of in (client_id, client_id + 500):
                for ticket in ("", own.ticket):
                    for action in (READ, WRITE, ADOPT):
                        for version in (0, 1, 2):
                            with pytest.raises(PermissionDenied) as raised:
                                await _calls(b, "other", OUTBOX, action=action, client_id=of, ticket=ticket, version=version, record=guess)
                            messages.add(str(raised.value))
            assert len(messages) == 1, messages
            assert await _record(b, client_id) == before
            known = pb.OutboxRecord(epoch=before["epoch"], nonce=before["nonce"])
            with pytest.raises(PermissionDenied):
                await _calls(
                    b, "other", OUTBOX, action=ADOPT, client_id=client_id, record=known
                )  # one that read the coordinator before it was closed
            assert (await _calls(b, "victim", OUTBOX, action=ADOPT, client_id=client_id, record=known)).ticket

    run(main)


def test_a_record_is_bounded_and_changes_only_as_an_outbox_changes_it() -> None:
    async def main() -> None:
        async with bench(identities=_identity) as b:
            own = await _calls(b, "orders", CLIENT_ID)
            mine = {"client_id": own.client_id, "ticket": own.ticket}

            async def write(version: int, epoch: int, nonce: str = "n", partitions: Any = ()) -> int:
                record = pb.OutboxRecord(epoch=epoch, nonce=nonce, partitions=partitions)
                return int((await _calls(b, "orders", OUTBOX, action=WRITE, **mine, version=version, record=record)).version)

            refused: list[dict[str, Any]] = [
                {"version": 0, "epoch": 2},
                {"version": 0, "epoch": 0},
                {"version": 0, "epoch": -1},
                {"version": 0, "epoch": 1, "nonce": ""},
                {"version": 0, "epoch": 1, "nonce": "n" * 65},
                {"version": 0, "epoch": 1, "nonce": "n\n"},
                {"version": 0, "epoch": 1, "partitions": [2]},
                {"version": 0, "epoch": 1, "partitions": [-1]},
                {"version": 0, "epoch": 1, "partitions": [0] * 100_000},
            ]
            for each in refused:
                with pytest.raises(InvalidRequest):
                    await write(**each)
            assert await write(1, 1) == -1, "there is no record of that version"
            assert await write(0, 1, partitions=[0]) == 1
            assert await write(0, 1) == -1
            for each in ({"epoch": 1, "nonce": "other"}, {"epoch": 3}, {"epoch": 2, "partitions": []}, {"epoch": 1, "partitions": [1]}):
                with pytest.raises(InvalidRequest):
                    await write(1, **each)
            assert await write(1, 1, partitions=[0, 1]) == 2
            assert await write(2, 2, "next", [0, 1]) == 3
            with pytest.raises(ProtocolViolation):
                await _calls(b, "orders", OUTBOX, **mine)
            for number in (0, -1):
                with pytest.raises(WaltzError):
                    await _calls(b, "orders", OUTBOX, action=READ, client_id=number, ticket=own.ticket)

    run(main)


def test_outboxes_are_counted_for_each_principal_and_for_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with bench(identities=_identity) as b:
            monkeypatch.setattr(outbox_records, "OUTBOXES_OF_PRINCIPAL_MAX", 3)
            monkeypatch.setattr(outbox_records, "OUTBOXES_MAX", 5)

            async def made(host: str) -> None:
                own = await _calls(b, host, CLIENT_ID)
                record = pb.OutboxRecord(epoch=1, nonce="n")
                await _calls(b, host, OUTBOX, action=WRITE, client_id=own.client_id, ticket=own.ticket, record=record)

            for _ in range(3):
                await made("greedy")
            with pytest.raises(Unavailable, match="this principal has 3 outboxes"):
                await made("greedy")
            await made("modest")
            await made("modest")
            with pytest.raises(Unavailable, match="the cluster has 5 outboxes"):
                await made("modest")

    run(main)


@pytest.mark.parametrize(
    "garbage", [b"", b"x", b"[" * 9999, b"{}", b'{"epoch":1,"nonce":5,"partitions":[]}', b'{"epoch":1,"nonce":"n","partitions":"ab"}']
)
def test_a_record_that_is_none_stops_its_outbox_alone_and_loses_no_intent(garbage: bytes) -> None:
    async def main() -> None:
        async with bench() as b:
            disk = SimulatedDisk()
            client_id, _ = await _forwarded(b, disk, b"before")
            await b.cluster.ensemble.session().set(outbox_path(client_id), garbage, -1)
            async with b.outbox(disk) as outbox:
                await outbox.submit(Intent.data(0, b"kept"))
                await until(lambda: "unreadable" in outbox.statistics().error)
            await _forwarded(b, SimulatedDisk(), b"another")
            assert await b.data(0) == [b"before", b"another"]

    run(main)


def test_which_record_follows_which() -> None:
    first = OutboxRecord(1, "a", (3,))
    assert follows(first, None)
    assert not follows(OutboxRecord(2, "a", ()), None)
    assert follows(OutboxRecord(2, "b", (3,)), first)
    assert follows(OutboxRecord(1, "a", (3, 4)), first)
    assert not follows(OutboxRecord(1, "b", (3,)), first)
    assert not follows(OutboxRecord(2, "b", ()), first)
    assert OutboxRecord.from_bytes(OutboxRecord(EPOCH_MAX, "a", (1, 2), "p").to_bytes()) == OutboxRecord(EPOCH_MAX, "a", (1, 2), "p")
    with pytest.raises(ValueError, match="epoch"):
        OutboxRecord(EPOCH_MAX + 1, "a", ())
