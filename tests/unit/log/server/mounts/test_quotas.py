"""Quotas of principals: what is refused and when, that the client waits by itself, and that nothing is lost, repeated or put out of order."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from waltz_log.client import ClientSettings, Intent, Lock, LockConflict, Outbox, Receipt, WaltzClient
from waltz_log.errors import InvalidSetting, OutcomeUnknown, QuotaExceeded
from waltz_log.server.base.quotas import Quotas
from waltz_log.server.base.settings import QuotaSettings, ServerSettings
from waltz_log.server.partition.append_task import AppendTask
from waltz_log.testing import SyncInMemoryCluster
from waltz_log.testing.cluster import MemoryCluster
from waltz_log.testing.disk import SimulatedDisk
from waltz_log.testing.offload import run_in_place
from waltz_log.testing.virtual_time import run_in_virtual_time

Work = Callable[[MemoryCluster], Awaitable[Any]]


def run(work: Work, *quotas: dict[str, Any], partitions: int = 2, delay_s: float = 0.0) -> None:
    async def whole() -> None:
        cluster = MemoryCluster(partitions=partitions, servers=1, storages=1, settings={"quotas": quotas}, delay_s=lambda: delay_s)
        await cluster.start()
        try:
            await work(cluster)
        finally:
            await cluster.stop()

    run_in_virtual_time(whole())


def now_s() -> float:
    return asyncio.get_running_loop().time()


async def logged(client: WaltzClient, count: int, partition: int = 0) -> list[bytes]:
    found: list[bytes] = []
    async for each in client.feed(partition, after=-1):
        found.append(bytes(each.data or b""))
        if len(found) == count:
            break
    return found


def refusals(cluster: MemoryCluster) -> tuple[int, int]:
    ((server, _),) = cluster.servers.values()
    totals = server.statistics().totals
    assert totals is not None
    return totals.append_refusals, totals.mount_refusals


# ---- appends ---------------------------------------------------------------------------------------------------------------------------------------


def test_a_client_over_its_quota_waits_and_appends_everything_in_order_at_the_rate() -> None:
    async def work(cluster: MemoryCluster) -> None:
        client = await cluster.connect()
        await client.append(0, b"mounted")
        began_s, bodies = now_s(), [b"%d" % number for number in range(500)]
        futures = [await client.append_nowait(0, body) for body in bodies]
        receipts = await asyncio.gather(*futures)
        assert [receipt.transaction_id for receipt in receipts] == list(range(1, 501))
        assert 2.9 < now_s() - began_s < 6, "the burst of 100, a frame that overdraws the bucket by as much, and then 100 a second"
        assert await logged(client, 501) == [b"mounted", *bodies]
        assert refusals(cluster)[0] > 0
        assert client.statistics().partitions[0].mounts == 1, "it waits on the mount that it has"
        await client.close()

    run(work, {"transactions_per_s": 100})


@pytest.mark.parametrize("blocks", ["list", "iterator"])
def test_a_bulk_append_waits_too(blocks: str) -> None:
    async def work(cluster: MemoryCluster) -> None:
        client, bodies = await cluster.connect(), [b"%03d" % number for number in range(400)]
        began_s = now_s()
        receipt = await client.append_bulk(0, bodies if blocks == "list" else iter(bodies))
        receipt.raise_failed()
        assert now_s() - began_s > 1.9
        assert await logged(client, 400) == bodies
        await client.close()

    run(work, {"transactions_per_s": 100})


def test_the_bytes_of_records_have_a_quota_of_their_own() -> None:
    async def work(cluster: MemoryCluster) -> None:
        client, began_s = await cluster.connect(), now_s()
        await asyncio.gather(*[await client.append_nowait(0, bytes(960)) for _ in range(50)])
        assert 3.5 < now_s() - began_s < 6, "50 records of 1,000 bytes at 10,000 a second, with a burst of one second"
        # One that is larger than the burst is accepted when the bucket is full or nearly so; what comes then waits.
        await client.append(0, bytes(25_000))
        began_s = now_s()
        await client.append(0, b"x")
        assert now_s() - began_s > 1
        await client.close()

    run(work, {"bytes_per_s": 10_000})


def test_at_its_deadline_an_append_fails_with_the_quota_and_is_not_in_the_log() -> None:
    async def work(cluster: MemoryCluster) -> None:
        client = await cluster.connect(ClientSettings(principal="ada"))
        futures = [await client.append_nowait(0, b"%d" % number, timeout_s=2.0) for number in range(600)]
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
        committed = [number for number, outcome in enumerate(outcomes) if isinstance(outcome, Receipt)]
        failed = [outcome for outcome in outcomes if not isinstance(outcome, Receipt)]
        assert 200 <= len(committed) <= 400
        assert {type(outcome) for outcome in failed} == {QuotaExceeded}
        error = failed[-1]
        assert isinstance(error, QuotaExceeded)
        assert (error.partition, error.quota, error.principal, error.topic) == (0, "transactions_per_s", "ada", "")
        assert error.retriable
        assert error.retry_after_s > 0
        assert pickle.loads(pickle.dumps(error)).facts == error.facts
        await asyncio.sleep(10)
        last = await client.append(0, b"last")
        assert last.transaction_id == len(committed)
        assert await logged(client, len(committed) + 1) == [*(b"%d" % number for number in committed), b"last"]
        await client.close()

    run(work, {"transactions_per_s": 100})


def test_appends_that_locks_reject_do_not_count() -> None:
    async def work(cluster: MemoryCluster) -> None:
        client, seat = await cluster.connect(), Lock("seat", "12A")
        await client.append(0, b"first", write_locks=[seat])
        for _ in range(50):
            late = [await client.append_nowait(0, b"late", write_locks=[seat], high_water_mark=-1) for _ in range(10)]
            assert {type(each) for each in await asyncio.gather(*late, return_exceptions=True)} == {LockConflict}
        assert refusals(cluster) == (0, 0)
        await client.close()

    run(work, {"transactions_per_s": 5, "burst_s": 2})


def test_counting_what_is_refused_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def counts(task: AppendTask, frames: list[Any]) -> list[Any]:
        for frame in frames:
            frame.appender.meter.charge_append(frame.count, 0, now_s())
        return original(task, frames)

    original = AppendTask._within_quotas
    monkeypatch.setattr(AppendTask, "_within_quotas", counts)
    with pytest.raises(AssertionError):
        test_appends_that_locks_reject_do_not_count()


def test_each_principal_and_each_topic_has_a_quota_of_its_own() -> None:
    async def work(cluster: MemoryCluster) -> None:
        await cluster.create_topic("shop/orders")
        ada, bob = [await cluster.connect(ClientSettings(principal=name)) for name in ("ada", "bob")]
        busy = asyncio.gather(*[await ada.append_nowait(1, b"x") for _ in range(200)])
        orders, began_s = await ada.topic("shop/orders"), now_s()
        await asyncio.gather(*[await bob.append_nowait(1, b"x") for _ in range(9)])
        await asyncio.gather(*[await orders.append_nowait(b"x", partition=0) for _ in range(9)])
        assert now_s() - began_s < 0.5, "the principal that is over its quota delays nobody else, and not itself elsewhere"
        await busy
        assert now_s() - began_s > 15
        await asyncio.gather(ada.close(), bob.close())

    run(work, {"transactions_per_s": 10})


def test_two_clients_of_one_principal_share_its_quota() -> None:
    async def work(cluster: MemoryCluster) -> None:
        clients = [await cluster.connect(ClientSettings(principal="ada"), seed=seed) for seed in range(2)]
        began_s = now_s()
        await asyncio.gather(*[await client.append_nowait(partition, b"x") for partition, client in enumerate(clients) for _ in range(100)])
        assert 7.5 < now_s() - began_s < 15, "200 at 20 a second, on two partitions of one process"
        await asyncio.gather(*(client.close() for client in clients))

    run(work, {"transactions_per_s": 20})


def test_an_outbox_over_its_quota_appends_each_intent_once_and_in_order() -> None:
    async def work(cluster: MemoryCluster) -> None:
        outbox = Outbox(SimulatedDisk(), run_in_place, cluster.clock, cluster.seeds, cluster.network)
        await outbox.start()
        bodies = [b"%d" % number for number in range(200)]
        receipts = await outbox.submit([Intent.data(0, body) for body in bodies])
        await asyncio.gather(*(receipt.outcome() for receipt in receipts))
        client = await cluster.connect()
        assert await logged(client, 200) == bodies
        assert refusals(cluster)[0] > 0
        await asyncio.gather(client.close(), outbox.close())

    run(work, {"transactions_per_s": 50})


@pytest.mark.parametrize("timeout_s", [0.2 + 0.015 * step for step in range(20)])
def test_what_waited_for_a_quota_says_so_in_whichever_moment_its_deadline_is(timeout_s: float) -> None:
    """A quota admits a few at a time: what is left at the deadline waited for it, also if some were just accepted."""

    async def work(cluster: MemoryCluster) -> None:
        client = await cluster.connect()
        (await client.append_bulk(0, [b"x"] * 60)).raise_failed()
        late = await client.append_bulk(0, [b"x"] * 600, timeout_s=timeout_s)
        unsent = [failure.error for failure in late.failed if not isinstance(failure.error, OutcomeUnknown)]
        assert unsent
        assert all(isinstance(error, QuotaExceeded) for error in unsent), unsent
        await client.close()

    run(work, {"transactions_per_s": 200, "burst_s": 0.1}, delay_s=0.005)


def test_a_blocking_client_waits_too() -> None:
    with SyncInMemoryCluster(servers=1, storages=1) as cluster:
        cluster.kill_server("server-0")
        cluster.call(cluster._cluster.start_server("server-0", quotas=[{"transactions_per_s": 200, "burst_s": 0.1}]))
        client = cluster.client()
        for number in range(40):
            assert client.append(0, b"%d" % number).transaction_id == number
        client.append_bulk(0, [b"x"] * 60).raise_failed()
        late = client.append_bulk(0, [b"x"] * 600, timeout_s=0.3)
        assert any(isinstance(failure.error, QuotaExceeded) for failure in late.failed)


# ---- mounts ----------------------------------------------------------------------------------------------------------------------------------------


def test_a_feed_and_a_producer_whose_principal_mounts_too_often_wait() -> None:
    async def work(cluster: MemoryCluster) -> None:
        client = await cluster.connect()
        await client.append(0, b"x")
        began_s = now_s()
        for _ in range(10):
            assert await logged(client, 1) == [b"x"]
        assert 3.5 < now_s() - began_s < 10, "ten mounts, two a second"
        assert refusals(cluster)[1] > 0
        late = await client.append_nowait(1, b"x", timeout_s=0.1)
        with pytest.raises(QuotaExceeded, match="mounts_per_s"):
            await late
        await client.append(1, b"x")
        await client.close()

    run(work, {"mounts_per_s": 2})


# ---- settings --------------------------------------------------------------------------------------------------------------------------------------


def test_the_first_rule_that_fits_applies_and_an_idle_principal_is_forgotten() -> None:
    rules = [
        QuotaSettings(principal="spiffe://*/application/*", topic="shop/*", transactions_per_s=5),
        QuotaSettings(principal="batch", transactions_per_s=50),
        QuotaSettings(bytes_per_s=100),
    ]
    quotas = Quotas(rules)

    def limits(principal: str, topic: str) -> tuple[int, int]:
        meter = quotas.meter(principal, topic, 0.0)
        assert meter is not None
        return meter.batch_transactions, meter.batch_bytes

    assert limits("spiffe://waltz/application/orders", "shop/orders") == (5, 0)
    assert limits("spiffe://waltz/application/orders", "other/orders") == (0, 100)
    assert limits("spiffe://waltz/reader/orders", "shop/orders") == (0, 100)
    assert limits("batch", "") == (50, 0)
    assert Quotas(rules[:2]).meter("", "", 0.0) is None
    used = quotas.meter("batch", "", 0.0)
    assert used is not None
    used.charge_append(100, 0, 0.0)
    del used
    for number in range(100):
        quotas.meter(f"other-{number}", "", 0.0)
    again = quotas.meter("batch", "", 0.0)
    assert again is not None
    assert again.append_refusal(0.0) is not None, "what is overdrawn is remembered without a mount"
    assert len(quotas._remembered) < 40


@pytest.mark.parametrize("wrong", [{"transactions_per_s": 0}, {"transactions": 5}, {"burst_s": 0}, {"principal": ""}])
def test_a_rule_that_would_mean_nothing_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidSetting):
        ServerSettings.load(None, prefix="X", environment={}, coordinator="x", quotas=[wrong])


def test_rules_come_from_the_environment_as_yaml() -> None:
    text = '[{principal: "spiffe://*/application/*", bytes_per_s: 1e6}]'
    found = ServerSettings.load(None, prefix="WALTZ_SERVER", environment={"WALTZ_SERVER_QUOTAS": text}, coordinator="x")
    assert found.quotas == (QuotaSettings(principal="spiffe://*/application/*", bytes_per_s=1e6),)
