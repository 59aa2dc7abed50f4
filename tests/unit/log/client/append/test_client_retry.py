"""Pauses and budgets of retries, and what of the client is refused after a fork or a close."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from waltz_log.client import Application, Context, Lock, TransactionContext, WaltzClient
from waltz_log.client.base.retry import Backoff, RetryBudget
from waltz_log.client.transactions.admission import Admission, Ticket
from waltz_log.client.transactions.transaction import Draft
from waltz_log.errors import InvalidRequest, LockConflict
from waltz_log.testing.scripted_server import ScriptedCluster

Connect = Callable[..., Awaitable[WaltzClient]]


@given(st.integers(0, 10_000), st.floats(0.001, 1), st.floats(0.001, 10))
@settings(max_examples=50, deadline=None)
def test_pauses_are_anything_up_to_a_bound_that_doubles_to_its_cap(seed: int, base_s: float, cap_s: float) -> None:
    pauses = Backoff(base_s, cap_s, random.Random(seed))
    plain = random.Random(seed)
    for tries in range(40):
        assert pauses.next_s() == plain.random() * min(cap_s, base_s * 2**tries)
    pauses.reset()
    assert pauses.next_s() <= min(cap_s, base_s)


def test_pauses_of_many_clients_are_spread_over_all_of_the_bound() -> None:
    pauses = sorted(Backoff(1.0, 8.0, random.Random(seed)).next_s() for seed in range(200))
    assert pauses[0] < 0.05
    assert pauses[-1] > 0.95
    assert max(later - sooner for sooner, later in pairwise(pauses)) < 0.1


@given(st.integers(0, 5), st.sampled_from([0.0, 0.25, 1.0]), st.lists(st.booleans(), max_size=60))
@settings(max_examples=100, deadline=None)
def test_a_budget_lends_no_more_than_its_size_and_what_was_earned(size: int, earned: float, calls: list[bool]) -> None:
    budget = RetryBudget(size, earned)
    tokens = float(size)
    for retry in calls:
        if retry:
            assert budget.spend() == (tokens >= 1)
            tokens -= 1 if tokens >= 1 else 0
        else:
            budget.earn()
            tokens = min(size, tokens + earned)
        assert budget.left == tokens


class Idle(Application):
    def client_high_water_mark(self, partition: int) -> int:
        return -1

    def apply(self, partition: int, transactions: object) -> None:
        return


class Nothing(Context):
    def partition(self, count: int) -> int:
        return 0

    def execute(self, tx: TransactionContext) -> None:
        tx.append(b"")


async def test_a_client_that_was_made_before_a_fork_refuses_everything_in_the_child(client: WaltzClient) -> None:
    await client.mount(Idle())
    child = os.fork()
    if child == 0:
        left = 1
        try:
            left = sum([await refused(call) for call in calls(client)]) - len(calls(client))
        finally:
            os._exit(left)
    _, status = await asyncio.to_thread(os.waitpid, child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert (await client.append(0, b"the parent goes on")).transaction_id == 0


async def test_a_client_refuses_everything_in_another_event_loop(client: WaltzClient) -> None:
    await client.mount(Idle())
    await client.append(0, b"mounts")

    async def elsewhere() -> bool:
        return all([await refused(call) for call in [*calls(client), client.close, lambda: client.append(1, b"")]])

    for _ in range(2):
        assert await asyncio.to_thread(asyncio.run, elsewhere())
    assert (await client.append(0, b"its own loop goes on")).transaction_id == 1


async def test_a_client_that_is_closed_refuses_everything(client: WaltzClient) -> None:
    await client.mount(Idle())
    await client.close()
    assert all([await refused(call) for call in calls(client)])


def calls(client: WaltzClient) -> list[Callable[[], Awaitable[object]]]:
    return [
        lambda: client.append(0, b""),
        lambda: client.append_many(0, [Draft(b"")]),
        lambda: client.append_bulk(0, [b""]),
        lambda: client.submit(Nothing()),
        lambda: client.mount(Idle()),
        lambda: client.follow(0, lambda batch: None),
        lambda: client.high_water_mark(0),
        lambda: client.flush(),
    ]


async def refused(call: Callable[[], Awaitable[object]]) -> bool:
    try:
        await call()
    except InvalidRequest:
        return True
    return False


async def test_cancelled_calls_leave_no_task_no_ticket_and_nothing_in_the_window(connect: Connect, cluster: ScriptedCluster) -> None:
    client = await connect()
    await client.append(0, b"first")
    follower = await client.follow(0, lambda batch: None)
    rng = random.Random(3)

    @client.transactional(follower)
    async def change(tx: TransactionContext, key: int) -> None:
        await asyncio.sleep(0)
        tx.append(b"", write_locks=[Lock("key", key)], read_locks=[Lock("all", 1)])

    await change(1)
    before = asyncio.all_tasks()
    for round_ in range(10):
        if round_ % 2:
            cluster.logs[0].gate.clear()
        running = [asyncio.ensure_future(change(rng.randrange(3))) for _ in range(20)]
        for _ in range(rng.randrange(12)):
            await asyncio.sleep(0)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        cluster.logs[0].gate.set()
    await client.flush()
    window = client._producer(0).window
    async with asyncio.timeout(10):
        while window.frames or window.queue or asyncio.all_tasks() - before:
            await asyncio.sleep(0.001)
    assert (window.pending, window.pending_bytes, len(follower.admission)) == (0, 0, 0)
    assert await change(1) is not None


# ---- turns at locks --------------------------------------------------------------------------------------------------------------------------------

KEYS = st.lists(st.integers(0, 3), max_size=2)


@given(st.lists(st.one_of(st.tuples(KEYS, KEYS, KEYS), st.integers(0, 30)), max_size=40))
@settings(max_examples=200, deadline=None)
def test_a_ticket_waits_exactly_while_a_ticket_ahead_sets_what_it_checks(steps: list[tuple[list[int], list[int], list[int]] | int]) -> None:
    """Against a list of all entries, searched again at each step."""
    admission = Admission()
    here: list[Ticket] = []
    for step in steps:
        if isinstance(step, int):
            if here:
                admission.leave(here.pop(step % len(here)))
        else:
            write, read, append = ([Lock("k", key) for key in keys] for keys in step)
            here.append(admission.join(Ticket.of(Draft(b"", 0, write, read, append))))
        for place, ticket in enumerate(here):
            assert bool(ticket._behind) == any(ahead.sets & ticket.checks for ahead in here[:place])
    for ticket in here:
        admission.leave(ticket)
    assert len(admission) == 0


async def test_a_conflict_with_another_client_lets_those_who_wait_go_to_the_owners_line(connect: Connect, cluster: ScriptedCluster) -> None:
    mine, other = await connect(), await connect()
    follower = await mine.follow(0, lambda batch: None)
    await other.append(0, b"foreign", write_locks=[Lock("a", 1)])
    await follower.wait(0)
    admission = follower.admission
    first = admission.join(Ticket.whole([Lock("a", 1)]))
    second = admission.join(Ticket.whole([Lock("a", 1)]))
    waiting = asyncio.ensure_future(second.turn_or_contest())
    declared = asyncio.ensure_future(admission.join(Ticket.whole([Lock("a", 1)])).turn())
    await asyncio.sleep(0)
    admission.rejected(first, 7)
    assert await waiting is True
    assert admission.contested(second)
    assert not declared.done()
    for number in range(16):
        admission.committed(first, 8 + number)
    assert not admission.contested(second)
    declared.cancel()
    conflict = LockConflict(partition=0, winner=23)
    admission.rejected(first, conflict.winner)  # its own: no one else's
    assert not admission.contested(second)
    admission.given_turn(first, conflict.winner)
    assert not admission.contested(second)
    admission.given_turn(first, conflict.winner + 1)
    assert admission.contested(second)
    both = Ticket.whole([Lock("a", 1), Lock("a", 2)])
    assert admission.unknown(both)
    admission.given_turn(both, conflict.winner)
    assert not admission.unknown(both)
    assert admission.contested(second), "what is known about one lock is not forgotten when another is asked about"
    assert not admission.contested(Ticket.whole([Lock("a", 2)]))
