"""The rows of the blocking client and outbox, of the inspector, and of the commands of users (`client_features`)."""

from __future__ import annotations

from typing import Any

from tests.integration.log.asynchronous_features import LOCK, Balance, Deposit, unknown
from tests.integration.log.client_features import REGULAR, STOCK, Place, feature, ran
from waltz_log.client import (
    Draft,
    GiveUp,
    Intent,
    SyncOutbox,
    SyncSubscribers,
    SyncWaltzClient,
    TopicTransaction,
    TransactionContext,
)
from waltz_log.client.inspection.inspect import ClusterInspector
from waltz_log.transport.locating import Question

__all__: list[str] = []


@feature(SyncWaltzClient="append append_nowait append_many append_bulk enqueue flush unacknowledged statistics close")
def blocking_appends(place: Place) -> None:
    with SyncWaltzClient(place.cluster) as client:
        client.append(0, b"a", write_locks=[LOCK])
        future = client.append_nowait(0, b"b")
        client.append_many(1, [Draft(b"c"), Draft(b"d")])
        client.enqueue(1, Draft(b"e"))
        assert client.append_bulk(0, [b"x"] * 100).committed == 100
        client.flush()
        assert future.result(30).transaction_id >= 0
        assert client.unacknowledged() == []
        assert client.statistics().client_id == client.client_id


@feature(SyncWaltzClient="resolve resolve_range feed feed_batches fetch high_water_mark first_transaction_id position_at")
def blocking_reads(place: Place) -> None:
    with SyncWaltzClient(place.cluster) as client:
        receipt = client.append(0, b"read me")
        assert client.resolve(unknown(0, client.client_id)) is not None
        assert client.resolve_range(unknown(0, client.client_id, 3))
        assert next(client.feed(0, receipt.transaction_id - 1)).data == b"read me"
        assert [each.data for each in client.fetch(0, [receipt.transaction_id])] == [b"read me"]
        assert client.high_water_mark(0) >= receipt.transaction_id
        assert (client.first_transaction_id(0), client.position_at(0, 0)) == (0, 0)


@feature(SyncWaltzClient="follow transactional mount submit applied unmount")
def blocking_transactions(place: Place) -> None:
    with SyncWaltzClient(place.cluster) as client:
        follower = client.follow(0, lambda batch: None)

        @client.transactional(follower)
        def pay(tx: TransactionContext) -> None:
            tx.append(b"paid", write_locks=[LOCK])

        receipt = pay()
        assert receipt is not None
        follower.wait(receipt.transaction_id, 30)
        follower.close()
        client.mount(Balance(), [0])
        applied = client.submit(Deposit()).result(30)
        assert applied is not None
        assert client.applied(0).applied >= applied.transaction_id
        client.unmount()


@feature(
    SyncWaltzClient="topic",
    SyncTopicHandle="append append_nowait append_bulk draft partition_of log_partition high_water_marks feed feed_batches fetch",
)
def blocking_topics(place: Place) -> None:
    with SyncWaltzClient(place.cluster) as client:
        topic = client.topic(REGULAR)
        receipt = topic.append(b"order")
        topic.append_nowait(b"order").result(30)
        assert topic.append_bulk([b"x", b"y"]).submitted == 2
        assert (topic.draft(b"z")[0], topic.partition_of(b"key"), topic.log_partition(0)) == (0, 0, 2)
        assert b"order" in [record.value for record in topic.feed(until=topic.high_water_marks())]
        assert topic.fetch(0, [receipt.transaction_id])[0].value == b"order"


@feature(SyncTopicHandle="delete follow transactional within", TopicTransaction="append delete")
def blocking_transactions_of_topics(place: Place) -> None:
    with SyncWaltzClient(place.cluster) as client:
        topic = client.topic(STOCK)
        topic.append(b"1", key=b"k")
        topic.delete(b"l")
        assert b"k" in {record.key for record in topic.feed(compacted=True, until=topic.high_water_marks())}
        follower = topic.follow(0, lambda records: None)

        @topic.transactional(follower)
        def restock(tx: TopicTransaction, gone: bool) -> None:
            if gone:
                tx.delete(b"k")
            else:
                tx.append(b"3", key=b"k")

        for gone in (False, True):
            assert restock(gone) is not None
        assert topic.within(TransactionContext(3, -1, 1)).partition == 0
        follower.close()


@feature(SyncSubscribers="register register_at_start report list remove close")
def blocking_subscribers(place: Place) -> None:
    with SyncSubscribers(place.cluster) as registry:
        registry.register("blocking", {0: -1})
        registry.register_at_start("blocking-copies", [0, 1])
        registry.report("blocking", {0: 0})
        assert {each.name for each in registry.list()} >= {"blocking", "blocking-copies"}
        for name in ("blocking", "blocking-copies"):
            registry.remove(name)


@feature(SyncOutbox="handler follow start submit flush dead_letters resubmit drop statistics close", SyncIntentReceipt="outcome")
def blocking_outboxes(place: Place) -> None:
    outbox = SyncOutbox(place.folder / "blocking", place.cluster)
    outbox.follow(0, lambda batch: None)

    @outbox.handler("pay")
    def pay(tx: Any, arguments: Any) -> None:
        if arguments == "never":
            raise GiveUp("never")
        tx.append(b"paid by the outbox", write_locks=[LOCK])

    with outbox:
        (receipt,) = outbox.submit(Intent.data(1, b"owed"))
        outbox.submit([Intent.call("pay", "now", 0), Intent.call("pay", "never", 0), Intent.call("pay", "never", 0, key="k")])
        outbox.flush(30)
        assert receipt.outcome(30).transaction_id is not None
        again, dropped = outbox.dead_letters()
        outbox.drop(dropped.dead_id)
        assert outbox.resubmit(again.dead_id, Intent.data(0, b"instead")).outcome(30).transaction_id is not None
        assert outbox.statistics().submitted >= 4
        assert outbox.dead_letters() == []


@feature(ClusterInspector="bounds owners replicas catalogue locate view_ends recent_traces close")
def inspector(place: Place) -> None:
    """As Spark's driver and jobs use it."""
    with SyncWaltzClient(place.cluster) as client:
        client.append(0, b"located")
    with ClusterInspector(place.cluster) as found:
        bounds = found.bounds()
        assert set(bounds) == set(found.owners()) == set(found.replicas()) == {0, 1, 2, 3}
        assert {str(name) for name in found.catalogue().topics} == {REGULAR, STOCK}
        mark = bounds[0].high_water_mark
        assert found.locate({0: Question(bounds[0].session, mark, times_ms=(0,))})[0].positions == (0,)
        found.view_ends({3: bounds[3].session})
        assert found.recent_traces({0: (0, mark)}, 10) == []


@feature()
def commands(place: Place) -> None:
    at = place.cluster
    for words in (
        ["append", at, "--partition", "0", "by hand"],
        ["read", at, "--partition", "0", "--limit", "1"],
        ["tail", at, "--partition", "0", "--no-follow"],
        ["trace", at, "--partition", "0", "--transaction", "0"],
        ["lag", at],
        ["topic", "create", at, "shop/passing", "--log-partitions", "1", "--existing-data", "keep"],
        ["topic", "list", at],
        ["topic", "describe", at, "shop/passing"],
        ["topic", "alter-policy", at, "shop/passing", "--policy", "retention_ms=3600000"],
        ["topic", "delete", at, "shop/passing"],
    ):
        ran(words)
