"""A topic as an application uses it: appends that find their partition, feeds with key and value apart (Partitioned WAL;
docs/guides/topics.md).

The name is looked up once, when the handle is made; from then on the log is addressed by partition. What is promised of appends and feeds is what the
client promises of log partitions, because that is what they are. Nothing that does not begin with a key goes into a keyed topic through here, and
nothing that does not is passed over when it is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack

from waltz_log.client.append.bulk import NotInLog, Source, append_all
from waltz_log.client.feed.fetching import checked_ids
from waltz_log.client.topics.compacted import compacted_batches
from waltz_log.client.topics.topic_bulk import TopicBulk, TopicBulkReceipt
from waltz_log.client.topics.topic_directory import KnownTopic, TopicDirectory
from waltz_log.client.topics.topic_feed import merged
from waltz_log.client.topics.topic_records import KeyedDraft, TopicFeed, TopicRecord, records_of
from waltz_log.client.transactions.follow import Follower
from waltz_log.client.transactions.transaction import Draft, DraftOptions, Lock, Receipt, Transaction
from waltz_log.client.transactions.transactional import TransactionContext
from waltz_log.core.formats.envelope import pack_keyed
from waltz_log.core.topics.catalogue import TopicEpoch
from waltz_log.core.topics.topic_names import TopicName, partition_of_key
from waltz_log.errors import InvalidRequest, OutOfRange

if TYPE_CHECKING:
    from waltz_log.client.client import WaltzClient

__all__ = ["TopicHandle", "TopicTransaction"]

After: TypeAlias = "int | Mapping[int, int]"
"""The last transaction that is not wanted: of the one partition, or of each by its number, -1 for those that are not named."""


class TopicHandle:
    """Made by `client.topic("namespace/name")`. Belongs to its client."""

    def __init__(self, client: WaltzClient, known: KnownTopic, directory: TopicDirectory) -> None:
        self._client = client
        self._directory = directory
        self._known = known
        self._topic = known.topic
        self._identity = known.topic.identity
        self._turn = 0

    # ---- facts -----------------------------------------------------------------------------------------------------------------------------------

    @property
    def name(self) -> TopicName:
        return self._topic.name

    @property
    def identity(self) -> TopicEpoch:
        """Which topic the handle is of, among those that have had its name."""
        return self._identity

    @property
    def partitions(self) -> int:
        """How many it has, for ever."""
        return len(self._topic.partitions)

    @property
    def log_partitions(self) -> tuple[int, ...]:
        """Which partitions of the log they are, in order."""
        return self._topic.partitions

    @property
    def keyed(self) -> bool:
        return self._topic.keyed

    @property
    def compaction(self) -> bool:
        """Whether there is a compacted view."""
        return self._topic.type == "compaction"

    @property
    def deleted(self) -> bool:
        return self._known.deleted.is_set()

    def log_partition(self, partition: int) -> int:
        """Raises `InvalidRequest` for one that the topic does not have."""
        if not isinstance(partition, int):
            raise InvalidRequest(reason=f"a partition is a number, not {partition!r}")
        return self._topic.log_partition(partition)

    def partition_of(self, key: bytes) -> int:
        """Where transactions of the key go, for ever."""
        return partition_of_key(key, self.partitions)

    async def high_water_marks(self) -> dict[int, int]:
        """The last committed transaction of each partition; the id before the topic's first one where there is none, so -1 in a partition that was
        never used before."""
        self._known.expect_there()
        marks = await asyncio.gather(*(self._client.high_water_mark(each) for each in self._topic.partitions))
        return dict(enumerate(marks))

    # ---- appending -------------------------------------------------------------------------------------------------------------------------------

    def draft(
        self, value: bytes | None, *, key: bytes | None = None, partition: int | None = None, **options: Unpack[DraftOptions]
    ) -> tuple[int, Draft]:
        """The partition, and what is appended there. `value` None: the end of the key. Raises `InvalidRequest`, `TopicDeleted`."""
        self._known.expect_there()
        if self._topic.keyed:
            place, data = self._keyed(key, value, partition)
        else:
            locked = bool(options.get("write_locks") or options.get("read_locks") or options.get("append_locks"))
            place, data = self._unkeyed(key, value, partition, locked=locked)
        return place, Draft(data, **options)

    def _keyed(self, key: bytes | None, value: bytes | None, partition: int | None) -> tuple[int, bytes]:
        if not isinstance(key, bytes):
            raise InvalidRequest(reason=f"a transaction of {self.name} has a key, which is bytes, not {key!r}")
        if value is None:
            data = pack_keyed(key, b"")
        elif isinstance(value, bytes) and value:
            data = pack_keyed(key, value)
        else:
            reason = "an empty value is the end of the key, which `delete` says" if value == b"" else f"a value is bytes, not {value!r}"
            raise InvalidRequest(reason=f"{reason}: topic={self.name}")
        found = partition_of_key(key, len(self._topic.partitions))
        if partition not in (None, found):
            raise InvalidRequest(reason=f"the key belongs to partition {found} of {self.name}, not to {partition}")
        return found, data

    def _unkeyed(self, key: bytes | None, value: bytes | None, partition: int | None, *, locked: bool) -> tuple[int, bytes]:
        if key is not None:
            raise InvalidRequest(reason=f"transactions of {self.name} have no keys")
        if not isinstance(value, bytes):
            raise InvalidRequest(reason=f"data are bytes, not {value!r}: topic={self.name}")
        if partition is not None:
            self.log_partition(partition)
            return partition, value
        if locked and self.partitions > 1:
            raise InvalidRequest(reason=f"locks hold within a partition: name the partition of {self.name} too")
        self._turn += 1
        return self._turn % self.partitions, value

    def draft_of(self, entry: Any, partition: int | None = None) -> tuple[int, Draft]:
        """The same for an entry of a bulk append: a `KeyedDraft` or a pair of key and value in a keyed topic, bytes or a `Draft` in another one."""
        if not self._topic.keyed:
            if isinstance(entry, tuple) and not isinstance(entry, Draft):
                raise InvalidRequest(reason=f"transactions of {self.name} have no keys: wanted bytes or a Draft")
            draft = entry if isinstance(entry, Draft) else Draft(entry)
            place, _ = self._unkeyed(None, draft.data, partition, locked=bool(draft.write_locks or draft.read_locks or draft.append_locks))
            return place, draft
        if not isinstance(entry, tuple) or isinstance(entry, Draft) or len(entry) < 2:
            raise InvalidRequest(reason=f"a transaction of {self.name} has a key: wanted a KeyedDraft or a pair of key and value")
        keyed = entry if isinstance(entry, KeyedDraft) else KeyedDraft(*entry)
        place, data = self._keyed(keyed.key, keyed.value, partition)
        return place, Draft(data, *keyed[2:])

    async def append_nowait(
        self,
        value: bytes,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        timeout_s: float | None = None,
        **options: Unpack[DraftOptions],
    ) -> asyncio.Future[Receipt]:
        """Enqueues the transaction, waiting only for room; the future has the outcome. `Receipt.partition` is that of the log.

        In a keyed topic the key says which partition; in another one `partition`, or else they take turns."""
        if value is None:
            raise InvalidRequest(reason=f"data are bytes, not None: topic={self.name}")
        place, draft = self.draft(value, key=key, partition=partition, **options)
        return await self._client.enqueue(self._topic.partitions[place], draft, timeout_s, self._identity)

    async def append(
        self,
        value: bytes,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        timeout_s: float | None = None,
        **options: Unpack[DraftOptions],
    ) -> Receipt:
        """Returns when it is acknowledged. Arguments and errors as `append_nowait`; outcomes as `WaltzClient.append`."""
        return await (await self.append_nowait(value, key=key, partition=partition, timeout_s=timeout_s, **options))

    async def delete(self, key: bytes, *, partition: int | None = None, timeout_s: float | None = None, **options: Unpack[DraftOptions]) -> Receipt:
        """Appends the end of the key, a tombstone: the compacted view forgets the key. Arguments as `append`."""
        if not self._topic.keyed:
            raise InvalidRequest(reason=f"transactions of {self.name} have no keys")
        place, draft = self.draft(None, key=key, partition=partition, **options)
        return await (await self._client.enqueue(self._topic.partitions[place], draft, timeout_s, self._identity))

    async def append_bulk(
        self,
        source: Source,
        *,
        partition: int | None = None,
        on_error: Callable[[NotInLog], None] | None = None,
        timeout_s: float | None = None,
    ) -> TopicBulkReceipt:
        """Appends all of a list, a generator or an asynchronous one, of what `draft_of` takes or of Arrow record batches, or one such batch, as
        `client.append_bulk` does. A batch for a keyed topic has a column `key`; `data` that is null is the end of its key. In the order of the
        source within each partition, so within each key."""
        return await append_all(self.bulk(partition=partition, on_error=on_error, timeout_s=timeout_s), source)

    def bulk(self, *, partition: int | None = None, on_error: Callable[[NotInLog], None] | None = None, timeout_s: float | None = None) -> TopicBulk:
        """The same for a source in parts: `enqueue` each, then `finish`."""
        self._known.expect_there()
        if partition is not None:
            self.log_partition(partition)

        def begin(place: int, failed: Callable[[NotInLog], None]) -> Any:
            return self._client.bulk(self._topic.partitions[place], None, failed, timeout_s, topic=self._identity)

        return TopicBulk(lambda entry: self.draft_of(entry, partition), begin, keyed=self._topic.keyed, on_error=on_error)

    # ---- reading ---------------------------------------------------------------------------------------------------------------------------------

    def feed_batches(
        self, partition: int | None = None, after: After = -1, *, compacted: bool = False, until: Mapping[int, int] | None = None
    ) -> TopicFeed:
        """Lists of records, each of one partition and in its order, without end, gap or repeat: of one partition or of all of them. `until`, by
        partition: read up to there, such as to `high_water_marks`; the feed ends when all partitions are.

        `compacted`, in a compaction topic: where `after` lies within the compacted view, the latest value of each key as of its end first, and then
        the log from there on. Raises `EnvelopeBroken`, `TopicDeleted`, and what `client.feed_batches` raises."""
        self._known.expect_there()
        if compacted and not self.compaction:
            raise InvalidRequest(reason=f"{self.name} has no compacted view: its type is {self._topic.type}")
        wanted = range(self.partitions) if partition is None else [partition]
        for each in wanted:
            self.log_partition(each)
        marks = after if isinstance(after, Mapping) else dict.fromkeys(wanted, after)
        if isinstance(after, int) and after != -1 and len(wanted) > 1:
            raise InvalidRequest(reason="each partition has ids of its own: give `after` as a mapping")
        if not set(marks) <= set(wanted):
            raise InvalidRequest(reason=f"no such partition: {sorted(set(marks) - set(wanted))[0]} of {self.name}")
        if min(marks.values(), default=-1) < -1:
            raise InvalidRequest(reason=f"no such position: after={min(marks.values())}")
        read = self._compacted if compacted else self._log
        ends = until or {}
        # Whoever used a log partition before the topic did, and whatever mark a reader brings along from there: the topic begins where it begins.
        return merged(self._known, [read(each, max(marks.get(each, -1), self._topic.begin_of(each) - 1), ends.get(each)) for each in wanted])

    async def feed(
        self, partition: int | None = None, after: After = -1, *, compacted: bool = False, until: Mapping[int, int] | None = None
    ) -> AsyncGenerator[TopicRecord, None]:
        """The same one by one."""
        async with aclosing(self.feed_batches(partition, after, compacted=compacted, until=until)) as batches:
            async for batch in batches:
                for record in batch:
                    yield record

    async def _log(self, partition: int, after: int, until: int | None) -> TopicFeed:
        if until is not None and after >= until:
            return
        async with aclosing(self._client.feed_batches(self._topic.partitions[partition], after, topic=self._identity)) as batches:
            async for batch in batches:
                if until is not None and batch[-1].transaction_id >= until:
                    batch = [each for each in batch if each.transaction_id <= until]
                found: list[TopicRecord] = []
                try:
                    found.extend(records_of(self._topic, partition, batch))
                except BaseException:
                    if found:
                        yield found
                    raise
                yield found
                if until is not None and batch[-1].transaction_id >= until:
                    return

    def _compacted(self, partition: int, after: int, until: int | None) -> TopicFeed:
        reader = self._directory.view_reader(self._topic.partitions[partition])
        return compacted_batches(reader, partition, after, lambda mark: self._log(partition, mark, until), until)

    # ---- transactions ----------------------------------------------------------------------------------------------------------------------------

    async def fetch(self, partition: int, transaction_ids: Iterable[int], timeout_s: float | None = None) -> list[TopicRecord]:
        """The records with these ids of one of the topic's partitions, as `WaltzClient.fetch`. Raises `OutOfRange` also for ids below the topic's
        first one in the partition (docs/guides/topics.md, `begins_at`), and `EnvelopeBroken`, `TopicDeleted`."""
        log_partition = self.log_partition(partition)
        self._known.expect_there()
        wanted = checked_ids(transaction_ids)
        first = self._topic.begin_of(partition)
        if wanted and (lowest := min(wanted)) < first:
            raise OutOfRange(partition=log_partition, asked=lowest, first=first, last=await self._client.high_water_mark(log_partition))
        transactions = await self._client.fetch(log_partition, wanted, timeout_s, topic=self._identity)
        return list(records_of(self._topic, partition, transactions))

    async def follow(self, partition: int, apply: Callable[[list[TopicRecord]], Awaitable[None] | None], after: int = -1) -> Follower:
        """As `client.follow`, with key and value apart."""
        log_partition = self.log_partition(partition)
        self._known.expect_there()

        def apply_records(batch: list[Transaction]) -> Awaitable[None] | None:
            return apply(list(records_of(self._topic, partition, batch)))

        return await self._client.follow(log_partition, apply_records, max(after, self._topic.begin_of(partition) - 1), topic=self._identity)

    def transactional(self, follower: Follower, **options: Any) -> Callable[[Callable[..., Any]], Any]:
        """As `client.transactional`; the function is given a `TopicTransaction`."""
        decorate = self._client.transactional(follower, topic=self._identity, **options)

        def decorate_body(body: Callable[..., Any]) -> Any:
            @wraps(body)
            def run(tx: TransactionContext, *arguments: Any, **keywords: Any) -> Any:
                return body(self.within(tx), *arguments, **keywords)

            return decorate(run)

        return decorate_body

    def within(self, tx: TransactionContext) -> TopicTransaction:
        """The topic's side of an execution: for a `Context` whose `partition` is one of `log_partitions`. The client's setting `topics` names the
        topic then, as a context addresses the partition by its number."""
        return TopicTransaction(self, tx)


class TopicTransaction:
    """What a transactional function appends through. Its partition is the follower's: a key of another one is refused."""

    def __init__(self, topic: TopicHandle, tx: TransactionContext) -> None:
        if tx.partition not in topic.log_partitions:
            raise InvalidRequest(reason=f"log partition {tx.partition} is none of {topic.name}")
        self.partition = topic.log_partitions.index(tx.partition)
        self.high_water_mark = tx.high_water_mark
        self.attempt = tx.attempt
        self._topic = topic
        self._tx = tx

    def append(self, value: bytes, *, key: bytes | None = None, header: int = 0, **locks: Sequence[Lock]) -> None:
        """What to append when the function returns, once at most. `write_locks`, `read_locks`, `append_locks` as usual."""
        if value is None:
            raise InvalidRequest(reason="data are bytes, not None")
        self._tx.append(self._topic.draft(value, key=key, partition=self.partition)[1].data, header, **locks)

    def delete(self, key: bytes, header: int = 0, **locks: Sequence[Lock]) -> None:
        """The end of the key."""
        self._tx.append(self._topic.draft(None, key=key, partition=self.partition)[1].data, header, **locks)
