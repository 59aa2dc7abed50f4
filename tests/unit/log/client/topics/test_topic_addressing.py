"""Appends to topics and feeds of them, over a real cluster in memory: which partition, what is in the log, what is refused and how."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from waltz_log.client import (
    Application,
    ClientSettings,
    Context,
    KeyedDraft,
    Lock,
    NotInLog,
    TopicHandle,
    TopicRecord,
    Transaction,
    TransactionContext,
    WaltzClient,
)
from waltz_log.core.formats.envelope import pack_keyed, split_keyed
from waltz_log.core.topics.topic_names import partition_of_key
from waltz_log.errors import EnvelopeBroken, InvalidBatch, InvalidRequest, NoSuchTopic, NotAppended, TopicDeleted, TransactionTooLarge
from waltz_log.testing import InMemoryCluster, SyncInMemoryCluster

FAST = ClientSettings(retry_base_s=0.001, retry_cap_s=0.05, append_timeout_s=20.0)


@pytest.fixture
async def cluster() -> AsyncIterator[InMemoryCluster]:
    async with InMemoryCluster(partitions=8, servers=1, storages=1) as made:
        yield made


async def create(cluster: InMemoryCluster, name: str, partitions: int = 3, **more: Any) -> None:
    await cluster.create_topic(name, partitions, **more)


async def first_of(feed: Any, count: int) -> list[TopicRecord]:
    found: list[TopicRecord] = []
    if not count:
        return found
    async with asyncio.timeout(20):
        async for record in feed:
            found.append(record)
            if len(found) == count:
                break
    await feed.aclose()
    return found


async def test_a_keyed_append_goes_where_its_key_says_with_the_documented_envelope(cluster: InMemoryCluster) -> None:
    await create(cluster, "first/unrelated", 2)
    await create(cluster, "shop/orders", keyed=True)
    client = await cluster.client(FAST)
    topic = await client.topic("shop/orders")
    assert (str(topic.name), topic.partitions, topic.log_partitions, topic.keyed, topic.compaction) == ("shop/orders", 3, (2, 3, 4), True, False)
    keys = [b"order-%d" % n for n in range(20)]
    receipts = [await topic.append(b"value of " + key, key=key, header=n) for n, key in enumerate(keys)]
    for key, receipt in zip(keys, receipts, strict=True):
        place = partition_of_key(key, 3)
        assert (topic.partition_of(key), receipt.partition) == (place, topic.log_partition(place))
    assert {receipt.partition for receipt in receipts} == {2, 3, 4}
    raw = [each.data async for each in aslice(client.feed(receipts[0].partition), 1)]
    assert raw == [b"\x01" + len(keys[0]).to_bytes(4, "big") + keys[0] + b"value of " + keys[0]]
    found = await first_of(topic.feed(), 20)
    assert {(each.key, each.value, each.header) for each in found} == {(key, b"value of " + key, n) for n, key in enumerate(keys)}
    assert all(each.partition == topic.partition_of(each.key or b"") and not each.is_tombstone for each in found)
    one = topic.partition_of(keys[3])
    assert [each.key for each in await first_of(topic.feed(one), 3)] == [key for key in keys if topic.partition_of(key) == one][:3]
    assert sum(mark + 1 for mark in (await topic.high_water_marks()).values()) == 20


async def aslice(source: Any, count: int) -> AsyncIterator[Any]:
    async for each in source:
        yield each
        count -= 1
        if not count:
            await source.aclose()
            return


async def test_without_keys_partitions_alternate_unless_one_is_named(cluster: InMemoryCluster) -> None:
    await create(cluster, "shop/clicks")
    topic = await (await cluster.client(FAST)).topic("shop/clicks")
    receipts = [await topic.append(b"%d" % n) for n in range(6)]
    assert sorted(receipt.partition for receipt in receipts) == [0, 0, 1, 1, 2, 2]
    assert (await topic.append(b"there", partition=2)).partition == topic.log_partition(2)
    receipt = await topic.append(b"locked", partition=1, write_locks=[Lock("seat", 1)])
    assert receipt.partition == 1
    found = await first_of(topic.feed(2, after=1), 1)
    assert (found[0].key, found[0].value, found[0].partition) == (None, b"there", 2)
    found = await first_of(topic.feed(after={0: 1, 1: 2}), 3)
    assert sorted(each.partition for each in found) == [2, 2, 2]


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("keyed", {}, "needs a key of bytes"),
    ("keyed", {"key": "text"}, "needs a key of bytes"),
    ("keyed", {"key": b""}, "a key has 1 to"),
    ("keyed", {"key": b"k" * 65_537}, "a key has 1 to"),
    ("keyed", {"key": b"k", "value": b""}, "use `delete`"),
    ("keyed", {"key": b"k", "value": None}, "bytes, not None"),
    ("keyed", {"key": b"k", "value": "text"}, "a value must be bytes"),
    ("keyed", {"key": b"k", "partition": 1 - partition_of_key(b"k", 2)}, "the key belongs to partition"),
    ("plain", {"key": b"k"}, "have no keys"),
    ("plain", {"partition": 2}, "partitions 0 to 1"),
    ("plain", {"partition": "0"}, "a partition must be a number"),
    ("plain", {"value": "text"}, "data must be bytes"),
    ("plain", {"write_locks": [Lock("seat", 1)]}, "name the partition"),
]


async def test_entries_that_do_not_fit_the_topic_are_refused_before_they_are_sent(cluster: InMemoryCluster) -> None:
    await create(cluster, "shop/keyed", 2, keyed=True)
    await create(cluster, "shop/plain", 2)
    client = await cluster.client(FAST)
    topics = {name: await client.topic(f"shop/{name}") for name in ("keyed", "plain")}
    for name, arguments, reported in REFUSED:
        with pytest.raises(InvalidRequest, match=reported):
            await topics[name].append(**{"value": b"v", **arguments})
    with pytest.raises(InvalidRequest, match="have no keys"):
        await topics["plain"].delete(b"k")
    with pytest.raises(TransactionTooLarge):
        await topics["keyed"].append(bytes(1024 * 1024), key=b"k")
    for arguments in ({"after": 5}, {"after": {7: 1}}, {"after": {0: -2}}, {"partition": 2}, {"compacted": True}):
        with pytest.raises(InvalidRequest):
            topics["plain"].feed_batches(**arguments)
    assert [await client.high_water_mark(partition) for partition in range(4)] == [-1] * 4


async def test_an_unknown_name_is_reported_with_the_nearest(cluster: InMemoryCluster) -> None:
    await create(cluster, "shop/orders")
    client = await cluster.client(FAST)
    with pytest.raises(NoSuchTopic, match="did you mean shop/orders") as raised:
        await client.topic("shop/ordres")
    assert (raised.value.topic, raised.value.nearest) == ("shop/ordres", "shop/orders")
    with pytest.raises(InvalidRequest, match="not a topic's name"):
        await client.topic("orders")


async def test_all_users_of_a_deleted_topic_learn_of_it(cluster: InMemoryCluster) -> None:
    await create(cluster, "shop/orders", 2)
    await create(cluster, "shop/others", 2)
    client = await cluster.client(FAST)
    topic, other = await client.topic("shop/orders"), await client.topic("shop/others")
    again = await client.topic("shop/orders")
    await topic.append(b"before")
    waiting = asyncio.create_task(first_of(topic.feed(), 2))
    await cluster.delete_topic("shop/orders")
    with pytest.raises(TopicDeleted, match="shop/orders"):
        await waiting
    for use in (lambda: again.append(b"after"), lambda: again.append_bulk([b"x"]), lambda: anext(again.feed())):
        with pytest.raises(TopicDeleted):
            await use()
    assert topic.deleted
    assert not other.deleted
    await other.append(b"goes on")
    await create(cluster, "shop/orders", 2)
    anew = await client.topic("shop/orders")
    assert anew.log_partitions == (4, 5)
    assert topic.deleted, "another topic of that name is another topic"
    assert (await anew.append(b"anew", partition=0)).transaction_id == 0


async def test_a_deletion_is_reported_also_after_the_followed_server_died(cluster: InMemoryCluster) -> None:
    await create(cluster, "shop/orders", 2)
    client = await cluster.client(FAST)
    topic = await client.topic("shop/orders")
    waiting = asyncio.create_task(first_of(topic.feed(), 1))
    followed = client._owners._following.server
    (name,) = [name for name, (server, _) in cluster.servers.items() if server.address == followed]
    await cluster.kill_server(name)
    await cluster.delete_topic("shop/orders")
    await cluster.start_server(name)
    with pytest.raises(TopicDeleted):
        await waiting


async def test_one_that_was_deleted_and_made_again_unseen_is_another_topic(cluster: InMemoryCluster) -> None:
    await create(cluster, "shop/orders", 2)
    client = await cluster.client(FAST)
    topic = await client.topic("shop/orders")
    following = client._owners._following
    await following.close()  # as one whose server was just lost
    await cluster.delete_topic("shop/orders")
    await create(cluster, "shop/orders", 2)
    await following.open()
    assert (await client.topic("shop/orders")).log_partitions == (2, 3)
    with pytest.raises(TopicDeleted):
        await topic.append(b"x")


async def test_a_handle_that_does_not_know_of_the_deletion_fetches_nothing_more(cluster: InMemoryCluster) -> None:
    await create(cluster, "shop/orders", 1)
    topic = await (await cluster.client(FAST)).topic("shop/orders")
    receipt = await topic.append(b"x")
    assert [each.value for each in await topic.fetch(0, [receipt.transaction_id])] == [b"x"]
    await topic._directory._owners._following.close()
    await cluster.delete_topic("shop/orders")
    with pytest.raises(TopicDeleted):
        async with asyncio.timeout(10):
            while True:  # until the owner has read the catalogue
                await topic.fetch(0, [receipt.transaction_id])
    assert not topic.deleted, "the owner refused it, not this client"


async def test_a_broken_envelope_is_reported_with_its_position_and_never_skipped(cluster: InMemoryCluster) -> None:
    await create(cluster, "shop/orders", 1, keyed=True)
    client = await cluster.client(FAST.model_copy(update={"topics": ("shop/orders",)}))
    topic = await client.topic("shop/orders")
    await topic.append(b"1", key=b"a")
    bad = await client.append(0, b"\x02 around the topic")
    await topic.append(b"2", key=b"b")
    feed, found = topic.feed(), []
    with pytest.raises(EnvelopeBroken) as raised:
        async for record in feed:
            found.append(record.value)
    assert found == [b"1"]
    assert raised.value.facts == {"topic": "shop/orders", "partition": 0, "transaction_id": bad.transaction_id}
    assert [each.value for each in await first_of(topic.feed(0, after=bad.transaction_id), 1)] == [b"2"]


async def test_a_tombstone_is_a_key_without_a_value(cluster: InMemoryCluster) -> None:
    await create(cluster, "shop/prices", 2, type="compaction")
    client = await cluster.client(FAST)
    topic = await client.topic("shop/prices")
    await topic.append(b"12", key=b"tea")
    receipt = await topic.delete(b"tea", header=4)
    assert receipt.partition == topic.log_partition(topic.partition_of(b"tea"))
    raw = [each async for each in aslice(client.feed(receipt.partition), 2)]
    assert (raw[1].data, raw[1].header) == (pack_keyed(b"tea", b""), 4)
    assert [(each.value, each.is_tombstone) for each in await first_of(topic.feed(topic.partition_of(b"tea")), 2)] == [(b"12", False), (b"", True)]


# ---- much at once ----------------------------------------------------------------------------------------------------------------------------------


async def everything(topic: TopicHandle, count: int) -> dict[int, list[TopicRecord]]:
    found: dict[int, list[TopicRecord]] = {}
    for record in await first_of(topic.feed(), count):
        found.setdefault(record.partition, []).append(record)
    return found


async def test_pairs_drafts_and_record_batches_land_in_their_partitions_in_the_order_of_the_source(cluster: InMemoryCluster) -> None:
    await create(cluster, "shop/orders", keyed=True)
    topic = await (await cluster.client(FAST)).topic("shop/orders")
    keys = [b"k%d" % (n % 7) for n in range(2000)]
    entries: list[Any] = [(key, b"%d" % n) if n % 2 else KeyedDraft(key, b"%d" % n, header=n) for n, key in enumerate(keys)]
    done = await topic.append_bulk(entries)
    assert (done.submitted, done.committed, done.failed) == (2000, 2000, [])
    found = await everything(topic, 2000)
    for partition, records in found.items():
        assert [(each.key, each.value) for each in records] == [(k, b"%d" % n) for n, k in enumerate(keys) if topic.partition_of(k) == partition]
    for position in (0, 1, 999, 1999):
        place = done.place(position)
        assert place is not None
        assert found[place[0]][place[1]].value == b"%d" % position
    assert done.place(2000) is None
    table = pa.table({"data": ["x", None, "z"], "key": pa.array([b"k0", b"k1", b"k0"]), "header": pa.array([1, 2, 3], pa.int32())})
    done = await topic.append_bulk(table)
    assert done.committed == 3
    place = done.place(1)
    assert place is not None
    (ended,) = await first_of(topic.feed(place[0], after=place[1] - 1), 1)
    assert (ended.key, ended.header, ended.is_tombstone) == (b"k1", 2, True)

    async def arriving() -> AsyncIterator[Any]:
        for n in range(3):
            yield (b"k%d" % n, b"late")

    assert (await topic.append_bulk(arriving())).committed == 3


async def test_each_entry_is_independent_and_failures_are_reported_by_position(cluster: InMemoryCluster) -> None:
    await create(cluster, "shop/orders", keyed=True)
    await create(cluster, "shop/plain", 2)
    client = await cluster.client(FAST)
    topic = await client.topic("shop/orders")
    reported: list[int] = []
    entries = [(b"a", b"1"), b"no key", (b"b", b""), (b"c", bytes(2_000_000)), (b"d", None), (b"e",), (b"f", b"6")]
    done = await topic.append_bulk(entries, on_error=lambda failure: reported.append(failure.position))
    assert [failure.position for failure in done.failed] == sorted(reported) == [1, 2, 3, 5]
    assert (done.submitted, done.committed) == (7, 3)
    assert [done.place(position) is not None for position in range(7)] == [True, False, False, False, True, False, True]
    with pytest.raises(InvalidRequest):
        done.raise_failed()

    def fails(_: NotInLog) -> None:
        raise RuntimeError("of no concern to the call")

    done = await topic.append_bulk(entries, on_error=fails)
    assert ([failure.position for failure in done.failed], done.committed) == ([1, 2, 3, 5], 3)
    plain = await client.topic("shop/plain")
    done = await plain.append_bulk(iter([b"x", (b"k", b"v"), b"y"]), partition=1)
    assert (done.committed, [failure.position for failure in done.failed], set(done.partitions)) == (2, [1], {1})
    with pytest.raises(InvalidBatch, match="not tuple: row=1 column=data"):
        await plain.append_bulk([b"x", (b"k", b"v"), b"y"], partition=1)
    with pytest.raises(InvalidRequest, match="key and data"):
        await topic.append_bulk(pa.table({"data": ["x"]}))


async def test_entries_after_the_end_of_a_call_are_reported_as_not_in_the_log(cluster: InMemoryCluster) -> None:
    await create(cluster, "shop/orders", 2, keyed=True)
    topic = await (await cluster.client(FAST)).topic("shop/orders")
    await topic.append(b"v", key=b"warm")
    client = await cluster.client(ClientSettings(max_pending=4, append_timeout_s=0.2, retry_cap_s=0.05))
    handle = await client.topic("shop/orders")
    await cluster.kill_server("server-0")
    entries = [(b"%d" % n, b"v") for n in range(40)]
    done = await handle.append_bulk(entries)
    assert done.committed == 0
    assert [failure.position + at for failure in done.failed for at in range(failure.length)] == list(range(40))
    assert all(isinstance(failure.error, NotAppended) for failure in done.failed)
    await cluster.start_server("server-0")


def plain(found: dict[int, list[TopicRecord]]) -> dict[int, list[tuple[int, bytes | None, bytes]]]:
    return {partition: [(each.transaction_id, each.key, each.value) for each in records] for partition, records in found.items()}


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.binary(min_size=1, max_size=4), st.none() | st.binary(min_size=1, max_size=8)), max_size=60), st.integers(1, 4))
def test_a_bulk_append_is_as_appends_one_by_one(entries: list[tuple[bytes, bytes | None]], partitions: int) -> None:
    async def main() -> None:
        async with InMemoryCluster(partitions=8, servers=1, storages=1) as cluster:
            await create(cluster, "a/one", partitions, keyed=True)
            await create(cluster, "a/much", partitions, keyed=True)
            client = await cluster.client(FAST)
            one, much = await client.topic("a/one"), await client.topic("a/much")
            for key, value in entries:
                await (one.delete(key) if value is None else one.append(value, key=key))
            assert (await much.append_bulk(entries)).committed == len(entries)
            assert plain(await everything(much, len(entries))) == plain(await everything(one, len(entries)))

    asyncio.run(main())


# ---- states and transactions -----------------------------------------------------------------------------------------------------------------------


async def test_a_function_on_a_followed_partition_appends_under_its_key(cluster: InMemoryCluster) -> None:
    await create(cluster, "shop/stock", 2, type="compaction")
    client = await cluster.client(FAST)
    topic = await client.topic("shop/stock")
    stock: dict[bytes, int] = {}

    def apply(records: list[TopicRecord]) -> None:
        for each in records:
            assert each.key is not None
            if each.is_tombstone:
                stock.pop(each.key)
            else:
                stock[each.key] = int(each.value)

    place = topic.partition_of(b"tea")
    follower = await topic.follow(place, apply)

    @topic.transactional(follower, locks=lambda count: [Lock("stock", "tea")])
    async def add(tx: Any, count: int) -> None:
        assert (tx.partition, tx.attempt) == (place, 1)
        left = stock.get(b"tea", 0) + count
        if left:
            tx.append(b"%d" % left, key=b"tea", write_locks=[Lock("stock", "tea")])
        else:
            tx.delete(b"tea", write_locks=[Lock("stock", "tea")])

    assert all(await asyncio.gather(*(add(2) for _ in range(5))))
    assert stock == {b"tea": 10}
    await add(-10)
    assert stock == {}

    elsewhere = next(key for key in (b"%d" % n for n in range(99)) if topic.partition_of(key) != place)

    @topic.transactional(follower)
    async def astray(tx: Any) -> None:
        tx.append(b"x", key=elsewhere)

    with pytest.raises(InvalidRequest, match="the key belongs to partition"):
        await astray()


class Count(Context):
    """One more of a key, from what the application knows."""

    def __init__(self, topic: TopicHandle, known: dict[bytes, int], key: bytes) -> None:
        self.topic, self.known, self.key = topic, known, key

    def partition(self, count: int) -> int:
        return self.topic.log_partition(self.topic.partition_of(self.key))

    def execute(self, tx: TransactionContext) -> None:
        value = b"%d" % (self.known.get(self.key, 0) + 1)
        self.topic.within(tx).append(value, key=self.key, header=7, write_locks=[Lock("count", self.key.decode())])


class Counts(Application):
    def __init__(self) -> None:
        self.known: dict[bytes, int] = {}

    def client_high_water_mark(self, partition: int) -> int:
        return -1

    def apply(self, partition: int, transactions: list[Transaction]) -> None:
        for each in transactions:
            keyed = split_keyed(each.data)
            assert keyed is not None
            self.known[keyed.key] = int(keyed.value)


async def test_a_context_appends_to_the_partition_of_its_key(cluster: InMemoryCluster) -> None:
    await create(cluster, "first/unrelated", 1)
    await create(cluster, "shop/counts", 3, keyed=True)
    client = await cluster.client(FAST.model_copy(update={"topics": ("shop/counts",)}))
    topic = await client.topic("shop/counts")
    counts = Counts()
    await client.mount(counts, topic.log_partitions)
    keys = [b"a", b"b", b"c", b"d"]
    for task in [await client.submit(Count(topic, counts.known, key)) for key in keys * 5]:
        assert await task is not None
    assert counts.known == dict.fromkeys(keys, 5)
    with pytest.raises(InvalidRequest, match="is none of shop/counts"):
        topic.within(TransactionContext(0, -1, 1))


def test_the_blocking_client_has_the_same() -> None:
    with SyncInMemoryCluster(partitions=8, servers=1, storages=1) as cluster:
        cluster.create_topic("shop/orders", 3, keyed=True)
        with cluster.client(FAST) as client:
            topic = client.topic("shop/orders")
            assert (topic.partitions, topic.keyed, topic.log_partitions) == (3, True, (0, 1, 2))
            first = topic.append(b"1", key=b"a")
            second = topic.append_nowait(b"2", key=b"a")
            assert second.result(20).transaction_id == first.transaction_id + 1
            topic.delete(b"a")
            done = topic.append_bulk((b"k%d" % n, b"%d" % n) for n in range(1500))
            assert done.committed == 1500
            feed = topic.feed(topic.partition_of(b"a"))
            assert [(each.key, each.value) for each, _ in zip(feed, range(3), strict=False)] == [(b"a", b"1"), (b"a", b"2"), (b"a", b"")]
            feed.close()
            state: list[TopicRecord] = []
            follower = topic.follow(topic.partition_of(b"a"), state.extend)
            follower.wait(2, 20)

            @topic.transactional(follower)
            def more(tx: Any) -> None:
                tx.append(b"%d" % len(state), key=b"a")

            receipt = more()
            assert receipt is not None
            assert receipt.partition == first.partition
            assert sum(mark + 1 for mark in topic.high_water_marks().values()) == 1504
            with pytest.raises(InvalidRequest):
                topic.append(b"1")
            with pytest.raises(NoSuchTopic):
                client.topic("shop/nothing")
            cluster.delete_topic("shop/orders")
            with pytest.raises(TopicDeleted):
                list(topic.feed())


async def test_a_client_that_is_closed_hands_out_no_topics(cluster: InMemoryCluster) -> None:
    client: WaltzClient = await cluster.client(FAST)
    await client.close()
    with pytest.raises(InvalidRequest, match="closed"):
        await client.topic("shop/orders")
