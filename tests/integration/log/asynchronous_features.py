"""The rows of the asynchronous client and outbox (`client_features`)."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

from tests.integration.log.client_features import REGULAR, STOCK, Place, feature
from waltz_log.client import (
    Application,
    ClientSettings,
    Context,
    Draft,
    GiveUp,
    Intent,
    KeyedDraft,
    Lock,
    Outbox,
    OutcomeUnknown,
    Subscribers,
    TopicHandle,
    TopicTransaction,
    Transaction,
    TransactionContext,
    WaltzClient,
)

__all__ = ["Balance", "Deposit", "unknown"]

LOCK = Lock("account", "1")


class Balance(Application):
    """Counts what it applied."""

    def __init__(self) -> None:
        self.applied = 0

    def client_high_water_mark(self, partition: int) -> int:
        return -1

    def apply(self, partition: int, transactions: list[Transaction]) -> None:
        self.applied += len(transactions)


class Deposit(Context):
    def partition(self, count: int) -> int:
        return 0

    def execute(self, tx: TransactionContext) -> None:
        tx.append(b"deposit", write_locks=[LOCK])


def unknown(partition: int, client_id: int, count: int = 1) -> OutcomeUnknown:
    """As if the first append of that client had not been answered."""
    return OutcomeUnknown(partition=partition, client_id=client_id, sequence=1, since=-1, count=count, reason="a test says so")


@asynccontextmanager
async def topic_of(place: Place, name: str) -> AsyncIterator[TopicHandle]:
    async with WaltzClient.open(place.cluster) as client:
        yield await client.topic(name)


@feature(WaltzClient="connect open append append_nowait append_many enqueue flush unacknowledged statistics close")
async def appends(place: Place) -> None:
    client = await WaltzClient.connect(place.cluster)
    await client.close()
    async with WaltzClient.open(place.cluster) as client:
        await client.append(0, b"a", write_locks=[LOCK])
        future = await client.append_nowait(0, b"b")
        await client.append_many(1, [Draft(b"c"), Draft(b"d")])
        await client.enqueue(1, Draft(b"e"))
        await client.flush()
        assert (await future).transaction_id >= 0
        assert client.unacknowledged() == []
        assert client.statistics().client_id == client.client_id


@feature(WaltzClient="append_bulk bulk")
async def bulk(place: Place) -> None:
    async with WaltzClient.open(place.cluster) as client:
        assert (await client.append_bulk(0, [b"x"] * 100)).committed == 100


@feature(WaltzClient="resolve resolve_range append")
async def resolving(place: Place) -> None:
    async with WaltzClient.open(place.cluster) as client, WaltzClient.open(place.cluster) as late:
        receipt = await client.append(0, b"is there")
        found = await client.resolve(unknown(0, client.client_id))
        assert found is not None
        assert found.transaction_id == receipt.transaction_id
        assert sum(each.length for each in await client.resolve_range(unknown(0, client.client_id, 3))) == 1
        assert await late.resolve(unknown(1, late.client_id)) is None


@feature(WaltzClient="feed feed_batches fetch high_water_mark first_transaction_id position_at")
async def reading(place: Place) -> None:
    async with WaltzClient.open(place.cluster) as client:
        receipt = await client.append(0, b"read me")
        async with aclosing(client.feed(0, receipt.transaction_id - 1)) as feed:
            assert (await anext(feed)).data == b"read me"
        assert [each.data for each in await client.fetch(0, [receipt.transaction_id])] == [b"read me"]
        assert await client.high_water_mark(0) >= receipt.transaction_id
        assert await client.first_transaction_id(0) == 0
        assert await client.position_at(0, 0) == 0


@feature(WaltzClient="follow transactional", Follower="wait settled close", TransactionContext="append")
async def transactions(place: Place) -> None:
    async with WaltzClient.open(place.cluster) as client:
        follower = await client.follow(0, lambda batch: None)

        @client.transactional(follower)
        def pay(tx: TransactionContext) -> None:
            tx.append(b"paid", write_locks=[LOCK])

        receipt = await pay()
        await follower.wait(receipt.transaction_id)
        await follower.settled(receipt.transaction_id)
        await follower.close()


@feature(WaltzClient="mount submit applied unmount")
async def contexts(place: Place) -> None:
    async with WaltzClient.open(place.cluster) as client:
        balance = Balance()
        await client.mount(balance, [0])
        receipt = await (await client.submit(Deposit()))
        assert receipt is not None
        assert client.applied(0).applied >= receipt.transaction_id
        assert balance.applied > 0
        await client.unmount()


@feature(
    WaltzClient="topic",
    TopicHandle="append append_nowait append_bulk bulk draft draft_of partition_of log_partition high_water_marks feed feed_batches fetch",
)
async def topics(place: Place) -> None:
    async with topic_of(place, REGULAR) as topic:
        receipt = await topic.append(b"order")
        await (await topic.append_nowait(b"order"))
        assert (await topic.append_bulk([b"x", b"y"])).submitted == 2
        assert (topic.draft(b"z")[0], topic.draft_of(b"z")[0], topic.log_partition(0)) == (0, 0, 2)
        assert topic.partition_of(b"key") == 0
        async with aclosing(topic.feed(until=await topic.high_water_marks())) as feed:
            assert b"order" in [record.value async for record in feed]
        assert (await topic.fetch(0, [receipt.transaction_id]))[0].value == b"order"


@feature(TopicHandle="delete follow transactional within feed", TopicTransaction="append delete")
async def compacted_views_and_transactions_of_topics(place: Place) -> None:
    async with topic_of(place, STOCK) as topic:
        await topic.append_bulk([KeyedDraft(b"k", b"1"), KeyedDraft(b"l", b"2")])
        await topic.delete(b"l")
        async with aclosing(topic.feed(compacted=True, until=await topic.high_water_marks())) as feed:
            assert {record.key async for record in feed} >= {b"k"}
        follower = await topic.follow(0, lambda records: None)

        @topic.transactional(follower)
        def restock(tx: TopicTransaction, gone: bool) -> None:
            if gone:
                tx.delete(b"k")
            else:
                tx.append(b"3", key=b"k")

        for gone in (False, True):
            assert await restock(gone) is not None
        await follower.close()


@feature(Subscribers="connect register register_at_start report list remove close")
async def subscribers(place: Place) -> None:
    async with await Subscribers.connect(place.cluster) as registry:
        await registry.register("tables", {0: -1})
        await registry.register_at_start("copies", [0, 1])
        await registry.report("tables", {0: 0})
        assert {each.name for each in await registry.list()} >= {"tables", "copies"}
        for name in ("tables", "copies"):
            await registry.remove(name)


@feature(
    Outbox="open over handler follow start submit flush dead_letters resubmit drop statistics close",
    IntentReceipt="outcome",
)
async def outboxes(place: Place) -> None:
    unstarted = Outbox.over(place.folder / "first", place.cluster)
    await unstarted.start()
    await unstarted.close()

    def prepare(outbox: Outbox) -> None:
        outbox.follow(0, lambda batch: None)

        @outbox.handler("pay")
        def pay(tx: Any, arguments: Any) -> None:
            if arguments == "never":
                raise GiveUp("never")
            tx.append(b"paid by the outbox", write_locks=[LOCK])

    async with Outbox.open(place.folder / "second", place.cluster, prepare=prepare) as outbox:
        (receipt,) = await outbox.submit(Intent.data(1, b"owed"))
        await outbox.submit([Intent.call("pay", "now", 0), Intent.call("pay", "never", 0), Intent.call("pay", "never", 0, key="k")])
        await outbox.flush()
        assert (await receipt.outcome()).transaction_id is not None
        again, dropped = outbox.dead_letters()
        await outbox.drop(dropped.dead_id)
        assert (await (await outbox.resubmit(again.dead_id, Intent.data(0, b"instead"))).outcome()).transaction_id is not None
        assert outbox.statistics().submitted >= 4
        assert outbox.dead_letters() == []


@feature(WaltzClient="append fetch")
async def traces(place: Place) -> None:
    """An append with tracing, inside a span that no exporter receives."""
    from opentelemetry.sdk.trace import TracerProvider

    tracer = TracerProvider().get_tracer("test")
    async with WaltzClient.open(place.cluster, ClientSettings(tracing=True)) as client:
        with tracer.start_as_current_span(f"at {time.time()}"):
            receipt = await client.append(0, b"traced")
        assert (await client.fetch(0, [receipt.transaction_id]))[0].data == b"traced"
