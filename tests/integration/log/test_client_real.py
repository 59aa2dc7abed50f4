"""The client against real processes: ZooKeeper, three storage nodes, two log servers, with kills and pauses."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import aclosing
from pathlib import Path

import pytest
from sqlalchemy import select, text

from tests.unit.log.client.sql.sql_bank import ACCOUNTS, TABLES, applied, connect_to
from waltz_log.client import ClientSettings, Draft, Lock, Receipt, SyncWaltzClient, Transaction, TransactionContext, WaltzClient
from waltz_log.client.inspection.inspect import ClusterInspector
from waltz_log.errors import InvalidSetting, LockConflict, NotAppended, OutcomeUnknown
from waltz_log.processes.local_cluster import LocalCluster

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory: Path = tmp_path_factory.mktemp("cluster")
    with LocalCluster(directory, partitions=2, servers=2) as running:
        yield running


def test_the_three_outcomes_on_a_real_cluster(cluster: LocalCluster) -> None:
    with SyncWaltzClient(cluster.cluster) as client:
        before = client.high_water_mark(0)
        first = client.append(0, b"Ada", header=3, write_locks=[Lock("seat", "12A")])
        assert first.transaction_id == before + 1
        with pytest.raises(LockConflict) as caught:
            client.append(0, b"Bob", write_locks=[Lock("seat", "12A")], high_water_mark=before)
        assert caught.value.winner == first.transaction_id
        never = OutcomeUnknown(partition=0, client_id=client.client_id, sequence=2_000_000, since=before, reason="made up")
        there = OutcomeUnknown(partition=0, client_id=client.client_id, sequence=1, since=before, reason="made up")
        assert client.resolve(there) == first
        assert client.resolve(never) is None
        for transaction in client.feed(0, after=before):
            assert (transaction.transaction_id, transaction.data, transaction.header) == (first.transaction_id, b"Ada", 3)
            assert transaction.timestamp_ms == first.append_time_ms
            break


def test_the_inspector_sees_what_a_client_appended(cluster: LocalCluster) -> None:
    with SyncWaltzClient(cluster.cluster) as client:
        receipts = [outcome for outcome in client.append_many(1, [Draft(b"%d" % n) for n in range(1000)]) if isinstance(outcome, Receipt)]
    assert [receipt.transaction_id for receipt in receipts] == list(range(receipts[0].transaction_id, receipts[0].transaction_id + 1000))
    with ClusterInspector(cluster.cluster) as inspector:
        bound = inspector.bounds()[1]
        assert bound.high_water_mark == receipts[-1].transaction_id
        assert bound.first_transaction_id == 0
        assert [len(addresses) for addresses in inspector.replicas().values()] == [3, 3]


def test_the_address_of_the_coordinator_is_refused_with_the_right_kind(cluster: LocalCluster) -> None:
    zookeeper = cluster.addresses["zookeeper"]
    for address in (cluster.coordinator, zookeeper):
        with pytest.raises(InvalidSetting, match="clients need log servers, host:port"):
            SyncWaltzClient(address, ClientSettings(connect_timeout_s=30))


async def test_a_window_full_of_conflicts_is_answered_at_once_and_delays_no_other_client(cluster: LocalCluster) -> None:
    """Each of thousands of transactions is looked up among what two clients wrote. A server that searched through it all for each stood still for
    half a minute, and sent nothing meanwhile."""
    drafts = [Draft(b"turn", write_locks=[Lock("turn", number)]) for number in range(6000)]
    async with WaltzClient.open(cluster.cluster) as ann, WaltzClient.open(cluster.cluster) as bob:
        first_s = time.monotonic()
        for client in (ann, bob):
            assert all(isinstance(outcome, Receipt) for outcome in await client.append_many(0, drafts))
        began_s = time.monotonic()
        slow_s = 5 * (began_s - first_s)  # of a slow machine, where half a minute would be much longer too
        again = asyncio.ensure_future(ann.append_many(0, drafts))
        await asyncio.sleep(0.05)
        await bob.append(0, b"meanwhile")
        assert time.monotonic() - began_s < max(15, slow_s)
        assert any(isinstance(outcome, LockConflict) for outcome in await again)
        assert time.monotonic() - began_s < max(25, slow_s)


class Appender:
    """Appends numbered transactions in bursts and notes the outcome of each."""

    def __init__(self, client: WaltzClient, name: int) -> None:
        self.client = client
        self.name = name
        self.reported: dict[bytes, int | None] = {}
        self.stopping = False
        self._chance = random.Random(name)

    async def run(self) -> None:
        number = 0
        while not self.stopping:
            burst = []
            for _ in range(self._chance.randrange(1, 200)):
                data = b"fault %d:%d" % (self.name, number)
                number += 1
                burst.append((data, await self.client.append_nowait(0, data, write_locks=[Lock("k", self._chance.randrange(5000))])))
            for data, future in burst:
                try:
                    receipt: Receipt | None = await future
                except OutcomeUnknown as unknown:
                    receipt = await self.client.resolve(unknown)
                except (LockConflict, NotAppended):
                    receipt = None
                self.reported[data] = None if receipt is None else receipt.transaction_id
            await asyncio.sleep(0.005)


async def until(condition: Callable[[], bool], timeout_s: float = 60) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline_s:
            raise AssertionError("the condition did not come true in time")
        await asyncio.sleep(0.02)


async def test_nothing_is_lost_or_repeated_while_processes_are_killed(cluster: LocalCluster) -> None:
    async with WaltzClient.open(cluster.cluster) as mine, WaltzClient.open(cluster.cluster) as other:
        after = await mine.high_water_mark(0)
        appenders = [Appender(mine, 0), Appender(other, 1)]
        seen: list[Transaction] = []
        follower = await mine.follow(0, seen.extend, after=after)
        running = [asyncio.create_task(appender.run()) for appender in appenders]

        async def progress() -> None:
            before = [len(appender.reported) for appender in appenders]
            await until(lambda: all(len(appender.reported) > count + 200 for appender, count in zip(appenders, before, strict=True)))

        await progress()
        for name in ("server-0", "storage-1", "server-1"):
            await asyncio.to_thread(cluster.kill, name)
            await progress()
            await asyncio.to_thread(cluster.start, name)
            await asyncio.to_thread(cluster.wait_ready)
            await progress()
        for appender in appenders:
            appender.stopping = True
        await asyncio.gather(*running)
        mark = await other.high_water_mark(0)
        await follower.wait(mark)
        assert [each.transaction_id for each in seen] == list(range(after + 1, mark + 1))
        found = {each.data: each.transaction_id for each in seen}
        assert len(found) == len(seen)
        assert {data: found.get(data) for appender in appenders for data in appender.reported} == appenders[0].reported | appenders[1].reported
        for appender in appenders:
            numbers = [int(data.partition(b":")[2]) for data in found if data.startswith(b"fault %d:" % appender.name)]
            assert numbers == sorted(numbers)


async def test_a_client_leaves_a_hanging_server_for_the_new_owner(cluster: LocalCluster) -> None:
    async with WaltzClient.open(cluster.cluster, ClientSettings(append_timeout_s=60)) as client:
        receipt = await client.append(0, b"before")
        await asyncio.to_thread(cluster.pause, "server-0")
        try:
            async with aclosing(client.feed(0, after=receipt.transaction_id)) as feed:
                appended = asyncio.create_task(client.append(0, b"meanwhile"))
                other = asyncio.create_task(client.append(1, b"meanwhile"))
                found = await anext(feed)
                assert found.data == b"meanwhile"
                assert (await appended).transaction_id == found.transaction_id
                assert (await other).partition == 1
        finally:
            await asyncio.to_thread(cluster.resume, "server-0")


async def test_transactions_of_two_clients_number_densely(cluster: LocalCluster) -> None:
    last: list[dict[int, int]] = [{}, {}]

    def apply_to(state: dict[int, int]) -> Callable[[list[Transaction]], None]:
        def apply(batch: list[Transaction]) -> None:
            for each in batch:
                if each.data.startswith(b"leg "):
                    aircraft, number = map(int, each.data.split()[1:])
                    assert number == state.get(aircraft, 0) + 1
                    state[aircraft] = number

        return apply

    async def one(state: dict[int, int]) -> None:
        async with WaltzClient.open(cluster.cluster) as client:
            after = await client.high_water_mark(1)
            follower = await client.follow(1, apply_to(state), after=after if not state else -1)

            @client.transactional(follower, attempts=1000)
            async def leg(tx: TransactionContext, aircraft: int) -> None:
                tx.append(b"leg %d %d" % (aircraft, state.get(aircraft, 0) + 1), write_locks=[Lock("aircraft", aircraft)])

            started.append(client)
            await until(lambda: len(started) == 2)
            for number in range(60):
                receipt = await leg(number % 3)
                await follower.wait(receipt.transaction_id)
            done.append(client)
            await until(lambda: len(done) == 2)
            await follower.wait(await client.high_water_mark(1))

    started: list[WaltzClient] = []
    done: list[WaltzClient] = []
    await asyncio.gather(*(one(state) for state in last))
    assert last[0] == last[1] == {0: 40, 1: 40, 2: 40}


ROOT = Path(__file__).resolve().parents[3]
LIMIT = 40


def service(cluster: str, url: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "tests.integration.log.bank_service", cluster, url, str(LIMIT)], cwd=ROOT)


async def test_services_that_are_killed_leave_in_their_database_what_the_log_holds_once(cluster: LocalCluster, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'bank.db'}"
    engine = connect_to(url)
    with engine.connect() as connection:
        connection.execute(text("PRAGMA journal_mode = WAL"))
    TABLES.create_all(engine)
    running = [service(cluster.cluster, url) for _ in range(2)]
    try:
        await until(lambda: len(applied(engine)) > LIMIT // 2, 120)
        running[0].kill()
        running[0].wait(timeout=10)
        running.append(service(cluster.cluster, url))
        await until(lambda: len(applied(engine)) > LIMIT, 120)
        await asyncio.to_thread(cluster.kill, "server-0")
        await until(lambda: all(process.poll() == 0 for process in running[1:]), 120)
    finally:
        for process in running:
            process.kill()
            process.wait()
        await asyncio.to_thread(cluster.start, "server-0")
    async with WaltzClient.open(cluster.cluster) as client:
        log: list[Transaction] = []
        follower = await client.follow(1, log.extend)
        await follower.wait(await client.high_water_mark(1))
    assert applied(engine) == [each.transaction_id for each in log if b"+" in each.data]
    with engine.connect() as connection:
        assert {row.name: row.balance for row in connection.execute(select(ACCOUNTS))} == {"ada": LIMIT, "bob": LIMIT, "cyd": LIMIT}
    assert len(applied(engine)) == 3 * LIMIT
    engine.dispose()
