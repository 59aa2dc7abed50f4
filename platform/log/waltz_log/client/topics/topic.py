"""A topic as an application uses it: appends that find their partition, feeds with key and value apart (Partitioned WAL;
docs/guides/topics.md).

The name is looked up once, when the handle is made; from then on the log is addressed by partition. Appends and feeds have the guarantees of log
partitions, because the partitions of a topic are log partitions. This module appends only data with a key to a keyed topic, and raises when
it reads data without one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from functools import wraps
from typing import Any, TypeAlias, Unpack  # Any: entries of any source, and the application's functions

from waltz_log.client.append.bulk import append_all
from waltz_log.client.append.bulk_receipt import NotInLog
from waltz_log.client.append.bulk_source import Source
from waltz_log.client.feed.fetching import checked_ids
from waltz_log.client.topics.compacted import compacted_batches
from waltz_log.client.topics.topic_bulk import Addressing, TopicBulk, TopicBulkReceipt
from waltz_log.client.topics.topic_client import TopicClient
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

__all__ = ["TopicHandle", "TopicTransaction"]

After: TypeAlias = "int | Mapping[int, int]"
"""The last transaction that is not wanted: of the one partition, or of each by its number, -1 for those that are not named."""


class TopicHandle:
    """A topic of the log, made by `client.topic("namespace/name")`. It belongs to its client. `partition` in its calls counts within the topic,
    from 0."""

    def __init__(self, client: TopicClient, known: KnownTopic, directory: TopicDirectory) -> None:
        self._client = client
        self._directory = directory
        self._known = known
        self._topic = known.topic
        self._identity = known.topic.identity
        self._turn = 0

    # ---- facts -----------------------------------------------------------------------------------------------------------------------------------

    @property
    def name(self) -> TopicName:
        """The topic's name."""
        return self._topic.name

    @property
    def identity(self) -> TopicEpoch:
        """Distinguishes this topic from others that had or will have its name."""
        return self._identity

    @property
    def partitions(self) -> int:
        """The number of partitions of the topic. It never changes."""
        return len(self._topic.partitions)

    @property
    def log_partitions(self) -> tuple[int, ...]:
        """The partitions of the log that the topic consists of, in the order of the topic's partitions."""
        return self._topic.partitions

    @property
    def keyed(self) -> bool:
        """Whether each transaction starts with a key."""
        return self._topic.keyed

    @property
    def compaction(self) -> bool:
        """Whether the topic has a compacted view."""
        return self._topic.type == "compaction"

    @property
    def deleted(self) -> bool:
        """Whether the client knows that the topic was deleted."""
        return self._known.deleted.is_set()

    def log_partition(self, partition: int) -> int:
        """The log partition of one of the topic's partitions. Raises `InvalidRequest` if the topic has no such partition."""
        if not isinstance(partition, int):
            raise InvalidRequest(reason=f"a partition must be a number, not {partition!r}")
        return self._topic.log_partition(partition)

    def partition_of(self, key: bytes) -> int:
        """The partition of a key: jump consistent hash of its xxHash64 over the topic's partitions (docs/guides/topics.md, Keys). It never
        changes."""
        return partition_of_key(key, self.partitions)

    async def high_water_marks(self) -> dict[int, int]:
        """By partition of the topic: the id of the last committed transaction; the id before the topic's first one if the topic has none there, so
        -1 in a partition that was never used."""
        self._known.expect_there()
        marks = await asyncio.gather(*(self._client.high_water_mark(each) for each in self._topic.partitions))
        return dict(enumerate(marks))

    # ---- appending -------------------------------------------------------------------------------------------------------------------------------

    def draft(
        self, value: bytes | None, *, key: bytes | None = None, partition: int | None = None, **options: Unpack[DraftOptions]
    ) -> tuple[int, Draft]:
        """The partition of a transaction, and what is appended there. `value` None is a tombstone. Raises `InvalidRequest`, `TopicDeleted`."""
        self._known.expect_there()
        if self._topic.keyed:
            place, data = self._keyed(key, value, partition)
        else:
            locked = bool(options.get("write_locks") or options.get("read_locks") or options.get("append_locks"))
            place, data = self._unkeyed(key, value, partition, locked=locked)
        return place, Draft(data, **options)

    def _keyed(self, key: bytes | None, value: bytes | None, partition: int | None) -> tuple[int, bytes]:
        if not isinstance(key, bytes):
            raise InvalidRequest(reason=f"a transaction of {self.name} needs a key of bytes, not {key!r}")
        if value is None:
            data = pack_keyed(key, b"")
        elif isinstance(value, bytes) and value:
            data = pack_keyed(key, value)
        else:
            reason = "an empty value would delete the key: use `delete`" if value == b"" else f"a value must be bytes, not {value!r}"
            raise InvalidRequest(reason=f"{reason}: topic={self.name}")
        found = partition_of_key(key, len(self._topic.partitions))
        if partition not in (None, found):
            raise InvalidRequest(reason=f"the key belongs to partition {found} of {self.name}, not to {partition}")
        return found, data

    def _unkeyed(self, key: bytes | None, value: bytes | None, partition: int | None, *, locked: bool) -> tuple[int, bytes]:
        if key is not None:
            raise InvalidRequest(reason=f"transactions of {self.name} have no keys")
        if not isinstance(value, bytes):
            raise InvalidRequest(reason=f"data must be bytes, not {value!r}: topic={self.name}")
        if partition is not None:
            self.log_partition(partition)
            return partition, value
        if locked and self.partitions > 1:
            raise InvalidRequest(reason=f"a lock applies to one partition: name the partition of {self.name} too")
        return self._next_turns(1), value

    def draft_of(self, entry: Any, partition: int | None = None) -> tuple[int, Draft]:
        """The same for an entry of a bulk append: a `KeyedDraft` or a pair of key and value in a keyed topic, bytes or a `Draft` in any other."""
        if not self._topic.keyed:
            if isinstance(entry, tuple) and not isinstance(entry, Draft):
                raise InvalidRequest(reason=f"transactions of {self.name} have no keys: pass bytes or a Draft")
            draft = entry if isinstance(entry, Draft) else Draft(entry)
            place, _ = self._unkeyed(None, draft.data, partition, locked=bool(draft.write_locks or draft.read_locks or draft.append_locks))
            return place, draft
        if not isinstance(entry, tuple) or isinstance(entry, Draft) or len(entry) < 2:
            raise InvalidRequest(reason=f"a transaction of {self.name} has a key: pass a KeyedDraft or a pair of key and value")
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
        """Enqueues the transaction and returns a future of its outcome. Waits only for room in the partition's window. `Receipt.partition` is the log
        partition.

        In a keyed topic the key decides the partition. In any other topic `partition` does; without it, appends rotate over the partitions. Raises
        `InvalidRequest` for a key, value or partition that does not fit the topic, and `TopicDeleted`. `options` are the other fields of `Draft`."""
        if value is None:
            raise InvalidRequest(reason=f"data must be bytes, not None: topic={self.name}")
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
        """Appends, and returns when the append is acknowledged. Arguments as in `append_nowait`, outcomes as in `WaltzClient.append`."""
        return await (await self.append_nowait(value, key=key, partition=partition, timeout_s=timeout_s, **options))

    async def delete(self, key: bytes, *, partition: int | None = None, timeout_s: float | None = None, **options: Unpack[DraftOptions]) -> Receipt:
        """Appends a tombstone, which removes the key from the compacted view. Arguments as in `append`. Raises `InvalidRequest` in a topic without
        keys."""
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
        """Appends everything in `source`, as `WaltzClient.append_bulk` does: entries that `draft_of` accepts, Arrow record batches, or one such
        batch. A batch for a keyed topic has a column `key`; `data` that is null is a tombstone. Transactions keep the order of the source within
        each partition, and so within each key."""
        return await append_all(self.bulk(partition=partition, on_error=on_error, timeout_s=timeout_s), source)

    def bulk(self, *, partition: int | None = None, on_error: Callable[[NotInLog], None] | None = None, timeout_s: float | None = None) -> TopicBulk:
        """An `append_bulk` whose source arrives in parts: `enqueue` each part, then `finish`."""
        self._known.expect_there()
        if partition is not None:
            self.log_partition(partition)

        def begin(place: int, failed: Callable[[NotInLog], None]) -> Any:
            return self._client.bulk(self._topic.partitions[place], None, failed, timeout_s, topic=self._identity)

        addressing = Addressing(
            keyed=self._topic.keyed,
            partitions=self.partitions,
            place=0 if partition is None and self.partitions == 1 else partition,
            draft_of=lambda entry: self.draft_of(entry, partition),
            keyed_data=lambda key, value: self._keyed(key, value, partition),
            next_turns=self._next_turns,
        )
        return TopicBulk(addressing, begin, self._client.settings, on_error=on_error)

    def _next_turns(self, count: int) -> int:
        self._turn += count
        return (self._turn - count + 1) % self.partitions

    # ---- reading ---------------------------------------------------------------------------------------------------------------------------------

    def feed_batches(
        self, partition: int | None = None, after: After = -1, *, compacted: bool = False, until: Mapping[int, int] | None = None
    ) -> TopicFeed:
        """Lists of records, each of one partition and in its order, without end, gap or repeat: of one partition or of all. `after`: the id before
        the first record wanted; by partition if all are read. `until`: by partition, the id to read up to, such as `high_water_marks`; the feed
        ends when all partitions have reached it.

        `compacted`, in a compaction topic: if `after` lies within the compacted view, the feed starts with the view's newest value of each key,
        and continues with the log. Raises `EnvelopeBroken`, `TopicDeleted`, and the errors of `WaltzClient.feed_batches`."""
        self._known.expect_there()
        if compacted and not self.compaction:
            raise InvalidRequest(reason=f"{self.name} has no compacted view: its type is {self._topic.type}")
        wanted = range(self.partitions) if partition is None else [partition]
        for each in wanted:
            self.log_partition(each)
        marks = after if isinstance(after, Mapping) else dict.fromkeys(wanted, after)
        if isinstance(after, int) and after != -1 and len(wanted) > 1:
            raise InvalidRequest(reason="each partition has its own ids: pass `after` as a mapping")
        if not set(marks) <= set(wanted):
            raise InvalidRequest(reason=f"no such partition: {sorted(set(marks) - set(wanted))[0]} of {self.name}")
        if min(marks.values(), default=-1) < -1:
            raise InvalidRequest(reason=f"no such position: after={min(marks.values())}")
        read = self._compacted if compacted else self._log
        ends = until or {}
        # A log partition can hold transactions from before the topic, and a reader can have a mark in them: the topic starts at its own begin.
        return merged(self._known, [read(each, max(marks.get(each, -1), self._topic.begin_of(each) - 1), ends.get(each)) for each in wanted])

    async def feed(
        self, partition: int | None = None, after: After = -1, *, compacted: bool = False, until: Mapping[int, int] | None = None
    ) -> AsyncGenerator[TopicRecord, None]:
        """The feed one record at a time."""
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
        """The records with these ids of one of the topic's partitions, as `WaltzClient.fetch`. Also raises `OutOfRange` for ids below the topic's
        first one in the partition (docs/guides/topics.md, `begins_at`), `EnvelopeBroken` and `TopicDeleted`."""
        log_partition = self.log_partition(partition)
        self._known.expect_there()
        wanted = checked_ids(transaction_ids)
        first = self._topic.begin_of(partition)
        if wanted and (lowest := min(wanted)) < first:
            raise OutOfRange(partition=log_partition, asked=lowest, first=first, last=await self._client.high_water_mark(log_partition))
        transactions = await self._client.fetch(log_partition, wanted, timeout_s, topic=self._identity)
        return list(records_of(self._topic, partition, transactions))

    async def follow(self, partition: int, apply: Callable[[list[TopicRecord]], Awaitable[None] | None], after: int = -1) -> Follower:
        """As `WaltzClient.follow`; `apply` receives records with key and value."""
        log_partition = self.log_partition(partition)
        self._known.expect_there()

        def apply_records(batch: list[Transaction]) -> Awaitable[None] | None:
            return apply(list(records_of(self._topic, partition, batch)))

        return await self._client.follow(log_partition, apply_records, max(after, self._topic.begin_of(partition) - 1), topic=self._identity)

    def transactional(self, follower: Follower, **options: Any) -> Callable[[Callable[..., Any]], Any]:
        """As `WaltzClient.transactional`; the function receives a `TopicTransaction`."""
        decorate = self._client.transactional(follower, topic=self._identity, **options)

        def decorate_body(body: Callable[..., Any]) -> Any:
            @wraps(body)
            def run(tx: TransactionContext, *arguments: Any, **keywords: Any) -> Any:
                return body(self.within(tx), *arguments, **keywords)

            return decorate(run)

        return decorate_body

    def within(self, tx: TransactionContext) -> TopicTransaction:
        """The topic's side of an execution, for a `Context` whose `partition` is one of `log_partitions`. A context addresses the partition by its
        number, so the client's setting `topics` must name the topic."""
        return TopicTransaction(self, tx)


class TopicTransaction:
    """What a transactional function of a topic appends through. It appends to the follower's partition: a key of another partition is refused."""

    def __init__(self, topic: TopicHandle, tx: TransactionContext) -> None:
        if tx.partition not in topic.log_partitions:
            raise InvalidRequest(reason=f"log partition {tx.partition} is none of {topic.name}")
        self.partition = topic.log_partitions.index(tx.partition)
        self.high_water_mark = tx.high_water_mark
        self.attempt = tx.attempt
        self._topic = topic
        self._tx = tx

    def append(self, value: bytes, *, key: bytes | None = None, header: int = 0, **locks: Sequence[Lock]) -> None:
        """Sets what is appended when the function returns; call it at most once. `locks`: `write_locks`, `read_locks`, `append_locks`, as in
        `Draft`. Raises `InvalidRequest` for a value or key that does not fit."""
        if value is None:
            raise InvalidRequest(reason="data must be bytes, not None")
        self._tx.append(self._topic.draft(value, key=key, partition=self.partition)[1].data, header, **locks)

    def delete(self, key: bytes, header: int = 0, **locks: Sequence[Lock]) -> None:
        """The same with a tombstone of the key."""
        self._tx.append(self._topic.draft(None, key=key, partition=self.partition)[1].data, header, **locks)
