"""The in-memory cluster for users' tests: real rules, and faults exactly where a test asks for them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from typing import Any

import pytest

from waltz_log.client import ClientSettings, Draft, Lock, LockConflict, NotAppended, OutcomeUnknown, Transaction, TransactionContext, WaltzClient
from waltz_log.errors import InvalidRequest
from waltz_log.statistics import to_json
from waltz_log.testing import InMemoryCluster, SyncInMemoryCluster

START_CPU_S = 0.1
"""To the first committed append. It needs a sixth of that on an idle core."""

WAIT_S = 30.0


async def _log(client: WaltzClient, partition: int = 0) -> list[bytes]:
    mark = await client.high_water_mark(partition)
    found: list[bytes] = []
    if mark < 0:
        return found
    async for transaction in client.feed(partition):
        found.append(transaction.data)
        if transaction.transaction_id >= mark:
            break
    return found


async def test_it_is_up_within_a_tenth_of_a_second() -> None:
    took = []
    for _ in range(3):
        began = time.process_time()
        async with InMemoryCluster(partitions=2) as cluster:
            await (await cluster.client()).append(0, b"first")
            took.append(time.process_time() - began)
    assert min(took) < START_CPU_S


async def test_locks_conflict_as_in_a_real_cluster() -> None:
    async with InMemoryCluster() as cluster:
        one, other = await cluster.client(), await cluster.client()
        await one.append(0, b"a", write_locks=[Lock("seat", 1)], high_water_mark=-1)
        with pytest.raises(LockConflict) as conflict:
            await other.append(0, b"b", write_locks=[Lock("seat", 1)], high_water_mark=-1)
        assert conflict.value.winner == 0
        await other.append(0, b"b", write_locks=[Lock("seat", 1)], high_water_mark=0)
        assert await _log(one) == [b"a", b"b"]


async def test_the_next_append_alone_is_refused_and_is_not_in_the_log() -> None:
    async with InMemoryCluster() as cluster:
        client = await cluster.client()
        cluster.fail_next_append()
        with pytest.raises(NotAppended):
            await client.append(0, b"refused")
        await client.append(0, b"taken")
        assert await _log(client) == [b"taken"]


@pytest.mark.parametrize("appended", [True, False])
async def test_an_unknown_outcome_is_what_the_test_said_when_it_is_resolved(appended: bool) -> None:
    async with InMemoryCluster() as cluster:
        client = await cluster.client()
        await client.append(0, b"before")
        cluster.lose_next_answer(appended=appended)
        with pytest.raises(OutcomeUnknown) as unknown:
            await client.append(0, b"lost", write_locks=[Lock("a", 1)])
        await client.append(0, b"after")
        receipt = await client.resolve(unknown.value)
        assert await _log(client) == ([b"before", b"lost", b"after"] if appended else [b"before", b"after"])
        assert (receipt is not None and receipt.transaction_id == 1) if appended else receipt is None
        await asyncio.wait_for(client.flush(), WAIT_S)


async def test_another_process_resolves_what_was_lost() -> None:
    async with InMemoryCluster() as cluster:
        client, other = await cluster.client(), await cluster.client()
        cluster.lose_next_answer(appended=True)
        with pytest.raises(OutcomeUnknown) as unknown:
            await client.append(0, b"lost")
        assert await other.resolve(unknown.value) is not None


async def test_a_rival_comes_first_where_a_conflict_was_planned() -> None:
    async with InMemoryCluster() as cluster:
        client = await cluster.client()
        cluster.conflict_next_append(data=b"rival")
        await client.append(0, b"no lock, no conflict")
        assert cluster.faults_planned == 1
        with pytest.raises(LockConflict) as conflict:
            await client.append(0, b"mine", write_locks=[Lock("seat", 1)], high_water_mark=0)
        assert conflict.value.winner == 1
        await client.append(0, b"mine", write_locks=[Lock("seat", 1)], high_water_mark=conflict.value.winner)
        assert await _log(client) == [b"no lock, no conflict", b"rival", b"mine"]


async def test_a_transactional_function_runs_again_after_a_planned_conflict() -> None:
    async with InMemoryCluster() as cluster:
        client = await cluster.client()
        count = 0

        def apply(transactions: list[Transaction]) -> None:
            nonlocal count
            count = int(transactions[-1].data)

        follower = await client.follow(0, apply)
        executions = 0

        @client.transactional(follower)
        async def add_one(tx: TransactionContext) -> None:
            nonlocal executions
            executions += 1
            tx.append(str(count + 1).encode(), write_locks=[Lock("count", 0)])

        await add_one()
        cluster.conflict_next_append()
        await asyncio.wait_for(add_one(), WAIT_S)
        # The rival did the same at the same moment: three counted, in three executions of ours.
        assert (count, executions) == (3, 3)


async def test_faults_of_one_partition_leave_the_others_alone_and_come_in_their_order() -> None:
    async with InMemoryCluster(partitions=2) as cluster:
        client = await cluster.client()
        cluster.fail_next_append(1)
        cluster.lose_next_answer(1)
        await client.append(0, b"fine")
        with pytest.raises(NotAppended):
            await client.append(1, b"refused")
        with pytest.raises(OutcomeUnknown):
            await client.append(1, b"lost")
        await client.append(1, b"fine")
        assert cluster.faults_planned == 0
        with pytest.raises(InvalidRequest):
            cluster.fail_next_append(2)


async def test_only_one_of_a_pipeline_meets_the_fault() -> None:
    async with InMemoryCluster() as cluster:
        client = await cluster.client()
        await client.append(0, b"0")
        cluster.fail_next_append()
        drafts = [asyncio.ensure_future(client.append(0, b"%d" % number, read_locks=[Lock("r", number)])) for number in range(1, 30)]
        outcomes = await asyncio.gather(*drafts, return_exceptions=True)
        assert [type(each) for each in outcomes if isinstance(each, BaseException)] == [NotAppended]
        assert len(await _log(client)) == 29
        assert all(not isinstance(each, LockConflict) for each in await client.append_many(0, [Draft(b"more")] * 5))


async def test_entries_of_bulk_appends_meet_faults_like_any_append() -> None:
    async with InMemoryCluster(partitions=2, storages=1, servers=1) as cluster:
        client = await cluster.client()
        cluster.fail_next_append()
        cluster.conflict_next_append(data=b"rival")
        locked = Draft(b"locked", write_locks=[Lock("seat", "1A")], high_water_mark=-1)
        done = await client.append_bulk(0, [b"first", b"never taken"])
        assert ([(position, type(error)) for position, error, _ in done.failed], done.submitted) == ([(0, NotAppended)], 1)
        done = await client.append_bulk(0, [b"first", locked, b"last"])
        assert ([(position, type(error)) for position, error, _ in done.failed], done.committed) == ([(1, LockConflict)], 2)
        assert await _log(client) == [b"first", b"rival", b"last"]
        cluster.lose_next_answer(appended=True)
        await cluster.create_topic("a/b", keyed=True)
        topic = await client.topic("a/b")
        done_there = await topic.append_bulk([(b"k", b"1")])
        assert isinstance(error := done_there.failed[0].error, OutcomeUnknown)
        assert await client.resolve(error) is not None


async def test_a_feed_leaves_an_owner_that_does_not_know_it_was_deposed() -> None:
    async with InMemoryCluster(storages=1) as cluster:
        client = await cluster.client()
        seen: list[bytes] = []
        follower = await client.follow(0, lambda batch: seen.extend(each.data for each in batch))
        await follower.wait((await client.append(0, b"1")).transaction_id)
        owner = next(name for name, (server, _) in cluster.servers.items() if to_json(server.statistics())["partitions"])
        deposed, _ = await cluster.isolate_server(owner)
        await follower.wait((await client.append(0, b"2")).transaction_id)
        assert (seen, follower.error) == ([b"1", b"2"], None)
        await deposed.abort()


async def test_suspended_feeds_lag_while_appends_go_on() -> None:
    async with InMemoryCluster() as cluster:
        client = await cluster.client()
        seen: list[bytes] = []

        def apply(transactions: list[Transaction]) -> None:
            seen.extend(transaction.data for transaction in transactions)

        follower = await client.follow(0, apply)
        await client.append(0, b"seen")
        await asyncio.wait_for(follower.wait(0), WAIT_S)
        cluster.suspend_feeds()
        receipt = await client.append(0, b"not yet")
        await asyncio.sleep(0.05)
        assert seen == [b"seen"]
        with pytest.raises(LockConflict):  # its mark lags with its feed
            await client.append(0, b"x", append_locks=[Lock("a", 1)])
            await client.append(0, b"y", write_locks=[Lock("a", 1)])
        cluster.resume_feeds()
        await asyncio.wait_for(follower.wait(receipt.transaction_id), WAIT_S)
        assert seen[:2] == [b"seen", b"not yet"]


async def test_messages_are_delayed() -> None:
    async with InMemoryCluster() as cluster:
        client = await cluster.client()
        await client.append(0, b"warm")
        cluster.delay(0.05)
        began = time.perf_counter()
        for number in range(5):
            await client.append(0, b"%d" % number)
        assert time.perf_counter() - began > 0.05


async def test_a_killed_server_is_succeeded_and_nothing_is_lost() -> None:
    async with InMemoryCluster(partitions=2) as cluster:
        client = await cluster.client(ClientSettings(retry_base_s=0.01, retry_cap_s=0.05))
        for partition in (0, 1):
            await client.append(partition, b"before")
        await cluster.kill_server("server-0")
        await cluster.kill_storage("storage-1")
        for partition in (0, 1):
            await asyncio.wait_for(client.append(partition, b"after"), WAIT_S)
            assert await _log(client, partition) == [b"before", b"after"]
        await cluster.start_server("server-0")
        await cluster.start_storage("storage-1")


async def test_closing_leaves_no_task_behind() -> None:
    before = asyncio.all_tasks()
    async with InMemoryCluster(partitions=2) as cluster:
        client = await cluster.client()
        cluster.suspend_feeds()
        cluster.fail_next_append(1)
        await client.follow(0, lambda transactions: None)
        await client.append(0, b"x")
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before


def test_the_blocking_form_is_the_same_cluster() -> None:
    with SyncInMemoryCluster(partitions=2) as cluster:
        client = cluster.client()
        client.append(0, b"a")
        cluster.fail_next_append()
        with pytest.raises(NotAppended):
            client.append(0, b"b")
        cluster.lose_next_answer()
        with pytest.raises(OutcomeUnknown) as unknown:
            client.append(0, b"c")
        receipt = client.resolve(unknown.value)
        assert receipt is not None
        assert receipt.transaction_id == 1
        cluster.kill_server("server-0")
        client.append(0, b"d")
        cluster.start_server("server-0")
        cluster.suspend_feeds()
        assert cluster.faults_planned == 0


def test_importing_the_package_imports_no_server() -> None:
    program = "import sys, waltz_log.testing, waltz_log.testing.pytest_plugin; print([m for m in sys.modules if m.startswith('waltz_log.')])"
    reported = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True).stdout
    assert reported.strip() == "['waltz_log.extras', 'waltz_log.testing', 'waltz_log.testing.pytest_plugin']"


def test_the_public_names_are_those_that_exist() -> None:
    import waltz_log.testing as package

    assert all(getattr(package, name) is not None for name in package.__all__)
    with pytest.raises(AttributeError):
        _: Any = package.NoSuchCluster
