"""Tasks that others than their owner cancel: each in turn in a whole cluster, and the helper that makes all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from typing import Any  # coroutines

import pytest
from structlog.testing import capture_logs

from waltz_log.background_tasks import BackgroundTask, TaskSet, outcome_of, run_all, run_until_first_ends, start_task
from waltz_log.client import ClientSettings, Intent, Outbox, WaltzClient
from waltz_log.errors import InvalidRequest, Unavailable, WaltzError
from waltz_log.testing.cluster import LoopClock, MemoryCluster
from waltz_log.testing.disk import SimulatedDisk
from waltz_log.testing.offload import run_in_place
from waltz_log.testing.virtual_time import run_in_virtual_time

SETTINGS = ClientSettings(append_timeout_s=60)


def _names() -> set[str]:
    return {_name(task) for task in _others()}


def _others() -> list[asyncio.Task[object]]:
    return [task for task in asyncio.all_tasks() if task is not asyncio.current_task() and not task.get_name().startswith("test")]


def _name(task: asyncio.Task[object]) -> str:
    return getattr(task.get_coro(), "__qualname__", "")


def _cancel(name: str | None) -> int:
    found = [task for task in _others() if name in (None, _name(task))]
    for task in found:
        task.cancel()
    return len(found)


async def _check_goes_on(cluster: MemoryCluster, client: WaltzClient, seen: list[bytes], number: int) -> None:
    """Appends, moves the partition to the other server, appends again; a feed that began before sees all of it."""
    for half in ("before", "after"):
        data = f"{number} {half} the move".encode()
        await client.append(0, data)
        async with asyncio.timeout(120):
            while data not in seen:
                await asyncio.sleep(0.1)
        if half == "before":
            owner = next(name for name, (server, _) in cluster.servers.items() if 0 in server._partitions)
            await cluster.stop_server(owner)
            await cluster.start_server(owner)


async def _with_cluster(cancel: Callable[[set[str]], list[str | None]]) -> list[str | None]:
    cluster = MemoryCluster(servers=2, partitions=2)
    await cluster.start()
    client = await cluster.connect(SETTINGS)
    await client.append(0, b"first")
    await client.append(1, b"first")
    await asyncio.sleep(5)
    seen: list[bytes] = []

    async def follow() -> None:
        async with aclosing(client.feed(0)) as feed:
            async for transaction in feed:
                seen.append(transaction.data)

    following = asyncio.create_task(follow(), name="test feed")
    cancelled = cancel(_names())
    for number, name in enumerate(cancelled):
        _cancel(name)
        await _check_goes_on(cluster, client, seen, number)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    async with asyncio.timeout(60):
        await client.close()
        await cluster.stop()
    await asyncio.sleep(1)
    assert _names() == set(), "tasks go on after their owner was closed"
    return cancelled


def test_each_task_of_a_cluster_can_be_cancelled_by_its_name_and_the_cluster_goes_on() -> None:
    cancelled = run_in_virtual_time(_with_cluster(lambda names: [*sorted(names)]))
    assert {"Producer._run", "ReplicaSession.run", "Partition.run", "LogServer._follow", "AppendTask.order"} <= set(cancelled)
    assert len(cancelled) > 30


def test_all_tasks_of_a_cluster_and_its_client_can_be_cancelled_at_once() -> None:
    assert run_in_virtual_time(_with_cluster(lambda _: [None, None, None])) == [None] * 3


def test_the_tasks_of_an_outbox_can_be_cancelled_and_it_goes_on_forwarding() -> None:
    async def run() -> int:
        cluster = MemoryCluster(servers=1)
        await cluster.start()
        reader = await cluster.connect(SETTINGS)
        outbox = Outbox(SimulatedDisk(), run_in_place, LoopClock(), cluster.seeds, cluster.network)
        async with outbox:
            await (await outbox.submit(Intent.data(0, b"first")))[0].outcome()
            await asyncio.sleep(5)
            names = sorted(
                name for name in _names() if name.startswith(("Engine", "JournalWriter", "Session", "Lane", "Producer", "AppendStream", "Calls"))
            )
            for name in [*names, None]:
                _cancel(name)
                data = f"after {name}".encode()
                async with asyncio.timeout(60):
                    while True:
                        try:
                            receipts = await outbox.submit(Intent.data(0, data))
                            break
                        except WaltzError:
                            await asyncio.sleep(0.1)
                    await receipts[0].outcome()
        found = [each.data for each in await reader.fetch(0, range(await reader.high_water_mark(0) + 1))]
        assert found == [b"first", *(f"after {name}".encode() for name in [*names, None])]
        await reader.close()
        await cluster.stop()
        return len(names)

    assert run_in_virtual_time(run()) >= 7


# ---- the helper ----------------------------------------------------------------------------------------------------------------------------------


async def _forever() -> None:
    await asyncio.Event().wait()


async def _fails() -> None:
    raise InvalidRequest(reason="broken")


async def _returns() -> None:
    return


@pytest.mark.parametrize("together", [run_until_first_ends, run_all])
def test_a_group_ends_with_a_named_error_where_others_cancel_one_of_it(together: Callable[..., Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        group = asyncio.ensure_future(together(_forever(), _forever()))
        await asyncio.sleep(1)
        assert _cancel("_forever") == 2
        with pytest.raises(Unavailable, match="a background task was cancelled: task=_forever"):
            await group
        group = asyncio.ensure_future(together(_forever(), _fails()))
        with pytest.raises(InvalidRequest, match="broken"):
            await group
        group = asyncio.ensure_future(together(_forever(), _forever()))
        await asyncio.sleep(1)
        group.cancel()
        with pytest.raises(asyncio.CancelledError):
            await group
        assert _names() == set()

    run_in_virtual_time(run())


def test_a_background_task_starts_again_until_its_owner_ends_it() -> None:
    async def run() -> None:
        runs = 0

        async def work() -> None:
            nonlocal runs
            runs += 1
            await asyncio.Event().wait()

        task = BackgroundTask("work", work)
        for number in range(1, 4):
            await asyncio.sleep(1)
            assert runs == number
            _cancel(_name(task._task))
        await asyncio.sleep(0.1)
        await task.end()  # while it waits to start again
        await asyncio.sleep(5)
        assert (runs, task.over, _names()) == (3, True, set())

    with capture_logs() as logs:
        run_in_virtual_time(run())
    assert [(each["event"], each["task"]) for each in logs] == [("task was cancelled by others and is restarted", "work")] * 2


def test_a_background_task_reports_its_error_and_returns_where_its_work_does() -> None:
    async def run() -> None:
        errors: list[BaseException] = []
        await BackgroundTask("fails", _fails, errors.append).wait_over()
        await BackgroundTask("returns", _returns, errors.append).wait_over()
        assert [str(error) for error in errors] == ["broken"]

    run_in_virtual_time(run())


def test_a_set_of_tasks_reports_the_first_failure_and_nothing_of_its_own_end() -> None:
    async def run(first: Callable[[], object]) -> list[BaseException]:
        errors: list[BaseException] = []
        tasks = TaskSet(errors.append)
        tasks.start(_returns())
        ended = tasks.start(_forever())
        tasks.start(_forever())
        await asyncio.sleep(1)
        await tasks.end_one(ended)
        first()
        await asyncio.sleep(1)
        await tasks.end()
        assert _names() == set()
        return errors

    assert run_in_virtual_time(run(lambda: None)) == []
    assert [type(error) for error in run_in_virtual_time(run(lambda: _cancel("_forever")))] == [Unavailable]


def test_the_outcome_of_a_task_is_its_result_or_its_error() -> None:
    async def run() -> None:
        done, broken = start_task(_returns()), start_task(_fails(), "a name")
        await asyncio.wait([done, broken])
        assert outcome_of(done) is None
        with pytest.raises(InvalidRequest):
            outcome_of(broken)
        named = start_task(_forever(), "a name")
        await asyncio.sleep(0)
        named.cancel()
        await asyncio.wait([named])
        with pytest.raises(Unavailable, match="task=a name"):
            outcome_of(named)

    run_in_virtual_time(run())
