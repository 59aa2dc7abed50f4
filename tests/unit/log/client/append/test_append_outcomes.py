"""Every cell of the table of outcomes in docs/guides/client.md: how far an append had come, and what happened then."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from waltz_log.client import ClientSettings, Draft, Receipt, SyncWaltzClient, WaltzClient
from waltz_log.errors import ClusterKeyMismatch, InvalidRequest, NotAppended, OutcomeUnknown, WaltzError
from waltz_log.testing.known_servers import KnownServers
from waltz_log.testing.memory_coordinator import MemoryEnsemble
from waltz_log.testing.network import MemoryNetwork
from waltz_log.testing.scripted_server import Break, Refuse, ScriptedCluster
from waltz_log.transport import waltz_pb2 as pb

Connect = Callable[..., Awaitable[WaltzClient]]


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


async def _outcome(future: Awaitable[Receipt]) -> Receipt | WaltzError:
    try:
        async with asyncio.timeout(10):
            return await future
    except WaltzError as error:
        return error


async def _unsent(client: WaltzClient, cluster: ScriptedCluster, **given: Any) -> asyncio.Future[Receipt]:
    """An append of a partition without an owner."""
    await cluster.move(0, None)
    future = await client.append_nowait(0, b"x", **given)
    await asyncio.sleep(0.01)
    return future


async def _sent(client: WaltzClient, cluster: ScriptedCluster, **given: Any) -> asyncio.Future[Receipt]:
    """An append that its owner has and does not answer."""
    cluster.logs[0].gate.clear()
    future = await client.append_nowait(0, b"x", **given)
    await _until(lambda: cluster.logs[0].frames > 0)
    return future


async def _namesake(connect: Connect, client: WaltzClient) -> WaltzClient:
    """A client with the same id, as after the coordinator was restored from a copy."""
    other = await connect()
    other._producers.client_id = client.client_id
    return other


# ---- close ---------------------------------------------------------------------------------------------------------------------------------------


async def test_closing_ends_what_was_never_sent_as_not_appended(connect: Connect, cluster: ScriptedCluster) -> None:
    client = await connect(max_pending=1, close_timeout_s=0.01)
    unsent = await _unsent(client, cluster)
    waits_for_room = asyncio.ensure_future(client.append_nowait(0, b"y"))
    await asyncio.sleep(0)
    await client.close()
    for outcome in (await _outcome(unsent), (await asyncio.gather(waits_for_room, return_exceptions=True))[0]):
        assert isinstance(outcome, NotAppended)
        assert outcome.reason == "never sent: the client was closed"


async def test_closing_ends_what_was_sent_as_unknown(connect: Connect, cluster: ScriptedCluster) -> None:
    client = await connect(close_timeout_s=0.01)
    sent = await _sent(client, cluster)
    await client.close()
    assert isinstance(await _outcome(sent), OutcomeUnknown)


async def test_answered_appends_keep_their_outcome(client: WaltzClient, cluster: ScriptedCluster) -> None:
    answered = await client.append_nowait(0, b"x", timeout_s=0.5)
    receipt = await answered
    assert not answered.cancel()
    await asyncio.sleep(0.6)
    await client.close()
    assert await answered is receipt


# ---- cancel --------------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [_unsent, _sent])
async def test_a_cancelled_append_is_in_the_log_only_if_it_was_sent(client: WaltzClient, cluster: ScriptedCluster, state: Any) -> None:
    future = await state(client, cluster)
    future.cancel()
    await cluster.move(0, 1)
    cluster.logs[0].gate.set()
    await client.append(0, b"after")
    assert cluster.logs[0].data() in ([[b"after"]] if state is _unsent else [[b"x", b"after"], [b"after"]])


# ---- deadline ------------------------------------------------------------------------------------------------------------------------------------


async def test_a_deadline_ends_what_was_never_sent_as_not_appended_and_what_was_sent_as_unknown(connect: Connect, cluster: ScriptedCluster) -> None:
    client = await connect(max_pending=1)
    sent = await _sent(client, cluster, timeout_s=0.1)
    with pytest.raises(NotAppended, match="no room"):
        await client.append(0, b"waits for room", timeout_s=0.02)
    assert isinstance(await _outcome(sent), OutcomeUnknown)
    cluster.logs[0].gate.set()
    other = await connect()
    unsent = await _unsent(other, cluster, timeout_s=0.05)
    assert isinstance(await _outcome(unsent), NotAppended)
    await cluster.move(0, 1)
    await other.append(0, b"after")
    assert cluster.logs[0].data() == [b"x", b"after"]


async def test_no_time_at_all_is_not_appended_and_sends_nothing(client: WaltzClient, cluster: ScriptedCluster) -> None:
    await client.append(0, b"mounted")
    for timeout_s in (0, 0.0, 1e-9):
        with pytest.raises(NotAppended):
            await client.append(0, b"x", timeout_s=timeout_s)
        with pytest.raises(NotAppended):
            await client.append_many(0, [Draft(b"x")], timeout_s=timeout_s)
        done = await client.append_bulk(0, [b"x"], timeout_s=timeout_s)
        assert isinstance(done.failed[0].error, NotAppended)
    await client.append(0, b"after")
    assert cluster.logs[0].data() == [b"mounted", b"after"]
    assert cluster.logs[0].frames == 2


@pytest.mark.parametrize("timeout_s", [-1, -0.001, float("nan"), float("-inf"), True, "1", b"1"])
async def test_an_invalid_timeout_is_refused(client: WaltzClient, timeout_s: Any) -> None:
    unknown = OutcomeUnknown(partition=0, client_id=99, sequence=1, since=-1, reason="")
    for call in (
        client.append(0, b"x", timeout_s=timeout_s),
        client.append_bulk(0, [b"x"], timeout_s=timeout_s),
        client.resolve(unknown, timeout_s=timeout_s),
    ):
        with pytest.raises(InvalidRequest, match="timeout"):
            await call
    assert client.unacknowledged() == []


async def test_a_timeout_may_be_infinite(client: WaltzClient) -> None:
    assert (await client.append(0, b"x", timeout_s=float("inf"))).transaction_id == 0


def test_the_blocking_client_ends_appends_the_same_way() -> None:
    network, ensemble = MemoryNetwork(), MemoryEnsemble()

    cluster: list[ScriptedCluster] = []

    async def resolve() -> list[str]:
        if not cluster:  # in the loop of the first caller
            cluster.append(ScriptedCluster(network, ensemble.session()))
            await cluster[0].start()
        return list(await cluster[0].seeds.resolve())

    seeds = KnownServers(list)
    seeds.resolve = resolve  # type: ignore[method-assign]
    settings = ClientSettings(connect_timeout_s=0.5, close_timeout_s=0.01)
    client = SyncWaltzClient.connect_over(seeds, lambda: network, settings)
    with pytest.raises(NotAppended):
        client.append(0, b"x", timeout_s=0)
    with pytest.raises(NotAppended):
        client.append_nowait(0, b"x", timeout_s=0).result(10)
    for call in (client.append, client.append_nowait):
        with pytest.raises(InvalidRequest, match="timeout"):
            call(0, b"x", timeout_s=-1)
    assert client.append(0, b"x", timeout_s=float("inf")).transaction_id == 0
    client.close()


# ---- fence ---------------------------------------------------------------------------------------------------------------------------------------


async def test_another_process_with_the_same_client_id_has_the_last_word(connect: Connect, cluster: ScriptedCluster) -> None:
    client = await connect(linger_ms=1000, frame_bytes=4096, overlap_bytes=0)
    await client.append(0, b"mounted")
    cluster.logs[0].gate.clear()
    sent = []
    for number in range(2):
        sent.append(await client.append_nowait(0, b"sent"))
        await asyncio.sleep(0.01)
        assert len(client._producers.by_key[0].window.frames) == number + 1
    unsent = await client.append_nowait(0, b"never sent")
    await asyncio.sleep(0.01)
    namesake = await _namesake(connect, client)
    taking_over = asyncio.ensure_future(namesake.append(0, b"x"))
    outcomes = [await _outcome(future) for future in (*sent, unsent)]
    assert [type(outcome) for outcome in outcomes] == [OutcomeUnknown, OutcomeUnknown, NotAppended]
    with pytest.raises(NotAppended, match="never sent: fenced"):
        await client.append(0, b"later")
    done = await client.append_bulk(0, [b"later"])
    assert isinstance(done.failed[0].error, NotAppended)
    cluster.logs[0].gate.set()
    await taking_over
    assert not {b"never sent", b"later"} & set(cluster.logs[0].data())
    for unknown in outcomes[:2]:
        assert isinstance(unknown, OutcomeUnknown)
        found = await client.resolve(unknown)  # as another process would: this one appends nothing more here
        assert found is None or cluster.logs[0].data()[found.transaction_id] == b"sent"


async def test_a_resolve_of_another_process_leaves_the_client_alive(connect: Connect, cluster: ScriptedCluster) -> None:
    client, other = await connect(), await connect()
    await client.append(0, b"0")
    cluster.logs[0].gate.clear()
    with pytest.raises(OutcomeUnknown) as caught:
        await client.append(0, b"slow", timeout_s=0.02)
    in_flight = [await client.append_nowait(0, b"%d" % number) for number in range(1, 4)]
    await asyncio.sleep(0.01)
    resolving = asyncio.ensure_future(other.resolve(caught.value))
    await _until(lambda: cluster.servers[0].mounts > 2)
    cluster.logs[0].gate.set()
    found = await resolving
    receipts = await asyncio.gather(*in_flight)
    assert (await client.append(0, b"4")).transaction_id == receipts[-1].transaction_id + 1
    for _ in range(3):  # as often as needed, whether the client has mounted again or not
        assert await other.resolve(caught.value) == found
        assert await other.resolve(caught.value) == found
        await client.append(0, b"and on")
    data = cluster.logs[0].data()
    assert data.count(b"slow") == (found is not None)
    assert [each for each in data if each != b"slow"] == [b"0", b"1", b"2", b"3", b"4", *[b"and on"] * 3]


# ---- connection loss -----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_lost_connection_decides_nothing_by_itself(client: WaltzClient, cluster: ScriptedCluster, when: Any) -> None:
    cluster.logs[0].faults.append(Break(when))
    assert (await client.append(0, b"x")).transaction_id == 0
    assert cluster.logs[0].data() == [b"x"]


async def test_appends_unsent_when_the_connection_broke_are_sent_on_the_next(
    client: WaltzClient, cluster: ScriptedCluster, network: MemoryNetwork
) -> None:
    await client.append(0, b"mounted")
    network.cut(cluster.servers[0].address)
    appending = await client.append_nowait(0, b"x")
    await asyncio.sleep(0.01)
    network.heal(cluster.servers[0].address)
    assert (await appending).transaction_id == 1


# ---- refusal -------------------------------------------------------------------------------------------------------------------------------------


async def test_a_refused_mount_ends_what_was_never_sent_with_its_reason_and_what_was_sent_as_unknown(
    connect: Connect, cluster: ScriptedCluster
) -> None:
    client, other = await connect(), await connect()
    sent = await _sent(client, cluster)
    for server in cluster.servers:
        server.cluster_key = bytes(16)
    unsent = await other.append_nowait(0, b"y")
    for mounted in list(cluster.logs[0].mounted):
        mounted.end(ClusterKeyMismatch(where="a:1"))
    assert isinstance(await _outcome(unsent), ClusterKeyMismatch)
    assert isinstance(await _outcome(sent), OutcomeUnknown)


@pytest.mark.parametrize(("reason", "error"), [(pb.REFUSAL_STORAGE_FULL, NotAppended), (pb.REFUSAL_TOO_LARGE, InvalidRequest)])
async def test_a_refused_append_says_why(client: WaltzClient, cluster: ScriptedCluster, reason: Any, error: type[WaltzError]) -> None:
    cluster.logs[0].faults.append(Refuse(reason))
    with pytest.raises(error):
        await client.append(0, b"x")
    assert cluster.logs[0].data() == []


@pytest.mark.parametrize("reason", [pb.REFUSAL_GENERATION, pb.REFUSAL_MOVING])
async def test_an_append_refused_for_its_owner_is_sent_again(client: WaltzClient, cluster: ScriptedCluster, reason: Any) -> None:
    cluster.logs[0].faults.append(Refuse(reason))
    assert (await client.append(0, b"x")).transaction_id == 0
