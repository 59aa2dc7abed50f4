"""A topic for code that blocks: the same names as `TopicHandle`, over the blocking client's thread."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from waltz_log.client.append.bulk import NotInLog, Source, parts
from waltz_log.client.base.background import Background
from waltz_log.client.feed.fetching import checked_ids
from waltz_log.client.topics.topic import After, TopicHandle, TopicTransaction
from waltz_log.client.topics.topic_bulk import TopicBulk, TopicBulkReceipt
from waltz_log.client.topics.topic_records import TopicRecord
from waltz_log.client.transactions.transaction import Draft, Lock, Receipt
from waltz_log.client.transactions.transactional import TransactionContext
from waltz_log.core.topics.topic_names import TopicName

if TYPE_CHECKING:
    from waltz_log.client.sync import SyncFollower, SyncWaltzClient

__all__ = ["SyncTopicHandle"]

T = TypeVar("T")


class SyncTopicHandle:
    """Made by `client.topic("namespace/name")`. May be used by several threads."""

    def __init__(self, client: SyncWaltzClient, topic: TopicHandle, background: Background) -> None:
        self._client = client
        self._topic = topic
        self._background = background

    @property
    def name(self) -> TopicName:
        return self._topic.name

    @property
    def partitions(self) -> int:
        return self._topic.partitions

    @property
    def log_partitions(self) -> tuple[int, ...]:
        return self._topic.log_partitions

    @property
    def keyed(self) -> bool:
        return self._topic.keyed

    @property
    def compaction(self) -> bool:
        return self._topic.compaction

    @property
    def deleted(self) -> bool:
        return self._topic.deleted

    def log_partition(self, partition: int) -> int:
        return self._topic.log_partition(partition)

    def partition_of(self, key: bytes) -> int:
        return self._topic.partition_of(key)

    def draft(self, value: bytes | None, **options: Any) -> tuple[int, Draft]:
        return self._topic.draft(value, **options)

    def high_water_marks(self) -> dict[int, int]:
        return self._background.call(self._topic.high_water_marks())

    # ---- appending -------------------------------------------------------------------------------------------------------------------------------

    def append(self, value: bytes, **options: Any) -> Receipt:
        """As `TopicHandle.append`."""
        return self._background.call(self._topic.append(value, **options))

    def append_nowait(
        self,
        value: bytes,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        header: int = 0,
        write_locks: Sequence[Lock] = (),
        read_locks: Sequence[Lock] = (),
        append_locks: Sequence[Lock] = (),
        high_water_mark: int | None = None,
        timeout_s: float | None = None,
    ) -> Future[Receipt]:
        """As `SyncWaltzClient.append_nowait`; what does not fit the topic is refused at once."""
        place, draft = self._topic.draft(
            value,
            key=key,
            partition=partition,
            header=header,
            write_locks=write_locks,
            read_locks=read_locks,
            append_locks=append_locks,
            high_water_mark=high_water_mark,
        )
        return self._client.append_nowait(self._topic.log_partitions[place], *draft, timeout_s, topic=self._topic.identity)

    def delete(self, key: bytes, **options: Any) -> Receipt:
        """As `TopicHandle.delete`."""
        return self._background.call(self._topic.delete(key, **options))

    def append_bulk(
        self,
        source: Source,
        *,
        partition: int | None = None,
        on_error: Callable[[NotInLog], None] | None = None,
        timeout_s: float | None = None,
    ) -> TopicBulkReceipt:
        """As `TopicHandle.append_bulk`. The source is read in the caller's thread, the callback is called in the client's."""

        async def begin() -> TopicBulk:
            return self._topic.bulk(partition=partition, on_error=on_error, timeout_s=timeout_s)

        bulk = self._background.call(begin())
        try:
            for part in parts(source):
                self._background.call(bulk.take(part))
                if bulk.ended:
                    break
        except Exception:
            self._background.call(bulk.finish())
            raise
        except BaseException:
            self._background.loop.call_soon_threadsafe(bulk.cancel)
            raise
        return self._background.call(bulk.finish())

    # ---- reading ---------------------------------------------------------------------------------------------------------------------------------

    def feed_batches(
        self, partition: int | None = None, after: After = -1, *, compacted: bool = False, until: Mapping[int, int] | None = None
    ) -> Generator[list[TopicRecord], None, None]:
        """As `TopicHandle.feed_batches`; waits for what is not there yet. Close the generator to end it."""
        yield from self._background.iterate(self._topic.feed_batches(partition, after, compacted=compacted, until=until))

    def feed(
        self, partition: int | None = None, after: After = -1, *, compacted: bool = False, until: Mapping[int, int] | None = None
    ) -> Generator[TopicRecord, None, None]:
        """The same one by one."""
        for batch in self.feed_batches(partition, after, compacted=compacted, until=until):
            yield from batch

    def fetch(self, partition: int, transaction_ids: Iterable[int], timeout_s: float | None = None) -> list[TopicRecord]:
        """As `TopicHandle.fetch`."""
        return self._background.call(self._topic.fetch(partition, checked_ids(transaction_ids), timeout_s))

    # ---- transactions ----------------------------------------------------------------------------------------------------------------------------

    def follow(self, partition: int, apply: Callable[[list[TopicRecord]], None], after: int = -1) -> SyncFollower:
        """As `TopicHandle.follow`; `apply` runs in the client's thread, in turn with transactional functions."""
        return self._client.following(self._background.call(self._topic.follow(partition, apply, after)))

    def within(self, tx: TransactionContext) -> TopicTransaction:
        """As `TopicHandle.within`."""
        return self._topic.within(tx)

    def transactional(self, follower: SyncFollower, **options: Any) -> Callable[[Callable[..., None]], Callable[..., Receipt | None]]:
        """As `TopicHandle.transactional`; the function runs in the client's thread and the call blocks."""
        return self._client.blocking(self._topic.transactional(follower.follower, **options))
