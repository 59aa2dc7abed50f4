"""Asking for a turn at locks: what the caller learns, and that nothing of it shows where appends are counted."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from waltz_log.client import Lock, TransactionContext, WaltzClient
from waltz_log.client.append.append_window import AppendWindow
from waltz_log.client.append.pending_append import PendingAppend
from waltz_log.client.append.turn_request import await_turn
from waltz_log.client.base.settings import ClientSettings
from waltz_log.client.transactions.admission import Ticket
from waltz_log.client.transactions.transaction import lock_hash
from waltz_log.client.transactions.transactional import EXPECTED_MAX, _call_key, _ExpectedLocks
from waltz_log.core.locks.lock_columns import TURN_MARK
from waltz_log.errors import GaveUp, NotAppended, ProtocolViolation
from waltz_log.testing.cluster import MemoryCluster
from waltz_log.testing.scripted_server import ScriptedCluster
from waltz_log.testing.virtual_time import run_in_virtual_time

Connect = Callable[..., Awaitable[WaltzClient]]

LOCK = Lock("account", 1)
CHECKS = (lock_hash(LOCK),)


def _counts(client: WaltzClient) -> tuple[int, int, int, int, int]:
    found = client.statistics().partitions[0]
    return found.appended, found.rejected, found.not_appended, found.unknown, found.pending


async def test_a_turn_names_the_last_writer_and_leaves_nothing_in_the_log(connect: Connect) -> None:
    client = await connect()
    producer = client._producer(0)
    deadline = asyncio.get_running_loop().time() + 10
    assert await await_turn(producer, CHECKS, deadline) == -1
    receipt = await client.append(0, b"write", write_locks=[LOCK])
    assert await await_turn(producer, CHECKS, deadline) == receipt.transaction_id
    assert (await client.append(0, b"next")).transaction_id == receipt.transaction_id + 1
    assert _counts(client) == (2, 0, 0, 0, 0)


async def test_without_locks_or_with_too_many_no_turn_is_asked_for(connect: Connect) -> None:
    client = await connect(locks_max=2)
    producer = client._producer(0)
    deadline = asyncio.get_running_loop().time() + 10
    assert await await_turn(producer, (), deadline) is None
    assert await await_turn(producer, [lock_hash(Lock("a", key)) for key in range(3)], deadline) is None
    assert producer.window.next_sequence == 1


async def test_a_turn_that_does_not_come_in_time_is_nothing_unknown(connect: Connect, cluster: ScriptedCluster) -> None:
    client = await connect()
    await client.append(0, b"first")
    cluster.logs[0].gate.clear()
    asking = asyncio.ensure_future(await_turn(client._producer(0), CHECKS, asyncio.get_running_loop().time() + 0.05))
    await asyncio.sleep(0.01)
    assert client.unacknowledged(0) == []
    with pytest.raises(NotAppended, match="no turn"):
        await asking
    assert _counts(client)[1:4] == (0, 0, 0)
    cluster.logs[0].gate.set()
    await client.flush()
    assert (await client.append(0, b"second")).transaction_id == 1


def test_a_turn_request_that_was_never_sent_is_no_append_in_the_statistics() -> None:
    """It does count as pending, because it uses room in the window until it has an answer."""
    window = AppendWindow(0, max_pending=10, max_pending_bytes=1000, frame_bytes=1000, overlap_bytes=0)
    for mark in (TURN_MARK, 5):
        append = PendingAppend()
        append.future, append.mark, append.size, append.deadline = _Future(), mark, 10, 1.0  # type: ignore[assignment]
        assert window.try_enqueue(append)
    assert window.pending == 2
    window.expire(2.0, 1, "no owner")
    assert (window.not_appended, window.pending) == (1, 0)


class _Future:
    """One that no loop is needed for."""

    error: Exception | None = None

    def done(self) -> bool:
        return self.error is not None

    def set_exception(self, error: Exception) -> None:
        self.error = error


async def test_an_owner_that_appends_a_turn_request_is_found_out(connect: Connect, cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    client = await connect()
    judge = cluster.logs[0].locks.judge

    def accepting(marks: Any, *rest: Any) -> Any:
        return judge([max(0, mark) for mark in marks], *rest)

    monkeypatch.setattr(cluster.logs[0].locks, "judge", accepting)
    with pytest.raises(ProtocolViolation, match="turn request"):
        await await_turn(client._producer(0), CHECKS, asyncio.get_running_loop().time() + 10)


def test_the_deadline_of_a_call_ends_its_wait_for_a_turn_and_a_lost_owner_does_not() -> None:
    async def scenario() -> None:
        rng = random.Random(5)
        cluster = MemoryCluster(servers=2, delay_s=lambda: rng.uniform(0, 0.002))
        await cluster.start()
        client, other = await cluster.connect(seed=1), await cluster.connect(seed=2)
        follower = await client.follow(0, lambda batch: None)
        executions = 0

        @client.transactional(follower, timeout_s=60, locks=lambda: [LOCK])
        def change(tx: TransactionContext) -> None:
            nonlocal executions
            executions += 1
            tx.append(b"mine", write_locks=[LOCK])

        follower.admission.rejected(Ticket.whole([LOCK]), 1 << 40)  # another client wants the lock too
        await other.append(0, b"first", write_locks=[LOCK], high_water_mark=-1)
        stale = [await other.append_nowait(0, b"stale", write_locks=[LOCK], high_water_mark=-1) for _ in range(60)]
        waiting = asyncio.ensure_future(change())
        await asyncio.sleep(0.05)
        assert executions == 0, "its turn comes after the stale ones"

        @client.transactional(follower, timeout_s=0.1, locks=lambda: [Lock("b", 1)])
        def late(tx: TransactionContext) -> None:
            tx.append(b"late", write_locks=[Lock("b", 1)])

        follower.admission.rejected(Ticket.whole([Lock("b", 1)]), 1 << 40)
        await other.append(0, b"first", write_locks=[Lock("b", 1)], high_water_mark=-1)
        held = [await other.append_nowait(0, b"stale", write_locks=[Lock("b", 1)], high_water_mark=-1) for _ in range(40)]
        await asyncio.sleep(0.05)
        with pytest.raises(GaveUp) as gave_up:
            await late()
        assert (gave_up.value.limit, gave_up.value.attempts) == ("timeout_s", 0)
        await cluster.kill_server("server-0")
        assert (await waiting) is not None
        assert executions == 1
        await asyncio.gather(*stale, *held, return_exceptions=True)
        assert len(follower.admission) == 0
        assert client.statistics().partitions[0].unknown == 0
        await client.close()
        await other.close()
        await cluster.stop()

    run_in_virtual_time(scenario())


def test_expected_locks_are_those_of_equal_arguments_and_bounded() -> None:
    assert _call_key((1, "a"), {}) == _call_key((1, "a"), {})
    assert _call_key((), {"a": 1, "b": 2}) == _call_key((), {"b": 2, "a": 1})
    assert _call_key(([],), {}) is None
    expected = _ExpectedLocks()
    for key in range(EXPECTED_MAX + 1):
        expected.remember(key, Ticket.whole([Lock("a", key)]))
        assert expected.of(1) is not None or key < 1
    assert expected.of(0) is None
    found = expected.of(1)
    assert found is not None
    assert found.checks == {lock_hash(Lock("a", 1))}
    assert found is not expected.of(1), "each call has a ticket of its own"


LINGER_S = 0.3


async def _appended_beside_waiting_turns() -> float:
    """The seconds that one append needs while two frames of its client wait for turns at a lock."""
    cluster = MemoryCluster(servers=1)
    await cluster.start()
    client = await cluster.connect(ClientSettings(linger_ms=1000 * LINGER_S), seed=1)
    other = await cluster.connect(seed=2)
    await other.append(0, b"first", write_locks=[LOCK])
    stale = [await other.append_nowait(0, b"stale", write_locks=[LOCK], high_water_mark=-1) for _ in range(60)]
    await asyncio.sleep(0.05)
    loop = asyncio.get_running_loop()
    asking = []
    for _ in range(2):
        asking.append(asyncio.ensure_future(await_turn(client._producer(0), CHECKS, loop.time() + 60)))
        await asyncio.sleep(0.05)
    await client.append(0, b"the owner has judged all before this one")
    began_s = loop.time()
    await client.append(0, b"beside")
    elapsed_s = loop.time() - began_s
    assert not any(each.done() for each in asking)
    await asyncio.gather(*asking, *stale, return_exceptions=True)
    await client.close()
    await other.close()
    await cluster.stop()
    return elapsed_s


def test_an_append_does_not_linger_because_others_of_its_client_wait_for_turns() -> None:
    assert run_in_virtual_time(_appended_beside_waiting_turns()) < LINGER_S / 10


def test_the_test_before_notices_frames_that_count_until_they_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AppendWindow, "lacks_answers", lambda self, count: len(self.frames) >= count)
    assert run_in_virtual_time(_appended_beside_waiting_turns()) >= LINGER_S / 10
