"""Appends over the in-memory network against a scripted cluster: the three outcomes, order, exactly once over every kind of break, bounds."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Awaitable, Callable
from typing import cast
from uuid import UUID

import numpy as np
import pytest

from waltz_log.client import ClientSettings, Draft, Lock, Receipt, WaltzClient
from waltz_log.errors import (
    ClusterKeyMismatch,
    ClusterUnavailable,
    InvalidRequest,
    LockConflict,
    NotAppended,
    OutcomeUnknown,
    TransactionTooLarge,
    Unavailable,
)
from waltz_log.testing.known_servers import KnownServers
from waltz_log.testing.network import MemoryNetwork
from waltz_log.testing.scripted_server import Break, Refuse, ScriptedCluster
from waltz_log.transport import waltz_pb2 as pb

Connect = Callable[..., Awaitable[WaltzClient]]
SEAT = Lock("seat", "12A")


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(5000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("the condition did not come true in 5 s")


# ---- outcomes ----------------------------------------------------------------------------------------------------------------------------------


async def test_append_returns_the_position_of_the_transaction(client: WaltzClient, cluster: ScriptedCluster) -> None:
    first = await client.append(0, b"one", header=7)
    second = await client.append(0, b"two", header=-7)
    assert (first.partition, first.transaction_id, second.transaction_id) == (0, 0, 1)
    assert second.append_time_ms > first.append_time_ms > 0
    assert cluster.logs[0].data() == [b"one", b"two"]


async def test_append_is_rejected_with_the_winner_when_a_lock_moved(client: WaltzClient) -> None:
    await client.append(0, b"mine", write_locks=[SEAT], high_water_mark=-1)
    with pytest.raises(LockConflict) as caught:
        await client.append(0, b"late", write_locks=[SEAT], high_water_mark=-1)
    assert (caught.value.partition, caught.value.winner) == (0, 0)
    assert (await client.append(0, b"seen", write_locks=[SEAT], high_water_mark=0)).transaction_id == 1


async def test_read_locks_are_checked_and_append_locks_are_set_only(client: WaltzClient) -> None:
    await client.append(0, b"blind", append_locks=[SEAT], high_water_mark=-1)
    await client.append(0, b"blind again", append_locks=[SEAT], high_water_mark=-1)
    with pytest.raises(LockConflict) as caught:
        await client.append(0, b"reader", read_locks=[SEAT], high_water_mark=0)
    assert caught.value.winner == 1
    await client.append(0, b"reader", read_locks=[SEAT], high_water_mark=1)
    await client.append(0, b"reader left no mark", read_locks=[SEAT], high_water_mark=1)


async def test_a_mark_that_is_not_given_is_what_the_client_knows(client: WaltzClient) -> None:
    await client.append(0, b"one", write_locks=[SEAT])
    assert (await client.append(0, b"two", write_locks=[SEAT])).transaction_id == 1


async def test_pipelined_appends_of_one_client_do_not_conflict_with_each_other(connect: Connect, cluster: ScriptedCluster) -> None:
    client, other = await connect(frame_bytes=4096), await connect()
    futures = [await client.append_nowait(0, b"%d" % n, write_locks=[SEAT], read_locks=[Lock("x", n % 3)]) for n in range(500)]
    assert [receipt.transaction_id for receipt in await asyncio.gather(*futures)] == list(range(500))
    cluster.logs[0].gate.clear()
    before = await client.append_nowait(0, b"before", append_locks=[SEAT])
    cluster.logs[0].gate.set()
    foreign = await other.append(0, b"foreign", append_locks=[SEAT])
    mark = (await before).transaction_id
    late = await client.append_nowait(0, b"late", write_locks=[SEAT], high_water_mark=min(mark, foreign.transaction_id) - 1)
    with pytest.raises(LockConflict):
        await late


async def test_who_says_what_it_has_read_conflicts_with_its_own_too(client: WaltzClient) -> None:
    futures = [await client.append_nowait(0, b"%d" % n, write_locks=[SEAT], high_water_mark=-1) for n in range(3)]
    outcomes = await asyncio.gather(*futures, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [Receipt, LockConflict, LockConflict]


async def test_locks_of_many_transactions_in_one_frame_stay_with_their_own(client: WaltzClient, cluster: ScriptedCluster) -> None:
    drafts = [Draft(b"a", write_locks=[Lock("x", n)], high_water_mark=-1) if n % 3 else Draft(b"b") for n in range(30)]
    drafts.append(Draft(b"late", read_locks=[Lock("y", 0), Lock("x", 4)], append_locks=[SEAT], high_water_mark=3))
    outcomes = await client.append_many(0, drafts)
    assert all(isinstance(outcome, Receipt) for outcome in outcomes[:-1])
    assert isinstance(outcomes[-1], LockConflict)
    assert outcomes[-1].winner == 4
    assert cluster.logs[0].high_water_mark == 29


async def test_pipelined_appends_keep_their_order_and_share_frames(connect: Connect, cluster: ScriptedCluster) -> None:
    client = await connect(frame_bytes=4096)
    futures = [await client.append_nowait(0, b"%d" % n) for n in range(1000)]
    receipts = await asyncio.gather(*futures)
    assert [receipt.transaction_id for receipt in receipts] == list(range(1000))
    assert cluster.logs[0].data() == [b"%d" % n for n in range(1000)]
    assert cluster.logs[0].frames < 40


async def test_append_many_goes_on_after_a_conflict(client: WaltzClient, cluster: ScriptedCluster) -> None:
    await client.append(0, b"first", write_locks=[SEAT])
    outcomes = await client.append_many(0, [Draft(b"a"), Draft(b"b", write_locks=[SEAT], high_water_mark=-1), Draft(b"c")])
    assert [type(outcome) for outcome in outcomes] == [Receipt, LockConflict, Receipt]
    assert cluster.logs[0].data() == [b"first", b"a", b"c"]


# ---- refused before anything is sent -------------------------------------------------------------------------------------------------------------


async def test_an_append_that_the_log_could_never_accept_is_refused_before_it_is_sent(connect: Connect, cluster: ScriptedCluster) -> None:
    client = await connect(record_bytes_max=100, locks_max=2)
    with pytest.raises(TransactionTooLarge, match="what=data size=101 limit=100"):
        await client.append(0, bytes(101))
    with pytest.raises(TransactionTooLarge, match="what=locks size=3 limit=2"):
        await client.append(0, b"", write_locks=[SEAT], read_locks=[SEAT], append_locks=[SEAT])
    for header in (2**31, -(2**31) - 1):
        with pytest.raises(InvalidRequest, match="header"):
            await client.append(0, b"", header=header)
    for partition in (-1, 2):
        with pytest.raises(InvalidRequest, match="no such partition"):
            await client.append(partition, b"")
    with pytest.raises(InvalidRequest, match="no such high-water mark"):
        await client.append(0, b"", write_locks=[SEAT], high_water_mark=-2)
    for wrong in (1.5, "3", None, float("nan")):
        with pytest.raises(InvalidRequest, match="header"):
            await client.append(0, b"", header=wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="header"):
            (await client.append_bulk(0, [Draft(b"", wrong)])).raise_failed()  # type: ignore[arg-type]
    for wrong in (1.5, "3", float("inf")):
        with pytest.raises(InvalidRequest, match="mark"):
            await client.append(0, b"", high_water_mark=wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="data must be bytes"):
        await client.append(0, "text")  # type: ignore[arg-type]
    for lock in ("seat", ("seat", 1.5), ("seat", ["12A"]), (1, 2), ("seat", "\ud800")):
        with pytest.raises(InvalidRequest, match="a lock must be"):
            await client.append(0, b"", write_locks=[lock])  # type: ignore[list-item]
    with pytest.raises(InvalidRequest, match="locks must be a list"):
        await client.append(0, b"", write_locks=iter([SEAT]))  # type: ignore[arg-type]
    assert cluster.logs[0].frames == 0
    assert (await client.append(0, bytes(100), header=2**31 - 1)).transaction_id == 0
    header, mark = cast(int, np.int16(-2)), cast(int, np.int64(0))  # any kind of whole number
    assert (await client.append(0, b"", header=header, high_water_mark=mark)).transaction_id == 1
    assert cluster.logs[0].frames == 2


async def test_nothing_is_there_to_connect_to(network: MemoryNetwork) -> None:
    settings = ClientSettings(connect_timeout_s=0.1)
    with pytest.raises(ClusterUnavailable, match=r"no log server answers within 0\.1 s; the last error: .*no log server runs"):
        await WaltzClient.connect_over(KnownServers(list), network, settings)
    with pytest.raises(ClusterUnavailable, match="connection refused: address=gone:1"):
        await WaltzClient.connect_over(KnownServers(lambda: ["gone:1"]), network, settings)


async def test_a_client_gets_its_id_from_a_log_server_at_its_first_append(connect: Connect) -> None:
    clients = [await connect() for _ in range(3)]
    assert [each.client_id for each in clients] == [0, 0, 0]
    for each in clients:
        await each.append(0, b"first")
        await each.append(0, b"second")
    assert [each.client_id for each in clients] == [1, 2, 3]


async def test_the_partitions_of_a_client_share_its_id_even_if_they_begin_together(connect: Connect) -> None:
    client = await connect()
    await asyncio.gather(*(client.append(partition, b"") for partition in range(client.partitions)))
    assert client.client_id == 1
    assert {each.client_id for each in client._producers.by_key.values()} == {1}


async def test_a_server_of_another_cluster_ends_the_append_with_an_error(client: WaltzClient, cluster: ScriptedCluster) -> None:
    for server in cluster.servers:
        server.cluster_key = UUID(int=1).bytes
    with pytest.raises(ClusterKeyMismatch):
        await client.append(0, b"")


# ---- breaks --------------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_stream_that_breaks_costs_nothing_and_repeats_nothing(connect: Connect, cluster: ScriptedCluster, when: str) -> None:
    client = await connect(frame_bytes=4096)
    cluster.logs[0].faults.extend([None, Break(when), None, Break(when), Break(when)])  # type: ignore[arg-type]
    futures = [await client.append_nowait(0, b"%d" % n, write_locks=[Lock("n", n)], high_water_mark=-1) for n in range(1000)]
    receipts = await asyncio.gather(*futures)
    assert [receipt.transaction_id for receipt in receipts] == list(range(1000))
    assert cluster.logs[0].data() == [b"%d" % n for n in range(1000)]


@pytest.mark.parametrize("reason", [pb.REFUSAL_GENERATION, pb.REFUSAL_MOVING, pb.REFUSAL_DUPLICATE])
async def test_a_refusal_that_asks_for_another_mount_is_followed(
    client: WaltzClient, cluster: ScriptedCluster, reason: pb.RefusalReason.ValueType
) -> None:
    await client.append(0, b"0")
    cluster.logs[0].faults.append(Refuse(reason))
    receipts = await asyncio.gather(*[await client.append_nowait(0, b"%d" % n) for n in range(1, 50)])
    assert [receipt.transaction_id for receipt in receipts] == list(range(1, 50))
    assert cluster.logs[0].data() == [b"%d" % n for n in range(50)]
    assert cluster.servers[0].mounts == 2


async def test_full_storage_and_servers_limits_are_reported(client: WaltzClient, cluster: ScriptedCluster) -> None:
    cluster.logs[0].faults.extend([Refuse(pb.REFUSAL_STORAGE_FULL), Refuse(pb.REFUSAL_TOO_LARGE)])
    with pytest.raises(NotAppended, match="storage is full"):
        await client.append(0, b"")
    with pytest.raises(InvalidRequest, match="larger than the server's limit"):
        await client.append(0, b"")
    assert (await client.append(0, b"")).transaction_id == 0


@pytest.mark.parametrize("announce", [True, False])
async def test_appends_follow_the_partition_to_another_owner(client: WaltzClient, cluster: ScriptedCluster, announce: bool) -> None:
    await client.append(0, b"0")
    cluster.logs[0].gate.clear()
    futures = [await client.append_nowait(0, b"%d" % n) for n in range(1, 100)]
    await until(lambda: cluster.logs[0].frames > 1)
    moving = asyncio.create_task(cluster.move(0, 2, notify=announce))
    await asyncio.sleep(0.01)
    cluster.logs[0].gate.set()
    await moving
    receipts = await asyncio.gather(*futures)
    assert [receipt.transaction_id for receipt in receipts] == list(range(1, 100))
    assert (await client.append(0, b"100")).transaction_id == 100
    assert cluster.logs[0].data() == [b"%d" % n for n in range(101)]
    await until(lambda: cluster.servers[1].mounts == 1)


async def test_appends_wait_while_the_partition_has_no_owner(client: WaltzClient, cluster: ScriptedCluster) -> None:
    await cluster.move(0, None)
    appended = asyncio.create_task(client.append(0, b"patient"))
    await asyncio.sleep(0.02)
    assert not appended.done()
    await cluster.move(0, 2)
    assert (await appended).transaction_id == 0


async def test_a_lock_conflict_whose_answer_was_lost_is_still_a_conflict(client: WaltzClient, cluster: ScriptedCluster) -> None:
    await client.append(0, b"winner", write_locks=[SEAT])
    cluster.logs[0].faults.append(Break("after"))
    loser = await client.append_nowait(0, b"loser", write_locks=[SEAT], high_water_mark=-1)
    successor = await client.append_nowait(0, b"successor")
    with pytest.raises(LockConflict) as caught:
        await loser
    assert caught.value.winner == 0
    assert (await successor).transaction_id == 1
    assert cluster.logs[0].data() == [b"winner", b"successor"]


async def test_a_resend_is_judged_by_its_first_mark(connect: Connect, cluster: ScriptedCluster) -> None:
    """With a newer one it would overwrite what its author had not seen."""
    mine, other = await connect(), await connect()
    await mine.append(0, b"0")
    producer = mine._producers.by_key[0]
    producer._backoff.next_s = lambda: 0.1  # type: ignore[method-assign]
    cluster.logs[0].faults.append(Break("before"))
    appended = asyncio.create_task(mine.append(0, b"mine", write_locks=[SEAT]))
    await until(lambda: not cluster.logs[0].faults)
    assert (await other.append(0, b"other", write_locks=[SEAT], high_water_mark=0)).transaction_id == 1
    with pytest.raises(LockConflict) as caught:
        await appended
    assert caught.value.winner == 1


async def test_bytes_that_the_server_refuses_are_not_sent_again(client: WaltzClient, cluster: ScriptedCluster) -> None:
    original = cluster.logs[0].append

    def corrupted(frame: pb.AppendFrame, time_ms: int) -> pb.AppendResult:
        return original(pb.AppendFrame(lengths=frame.lengths, marks=frame.marks, records=frame.records[:-1] + b"?"), time_ms)

    cluster.logs[0].append = corrupted  # type: ignore[method-assign]
    with pytest.raises(NotAppended, match="corrupt data"):
        await client.append(0, b"data")
    assert cluster.logs[0].frames == 3


async def test_answers_for_what_is_not_in_flight_end_the_stream_only(client: WaltzClient, cluster: ScriptedCluster) -> None:
    original = cluster.logs[0].append
    wrong = iter([True])

    def answer(frame: pb.AppendFrame, time_ms: int) -> pb.AppendResult:
        result = original(frame, time_ms)
        return pb.AppendResult(committed=bytes(17)) if next(wrong, False) else result

    cluster.logs[0].append = answer  # type: ignore[method-assign]
    assert (await client.append(0, b"data")).transaction_id == 0
    assert cluster.logs[0].data() == [b"data"]


# ---- unknown, and settled ------------------------------------------------------------------------------------------------------------------------


async def test_an_append_without_an_answer_by_its_deadline_is_unknown_until_resolved(client: WaltzClient, cluster: ScriptedCluster) -> None:
    await client.append(0, b"0")
    cluster.logs[0].gate.clear()
    with pytest.raises(OutcomeUnknown) as caught:
        await client.append(0, b"slow", timeout_s=0.05)
    unknown = pickle.loads(pickle.dumps(caught.value))
    assert (unknown.partition, unknown.client_id, unknown.sequence, unknown.since) == (0, client.client_id, 2, 0)
    cluster.logs[0].gate.set()
    assert await client.resolve(unknown) == Receipt(0, 1, 1_600_000_000_002)


async def test_resolve_waits_for_what_is_still_in_flight(client: WaltzClient, cluster: ScriptedCluster) -> None:
    """Asked at once, the log would say "not there" of a frame that is still on its way."""
    await client.append(0, b"0")
    cluster.logs[0].gate.clear()
    with pytest.raises(OutcomeUnknown) as caught:
        await client.append(0, b"slow", timeout_s=0.02)
    resolving = asyncio.create_task(client.resolve(caught.value))
    await asyncio.sleep(0.02)
    assert not resolving.done()
    cluster.logs[0].gate.set()
    assert await resolving == Receipt(0, 1, 1_600_000_000_002)


async def test_an_append_that_never_reached_the_log_resolves_to_none(connect: Connect, cluster: ScriptedCluster, network: MemoryNetwork) -> None:
    client = await connect(stall_timeout_s=0.05)
    await client.append(0, b"0")
    cluster.logs[0].gate.clear()
    with pytest.raises(OutcomeUnknown) as caught:
        await client.append(0, b"lost", timeout_s=0.02)
    network.cut(cluster.servers[0].address)
    await until(lambda: not cluster.logs[0].mounted)
    cluster.logs[0].gate.set()
    network.heal(cluster.servers[0].address)
    assert await client.resolve(caught.value) is None
    assert cluster.logs[0].data() == [b"0"]


async def test_resolve_of_another_client_ends_its_connection_and_not_the_client(connect: Connect, cluster: ScriptedCluster) -> None:
    silent, heir = await connect(), await connect()
    await silent.append(0, b"0")
    before = list(cluster.logs[0].mounted)
    there = OutcomeUnknown(partition=0, client_id=silent.client_id, sequence=1, since=-1, reason="no answer")
    never = OutcomeUnknown(partition=0, client_id=silent.client_id, sequence=9, since=-1, reason="no answer")
    assert (await heir.resolve(there)) == Receipt(0, 0, 1_600_000_000_001)
    assert await heir.resolve(never) is None
    await until(lambda: not [mounted for mounted in cluster.logs[0].mounted if mounted in before])
    assert (await silent.append(0, b"on")).transaction_id == 1
    assert cluster.logs[0].data() == [b"0", b"on"]


async def test_resolve_that_cannot_be_final_is_unavailable_in_time(client: WaltzClient, cluster: ScriptedCluster) -> None:
    await client.append(0, b"0")
    cluster.logs[0].final = False
    with pytest.raises(Unavailable):
        await client.resolve(OutcomeUnknown(partition=0, client_id=client.client_id, sequence=5, since=0, reason=""), timeout_s=0.1)


async def test_an_append_that_was_never_sent_fails_with_not_appended(client: WaltzClient, cluster: ScriptedCluster) -> None:
    await cluster.move(0, None)
    with pytest.raises(NotAppended, match="deadline passed before it was sent"):
        await client.append(0, b"", timeout_s=0.02)
    await cluster.move(0, 1)
    await client.append(0, b"after")
    assert cluster.logs[0].data() == [b"after"]


async def test_an_append_that_its_caller_cancelled_is_not_sent(client: WaltzClient, cluster: ScriptedCluster) -> None:
    await cluster.move(0, None)
    cancelled = asyncio.create_task(client.append(0, b"cancelled"))
    kept = asyncio.create_task(client.append(0, b"kept"))
    await asyncio.sleep(0.01)
    cancelled.cancel()
    await asyncio.gather(cancelled, return_exceptions=True)
    await cluster.move(0, 1)
    assert (await kept).transaction_id == 0
    assert cluster.logs[0].data() == [b"kept"]


async def test_a_silent_owner_is_left(connect: Connect, cluster: ScriptedCluster) -> None:
    client = await connect(stall_timeout_s=0.05)
    await client.append(0, b"0")
    cluster.logs[0].gate.clear()
    stuck = asyncio.create_task(client.append(0, b"1"))
    await until(lambda: cluster.servers[0].mounts > 1)
    cluster.logs[0].gate.set()
    assert (await stuck).transaction_id == 1
    assert cluster.logs[0].data() == [b"0", b"1"]


# ---- bounds --------------------------------------------------------------------------------------------------------------------------------------


async def test_the_window_is_bounded_by_count_and_lets_appends_in_in_order(connect: Connect, cluster: ScriptedCluster) -> None:
    client = await connect(max_pending=10)
    cluster.logs[0].gate.clear()
    accepted_marks: list[int] = []
    futures = {}

    async def submit(n: int) -> None:
        futures[n] = await client.append_nowait(0, b"%d" % n)
        accepted_marks.append(n)

    tasks = [asyncio.create_task(submit(n)) for n in range(40)]
    await asyncio.sleep(0.02)
    assert accepted_marks == list(range(10))
    cluster.logs[0].gate.set()
    await asyncio.gather(*tasks)
    await asyncio.gather(*futures.values())
    assert accepted_marks == list(range(40))
    assert cluster.logs[0].data() == [b"%d" % n for n in range(40)]


async def test_the_window_is_bounded_by_bytes_but_takes_one_large_transaction(connect: Connect, cluster: ScriptedCluster) -> None:
    client = await connect(max_pending_bytes=4096, frame_bytes=4096)
    cluster.logs[0].gate.clear()
    large = await client.append_nowait(0, bytes(100_000))
    waiting = asyncio.create_task(client.append_nowait(0, b"small"))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    with pytest.raises(NotAppended, match="no room"):
        await client.append_nowait(0, b"impatient", timeout_s=0.01)
    cluster.logs[0].gate.set()
    assert (await large).transaction_id == 0
    assert (await (await waiting)).transaction_id == 1
    producer = client._producers.by_key[0]
    await until(lambda: producer.window.pending == 0)
    assert (producer.window.pending_bytes, producer.window.queue_bytes) == (0, 0)


async def test_room_is_given_back_after_every_kind_of_end(connect: Connect, cluster: ScriptedCluster) -> None:
    client = await connect(max_pending=64)
    window = client._producer(0).window
    await client.append(0, b"", write_locks=[SEAT])
    cluster.logs[0].faults.extend([Break("before"), None, Break("after"), Refuse(pb.REFUSAL_STORAGE_FULL), Refuse(pb.REFUSAL_MOVING)])
    for round_ in range(20):
        waiting = []
        for n in range(32):
            locks = [SEAT] if n % 5 == 0 else []
            timeout_s = 0.0001 if n % 7 == 0 else None
            try:
                waiting.append(await client.append_nowait(0, bytes(n), write_locks=locks, high_water_mark=-1, timeout_s=timeout_s))
            except NotAppended:
                continue
        if round_ % 3 == 0:
            waiting[3].cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    await client.flush()
    await until(lambda: not window.frames and not window.queue)
    assert (window.pending, window.pending_bytes, window.queue_bytes) == (0, 0, 0)


@pytest.mark.parametrize("partition", ["0", 0.0, None, True, b"0"])
async def test_a_partition_that_is_no_number_is_refused_by_its_type(partition: int, client: WaltzClient) -> None:
    with pytest.raises(InvalidRequest, match=f"a partition must be a number, not {type(partition).__name__}"):
        await client.append(partition, b"")


async def test_sequences_that_are_used_up_go_on_under_another_client_id(client: WaltzClient, cluster: ScriptedCluster) -> None:
    producer = client._producer(0)
    producer.sequence_max = client.settings.max_pending + 100
    for start in range(0, 300, 50):
        await asyncio.gather(*[await client.append_nowait(0, b"%d" % n) for n in range(start, start + 50)])
    assert cluster.logs[0].data() == [b"%d" % n for n in range(300)]
    assert producer.client_id != client.client_id
    assert len(set(cluster.logs[0].sequences())) == 300


async def test_resolve_keeps_its_deadline_if_the_partition_has_no_owner(connect: Connect, cluster: ScriptedCluster) -> None:
    client = await connect(request_timeout_s=60)
    await cluster.move(0, None)
    async with asyncio.timeout(5):
        for client_id in (client.client_id, 99):
            with pytest.raises(Unavailable):
                await client.resolve(OutcomeUnknown(partition=0, client_id=client_id, sequence=1, since=-1, reason=""), timeout_s=0.1)


# ---- closing -------------------------------------------------------------------------------------------------------------------------------------


async def test_close_waits_for_what_is_pending(connect: Connect, cluster: ScriptedCluster) -> None:
    client = await connect()
    futures = [await client.append_nowait(0, b"") for _ in range(10)]
    await client.close()
    assert [future.result().transaction_id for future in futures] == list(range(10))
    with pytest.raises(InvalidRequest, match="closed"):
        await client.append(0, b"")


async def test_close_reports_what_it_cannot_wait_for_and_leaves_no_task(connect: Connect, cluster: ScriptedCluster) -> None:
    before = asyncio.all_tasks()
    client = await connect(close_timeout_s=0.05, frame_bytes=4096, linger_ms=1000)
    cluster.logs[0].gate.clear()
    sent = await client.append_nowait(0, b"sent")
    await until(lambda: cluster.logs[0].frames == 1)
    await client.append_nowait(0, b"sent too")
    await asyncio.sleep(0.01)
    queued = await client.append_nowait(0, b"queued")
    reported: list[object] = []
    for future in (sent, queued):
        future.add_done_callback(lambda done: reported.append(done.exception()))
    await client.close()
    await asyncio.sleep(0)
    assert [type(error) for error in reported] == [OutcomeUnknown, NotAppended]
    cluster.logs[0].gate.set()
    await until(lambda: not {task for task in asyncio.all_tasks() - before if "waltz" in task.get_name()})
    assert len(reported) == 2


@pytest.mark.parametrize("at", ["flush", "end"])
async def test_a_close_that_is_cancelled_ends_everything_all_the_same(connect: Connect, cluster: ScriptedCluster, at: str) -> None:
    before = asyncio.all_tasks()
    client = await connect(close_timeout_s=60)
    ending, going_on = asyncio.Event(), asyncio.Event()
    if at == "flush":
        cluster.logs[0].gate.clear()
    else:
        end = client._owners.close

        async def slow() -> None:
            ending.set()
            await going_on.wait()
            await end()

        client._owners.close = slow  # type: ignore[method-assign]
    future = await client.append_nowait(0, b"x")
    await until(lambda: cluster.logs[0].frames == 1)
    closing = asyncio.create_task(client.close())
    if at == "end":
        await ending.wait()
    else:
        await asyncio.sleep(0.01)
    closing.cancel()
    await asyncio.sleep(0)
    closing.cancel()
    going_on.set()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert isinstance(future.exception(), OutcomeUnknown if at == "flush" else type(None))
    cluster.logs[0].gate.set()
    await until(lambda: not {task for task in asyncio.all_tasks() - before if "waltz" in task.get_name()})
    assert client._owners._following._task is None


async def test_an_append_that_got_room_just_as_the_client_ended_fails(connect: Connect, cluster: ScriptedCluster) -> None:
    client = await connect(max_pending=1)
    cluster.logs[0].gate.clear()
    first = await client.append_nowait(0, b"first")
    producer = client._producer(0)
    first.add_done_callback(lambda _: producer._end(InvalidRequest(reason="the client is closed"), "the client was closed"))
    second = asyncio.create_task(client.append(0, b"second", timeout_s=60))
    await until(lambda: bool(producer.window._waiting))
    cluster.logs[0].gate.set()
    async with asyncio.timeout(5):
        with pytest.raises(NotAppended, match="closed"):
            await second


async def test_the_bound_comes_from_the_owner(client: WaltzClient, cluster: ScriptedCluster) -> None:
    assert await client.high_water_mark(1) == -1
    await client.append(1, b"")
    await cluster.move(1, 2)
    assert await client.high_water_mark(1) == 0


async def test_a_lost_server_is_followed_elsewhere(connect: Connect, cluster: ScriptedCluster, network: MemoryNetwork) -> None:
    client = await connect()
    followed = client._owners._following.server
    assert followed is not None
    other = next(server for server in cluster.servers if server.address != followed)
    network.cut(followed)
    await cluster.move(0, other.server_id)
    assert (await client.append(0, b"")).transaction_id == 0
    await until(lambda: client._owners._following.server == other.address)


async def test_a_trimmed_log_is_mounted_where_it_begins(connect: Connect, client: WaltzClient, cluster: ScriptedCluster) -> None:
    other = await connect()
    for n in range(3):
        await other.append(0, b"%d" % n)
    cluster.logs[0].trim(2)
    assert (await client.append(0, b"3", write_locks=[SEAT])).transaction_id == 3
