"""A topic accepts only empty partitions; what others hold is shown, kept or discarded as the caller says; and partitions of deleted topics come
back."""

from __future__ import annotations

import asyncio
import pickle
from contextlib import aclosing
from functools import partial
from typing import Any

import pytest

from waltz_log.client import ClientSettings, WaltzClient
from waltz_log.coordination.partition_contents import PartitionsAsked
from waltz_log.coordination.subscribers import read_retained, read_subscribers, register_subscriber, report_marks
from waltz_log.coordination.topic_creation import TopicPlan, plan_topic
from waltz_log.coordination.topics import read_catalogue, write_catalogue
from waltz_log.core.metadata import STORAGE_NODES
from waltz_log.core.retention import Retained
from waltz_log.core.topics.catalogue import Catalogue
from waltz_log.core.topics.subscribers import Subscriber
from waltz_log.core.topics.topic_names import TopicName
from waltz_log.errors import BelongsToTopic, InvalidRequest, NoSuchTopic, OutcomeUnknown, OutOfRange, TopicDeleted
from waltz_log.testing.cluster import MemoryCluster
from waltz_log.testing.virtual_time import run_in_virtual_time

SMALL = {"segment_bytes": 4096, "scrub_bytes_per_s": 0, "disk_warn_free_bytes": 0, "disk_refuse_free_bytes": 0}
QUICK = ClientSettings(retry_base_s=0.001, retry_cap_s=0.02, append_timeout_s=20.0)


def cluster_of(partitions: int, **more: Any) -> MemoryCluster:
    return MemoryCluster(partitions=partitions, settings={"upkeep_s": 0.2, "rpc_timeout_s": 2.0}, storage_settings=SMALL, **more)


async def filled(cluster: MemoryCluster, partition: int, count: int = 60) -> WaltzClient:
    client = await cluster.connect(QUICK)
    for first in range(0, count, 2):
        await asyncio.gather(*(client.append(partition, b"%d" % number + bytes(300)) for number in range(first, min(first + 2, count))))
    return client


async def catalogue(cluster: MemoryCluster) -> Catalogue:
    return await read_catalogue(cluster.ensemble.session())


async def until(reached: Any) -> None:
    async with asyncio.timeout(60):
        while not await reached():
            await asyncio.sleep(0.05)


async def values(topic: Any, partition: int, count: int, after: int = -1) -> list[bytes]:
    found: list[bytes] = []
    async with aclosing(topic.feed(partition, after=after)) as feed:
        async for record in feed:
            found.append(record.value)
            if len(found) == count:
                break
    return found


def test_a_partition_that_holds_data_is_passed_over_and_refused_where_it_is_named_and_nothing_of_it_goes() -> None:
    async def run() -> None:
        cluster = cluster_of(3)
        await cluster.start()
        client = await filled(cluster, 0)
        topic = await cluster.create_topic("shop/orders", 2, retention_bytes=1000)
        assert topic.partitions == (1, 2)
        for plan in ({"partitions": 1}, {"partitions": 1, "log_partitions": (0,)}):
            with pytest.raises(InvalidRequest, match=r"0 \(60 transactions\)"):
                await cluster.create_topic("shop/returns", **plan)
        await asyncio.sleep(5)  # many rounds of upkeep
        assert await read_retained(cluster.ensemble.session(), 0) == Retained()
        assert (await anext(client.feed(0))).transaction_id == 0
        assert (await client.append(0, b"goes on")).transaction_id == 60
        assert list((await catalogue(cluster)).topics) == [TopicName("shop", "orders")]
        await client.close()
        await cluster.stop()

    run_in_virtual_time(run())


def test_a_plan_shows_what_partitions_hold_and_changes_nothing() -> None:
    async def run() -> None:
        cluster = cluster_of(2)
        await cluster.start()
        client = await filled(cluster, 0)
        session = cluster.ensemble.session()
        plan = TopicPlan(TopicName("shop", "orders"), 2, log_partitions=(0, 1))
        topic, (full, empty) = await plan_topic(session, cluster.network, plan, now_ms=cluster.clock.now_ms)
        assert topic.partitions == (0, 1)
        assert (full.partition, full.transactions, full.first, full.last) == (0, 60, 0, 59)
        assert full.bytes is not None
        assert full.bytes > 60 * 300
        assert full.first_ms is not None
        assert full.last_ms is not None
        assert full.first_ms <= full.last_ms
        assert full.replicas == ("storage-0", "storage-1", "storage-2")
        assert (empty.transactions, empty.bytes, empty.first_ms) == (0, None, None)
        assert await session.get("/topics") is None
        await client.close()
        await cluster.stop()

    run_in_virtual_time(run())


def test_data_that_a_topic_keeps_is_no_part_of_it_and_outlives_every_policy() -> None:
    async def run() -> None:
        cluster = cluster_of(1)
        await cluster.start()
        raw = await filled(cluster, 0)
        made = await cluster.create_topic("shop/orders", 1, keyed=True, log_partitions=(0,), existing="keep", retention_bytes=1000)
        assert made.begins_at == (60,)
        assert made.keeps_existing
        client = await cluster.connect(QUICK)
        topic = await client.topic("shop/orders")
        assert await topic.high_water_marks() == {0: 59}
        for number in range(60):
            assert (await topic.append(b"%d" % number + bytes(300), key=b"k")).transaction_id == 60 + number
        for after in (-1, 0, 30, 59):
            assert [each[:1] for each in await values(topic, 0, 3, after)] == [b"0", b"1", b"2"]
        followed: list[Any] = []
        follower = await topic.follow(0, followed.extend)
        await follower.wait(119)
        assert [each.transaction_id for each in followed] == list(range(60, 120))
        assert [each.transaction_id for each in await topic.fetch(0, [61, 60])] == [61, 60]
        for ids in ([59], [60, 0, 59]):
            with pytest.raises(OutOfRange) as before_the_topic:
                await topic.fetch(0, ids)
            assert before_the_topic.value.facts == {"partition": 0, "asked": min(ids), "first": 60, "last": 119}
        await asyncio.sleep(5)
        assert (await read_retained(cluster.ensemble.session(), 0)).first == 0
        assert (await anext(raw.feed(0))).data[:1] == b"0"
        await follower.close()
        for each in (raw, client):
            await each.close()
        await cluster.stop()

    run_in_virtual_time(run())


def test_data_is_discarded_only_where_the_number_of_transactions_is_confirmed() -> None:
    async def run() -> None:
        cluster = cluster_of(1)
        await cluster.start()
        raw = await filled(cluster, 0)
        for wrong in (None, 59, 61):
            with pytest.raises(InvalidRequest, match=r"60 transactions would be removed permanently.*--discard-transactions 60"):
                await cluster.create_topic("shop/orders", 1, keyed=True, log_partitions=(0,), existing="discard", discards=wrong)
        assert (await catalogue(cluster)).topics == (await catalogue(cluster)).pending == {}
        assert (await raw.append(0, b"and one more")).transaction_id == 60
        made = await cluster.create_topic("shop/orders", 1, keyed=True, log_partitions=(0,), existing="discard", discards=61)
        assert made.begins_at == (61,)
        topic = await raw.topic("shop/orders")
        await topic.append(b"first", key=b"k")
        assert await values(topic, 0, 1) == [b"first"]

        async def gone() -> bool:
            return (await read_retained(cluster.ensemble.session(), 0)).first >= 45

        await until(gone)
        assert await values(topic, 0, 1, after=3) == [b"first"]
        await raw.close()
        await cluster.stop()

    run_in_virtual_time(run())


def test_raw_appends_to_a_topics_partition_are_refused_and_to_others_go_on() -> None:
    async def run() -> None:
        cluster = cluster_of(2, servers=1)
        await cluster.start()
        early = await cluster.connect(QUICK)
        other = await early.append(1, b"of no topic")
        holding = await early.append_bulk(1, [b"x"] * 10)
        assert holding.committed == 10
        await cluster.create_topic("shop/orders", 1)  # partition 0 is empty, 1 is not
        late = await cluster.connect(QUICK)
        for client in (early, late):
            with pytest.raises(BelongsToTopic) as raised:
                await client.append(0, b"raw")
            assert raised.value.facts == {"partition": 0, "topic": "shop/orders"}
            assert "client.topic" in str(raised.value)
            assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)
            with pytest.raises(BelongsToTopic):
                (await client.append_bulk(0, [b"raw"])).raise_failed()
            assert (await client.append(1, b"raw")).transaction_id > other.transaction_id
        topic = await early.topic("shop/orders")
        assert (await topic.append(b"mine")).transaction_id == 0
        by_number = await cluster.connect(QUICK.model_copy(update={"topics": ("shop/orders",)}))
        assert (await by_number.append(0, b"mine too")).transaction_id == 1
        assert await values(topic, 0, 2) == [b"mine", b"mine too"]
        for each in (early, late, by_number):
            await each.close()
        await cluster.stop()

    run_in_virtual_time(run())


@pytest.mark.parametrize("seed", range(12))
def test_appends_that_race_the_creation_are_refused_or_make_it_fail(seed: int) -> None:
    """Whatever a raw client learns is in the log is not the topic's, and nothing of it is lost."""

    async def run() -> None:
        cluster = cluster_of(1, servers=2, delay_s=lambda: 0.001)
        await cluster.start()
        raw = await cluster.connect(QUICK, seed=seed)
        acknowledged: list[int] = []
        refused = asyncio.Event()

        async def append_on() -> None:
            while not refused.is_set():
                try:
                    acknowledged.append((await raw.append(0, b"raw")).transaction_id)
                except BelongsToTopic:
                    refused.set()
                except OutcomeUnknown as unknown:
                    found = await raw.resolve(unknown)
                    acknowledged.extend([] if found is None else [found.transaction_id])
                if len(acknowledged) > 50:
                    return

        appending = asyncio.ensure_future(append_on()) if seed % 2 else None
        await asyncio.sleep(seed * 0.0007)
        if appending is None:
            appending = asyncio.ensure_future(append_on())
        if seed % 3 == 0:
            killing: asyncio.Future[None] | None = asyncio.ensure_future(cluster.kill_server("server-0"))
        else:
            killing = None
        try:
            made = await cluster.create_topic("shop/orders", 1, keyed=True)
        except InvalidRequest:
            await appending
            assert not refused.is_set()
            assert acknowledged, "the creation failed for nothing"
        else:
            await appending
            assert refused.is_set()
            assert all(each < made.begin_of(0) for each in acknowledged)
            assert made.begin_of(0) == 0, "it was empty"
            topic = await raw.topic("shop/orders")
            await topic.append(b"first", key=b"k")
            assert await values(topic, 0, 1) == [b"first"]
        assert not (await catalogue(cluster)).pending
        if killing is not None:
            await killing
        await raw.close()
        await cluster.stop()

    run_in_virtual_time(run())


def test_a_creation_that_died_holds_up_appends_until_it_is_repeated_or_given_up() -> None:
    async def run() -> None:
        cluster = cluster_of(2)
        await cluster.start()
        session = cluster.ensemble.session()
        raw = await cluster.connect(QUICK)
        plan = TopicPlan(TopicName("shop", "orders"), 1, log_partitions=(0,))
        for ends in ("repeated", "deleted"):
            name = TopicName("shop", ends)
            about = plan.about((0 if ends == "repeated" else 1,), range(2), 0)
            await write_catalogue(session, partial(Catalogue.reserved, name=name, **about))
            client = await cluster.connect(QUICK.model_copy(update={"append_timeout_s": 2.0}))
            with pytest.raises(NoSuchTopic):
                await client.topic(str(name))
            pending = asyncio.ensure_future(raw.append(about["log_partitions"][0], b"waits"))
            await asyncio.sleep(1)
            assert not pending.done()
            if ends == "repeated":
                await cluster.create_topic(str(name), 1, log_partitions=(0,))
                with pytest.raises(BelongsToTopic):
                    await pending
            else:
                await cluster.delete_topic(str(name))
                assert (await pending).transaction_id == 0
            await client.close()
        assert not (await catalogue(cluster)).pending
        await raw.close()
        await cluster.stop()

    run_in_virtual_time(run())


def test_an_owner_that_opens_after_the_check_accepts_no_appends_either() -> None:
    """The owner that judged the partition dies, and the next one's catalogue was read before."""

    async def run() -> None:
        cluster = cluster_of(1, servers=2)
        await cluster.start()
        session = cluster.ensemble.session()
        plan = TopicPlan(TopicName("shop", "orders"), 1, log_partitions=(0,))
        raw = await cluster.connect(QUICK)
        for server, _ in cluster.servers.values():
            # Its watch hears nothing any more; it reads only what it reads by itself.
            server._tasks[2].cancel()
        _, version = await write_catalogue(session, lambda found: found.reserved(plan.name, **plan.about((0,), range(1), 0)))

        async def owned() -> bool:
            return any(0 in server._partitions for server, _ in cluster.servers.values())

        await until(owned)
        owner = next(name for name, (server, _) in cluster.servers.items() if 0 in server._partitions)
        await cluster.servers[owner][0]._topics.read()
        asked = PartitionsAsked(session, cluster.network, 5.0)
        assert 0 in await asked.bounds([0], closed_in=version)
        await cluster.kill_server(owner)
        appending = asyncio.ensure_future(raw.append(0, b"must not be in the topic"))
        await asyncio.sleep(2)
        assert not appending.done()
        appending.cancel()
        await asked.close()
        await raw.close()
        await cluster.stop()

    run_in_virtual_time(run())


@pytest.mark.parametrize("garbage", [b"", b"null", b"[" * 9999])
def test_what_a_partition_holds_is_shown_where_the_entry_of_a_storage_node_cannot_be_read(garbage: bytes) -> None:
    async def run() -> None:
        cluster = cluster_of(1)
        await cluster.start()
        raw = await filled(cluster, 0)
        session = cluster.ensemble.session()
        await session.set(f"{STORAGE_NODES}/storage-0", garbage, -1)
        asked = PartitionsAsked(session, cluster.network, 5.0)
        (contents,) = await asked.contents((await asked.bounds([0])).values())
        assert contents.last == 59
        assert contents.bytes is not None
        await asked.close()
        await raw.close()
        await cluster.stop()

    run_in_virtual_time(run())


@pytest.mark.parametrize("type", ["regular", "compaction"])
def test_partitions_of_a_deleted_topic_are_used_again_and_new_data_is_not_mistaken_for_old(type: str) -> None:
    async def run() -> None:
        cluster = cluster_of(1, servers=1)
        await cluster.start()
        client = await cluster.connect(QUICK)
        session = cluster.ensemble.session()
        ends: list[int] = []
        for life in range(3):
            name = f"shop/life-{life % 2}"  # the third has the name of the first
            made = await cluster.create_topic(name, 1, type=type, keyed=True)
            assert made.partitions == (0,)
            assert made.epoch == life + 1
            assert made.begin_of(0) == (ends[-1] if ends else 0)
            topic = await client.topic(name)
            await register_subscriber(session, Subscriber(f"reader-{life}", {0: made.begin_of(0) - 1}, {}, 0, 0))
            for number in range(50):
                receipt = await topic.append(b"%d-%d" % (life, number) + bytes(300), key=b"%d" % number)
                assert receipt.transaction_id == made.begin_of(0) + number
            for after in (-1, 0, 10, *ends):
                if after < made.begin_of(0):
                    assert (await values(topic, 0, 1, after))[0].startswith(b"%d-0" % life)
            if type == "compaction":
                compacted = topic.feed(0, compacted=True, until={0: receipt.transaction_id})
                assert {record.value[:1] async for record in compacted} == {b"%d" % life}
            ends.append(receipt.transaction_id + 1)
            stale = topic
            await cluster.delete_topic(name)
            await asyncio.sleep(1)
            assert (await catalogue(cluster)).retired == (0,), "its subscriber has not read it"
            with pytest.raises(InvalidRequest):
                await cluster.create_topic("shop/other", 1)
            await _report(session, f"reader-{life}", receipt.transaction_id)
            await _free(cluster)
            assert all(0 not in each.marks for each in await read_subscribers(session)), "a mark would hold what the next topic appends"
            assert (await read_retained(session, 0)).first == ends[-1]
            with pytest.raises(TopicDeleted):
                await stale.append(b"late", key=b"k")
            with pytest.raises(TopicDeleted):
                await values(stale, 0, 1)
        assert (await client.append(0, b"raw again")).transaction_id == ends[-1]
        await client.close()
        await cluster.stop()

    run_in_virtual_time(run())


async def _free(cluster: MemoryCluster) -> None:
    async def free() -> bool:
        return not (await catalogue(cluster)).retired

    await until(free)


async def _report(session: Any, name: str, mark: int) -> None:
    await report_marks(session, name, {0: mark}, 0)


def test_a_stale_handle_of_a_deleted_topic_cannot_append_to_the_next_topic_or_read_it() -> None:
    """The server judges: the name is the same, the topic is another one."""

    async def run() -> None:
        cluster = cluster_of(1, servers=1)
        await cluster.start()
        deaf, other = await cluster.connect(QUICK), await cluster.connect(QUICK, seed=1)
        await cluster.create_topic("shop/orders", 1)
        stale = await deaf.topic("shop/orders")
        await stale.append(b"old")
        feed = stale.feed(0)
        assert (await anext(feed)).value == b"old"
        await deaf._owners._following.close()  # it hears of nothing any more
        await cluster.delete_topic("shop/orders")
        await _free(cluster)
        await cluster.create_topic("shop/orders", 1)
        fresh = await other.topic("shop/orders")
        assert (await fresh.append(b"new")).transaction_id == 1
        with pytest.raises(TopicDeleted):
            await anext(feed)
        with pytest.raises(TopicDeleted):
            await stale.append(b"late")
        assert await values(fresh, 0, 1) == [b"new"]
        for each in (deaf, other):
            await each.close()
        await cluster.stop()

    run_in_virtual_time(run())


def test_a_replica_that_is_down_keeps_the_partition_of_a_deleted_topic_from_being_used() -> None:
    """It may hold a view of the old topic, and would serve it as the next one's."""

    async def run() -> None:
        cluster = cluster_of(1, servers=1)
        await cluster.start()
        client = await cluster.connect(QUICK)
        await cluster.create_topic("shop/orders", 1, type="compaction")
        await (await client.topic("shop/orders")).append(b"v", key=b"k")
        await asyncio.sleep(2)
        await cluster.stop_storage("storage-2")
        await cluster.delete_topic("shop/orders")
        await asyncio.sleep(5)
        assert (await catalogue(cluster)).retired == (0,)
        await cluster.start_storage("storage-2")
        await _free(cluster)
        await client.close()
        await cluster.stop()

    run_in_virtual_time(run())
