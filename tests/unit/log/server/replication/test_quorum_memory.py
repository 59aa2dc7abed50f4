"""A topic that is acknowledged from memory: when, what is lost then and what is not, and that nothing but the answers comes before the disks."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from typing import Any

import pytest

from waltz_log.client import ClientSettings, Intent, Lock, LockConflict, Outbox, WaltzClient
from waltz_log.coordination.topics import change_catalogue
from waltz_log.core.recovery import resolve
from waltz_log.core.topics.catalogue import Policies
from waltz_log.core.topics.topic_names import TopicName
from waltz_log.errors import Unavailable, WaltzError
from waltz_log.server.mounts.mount import Mount
from waltz_log.server.replication import session_recovery as recovery
from waltz_log.server.replication.store_session import StoreSession
from waltz_log.statistics import to_json
from waltz_log.storage.replica.write_rounds import WriteRounds
from waltz_log.testing.cluster import MemoryCluster
from waltz_log.testing.disk import Operation, SimulatedDisk
from waltz_log.testing.offload import run_in_place
from waltz_log.testing.virtual_time import run_in_virtual_time

TOPIC = TopicName("test", "fast")
BY_NUMBER = ClientSettings(topics=(str(TOPIC),))
PERIOD_S = 10.0
STORAGES = ("storage-0", "storage-1", "storage-2")


async def with_topic(cluster: MemoryCluster, **policies: Any) -> None:
    wanted = Policies(durability="quorum_memory").changed(policies)
    await change_catalogue(
        cluster.ensemble.session(),
        lambda found: found.with_new(TOPIC, type="regular", partitions=cluster.partitions, pool=range(cluster.partitions), now_ms=0, policies=wanted),
    )


async def alter(cluster: MemoryCluster, **policies: Any) -> None:
    await change_catalogue(cluster.ensemble.session(), lambda found: found.with_policies(TOPIC, policies))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.05)


def on_disk(cluster: MemoryCluster) -> dict[str, int]:
    return {name: node.statistics().partitions[0].last_transaction_id for name, (node, _) in cluster.storages.items()}


def unsynced(cluster: MemoryCluster) -> tuple[int, int]:
    """Acknowledged and not on disk: as the owner reports it, and the replica that has most of it."""
    ((server, _),) = cluster.servers.values()
    reported = [node.statistics().partitions[0].unsynced_transactions for node, _ in cluster.storages.values()]
    return to_json(server.statistics())["partitions"]["0"]["in_memory"], max(reported)


def now_s() -> float:
    return asyncio.get_running_loop().time()


async def read(client: WaltzClient, count: int) -> list[bytes]:
    found: list[bytes] = []
    batches = client.feed_batches(0, after=-1)
    async with asyncio.timeout(60):
        async for batch in batches:
            found += [transaction.data for transaction in batch]
            if len(found) >= count:
                break
    await batches.aclose()
    return found


def in_cluster(scenario: Callable[[MemoryCluster, WaltzClient], Any], *, settings: dict[str, Any] | None = None, **policies: Any) -> None:
    async def run() -> None:
        cluster = MemoryCluster(servers=1, settings=settings)
        await cluster.start()
        await with_topic(cluster, **policies)
        client = await cluster.connect(BY_NUMBER)
        await client.append(0, b"the first")  # after it the replicas are live, and know the policy
        await until(lambda: set(on_disk(cluster).values()) == {0})
        await scenario(cluster, client)
        await client.close()
        await cluster.stop()

    run_in_virtual_time(run())


def test_an_append_is_answered_when_a_majority_has_received_it_and_synced_within_the_period() -> None:
    async def scenario(cluster: MemoryCluster, client: WaltzClient) -> None:
        began = now_s()
        receipt = await client.append(0, b"fast")
        assert receipt.durability == "quorum_memory"
        assert now_s() - began < 1
        assert set(on_disk(cluster).values()) == {0}
        assert unsynced(cluster) == (1, 1)
        await asyncio.sleep(PERIOD_S - 1 - (now_s() - began))
        assert set(on_disk(cluster).values()) == {0}
        await asyncio.sleep(1.5)
        assert set(on_disk(cluster).values()) == {1}
        assert unsynced(cluster) == (0, 0)
        assert (await client.high_water_mark(0)) == 1

    in_cluster(scenario)


async def start_again(cluster: MemoryCluster, *names: str) -> None:
    for name in names:
        await cluster.start_storage(name)


async def appended(client: WaltzClient, count: int) -> list[bytes]:
    """Reported as received, and only that; the whole log afterwards."""
    reported = [f"{number}".encode() for number in range(count)]
    for data in reported:
        assert (await client.append(0, data)).durability == "quorum_memory"
    return [b"the first", *reported]


def test_nothing_is_answered_that_no_majority_has_received() -> None:
    async def scenario(cluster: MemoryCluster, client: WaltzClient) -> None:
        for name in STORAGES[:2]:
            await cluster.stop_storage(name)
        waiting = await client.append_nowait(0, b"one has it")
        await asyncio.sleep(PERIOD_S / 2)
        assert not waiting.done()
        await cluster.start_storage("storage-0")
        assert (await waiting).transaction_id == 1

    in_cluster(scenario)


def test_one_machine_and_the_owner_die_while_another_lags_and_nothing_is_lost() -> None:
    async def scenario(cluster: MemoryCluster, client: WaltzClient) -> None:
        await cluster.stop_storage("storage-2")
        log = await appended(client, 5)
        await cluster.kill_server("server-0")
        await cluster.kill_storage("storage-0")
        await start_again(cluster, "storage-0", "storage-2")
        assert set(on_disk(cluster).values()) == {0}  # and one has more, in memory
        await cluster.start_server("server-0")
        assert (await client.append(0, b"next")).transaction_id == 6
        assert await read(client, 7) == [*log, b"next"]

    in_cluster(scenario)


def test_two_of_three_that_lost_their_memory_copy_from_the_third() -> None:
    async def scenario(cluster: MemoryCluster, client: WaltzClient) -> None:
        log = await appended(client, 5)
        await cluster.kill_server("server-0")
        for name in STORAGES[:2]:
            await cluster.kill_storage(name)
        await start_again(cluster, *STORAGES[:2])
        await cluster.start_server("server-0")
        assert (await client.append(0, b"next")).transaction_id == 6
        assert await read(client, 7) == [*log, b"next"]

    in_cluster(scenario)


def test_while_its_owner_lives_all_machines_may_die() -> None:
    async def scenario(cluster: MemoryCluster, client: WaltzClient) -> None:
        log = await appended(client, 5)
        for name in STORAGES:
            await cluster.kill_storage(name)
        await start_again(cluster, *STORAGES)
        assert await read(client, 6) == log
        await until(lambda: set(on_disk(cluster).values()) == {5})

    in_cluster(scenario)


def test_the_owner_and_all_machines_die_and_the_window_is_lost_and_no_more() -> None:
    async def scenario(cluster: MemoryCluster, client: WaltzClient) -> None:
        log = await appended(client, 5)
        await asyncio.sleep(PERIOD_S + 1)
        assert set(on_disk(cluster).values()) == {5}
        assert (await client.append(0, b"in the window")).transaction_id == 6
        await cluster.kill_server("server-0")
        for name in STORAGES:
            await cluster.kill_storage(name)
        await start_again(cluster, *STORAGES)
        await cluster.start_server("server-0")
        assert (await client.append(0, b"another under its id")).transaction_id == 6
        assert await read(client, 7) == [*log, b"another under its id"]
        await until(lambda: set(on_disk(cluster).values()) == {6})

    in_cluster(scenario)


def test_a_server_that_is_stopped_leaves_nothing_unsynced() -> None:
    async def scenario(cluster: MemoryCluster, client: WaltzClient) -> None:
        log = await appended(client, 5)
        await cluster.stop_server("server-0")
        for name in STORAGES:
            await cluster.kill_storage(name)
        await start_again(cluster, *STORAGES)
        await cluster.start_server("server-0")
        assert await read(client, 6) == log

    in_cluster(scenario)


def test_a_storage_node_that_is_stopped_has_synced_and_says_so() -> None:
    async def scenario(cluster: MemoryCluster, client: WaltzClient) -> None:
        await appended(client, 5)
        assert cluster.disks["storage-0"].exists("0/unsynced")
        await cluster.stop_storage("storage-0")
        assert not cluster.disks["storage-0"].exists("0/unsynced")
        await cluster.start_storage("storage-0")
        assert on_disk(cluster)["storage-0"] == 5

    in_cluster(scenario)


def test_a_failed_sync_in_the_background_is_final() -> None:
    async def scenario(cluster: MemoryCluster, client: WaltzClient) -> None:
        def fail(operation: Operation) -> None:
            if operation.kind == "sync":
                raise OSError(errno.EIO, "input/output error", operation.path)

        cluster.disks["storage-0"].before = fail
        await appended(client, 5)
        await asyncio.sleep(PERIOD_S + 1)
        reported = {name: node.statistics().partitions[0] for name, (node, _) in cluster.storages.items()}
        assert (reported["storage-0"].last_transaction_id, reported["storage-1"].last_transaction_id) == (0, 5)
        assert "input/output error" in str(reported["storage-0"].failed)
        syncs = len(cluster.disks["storage-0"].operations)
        await appended(client, 5)
        await asyncio.sleep(PERIOD_S + 1)
        assert len(cluster.disks["storage-0"].operations) == syncs

    in_cluster(scenario)


def test_a_policy_is_changed_while_everything_runs() -> None:
    async def scenario(cluster: MemoryCluster, client: WaltzClient) -> None:
        assert (await client.append(0, b"x")).durability == "quorum_memory"
        await alter(cluster, durability="quorum_sync")
        await asyncio.sleep(0.5)
        receipt = await client.append(0, b"x")
        assert receipt.durability == "quorum_sync"
        assert sorted(on_disk(cluster).values())[1] == receipt.transaction_id
        await alter(cluster, durability="quorum_memory", flush_period_ms=500)
        await asyncio.sleep(0.1)
        receipt = await client.append(0, b"x")
        assert receipt.durability == "quorum_memory"
        assert sorted(on_disk(cluster).values())[1] < receipt.transaction_id
        await asyncio.sleep(0.6)
        assert set(on_disk(cluster).values()) == {receipt.transaction_id}

    in_cluster(scenario)


def test_so_many_bytes_are_synced_before_the_period_is_over() -> None:
    async def scenario(cluster: MemoryCluster, client: WaltzClient) -> None:
        for _ in range(20):
            await client.append(0, bytes(1000))
        assert min(on_disk(cluster).values()) >= 20 - 6

    in_cluster(scenario, flush_bytes=5000)


def test_who_follows_the_feed_does_not_wait_for_the_period() -> None:
    async def scenario(cluster: MemoryCluster, client: WaltzClient) -> None:
        follower = await cluster.connect(seed=1)
        reading = asyncio.ensure_future(read(follower, 6))
        await asyncio.sleep(0.5)
        began = now_s()
        log = await appended(client, 5)
        assert await reading == log
        assert now_s() - began < 1
        await follower.close()

    in_cluster(scenario)


def test_a_rejection_names_a_winner_that_is_on_disk_and_comes_at_once() -> None:
    async def scenario(cluster: MemoryCluster, client: WaltzClient) -> None:
        won = await client.append(0, b"first", write_locks=[Lock("seat", "7C")], high_water_mark=0)
        assert sorted(on_disk(cluster).values())[1] < won.transaction_id
        began = now_s()
        with pytest.raises(LockConflict) as conflict:
            await client.append(0, b"second", write_locks=[Lock("seat", "7C")], high_water_mark=0)
        assert conflict.value.winner == won.transaction_id
        assert now_s() - began < 1
        assert sorted(on_disk(cluster).values())[1] >= won.transaction_id

    in_cluster(scenario)


def test_after_a_flush_all_is_on_disk() -> None:
    async def scenario(cluster: MemoryCluster, client: WaltzClient) -> None:
        await appended(client, 5)
        began = now_s()
        await client.flush()
        assert sorted(on_disk(cluster).values())[1] == 5
        assert now_s() - began < 1
        await client.flush()  # nothing is left to ask for

    in_cluster(scenario)


def test_a_flush_is_of_what_was_appended_before_it() -> None:
    async def scenario(cluster: MemoryCluster, client: WaltzClient) -> None:
        flushing = True

        async def append_on() -> None:
            while flushing:
                await client.append(0, b"meanwhile")

        beside = asyncio.ensure_future(append_on())
        for _ in range(20):
            receipt = await client.append(0, b"mine")
            await client.flush()
            assert sorted(on_disk(cluster).values())[1] >= receipt.transaction_id
        flushing = False
        await beside

    in_cluster(scenario)


def test_a_flush_says_what_it_cannot_know() -> None:
    async def scenario(cluster: MemoryCluster, client: WaltzClient) -> None:
        await appended(client, 5)
        await cluster.kill_server("server-0")
        for name in STORAGES:
            await cluster.kill_storage(name)
        await start_again(cluster, *STORAGES)
        await cluster.start_server("server-0")
        with pytest.raises(Unavailable, match="not known to be on disk"):
            await client.flush()
        await asyncio.sleep(1)
        await client.flush()  # it is reported once
        assert (await client.append(0, b"next")).transaction_id == 1
        await client.flush()
        assert await read(client, 2) == [b"the first", b"next"]

    in_cluster(scenario)


def test_an_outbox_forgets_nothing_that_is_not_on_disk() -> None:
    async def scenario(cluster: MemoryCluster, client: WaltzClient) -> None:
        outbox = Outbox(SimulatedDisk(), run_in_place, cluster.clock, cluster.seeds, cluster.network, client_settings=BY_NUMBER)
        await outbox.start()
        (receipt,) = await outbox.submit(Intent.data(0, b"owed"))
        await receipt.outcome()
        assert sorted(on_disk(cluster).values())[1] == 1
        await outbox.close()

    in_cluster(scenario)


def test_a_new_session_of_the_same_owner_does_not_wait_for_the_period() -> None:
    async def scenario(cluster: MemoryCluster, client: WaltzClient) -> None:
        began = now_s()
        for number in range(60):
            assert (await client.append(0, b"x")).transaction_id == number + 1
        assert now_s() - began < PERIOD_S
        assert max(node.statistics().partitions[0].session for node, _ in cluster.storages.values()) >= 3

    in_cluster(scenario, settings={"checkpoint_transactions": 20}, flush_bytes=500)


# ---- bugs that are planted ------------------------------------------------------------------------------------------------------------------------


def test_trusting_a_replica_that_lost_its_memory_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "resolve", lambda levels, voters, old, *_: resolve(levels, voters, old))
    with pytest.raises(AssertionError):
        test_one_machine_and_the_owner_die_while_another_lags_and_nothing_is_lost()
    with pytest.raises(AssertionError):
        test_two_of_three_that_lost_their_memory_copy_from_the_third()


def test_not_waiting_for_replicas_that_are_away_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "awaits_absent", lambda *_: False)
    with pytest.raises(AssertionError):
        test_two_of_three_that_lost_their_memory_copy_from_the_third()


def test_answering_before_a_majority_received_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def receive(store: StoreSession, name: str, transaction_id: int) -> None:
        store.received = min(transaction_id, store.window.last_transaction_id)
        store.advanced.notify()

    monkeypatch.setattr(StoreSession, "receive", receive)
    with pytest.raises(AssertionError):
        test_nothing_is_answered_that_no_majority_has_received()


def test_not_syncing_at_the_period_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WriteRounds, "_flush_after", lambda rounds, period_s: None)
    with pytest.raises((AssertionError, TimeoutError)):
        test_an_append_is_answered_when_a_majority_has_received_it_and_synced_within_the_period()


def test_claiming_what_is_only_written_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def claims(rounds: WriteRounds) -> None:
        rounds._unsynced_bytes = 0
        rounds._log.tail = rounds._log.tail._replace(last_id=rounds._log.written_id)
        for appender in rounds.appenders:
            appender.synced(rounds._log.written_id)

    monkeypatch.setattr(WriteRounds, "sync", claims)
    with pytest.raises((AssertionError, WaltzError, TimeoutError)):
        test_a_server_that_is_stopped_leaves_nothing_unsynced()


def test_reporting_an_outbox_before_the_disks_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def early(mount: Mount, *given: Any) -> None:
        begin(mount, *given)
        mount.on_disk = False

    begin = Mount.__init__
    monkeypatch.setattr(Mount, "__init__", early)
    with pytest.raises(AssertionError):
        test_an_outbox_forgets_nothing_that_is_not_on_disk()


def test_catching_up_needs_no_flush_period_for_each_run() -> None:
    """Beside appends, the replica that comes back gets one run of old blocks after the other; each is less than what it syncs at once."""

    async def scenario(cluster: MemoryCluster, client: WaltzClient) -> None:
        await cluster.kill_storage("storage-2")
        for _ in range(60):
            await asyncio.gather(*(client.append(0, bytes(2000)) for _ in range(100)))
        (mount,) = next(iter(cluster.servers.values()))[0]._partitions.values()
        store = mount._store
        assert store is not None
        assert store.window.first_transaction_id > 3000, "the server's memory does not have what the replica lacks"

        async def go_on() -> None:
            while True:
                await client.append(0, bytes(100))
                await asyncio.sleep(0.05)

        appending = asyncio.ensure_future(go_on())
        began_s = now_s()
        await cluster.start_storage("storage-2")
        await until(lambda: "storage-2" in store.live and store._acknowledgments.in_memory.get("storage-2", -1) >= store.committed)
        assert now_s() - began_s < PERIOD_S
        appending.cancel()
        await asyncio.gather(appending, return_exceptions=True)

    in_cluster(scenario, settings={"transaction_cache_bytes": 1 << 20})
