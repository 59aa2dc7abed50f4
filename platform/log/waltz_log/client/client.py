"""The client of the log: appends under optimistic locks, feeds, followers, transactions.

Everything is refused before it is sent that the log could never take. An append has three outcomes: a `Receipt`; `LockConflict` (or, rarely,
`NotAppended`): certainly not in the log; `OutcomeUnknown`: ask `resolve`. Belongs to one event loop and one process.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial
from typing import Any, Self

from waltz_log.client.append.arguments import append_nowait
from waltz_log.client.append.bulk import Appended, BulkAppend, BulkReceipt, NotInLog, Source, append_all, outcomes
from waltz_log.client.append.packing import checked_timeout, pack_append
from waltz_log.client.append.producer import Producer
from waltz_log.client.append.resolve import resolve_foreign, resolve_own
from waltz_log.client.append.unacknowledged import Unacknowledged, unacknowledged
from waltz_log.client.base import fork
from waltz_log.client.base.closing import close_in_time
from waltz_log.client.base.retry import Backoff, RetryBudget
from waltz_log.client.base.settings import ClientSettings
from waltz_log.client.feed.feed import feed_batches
from waltz_log.client.feed.fetching import checked_ids, fetch_transactions
from waltz_log.client.owners.owners import ConnectCoordinator, Owners
from waltz_log.client.topics.topic import TopicHandle
from waltz_log.client.topics.topic_directory import TopicDirectory
from waltz_log.client.transactions.admission import Admission
from waltz_log.client.transactions.attempts import CONFLICT_BASE_S, Attempts
from waltz_log.client.transactions.context import Application, Context
from waltz_log.client.transactions.follow import Again, Apply, Follower
from waltz_log.client.transactions.submitting import Submitting
from waltz_log.client.transactions.transaction import Draft, Lock, Receipt, Transaction
from waltz_log.client.transactions.transactional import transactional
from waltz_log.core.metadata import ClusterParameters
from waltz_log.core.ports import Coordinator, Network
from waltz_log.core.topics.catalogue import TopicEpoch
from waltz_log.core.topics.topic_names import TopicName
from waltz_log.errors import BelongsToTopic, Fenced, InvalidRequest, LockConflict, NotAppended, OutcomeUnknown, TopicDeleted

__all__ = ["ATTEMPTS", "WaltzClient"]

ATTEMPTS = 16
"""How often a transaction is sent, unless its caller says otherwise. Under hot locks it is two on average."""


class WaltzClient:
    """Made by `connect` or `open`; `close` it, or use `open` as a context manager."""

    def __init__(self, owners: Owners, client_id: int, settings: ClientSettings, rng: random.Random) -> None:
        self._owners = owners
        self._client_id = client_id
        self._settings = settings
        self._rng = rng
        self._fork = fork.count()
        self._spread = owners.parameters.partitions
        self._topics = TopicDirectory(owners, settings, rng)
        self._producers: dict[int | tuple[int, TopicEpoch], Producer] = {}
        """By partition for appends that address it by its number, and by partition and topic for those through a topic's handle."""
        self._followers: dict[int, list[Follower]] = {}
        self._admissions: dict[int, Admission] = {}
        self._budget = RetryBudget(settings.retry_budget, settings.retry_budget_earned)
        self._submitting: Submitting | None = None
        self._mounting = asyncio.Lock()
        self._closed = False
        self._append_timeout_s = settings.append_timeout_s

    # ---- making and closing ----------------------------------------------------------------------------------------------------------------------

    @classmethod
    async def connect(cls, cluster: str, settings: ClientSettings | None = None) -> Self:
        """`cluster` is `host:port[,host:port]/root`. Raises `ClusterUnavailable`, naming it, where no cluster answers there in time."""
        from waltz_log.coordination.coordinator import ZooKeeperCoordinator
        from waltz_log.transport.grpc import GrpcNetwork

        chosen = settings or ClientSettings()

        async def coordinator() -> Coordinator:
            return await ZooKeeperCoordinator.connect(cluster, session_timeout_s=chosen.session_timeout_s, timeout_s=chosen.connect_timeout_s)

        return await cls.connect_over(coordinator, GrpcNetwork(), chosen)

    @classmethod
    async def connect_over(
        cls, coordinator: ConnectCoordinator, network: Network, settings: ClientSettings | None = None, *, rng: random.Random | None = None
    ) -> Self:
        """Over any coordinator and network. `coordinator` makes a session, and another one when that is used up."""
        chosen = settings or ClientSettings()
        chance = rng or random.Random()
        owners = Owners(coordinator, network, chosen, chance)
        await owners.open()
        try:
            return cls(owners, await owners.next_client_id(), chosen, chance)
        except BaseException:
            await owners.close()
            raise

    @classmethod
    @asynccontextmanager
    async def open(cls, cluster: str, settings: ClientSettings | None = None) -> AsyncIterator[Self]:
        """`async with WaltzClient.open("host:port/root") as client:`"""
        client = await cls.connect(cluster, settings)
        async with client:
            yield client

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Waits up to `close_timeout_s` for what is pending; the rest is told that its outcome is unknown. Nothing runs on afterwards, cancelled or
        not."""
        if self._closed:
            return
        if self._fork != fork.count():
            self._closed = True  # a copy in a forked child: its connections belong to the parent
            return
        self._closed = True
        await close_in_time(self._flush, self._end, self._settings.close_timeout_s)

    async def _end(self, wait_s: float) -> None:
        for producer in self._producers.values():
            await producer.close()
        if self._submitting is not None:
            await self._submitting.close(wait_s)
        for followers in self._followers.values():
            for follower in list(followers):
                await follower.close()
        await self._topics.close()
        await self._owners.close()

    # ---- facts -----------------------------------------------------------------------------------------------------------------------------------

    @property
    def partitions(self) -> int:
        """Of the log, as it is now: partitions may be added while the client is connected."""
        return self._owners.parameters.partitions

    @property
    def client_id(self) -> int:
        return self._client_id

    @property
    def parameters(self) -> ClusterParameters:
        return self._owners.parameters

    @property
    def settings(self) -> ClientSettings:
        return self._settings

    async def high_water_mark(self, partition: int) -> int:
        """The last committed transaction id of the partition, -1: none, as its owner knows it. Retries over changes of owner."""
        self._check(partition)
        return (await self._owners.bound(partition, self._settings.append_timeout_s)).high_water_mark

    async def first_transaction_id(self, partition: int) -> int:
        """The first transaction that the partition still has, as its owner knows it; one above the high-water mark where it has none. Retries over
        changes of owner."""
        self._check(partition)
        return int((await self._owners.bound(partition, self._settings.append_timeout_s)).first_transaction_id)

    async def topic(self, name: str) -> TopicHandle:
        """The topic `namespace/name`, which is looked up now and addressed by its partitions from then on. Raises `NoSuchTopic`."""
        self._check_usable()
        return TopicHandle(self, await self._topics.find(TopicName.parse(name)), self._topics)

    # ---- appending -------------------------------------------------------------------------------------------------------------------------------

    async def append(
        self,
        partition: int,
        data: bytes,
        header: int = 0,
        write_locks: Sequence[Lock] = (),
        read_locks: Sequence[Lock] = (),
        append_locks: Sequence[Lock] = (),
        high_water_mark: int | None = None,
        timeout_s: float | None = None,
    ) -> Receipt:
        """Returns when the transaction is on disk at a majority. Raises `LockConflict`, `NotAppended`, `OutcomeUnknown`, `InvalidRequest`."""
        return await (await self.enqueue(partition, Draft(data, header, write_locks, read_locks, append_locks, high_water_mark), timeout_s))

    append_nowait = append_nowait

    async def enqueue(self, partition: int, draft: Draft, timeout_s: float | None = None, topic: TopicEpoch | None = None) -> asyncio.Future[Receipt]:
        """`append_nowait` of a draft. `topic`: whose handle appends."""
        producer = self._producers.get(partition if topic is None else (partition, topic))
        if producer is None or self._closed or self._fork != fork.COUNT[0]:
            producer = self._producer(partition, topic)
        timeout_s = self._append_timeout_s if timeout_s is None else checked_timeout(timeout_s)
        loop = producer.loop
        future: asyncio.Future[Receipt] = asyncio.Future(loop=loop)
        append = pack_append(future, producer, draft, loop.time() + timeout_s)
        if timeout_s <= 0:
            raise NotAppended(partition=partition, reason=f"no time to send it: timeout_s={timeout_s:g}")
        if not producer.try_enqueue(append):
            await producer.enqueue(append)
        return future

    async def append_many(self, partition: int, drafts: Iterable[Draft], timeout_s: float | None = None) -> list[Receipt | LockConflict]:
        """Appends in order, pipelined, and returns what became of each once all are decided, or raises the first outcome that is neither."""
        return await outcomes([await self.enqueue(partition, draft, timeout_s) for draft in drafts])

    async def append_bulk(
        self,
        partition: int,
        source: Source,
        *,
        on_ack: Callable[[Appended], None] | None = None,
        on_error: Callable[[NotInLog], None] | None = None,
        timeout_s: float | None = None,
    ) -> BulkReceipt:
        """Appends all of a list, a generator or an asynchronous one, of bytes, drafts or Arrow record batches; or one such batch or table. In order,
        and as there is room; see `bulk` for the rest. Raises what the source raises, once what was taken before is decided."""
        return await append_all(self.bulk(partition, on_ack, on_error, timeout_s), source)

    def bulk(
        self,
        partition: int,
        on_ack: Callable[[Appended], None] | None = None,
        on_error: Callable[[NotInLog], None] | None = None,
        timeout_s: float | None = None,
        *,
        topic: TopicEpoch | None = None,
    ) -> BulkAppend:
        """The same for a source in parts: `enqueue` each, then `finish`."""
        producer = self._producer(partition, topic)

        return BulkAppend(producer, self._append_timeout_s if timeout_s is None else checked_timeout(timeout_s), on_ack, on_error)

    async def flush(self) -> None:
        """Returns when everything appended or submitted before is decided, well or badly, and what was appended is on disk at a majority, also where
        the topic's policy lets receipts come earlier. Raises `Unavailable` where that cannot be known: a connection broke in between."""
        self._check_usable()
        await self._flush()

    async def _flush(self) -> None:
        waits = [producer.flush() for producer in self._producers.values()]
        await asyncio.gather(*waits, *([] if self._submitting is None else [self._submitting.flush()]))

    def unacknowledged(self, partition: int | None = None) -> list[Unacknowledged]:
        """What was appended, at one partition or all, and has no outcome yet. It goes over all of it: not for each append."""
        return [each for producer in self._producers.values() if partition in (None, producer.partition) for each in unacknowledged(producer)]

    async def resolve(self, error: OutcomeUnknown, timeout_s: float | None = None) -> Receipt | None:
        """What became of an append whose outcome was unknown: its receipt, or None where it is not and never will be in the log.

        The error may come from another process, dead or alive. A living one loses its connection for appends to that partition, mounts again and
        continues. Raises `Unavailable` where the log could not tell in time."""
        self._check(error.partition)
        own = [each for each in self._producers.values() if (each.partition, each.client_id) == (error.partition, error.client_id)]
        deadline = asyncio.get_running_loop().time() + (self._settings.append_timeout_s if timeout_s is None else checked_timeout(timeout_s))
        if own:
            with suppress(BelongsToTopic, TopicDeleted, Fenced):
                return await resolve_own(error, own[0], self._owners, self._settings, deadline)
            # What was sent before the partition became a topic's, or while it was another one's, or before another process acted under this
            # client's id: this client appends nothing more there that way.
        return await resolve_foreign(error, self._owners, self._settings, deadline)

    # ---- reading ---------------------------------------------------------------------------------------------------------------------------------

    async def feed(self, partition: int, after: int = -1, data: bool = True) -> AsyncGenerator[Transaction, None]:
        """Every transaction from `after + 1` on, as it is committed, without end, gap or repeat, over any change of owner."""
        async with aclosing(self.feed_batches(partition, after, data)) as batches:
            async for batch in batches:
                for transaction in batch:
                    yield transaction

    def feed_batches(
        self, partition: int, after: int = -1, data: bool = True, *, topic: TopicEpoch | None = None
    ) -> AsyncGenerator[list[Transaction], None]:
        """The same in lists, as they arrive: several times faster than one by one. `topic`: for a topic's handle; raises `TopicDeleted` then."""
        self._check(partition)
        if after < -1:
            raise InvalidRequest(reason=f"no such position: after={after}")
        return feed_batches(partition, after, data=data, owners=self._owners, settings=self._settings, rng=self._rng, topic=topic)

    async def fetch(
        self, partition: int, transaction_ids: Iterable[int], timeout_s: float | None = None, *, topic: TopicEpoch | None = None
    ) -> list[Transaction]:
        """The transactions with these ids, with their data, in the order asked for; an id may be repeated. For a reader of a feed without data that
        needs some of it: a few requests for all of them, to the owner's memory and from there to a replica.

        Holds all of them in memory: at most 1,000,000 ids and 256 MiB of data in one call. Raises `OutOfRange` where one is not, or no longer, in the
        log, `NotAllowed`, `InvalidRequest`, `CorruptData` where three answers in a row do not match their checksums, and `Unavailable` after
        `timeout_s` (`append_timeout_s` by default). `topic`: for a topic's handle; raises `TopicDeleted` then."""
        self._check(partition)
        wanted = checked_ids(transaction_ids)
        chosen = self._append_timeout_s if timeout_s is None else checked_timeout(timeout_s)
        return await fetch_transactions(self._owners, partition, wanted, chosen, topic)

    async def follow(self, partition: int, apply: Apply, after: int = -1, again: Again | None = None, *, topic: TopicEpoch | None = None) -> Follower:
        """Runs `apply` over the feed in the background. While it lives, its `applied` is the mark of this partition's appends with locks.

        `again` is given what ended the feed or `apply`, and returns the mark to go on from, or None: the follower ends with that error."""
        self._check(partition)
        followers = self._followers.setdefault(partition, [])
        admission = self._admissions.setdefault(partition, Admission())

        def feed(position: int) -> AsyncGenerator[list[Transaction], None]:
            return self.feed_batches(partition, position, topic=topic)

        follower = Follower(partition, apply, after, feed, followers.remove, admission, again)
        followers.append(follower)
        return follower

    # ---- transactions ----------------------------------------------------------------------------------------------------------------------------

    def transactional(
        self,
        follower: Follower,
        *,
        attempts: int = ATTEMPTS,
        timeout_s: float | None = None,
        locks: Callable[..., Sequence[Lock]] | None = None,
        topic: TopicEpoch | None = None,
    ) -> Callable[[Callable[..., Any]], Any]:
        """Decorates `async def fn(tx, ...)` (or a plain function): it reads the state `follower` built and calls `tx.append` once. The call returns
        the `Receipt`, or None where the function appended nothing. After a conflict the function runs again when the winner has been applied; after
        `attempts` or `timeout_s` it ends with `GaveUpOnConflict` (a `LockConflict`) or `GaveUp` (a `NotAppended`), which name the limit, the
        attempts, the time and the last winner. The function must have no other effect.

        `locks`, given the same arguments but `tx`, tells beforehand what the function will lock. Calls that run at the same time in this client take
        turns either way instead of conflicting with each other; told beforehand, that costs no execution. `tx.append` is what counts."""
        chosen = self._settings.append_timeout_s if timeout_s is None else timeout_s
        if chosen <= 0:
            raise InvalidRequest(reason=f"a timeout must be positive: timeout_s={timeout_s}")
        return transactional(follower, self._attempts(attempts, topic), timeout_s=chosen, locks=locks)

    async def mount(self, application: Application, partitions: Collection[int] | None = None) -> None:
        """Feeds the application, at these partitions or all of them, from the mark that it states for each. Once mounted, `submit` is open. Called
        again with the same application it mounts more."""
        self._check_usable()
        wanted = range(self.partitions) if partitions is None else partitions
        for partition in wanted:
            self._check(partition)
        async with self._mounting:
            if self._submitting is None:
                submitting = Submitting(application, self.follow, self.enqueue, self._attempts, self._in_flight, self._settings, self._rng)
                await submitting.begin(self._owners.parameters)
                self._submitting = submitting
            elif self._submitting.application is not application:
                raise InvalidRequest(reason="another application is mounted: one for a client")
            await self._submitting.mount(wanted)

    async def unmount(self, partitions: Collection[int] | None = None) -> None:
        """Feeds the application no more at these partitions, or all."""
        async with self._mounting:
            if self._submitting is not None:
                await self._submitting.unmount(range(self.partitions) if partitions is None else partitions)

    def applied(self, partition: int) -> Follower:
        """The follower that feeds the mounted application: how far it has come, and waiting for a transaction. Raises `InvalidRequest`."""
        self._check(partition)
        follower = None if self._submitting is None else self._submitting.followers.get(partition)
        if follower is None:
            raise InvalidRequest(reason=f"no application is mounted at this partition: partition={partition}")
        return follower

    async def submit(self, context: Context, *, attempts: int = ATTEMPTS, timeout_s: float | None = None) -> asyncio.Task[Receipt | None]:
        """Executes the context on the mounted application's state and appends what it makes, again and again until it is decided; its hooks are told.
        `Context.partition` is asked with the number of partitions there were when the client connected: what it spreads keys over does not change
        under it. Waits only for room. The task's result is the receipt, once the application has applied it; None: there was nothing to append."""
        self._check_usable()
        if self._submitting is None:
            raise InvalidRequest(reason="no application is mounted")
        chosen = self._settings.append_timeout_s if timeout_s is None else checked_timeout(timeout_s)
        return await self._submitting.submit(context, self._spread, chosen, attempts)

    def _attempts(self, attempts: int, topic: TopicEpoch | None = None) -> Attempts:
        async def append(partition: int, draft: Draft, *, timeout_s: float) -> Receipt:
            return await (await self.enqueue(partition, draft, timeout_s, topic))

        pauses = partial(Backoff, CONFLICT_BASE_S, self._settings.retry_cap_s, self._rng)
        return Attempts(append, pauses, self._budget, attempts, lambda: self._closed)

    def _in_flight(self, partition: int, transactions: Sequence[Transaction]) -> list[asyncio.Future[Receipt]]:
        """The undecided appends of this client that these transactions are."""
        found: list[asyncio.Future[Receipt]] = []
        for producer in self._producers.values():
            if producer.partition == partition:
                found += producer.window.sent([each.sequence for each in transactions if each.client_id == producer.client_id])
        return found

    # ---- checks ----------------------------------------------------------------------------------------------------------------------------------

    def _check_usable(self) -> None:
        if self._fork != fork.count():
            raise InvalidRequest(reason="this client was made before the process forked: make one in the child")
        if self._closed:
            raise InvalidRequest(reason="the client is closed")

    def _check(self, partition: int) -> None:
        self._check_usable()
        if not isinstance(partition, int) or not 0 <= partition < self.partitions:
            raise InvalidRequest(reason=f"no such partition: partition={partition} partitions={self.partitions}")

    def _producer(self, partition: int, topic: TopicEpoch | None = None) -> Producer:
        self._check(partition)
        key = partition if topic is None else (partition, topic)
        producer = self._producers.get(key)
        if producer is None:
            beside = any(each.partition == partition for each in self._producers.values())
            shared = (self._owners, self._settings, self._rng)
            followers = self._followers.setdefault(partition, [])
            producer = Producer(partition, self._client_id, *shared, topic=topic, own_client_id=beside, followers=followers)
            self._producers[key] = producer
            producer.start()
        return producer
