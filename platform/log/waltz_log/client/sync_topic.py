"""A topic for code that blocks: the same names as `TopicHandle`, over the blocking client's thread."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import Future
from typing import Protocol, Unpack

from waltz_log.client.append.bulk import append_all_blocking
from waltz_log.client.append.bulk_receipt import NotInLog
from waltz_log.client.append.bulk_source import Source
from waltz_log.client.base.background import Background, blocking
from waltz_log.client.feed.fetching import checked_ids
from waltz_log.client.sync_follower import SyncFollower, blocking_decorator
from waltz_log.client.topics.topic import After, TopicHandle, TopicTransaction
from waltz_log.client.topics.topic_bulk import TopicBulkReceipt
from waltz_log.client.topics.topic_records import TopicRecord
from waltz_log.client.transactions.transaction import Draft, DraftOptions, Receipt
from waltz_log.client.transactions.transactional import TransactionContext
from waltz_log.core.topics.catalogue import TopicEpoch
from waltz_log.core.topics.topic_names import TopicName

__all__ = ["SyncTopicHandle"]


class Enqueue(Protocol):
    """`SyncWaltzClient.enqueue`."""

    def __call__(self, partition: int, draft: Draft, timeout_s: float | None = None, topic: TopicEpoch | None = None) -> Future[Receipt]: ...


class SyncTopicHandle:
    """A topic for code that blocks, made by `client.topic("namespace/name")`. The methods are those of `TopicHandle`. All threads of a process may
    use it."""

    def __init__(self, enqueue: Enqueue, topic: TopicHandle, background: Background) -> None:
        self._enqueue = enqueue
        self.asynchronous = topic
        self.background = background

    @property
    def name(self) -> TopicName:
        """As `TopicHandle.name`."""
        return self.asynchronous.name

    @property
    def partitions(self) -> int:
        """As `TopicHandle.partitions`."""
        return self.asynchronous.partitions

    @property
    def log_partitions(self) -> tuple[int, ...]:
        """As `TopicHandle.log_partitions`."""
        return self.asynchronous.log_partitions

    @property
    def keyed(self) -> bool:
        """As `TopicHandle.keyed`."""
        return self.asynchronous.keyed

    @property
    def compaction(self) -> bool:
        """As `TopicHandle.compaction`."""
        return self.asynchronous.compaction

    @property
    def deleted(self) -> bool:
        """As `TopicHandle.deleted`."""
        return self.asynchronous.deleted

    def log_partition(self, partition: int) -> int:
        """As `TopicHandle.log_partition`."""
        return self.asynchronous.log_partition(partition)

    def partition_of(self, key: bytes) -> int:
        """As `TopicHandle.partition_of`."""
        return self.asynchronous.partition_of(key)

    def draft(
        self, value: bytes | None, *, key: bytes | None = None, partition: int | None = None, **options: Unpack[DraftOptions]
    ) -> tuple[int, Draft]:
        """As `TopicHandle.draft`."""
        return self.asynchronous.draft(value, key=key, partition=partition, **options)

    high_water_marks = blocking(TopicHandle.high_water_marks)

    # ---- appending -------------------------------------------------------------------------------------------------------------------------------

    append = blocking(TopicHandle.append)
    delete = blocking(TopicHandle.delete)

    def append_nowait(
        self,
        value: bytes,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        timeout_s: float | None = None,
        **options: Unpack[DraftOptions],
    ) -> Future[Receipt]:
        """As `SyncWaltzClient.append_nowait`. Raises `InvalidRequest` at once for a key, value or partition that does not fit the topic."""
        place, draft = self.asynchronous.draft(value, key=key, partition=partition, **options)
        return self._enqueue(self.asynchronous.log_partitions[place], draft, timeout_s, self.asynchronous.identity)

    def append_bulk(
        self,
        source: Source,
        *,
        partition: int | None = None,
        on_error: Callable[[NotInLog], None] | None = None,
        timeout_s: float | None = None,
    ) -> TopicBulkReceipt:
        """As `TopicHandle.append_bulk`. The source is read in the caller's thread; the callback runs in the client's thread."""
        topic = self.asynchronous
        return append_all_blocking(self.background, lambda: topic.bulk(partition=partition, on_error=on_error, timeout_s=timeout_s), source)

    # ---- reading ---------------------------------------------------------------------------------------------------------------------------------

    def feed_batches(
        self, partition: int | None = None, after: After = -1, *, compacted: bool = False, until: Mapping[int, int] | None = None
    ) -> Generator[list[TopicRecord], None, None]:
        """As `TopicHandle.feed_batches`: a generator that blocks until the next batch arrives. Close it to end the feed."""
        yield from self.background.iterate(self.asynchronous.feed_batches(partition, after, compacted=compacted, until=until))

    def feed(
        self, partition: int | None = None, after: After = -1, *, compacted: bool = False, until: Mapping[int, int] | None = None
    ) -> Generator[TopicRecord, None, None]:
        """The feed one record at a time."""
        for batch in self.feed_batches(partition, after, compacted=compacted, until=until):
            yield from batch

    def fetch(self, partition: int, transaction_ids: Iterable[int], timeout_s: float | None = None) -> list[TopicRecord]:
        """As `TopicHandle.fetch`."""
        return self.background.call(self.asynchronous.fetch(partition, checked_ids(transaction_ids), timeout_s))

    # ---- transactions ----------------------------------------------------------------------------------------------------------------------------

    def follow(self, partition: int, apply: Callable[[list[TopicRecord]], None], after: int = -1) -> SyncFollower:
        """As `TopicHandle.follow`; `apply` runs in the client's thread, one at a time with transactional functions."""
        return SyncFollower(self.background.call(self.asynchronous.follow(partition, apply, after)), self.background)

    def within(self, tx: TransactionContext) -> TopicTransaction:
        """As `TopicHandle.within`."""
        return self.asynchronous.within(tx)

    def transactional(self, follower: SyncFollower, **options: object) -> Callable[[Callable[..., None]], Callable[..., Receipt | None]]:
        """As `TopicHandle.transactional`. The function runs in the client's thread; the call blocks."""
        return blocking_decorator(self.background, self.asynchronous.transactional(follower.asynchronous, **options))
