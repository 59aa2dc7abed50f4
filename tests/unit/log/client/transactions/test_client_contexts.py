"""Contexts and applications over a scripted cluster: hooks, executions after conflicts, feeding again after errors, what is left after close."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from waltz_log.client import Application, Context, Lock, LockConflict, Receipt, Transaction, TransactionContext, WaltzClient
from waltz_log.client.transactions import completions
from waltz_log.core.metadata import ClusterParameters
from waltz_log.errors import GaveUp, InvalidRequest, NotAppended, OutcomeUnknown, OutOfRange
from waltz_log.testing.scripted_server import Break, Refuse, ScriptedCluster
from waltz_log.transport import waltz_pb2 as pb

Connect = Callable[..., Awaitable[WaltzClient]]


class Counters(Application):
    """One counter by key and partition; refuses a lost update."""

    def __init__(self) -> None:
        self.counts: dict[tuple[int, bytes], int] = {}
        self.marks: dict[int, int] = {}
        self.failing = 0
        self.go_on = False
        self.errors: list[str] = []

    def client_high_water_mark(self, partition: int) -> int:
        return self.marks.get(partition, -1)

    def apply(self, partition: int, transactions: list[Transaction]) -> None:
        for each in transactions:
            if self.failing and each.transaction_id >= self.failing:
                raise RuntimeError(f"cannot apply {each.transaction_id}")
            assert each.transaction_id == self.marks.get(partition, -1) + 1
            key, _, count = each.data.partition(b"=")
            assert int(count) == self.counts.get((partition, key), 0) + 1, "lost update"
            self.counts[partition, key] = int(count)
            self.marks[partition] = each.transaction_id

    def on_error(self, partition: int, error: BaseException) -> bool:
        self.errors.append(str(error))
        return self.go_on


class Increment(Context):
    def __init__(self, application: Counters, key: bytes, *, reported: bool = False) -> None:
        self.application = application
        self.key = key
        self.reported = reported
        self.events: list[str] = []
        self.before: Callable[[TransactionContext], Awaitable[None]] | None = None

    def partition(self, count: int) -> int:
        return len(self.key) % count

    def locks(self) -> list[Lock] | None:
        return [Lock("key", self.key.decode())] if self.reported else None

    async def execute(self, tx: TransactionContext) -> None:
        self.events.append(f"execute {tx.attempt}")
        count = self.application.counts.get((tx.partition, self.key), 0) + 1
        if self.before is not None:
            await self.before(tx)
        tx.append(b"%s=%d" % (self.key, count), write_locks=[Lock("key", self.key.decode())])

    def on_lock_failure(self, conflict: LockConflict) -> None:
        self.events.append(f"lock failure {conflict.winner}")

    async def on_completion(self, receipt: Receipt | None) -> None:
        self.events.append(f"completion {None if receipt is None else receipt.transaction_id}")

    def on_application(self) -> None:
        self.events.append("application")

    def on_exception(self, error: BaseException) -> None:
        self.events.append(f"exception {type(error).__name__}")


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


async def test_a_context_learns_of_its_completion_and_then_of_its_application(client: WaltzClient) -> None:
    application = Counters()
    await client.mount(application)
    context = Increment(application, b"a")
    receipt = await (await client.submit(context))
    assert receipt is not None
    assert (receipt.partition, receipt.transaction_id) == (1, 0)
    assert context.events == ["execute 1", "completion 0", "application"]
    assert application.counts == {(1, b"a"): 1}


class Watched(Counters):
    """Notes what it applies among the events of the contexts."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[str] = []

    def apply(self, partition: int, transactions: list[Transaction]) -> None:
        super().apply(partition, transactions)
        self.events += [f"apply {each.transaction_id}" for each in transactions]


async def test_on_completion_is_called_before_apply_even_if_the_feed_is_faster_than_the_answer(client: WaltzClient, cluster: ScriptedCluster) -> None:
    application = Watched()
    await client.mount(application)
    cluster.logs[1].faults.extend([Break("after"), None, Break("after")])  # in the log, and the answer is lost
    for number in range(4):
        context = Increment(application, b"a")
        context.events = application.events
        assert await (await client.submit(context)) is not None
        assert application.events == ["execute 1", f"completion {number}", f"apply {number}", "application"]
        application.events.clear()


async def test_apply_waits_for_a_slow_on_completion_of_its_own_transaction_only(connect: Connect, cluster: ScriptedCluster) -> None:
    client, other = await connect(), await connect()
    application = Watched()
    await client.mount(application)
    go_on = asyncio.Event()

    class Slow(Increment):
        async def on_completion(self, receipt: Receipt | None) -> None:
            await go_on.wait()
            await super().on_completion(receipt)

    context = Slow(application, b"a")
    context.events = application.events
    await other.append(1, b"b=1")
    slow = await client.submit(context)
    await until(lambda: cluster.logs[1].high_water_mark == 1)
    await until(lambda: "apply 0" in application.events)
    await asyncio.sleep(0.02)
    assert "apply 1" not in application.events
    go_on.set()
    await slow
    assert application.events[-3:] == ["completion 1", "apply 1", "application"]


async def test_apply_does_not_wait_longer_than_the_context_for_its_outcome(client: WaltzClient, cluster: ScriptedCluster) -> None:
    application = Watched()
    await client.mount(application)
    cluster.logs[1].faults.append(Break("after"))
    cluster.logs[1].final = False  # the owner never says what became of it
    context = Increment(application, b"a")
    context.events = application.events
    task = await client.submit(context, timeout_s=0.2)
    with pytest.raises(OutcomeUnknown):
        await task
    await until(lambda: "apply 0" in application.events)
    assert application.events == ["execute 1", "exception OutcomeUnknown", "apply 0"]


async def test_a_hook_that_waits_for_its_own_transaction_to_be_applied_does_not_stop_the_feed(
    client: WaltzClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completions, "HOOK_S", 0.05)
    application = Watched()
    await client.mount(application)

    class Impatient(Increment):
        async def on_completion(self, receipt: Receipt | None) -> None:
            assert receipt is not None
            await client.applied(1).wait(receipt.transaction_id)
            await super().on_completion(receipt)

    context = Impatient(application, b"a")
    context.events = application.events
    async with asyncio.timeout(10):
        await (await client.submit(context))
    assert application.events == ["execute 1", "apply 0", "completion 0", "application"]


async def test_a_context_that_was_never_sent_when_the_client_closed_is_not_appended(connect: Connect, cluster: ScriptedCluster) -> None:
    client = await connect(close_timeout_s=0.01)
    application = Counters()
    await client.mount(application)
    await cluster.move(1, None)
    context = Increment(application, b"a")
    task = await client.submit(context)
    await until(lambda: context.events == ["execute 1"])
    await asyncio.sleep(0.01)
    await client.close()
    with pytest.raises(NotAppended, match="the client was closed"):
        await task
    assert context.events == ["execute 1", "exception GaveUp"]


async def test_a_context_is_executed_again_after_it_has_seen_who_was_faster(connect: Connect) -> None:
    mine, other = await connect(), await connect()
    application = Counters()
    await mine.mount(application)
    context = Increment(application, b"a")

    async def faster(tx: TransactionContext) -> None:
        if tx.attempt == 1:
            await other.append(1, b"a=1", write_locks=[Lock("key", "a")])

    context.before = faster
    await (await mine.submit(context))
    assert context.events == ["execute 1", "lock failure 0", "execute 2", "completion 1", "application"]
    assert application.counts == {(1, b"a"): 2}


@pytest.mark.parametrize("reported", [False, True])
async def test_contexts_of_one_client_that_want_one_lock_are_not_refused_by_the_log(client: WaltzClient, reported: bool) -> None:
    application = Counters()
    await client.mount(application)
    contexts = [Increment(application, b"abc"[: number % 3 + 1], reported=reported) for number in range(120)]
    await asyncio.gather(*[await client.submit(context) for context in contexts])
    assert sorted(application.counts.values()) == [40, 40, 40]
    events = [event for context in contexts for event in context.events]
    assert not [event for event in events if event.startswith("lock failure")]
    executions = sum(event.startswith("execute") for event in events)
    assert executions == 120 if reported else executions <= 240


async def test_a_context_that_its_own_client_overtook_while_it_was_executed_is_executed_again_and_not_refused(client: WaltzClient) -> None:
    application = Counters()
    await client.mount(application)
    overtaken, go_on = Increment(application, b"a"), asyncio.Event()

    async def slow(tx: TransactionContext) -> None:
        await go_on.wait()

    overtaken.before = slow
    task = await client.submit(overtaken)
    await (await client.submit(Increment(application, b"a")))
    go_on.set()
    await task
    assert overtaken.events == ["execute 1", "execute 2", "completion 1", "application"]


async def test_contexts_that_read_one_lock_do_not_wait_for_each_other(client: WaltzClient, cluster: ScriptedCluster) -> None:
    application = Counters()
    await client.mount(application)
    gate = cluster.logs[0].gate

    class Reader(Context):
        def partition(self, count: int) -> int:
            return 0

        def execute(self, tx: TransactionContext) -> None:
            number = int(str(id(self))[-6:])
            tx.append(b"%d=1" % number, read_locks=[Lock("catalogue", 1)], append_locks=[Lock("log", 1)])

    gate.clear()
    tasks = [await client.submit(Reader()) for _ in range(20)]
    async with asyncio.timeout(5):
        while len(client.unacknowledged()) < 20:
            await asyncio.sleep(0.001)
    gate.set()
    assert len({receipt.transaction_id for receipt in await asyncio.gather(*tasks) if receipt is not None}) == 20


async def test_a_context_with_nothing_to_do_completes_with_nothing(client: WaltzClient, cluster: ScriptedCluster) -> None:
    events: list[object] = []

    class Idle(Context):
        def partition(self, count: int) -> int:
            return 0

        def execute(self, tx: TransactionContext) -> None:
            return

        def on_completion(self, receipt: Receipt | None) -> None:
            events.append(receipt)

        def on_application(self) -> None:
            events.append("application")

    await client.mount(Counters())
    assert await (await client.submit(Idle())) is None
    assert events == [None]
    assert cluster.logs[0].frames == 0


async def test_an_error_in_execute_ends_a_context_and_an_error_in_a_hook_does_not(client: WaltzClient) -> None:
    application = Counters()
    await client.mount(application)

    class Broken(Increment):
        async def execute(self, tx: TransactionContext) -> None:
            raise ZeroDivisionError

    broken = Broken(application, b"a")
    with pytest.raises(ZeroDivisionError):
        await (await client.submit(broken))
    assert broken.events == ["exception ZeroDivisionError"]

    class Careless(Increment):
        async def on_completion(self, receipt: Receipt | None) -> None:
            raise ZeroDivisionError

    careless = Careless(application, b"a")
    assert await (await client.submit(careless)) is not None
    assert careless.events == ["execute 1", "application"]


async def test_an_outcome_that_is_unknown_is_not_tried_again(connect: Connect, cluster: ScriptedCluster) -> None:
    client = await connect()
    application = Counters()
    await client.mount(application)
    cluster.logs[1].gate.clear()
    context = Increment(application, b"a")
    with pytest.raises(OutcomeUnknown):
        await (await client.submit(context, timeout_s=0.2))
    assert context.events == ["execute 1", "exception OutcomeUnknown"]
    cluster.logs[1].gate.set()


async def test_retries_stop_when_the_clients_budget_is_spent(connect: Connect, cluster: ScriptedCluster) -> None:
    client = await connect(retry_budget=3)
    application = Counters()
    await client.mount(application)
    cluster.logs[1].faults.extend([Refuse(pb.REFUSAL_STORAGE_FULL)] * 5)
    first = Increment(application, b"a")
    with pytest.raises(NotAppended):
        await (await client.submit(first))
    assert first.events == ["execute 1", "execute 2", "execute 3", "execute 4", "exception GaveUp"]
    second = Increment(application, b"a")
    with pytest.raises(NotAppended):
        await (await client.submit(second))
    assert second.events == ["execute 1", "exception GaveUp"]
    assert await (await client.submit(Increment(application, b"a"))) is not None


async def test_the_feed_begins_again_from_the_applications_mark_after_an_error(client: WaltzClient) -> None:
    application = Counters()
    application.go_on = True
    await client.mount(application)
    await (await client.submit(Increment(application, b"a")))
    application.failing = 1
    task = await client.submit(Increment(application, b"a"))
    async with asyncio.timeout(5):
        while len(application.errors) < 3:
            await asyncio.sleep(0.001)
    application.failing = 0
    assert await task is not None
    assert application.counts == {(1, b"a"): 2}
    assert set(application.errors) == {"cannot apply 1"}


async def test_an_application_that_does_not_go_on_ends_its_partition_alone(client: WaltzClient) -> None:
    application = Counters()
    await client.mount(application)
    await (await client.submit(Increment(application, b"a")))
    application.failing = 1
    committed = Increment(application, b"a")
    assert await (await client.submit(committed)) is not None
    assert committed.events == ["execute 1", "completion 1"]
    with pytest.raises(RuntimeError, match="cannot apply 1"):
        await (await client.submit(Increment(application, b"a")))
    application.failing = 0
    assert await (await client.submit(Increment(application, b"bb"))) is not None
    await client.mount(application)
    assert await (await client.submit(Increment(application, b"a"))) is not None
    assert application.counts == {(1, b"a"): 3, (0, b"bb"): 1}


async def test_an_application_ahead_of_the_log_is_refused(client: WaltzClient) -> None:
    application = Counters()
    application.marks[1] = 7
    await client.mount(application)
    with pytest.raises(OutOfRange):
        await client.applied(1).wait(8)
    with pytest.raises(OutOfRange):
        await (await client.submit(Increment(application, b"a")))


async def test_partitions_are_mounted_and_unmounted_by_name(client: WaltzClient) -> None:
    application = Counters()
    with pytest.raises(InvalidRequest, match="no application"):
        await client.submit(Increment(application, b"a"))
    await client.mount(application, [0])
    with pytest.raises(InvalidRequest, match="not mounted"):
        await client.submit(Increment(application, b"a"))
    with pytest.raises(InvalidRequest, match="another application"):
        await client.mount(Counters())
    await client.mount(application, [1])
    await (await client.submit(Increment(application, b"a")))
    await client.unmount([1])
    with pytest.raises(InvalidRequest, match="not mounted"):
        await client.submit(Increment(application, b"a"))


async def test_room_for_contexts_is_waited_for(connect: Connect, cluster: ScriptedCluster) -> None:
    client = await connect(contexts_max=3)
    application = Counters()
    await client.mount(application)
    cluster.logs[1].gate.clear()
    tasks = [await client.submit(Increment(application, b"a")) for _ in range(3)]
    waiting = asyncio.ensure_future(client.submit(Increment(application, b"a")))
    await asyncio.sleep(0.02)
    assert not waiting.done()
    with pytest.raises(NotAppended, match="no room"):
        await client.submit(Increment(application, b"a"), timeout_s=0.01)
    cluster.logs[1].gate.set()
    await asyncio.gather(*tasks, await waiting)
    assert application.counts == {(1, b"a"): 4}


async def test_flush_waits_for_contexts_too(client: WaltzClient) -> None:
    application = Counters()
    await client.mount(application)
    tasks = [await client.submit(Increment(application, b"a")) for _ in range(10)]
    await client.flush()
    assert all(task.done() for task in tasks)


async def test_close_reports_the_outcome_of_contexts_and_leaves_no_task(connect: Connect, cluster: ScriptedCluster) -> None:
    before = asyncio.all_tasks()
    client = await connect(close_timeout_s=0.05)
    application = Counters()
    await client.mount(application)
    cluster.logs[1].gate.clear()
    sent, waiting = Increment(application, b"a"), Increment(application, b"a")
    tasks = [await client.submit(sent), await client.submit(waiting)]
    await asyncio.sleep(0.02)
    await client.close()
    assert [type(task.exception()) for task in tasks] == [OutcomeUnknown, GaveUp]
    assert sent.events == ["execute 1", "exception OutcomeUnknown"]
    assert waiting.events[-1] == "exception GaveUp"
    cluster.logs[1].gate.set()
    async with asyncio.timeout(5):
        while {task for task in asyncio.all_tasks() - before if "waltz" in task.get_name()}:
            await asyncio.sleep(0.001)


async def test_a_context_cancelled_during_its_application_learns_only_of_its_completion(client: WaltzClient) -> None:
    class Slow(Counters):
        applying = asyncio.Event()

        async def apply(self, partition: int, transactions: list[Transaction]) -> None:  # type: ignore[override]
            self.applying.set()
            await asyncio.Event().wait()

    application = Slow()
    await client.mount(application)
    context = Increment(application, b"a")
    task = await client.submit(context)
    async with asyncio.timeout(5):
        await application.applying.wait()
        while "completion 0" not in context.events:
            await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert context.events == ["execute 1", "completion 0"]


async def test_mounts_at_the_same_time_are_one_after_the_other(client: WaltzClient) -> None:
    class Waiting(Counters):
        begun = 0

        async def begin(self, cluster: ClusterParameters) -> None:
            self.begun += 1
            await asyncio.sleep(0)

        async def client_high_water_mark(self, partition: int) -> int:  # type: ignore[override]
            await asyncio.sleep(0)
            return self.marks.get(partition, -1)

    application = Waiting()
    await asyncio.gather(client.mount(application, [0]), client.mount(application, [1]), client.mount(application, [0, 1]))
    receipts = [await client.append(partition, b"a=1") for partition in range(2)]
    for receipt in receipts:
        await client.applied(receipt.partition).wait(receipt.transaction_id)
    assert application.begun == 1
    assert application.counts == {(0, b"a"): 1, (1, b"a"): 1}
    await client.unmount()
    assert application.errors == []


async def test_a_context_that_is_cancelled_gives_its_turn_to_the_next(client: WaltzClient, cluster: ScriptedCluster) -> None:
    application = Counters()
    await client.mount(application)
    cluster.logs[1].gate.clear()
    tasks = [await client.submit(Increment(application, b"a")) for _ in range(4)]
    await asyncio.sleep(0.02)
    tasks[1].cancel()
    tasks[2].cancel()
    cluster.logs[1].gate.set()
    assert await tasks[3] is not None
    assert application.counts == {(1, b"a"): 2}
    assert len(client.applied(1).admission) == 0


@pytest.mark.parametrize("when", ["before", "after"])
async def test_contexts_survive_breaks_without_a_lost_or_double_update(connect: Connect, cluster: ScriptedCluster, when: str) -> None:
    client, other = await connect(), await connect()
    applications = Counters(), Counters()
    await client.mount(applications[0])
    await other.mount(applications[1])
    cluster.logs[1].faults.extend([None, Break(when), None, None, Break(when), Break(when)] * 5)  # type: ignore[arg-type]
    tasks = [
        await each.submit(Increment(mine, b"a"), attempts=1000) for _ in range(30) for each, mine in zip((client, other), applications, strict=True)
    ]
    await asyncio.gather(*tasks)
    assert applications[0].counts == {(1, b"a"): 60}
