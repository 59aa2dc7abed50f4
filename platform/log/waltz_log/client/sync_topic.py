"""A topic for code that blocks: the same names as `TopicHandle`, over the blocking client's thread."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Unpack

from waltz_log.client.append.bulk import NotInLog, Source, append_all_blocking
from waltz_log.client.base.background import Background, blocking
from waltz_log.client.feed.fetching import checked_ids
from waltz_log.client.topics.topic import After, TopicHandle, TopicTransaction
from waltz_log.client.topics.topic_bulk import TopicBulkReceipt
from waltz_log.client.topics.topic_records import TopicRecord
from waltz_log.client.transactions.transaction import Draft, DraftOptions, Receipt
from waltz_log.client.transactions.transactional import TransactionContext
from waltz_log.core.topics.topic_names import TopicName

if TYPE_CHECKING:
    from waltz_log.client.sync import SyncFollower, SyncWaltzClient

__all__ = ["SyncTopicHandle"]


class SyncTopicHandle:
    """Made by `client.topic("namespace/name")`. May be used by several threads."""

    def __init__(self, client: SyncWaltzClient, topic: TopicHandle, background: Background) -> None:
        self._client = client
        self.asynchronous = topic
        self.background = background

    @property
    def name(self) -> TopicName:
        return self.asynchronous.name

    @property
    def partitions(self) -> int:
        return self.asynchronous.partitions

    @property
    def log_partitions(self) -> tuple[int, ...]:
        return self.asynchronous.log_partitions

    @property
    def keyed(self) -> bool:
        return self.asynchronous.keyed

    @property
    def compaction(self) -> bool:
        return self.asynchronous.compaction

    @property
    def deleted(self) -> bool:
        return self.asynchronous.deleted

    def log_partition(self, partition: int) -> int:
        return self.asynchronous.log_partition(partition)

    def partition_of(self, key: bytes) -> int:
        return self.asynchronous.partition_of(key)

    def draft(
        self, value: bytes | None, *, key: bytes | None = None, partition: int | None = None, **options: Unpack[DraftOptions]
    ) -> tuple[int, Draft]:
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
        """As `SyncWaltzClient.append_nowait`; what does not fit the topic is refused at once."""
        place, draft = self.asynchronous.draft(value, key=key, partition=partition, **options)
        return self._client.enqueue(self.asynchronous.log_partitions[place], draft, timeout_s, self.asynchronous.identity)

    def append_bulk(
        self,
        source: Source,
        *,
        partition: int | None = None,
        on_error: Callable[[NotInLog], None] | None = None,
        timeout_s: float | None = None,
    ) -> TopicBulkReceipt:
        """As `TopicHandle.append_bulk`. The source is read in the caller's thread, the callback is called in the client's."""
        topic = self.asynchronous
        return append_all_blocking(self.background, lambda: topic.bulk(partition=partition, on_error=on_error, timeout_s=timeout_s), source)

    # ---- reading ---------------------------------------------------------------------------------------------------------------------------------

    def feed_batches(
        self, partition: int | None = None, after: After = -1, *, compacted: bool = False, until: Mapping[int, int] | None = None
    ) -> Generator[list[TopicRecord], None, None]:
        """As `TopicHandle.feed_batches`; waits for what is not there yet. Close the generator to end it."""
        yield from self.background.iterate(self.asynchronous.feed_batches(partition, after, compacted=compacted, until=until))

    def feed(
        self, partition: int | None = None, after: After = -1, *, compacted: bool = False, until: Mapping[int, int] | None = None
    ) -> Generator[TopicRecord, None, None]:
        """The same one by one."""
        for batch in self.feed_batches(partition, after, compacted=compacted, until=until):
            yield from batch

    def fetch(self, partition: int, transaction_ids: Iterable[int], timeout_s: float | None = None) -> list[TopicRecord]:
        """As `TopicHandle.fetch`."""
        return self.background.call(self.asynchronous.fetch(partition, checked_ids(transaction_ids), timeout_s))

    # ---- transactions ----------------------------------------------------------------------------------------------------------------------------

    def follow(self, partition: int, apply: Callable[[list[TopicRecord]], None], after: int = -1) -> SyncFollower:
        """As `TopicHandle.follow`; `apply` runs in the client's thread, in turn with transactional functions."""
        return self._client.following(self.background.call(self.asynchronous.follow(partition, apply, after)))

    def within(self, tx: TransactionContext) -> TopicTransaction:
        """As `TopicHandle.within`."""
        return self.asynchronous.within(tx)

    def transactional(self, follower: SyncFollower, **options: Any) -> Callable[[Callable[..., None]], Callable[..., Receipt | None]]:
        """As `TopicHandle.transactional`; the function runs in the client's thread and the call blocks."""
        return self._client.decorator(self.asynchronous.transactional(follower.asynchronous, **options))
