"""The client of the log: appends under optimistic locks, feeds, followers, transactions.

An append that the log could never accept is refused before it is sent. An append has three outcomes: a `Receipt`; `LockConflict` (or, rarely,
`NotAppended`): certainly not in the log; `OutcomeUnknown`: ask `resolve`. A client belongs to one event loop and one process.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Self  # Any: a decorator of the application's functions

import structlog  # noqa: F401  # loggers import it with the first line, which a busy event loop may write

from waltz_log.client.append.arguments import append_nowait
from waltz_log.client.append.bulk import BulkAppend, append_all, outcomes
from waltz_log.client.append.bulk_receipt import Appended, BulkReceipt, NotInLog, joined
from waltz_log.client.append.bulk_source import Source
from waltz_log.client.append.packing import checked_timeout, pack_append
from waltz_log.client.append.producer import Producer
from waltz_log.client.append.producers import Producers
from waltz_log.client.append.resolve import Ranges, receipt_of, resolve_foreign, resolve_own
from waltz_log.client.append.turn_request import await_turn
from waltz_log.client.append.unacknowledged import Unacknowledged, unacknowledged
from waltz_log.client.base import fork
from waltz_log.client.base.belonging import Belonging
from waltz_log.client.base.closing import close_in_time
from waltz_log.client.base.retry import Backoff, RetryBudget
from waltz_log.client.base.settings import ClientSettings
from waltz_log.client.feed.feed import feed_batches
from waltz_log.client.feed.fetching import checked_ids, fetch_transactions
from waltz_log.client.inspection.time_positions import position_at
from waltz_log.client.owners.owners import Owners
from waltz_log.client.owners.seeds import NamedServers, Seeds
from waltz_log.client.topics.topic import TopicHandle
from waltz_log.client.topics.topic_directory import TopicDirectory
from waltz_log.client.transactions.admission import Admission
from waltz_log.client.transactions.attempts import CONFLICT_BASE_S, AttemptCounts, Attempts
from waltz_log.client.transactions.context import Application, Context
from waltz_log.client.transactions.follow import Again, Apply, Follower
from waltz_log.client.transactions.submitting import Submitting
from waltz_log.client.transactions.transaction import Draft, Lock, Receipt, Transaction
from waltz_log.client.transactions.transactional import transactional
from waltz_log.core.metadata import ClusterParameters
from waltz_log.core.ports import Network
from waltz_log.core.status.client_statistics import ClientStatistics
from waltz_log.core.topics.catalogue import TopicEpoch
from waltz_log.core.topics.topic_names import TopicName
from waltz_log.errors import BelongsToTopic, Fenced, InvalidRequest, LockConflict, NotAppended, OutcomeUnknown, TopicDeleted
from waltz_log.extras import explain_missing

if TYPE_CHECKING:
    from waltz_log.client.append.traced_appends import TracedAppends

__all__ = ["ATTEMPTS", "WaltzClient", "traced_appends"]

ATTEMPTS = 16
"""How often a transaction is sent, unless its caller says otherwise. Under hot locks it is two on average."""


class WaltzClient:
    """A client of one cluster, for code with an event loop. Made by `connect`, or by `open` as a context manager; end it with `close`. It belongs
    to one event loop and one process."""

    def __init__(self, owners: Owners, settings: ClientSettings, rng: random.Random) -> None:
        self._owners = owners
        self._settings = settings
        self._rng = rng
        self._fork = fork.count()
        self._belonging = Belonging()
        self._spread = owners.parameters.partitions
        self._topics = TopicDirectory(owners, settings, rng)
        self._followers = defaultdict[int, list[Follower]](list)
        self._producers = Producers(owners, settings, rng, self._followers.__getitem__)
        self._producer_by_key = self._producers.by_key
        self._admissions: dict[int, Admission] = {}
        self._budget = RetryBudget(settings.retry_budget, settings.retry_budget_earned)
        self._attempt_counts = AttemptCounts()
        self._submitting: Submitting | None = None
        self._mounting = asyncio.Lock()
        self._closed = False
        self._append_timeout_s = settings.append_timeout_s
        self._traced = traced_appends() if settings.tracing else None

    # ---- making and closing ----------------------------------------------------------------------------------------------------------------------

    @classmethod
    async def connect(cls, cluster: str, settings: ClientSettings | None = None) -> Self:
        """Connects to the cluster with log servers at `host:port[,host:port]`; one that answers is enough. Raises `ClusterUnavailable`, which names
        the address, if none answers within `connect_timeout_s`, and `InvalidSetting` for what is no address of log servers."""
        from waltz_log.transport.grpc import GrpcNetwork

        chosen = settings or ClientSettings()
        return await cls.connect_over(NamedServers(cluster), GrpcNetwork(tls=chosen.tls), chosen)

    @classmethod
    async def connect_over(cls, seeds: Seeds, network: Network, settings: ClientSettings | None = None, *, rng: random.Random | None = None) -> Self:
        """Connects over any addresses and network, such as those of a test."""
        chosen = settings or ClientSettings()
        chance = rng or random.Random()
        owners = Owners(seeds, network, chosen, chance)
        await owners.open()
        try:
            return cls(owners, chosen, chance)
        except BaseException:
            await owners.close()
            raise

    @classmethod
    @asynccontextmanager
    async def open(cls, cluster: str, settings: ClientSettings | None = None) -> AsyncIterator[Self]:
        """`async with WaltzClient.open("host:port") as client:`"""
        client = await cls.connect(cluster, settings)
        async with client:
            yield client

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Waits up to `close_timeout_s` for pending appends and contexts. Appends that are still unresolved then fail: those that were sent with
        `OutcomeUnknown`, the others with `NotAppended`. No task of the client runs afterwards, even if the call is cancelled."""
        if self._closed:
            return
        ended = self._belonging.ended()
        self._closed = True
        if ended:
            return
        await close_in_time(self._flush, self._end, self._settings.close_timeout_s)

    async def _end(self, wait_s: float) -> None:
        await self._producers.close()
        if self._submitting is not None:
            await self._submitting.close(wait_s)
        for followers in self._followers.values():
            for follower in list(followers):
                await follower.close()
        await self._owners.close()

    # ---- facts -----------------------------------------------------------------------------------------------------------------------------------

    @property
    def partitions(self) -> int:
        """The number of partitions of the log. It grows if partitions are added while the client is connected."""
        return self._owners.parameters.partitions

    @property
    def client_id(self) -> int:
        """The number that a log server assigned to this client at its first append, 0 before. It is part of the identity of each append, and feeds
        return it with each transaction."""
        return self._producers.client_id

    @property
    def parameters(self) -> ClusterParameters:
        """Name, cluster key and number of partitions of the cluster."""
        return self._owners.parameters

    @property
    def settings(self) -> ClientSettings:
        """The settings that the client was made with."""
        return self._settings

    def statistics(self) -> ClientStatistics:
        """A snapshot of what the client does and has counted, for logs and metrics (`waltz_log.metrics`). Does not wait; any thread may call it, also
        after `close`."""
        settings = self._settings
        return ClientStatistics(
            client_id=self._producers.client_id,
            partitions=self._producers.statistics(),
            max_pending=settings.max_pending,
            max_pending_bytes=settings.max_pending_bytes,
            retries=self._attempt_counts.retries,
        )

    async def high_water_mark(self, partition: int) -> int:
        """The id of the last committed transaction of the partition, -1 if there is none, as its owner reports it. Retries while the owner
        changes. Raises `Unavailable` after `append_timeout_s`."""
        self._check(partition)
        return (await self._owners.bound(partition, self._settings.append_timeout_s)).high_water_mark

    async def first_transaction_id(self, partition: int) -> int:
        """The first retained id of the partition, as its owner reports it; the high-water mark + 1 if the partition holds nothing. Retries while
        the owner changes. Raises `Unavailable` after `append_timeout_s`."""
        self._check(partition)
        return int((await self._owners.bound(partition, self._settings.append_timeout_s)).first_transaction_id)

    async def position_at(self, partition: int, time_ms: int) -> int:
        """The id of the partition's first transaction that was appended at `time_ms` (since 1970) or later; the high-water mark + 1 if none is
        committed yet. Raises `Unavailable` after `append_timeout_s`."""
        self._check(partition)
        return await position_at(self._owners, partition, time_ms, self._settings.append_timeout_s)

    async def topic(self, name: str) -> TopicHandle:
        """A handle of the topic `namespace/name`. The name is resolved now; calls of the handle address the topic's partitions. Raises
        `NoSuchTopic`, which names the most similar name."""
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
        """Appends one transaction, and returns when it is committed. The arguments are the fields of `Draft`; `timeout_s` is the deadline for all
        attempts, `append_timeout_s` by default.

        Raises `LockConflict` if a checked lock was written above the mark, `NotAppended` if the transaction is not in the log and never will be,
        `OutcomeUnknown` if it was sent and not answered in time (`resolve` settles it), `BelongsToTopic` for a partition of a topic, and
        `InvalidRequest` or `TransactionTooLarge` before anything is sent."""
        return await (await self.enqueue(partition, Draft(data, header, write_locks, read_locks, append_locks, high_water_mark), timeout_s))

    append_nowait = append_nowait

    async def enqueue(self, partition: int, draft: Draft, timeout_s: float | None = None, topic: TopicEpoch | None = None) -> asyncio.Future[Receipt]:
        """`append_nowait` of a draft. `topic`: the topic through whose handle the caller appends."""
        producer = self._producer_by_key.get(partition if topic is None else (partition, topic))
        if producer is None or self._closed or self._fork != fork.COUNT[0]:
            producer = self._producer(partition, topic)
        elif producer.window.awaited_bytes != math.inf:
            self._belonging.expect_here()  # only where the sender waits: its loop would be woken, and to ask for each append costs 2 % of it
        timeout_s = self._append_timeout_s if timeout_s is None else checked_timeout(timeout_s)
        loop = producer.loop
        future: asyncio.Future[Receipt] = asyncio.Future(loop=loop)
        append = pack_append(future, producer, draft, producer.clock() + timeout_s)
        if timeout_s <= 0:
            raise NotAppended(partition=partition, reason=f"the timeout is too short to send: timeout_s={timeout_s:g}")
        if not producer.try_enqueue(append):
            await producer.enqueue(append)
        if self._traced is not None:
            self._traced.begin(producer.window, future, loop.time() + timeout_s - append.deadline)
        return future

    async def append_many(self, partition: int, drafts: Iterable[Draft], timeout_s: float | None = None) -> list[Receipt | LockConflict]:
        """Appends in order, pipelined. Returns the receipt or the conflict of each draft when all are decided. Any other error is raised then; if
        there are several, the first."""
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
        """Appends everything in `source`, in order: a list, an iterator or an asynchronous iterator of bytes, drafts or Arrow record batches; one
        record batch or table; or a data frame with the same columns, of any library that exports Arrow's C stream, such as pandas or polars. Waits
        while the partition's window is full.

        `on_ack` receives each range of appended entries, `on_error` each entry that failed; both are called in the event loop. An entry that
        conflicts or is invalid does not stop the call. Any other failure ends it, and `BulkReceipt` says what is in the log. `timeout_s` is the
        deadline of each entry, from the time that it is read. An error that the source raises is raised when the entries before it are decided."""
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
        """An `append_bulk` whose source arrives in parts: `enqueue` each part, then `finish`."""
        producer = self._producer(partition, topic)
        bulk = BulkAppend(producer, self._append_timeout_s if timeout_s is None else checked_timeout(timeout_s), on_ack, on_error)
        if self._traced is not None:
            self._traced.begin_bulk(producer.window, bulk)
        return bulk

    async def flush(self) -> None:
        """Returns when everything that was appended or submitted before is decided, with any outcome, and what was committed is on disk at a
        majority, even if the topic's policy lets receipts come earlier. Raises `Unavailable` if that cannot be known, because a connection broke
        in between."""
        self._check_usable()
        await self._flush()

    async def _flush(self) -> None:
        await asyncio.gather(self._producers.flush(), *([] if self._submitting is None else [self._submitting.flush()]))

    def unacknowledged(self, partition: int | None = None) -> list[Unacknowledged]:
        """The appends of one partition, or of all, that have no outcome yet. The call scans all pending appends: do not call it for each append."""
        return [each for producer in self._producers.of(partition) for each in unacknowledged(producer)]

    async def resolve(self, error: OutcomeUnknown, timeout_s: float | None = None) -> Receipt | None:
        """Settles an append whose outcome was unknown. Returns its receipt, or None if it is not in the log and never will be.

        The error may come from another process, which may still run: that process loses its connection for appends to the partition, mounts again
        and continues. Raises `Unavailable` if the log does not answer within `timeout_s` (`append_timeout_s` by default), and `InvalidRequest` if
        the error is for several appends (`resolve_range`)."""
        if error.count != 1:
            raise InvalidRequest(reason=f"the error stands for several appends: use resolve_range: count={error.count}")
        found, deadline = await self._resolve(error, timeout_s)
        return await receipt_of(error, found, self._owners, self._settings, deadline)

    async def resolve_range(self, error: OutcomeUnknown, timeout_s: float | None = None) -> list[Appended]:
        """Settles the `count` rows of a bulk append that failed with one error. Returns the ranges that are in the log, `first` counted from the
        first row. The rest is not in the log and never will be."""
        found, _ = await self._resolve(error, timeout_s)
        return joined([Appended(first - error.sequence, count, transaction_id) for first, count, transaction_id in found])

    async def _resolve(self, error: OutcomeUnknown, timeout_s: float | None) -> tuple[Ranges, float]:
        """What is in the log, and the deadline of the call."""
        self._check(error.partition)
        sender = self._producers.sender(error)
        deadline = asyncio.get_running_loop().time() + (self._settings.append_timeout_s if timeout_s is None else checked_timeout(timeout_s))
        if sender is not None:
            with suppress(BelongsToTopic, TopicDeleted, Fenced):
                return await resolve_own(error, sender, self._owners, self._settings, deadline), deadline
            # The appends were sent before the partition became a topic's, or while it was another topic's, or before another process used this
            # client's id. Their producer cannot append any more, so they are resolved like those of another client.
        return await resolve_foreign(error, self._owners, self._settings, deadline), deadline

    # ---- reading ---------------------------------------------------------------------------------------------------------------------------------

    async def feed(self, partition: int, after: int = -1, data: bool = True) -> AsyncGenerator[Transaction, None]:
        """Every transaction from id `after + 1` on, as it is committed: without end, gap or repeat, across changes of the owner. `data` False:
        transactions come with empty data. Raises `OutOfRange` if `after` is above the high-water mark, or if retention has removed the next
        transaction."""
        async with aclosing(self.feed_batches(partition, after, data)) as batches:
            async for batch in batches:
                for transaction in batch:
                    yield transaction

    def feed_batches(
        self, partition: int, after: int = -1, data: bool = True, *, topic: TopicEpoch | None = None
    ) -> AsyncGenerator[list[Transaction], None]:
        """The feed in lists, as they arrive: several times faster than one by one. `topic`: set by a topic's handle; the feed then raises
        `TopicDeleted` too."""
        self._check(partition)
        if after < -1:
            raise InvalidRequest(reason=f"no such position: after={after}")
        return feed_batches(partition, after, data=data, owners=self._owners, settings=self._settings, rng=self._rng, topic=topic)

    async def fetch(
        self, partition: int, transaction_ids: Iterable[int], timeout_s: float | None = None, *, topic: TopicEpoch | None = None
    ) -> list[Transaction]:
        """The transactions with these ids, with their data, in the order of the ids; an id may be repeated. For a reader of a feed without data that
        needs some of it: a few requests to the owner fetch all of them.

        All of them are held in memory: at most 1,000,000 ids and 256 MiB of data in one call. Raises `OutOfRange` if an id is not, or no longer,
        in the log, `NotAllowed`, `InvalidRequest`, `CorruptData` if three answers in a row do not match their checksums, and `Unavailable` after
        `timeout_s` (`append_timeout_s` by default). `topic`: set by a topic's handle; the call then raises `TopicDeleted` too."""
        self._check(partition)
        wanted = checked_ids(transaction_ids)
        chosen = self._append_timeout_s if timeout_s is None else checked_timeout(timeout_s)
        return await fetch_transactions(self._owners, partition, wanted, chosen, topic)

    async def follow(self, partition: int, apply: Apply, after: int = -1, again: Again | None = None, *, topic: TopicEpoch | None = None) -> Follower:
        """Applies the feed in the background: calls `apply` with each batch from id `after + 1` on, in order. While the follower runs, its `applied`
        is the mark of this client's appends with locks to the partition.

        `again` receives the error that ended the feed or `apply`. It returns the mark to continue from, or None: the follower ends with that
        error."""
        self._check(partition)
        followers = self._followers[partition]
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
        """Decorates a function `fn(tx, ...)`, plain or a coroutine function: it reads the state that `follower` built, and calls `tx.append` at most
        once. It must have no other effect. A call of the decorated function returns the `Receipt`, or None if the function appended nothing.

        After a conflict, the function runs again when the follower has applied the winner. After `attempts` executions or `timeout_s` the call raises
        `GaveUpOnConflict` (a `LockConflict`) or `GaveUp` (a `NotAppended`), with the limit, the attempts, the time and the last winner.

        `locks` receives the same arguments except `tx`, and returns the locks that the function will use. Calls of this client that share a lock
        run one after another instead of conflicting; with `locks` a call waits before its first execution, without it the call may execute once
        more. Only the locks of `tx.append` are sent."""
        chosen = self._settings.append_timeout_s if timeout_s is None else timeout_s
        if chosen <= 0:
            raise InvalidRequest(reason=f"a timeout must be positive: timeout_s={timeout_s}")
        return transactional(follower, self._attempts(attempts, topic), timeout_s=chosen, locks=locks)

    async def mount(self, application: Application, partitions: Collection[int] | None = None) -> None:
        """Feeds the application, at these partitions or at all, from the mark that it returns for each. `submit` works from then on. A later call
        with the same application adds partitions. Raises `InvalidRequest` if another application is mounted."""
        self._check_usable()
        wanted = range(self.partitions) if partitions is None else partitions
        for partition in wanted:
            self._check(partition)
        async with self._mounting:
            if self._submitting is None:
                submitting = Submitting(application, self.follow, self.enqueue, self._attempts, self._producers.in_flight, self._settings, self._rng)
                await submitting.begin(self._owners.parameters)
                self._submitting = submitting
            elif self._submitting.application is not application:
                raise InvalidRequest(reason="another application is mounted: a client has at most one")
            await self._submitting.mount(wanted)

    async def unmount(self, partitions: Collection[int] | None = None) -> None:
        """Stops feeding the application at these partitions, or at all."""
        async with self._mounting:
            if self._submitting is not None:
                await self._submitting.unmount(range(self.partitions) if partitions is None else partitions)

    def applied(self, partition: int) -> Follower:
        """The follower that feeds the mounted application at the partition. It shows how far the application is, and can wait for a transaction.
        Raises `InvalidRequest` if no application is mounted there."""
        self._check(partition)
        follower = None if self._submitting is None else self._submitting.followers.get(partition)
        if follower is None:
            raise InvalidRequest(reason=f"no application is mounted at this partition: partition={partition}")
        return follower

    async def submit(self, context: Context, *, attempts: int = ATTEMPTS, timeout_s: float | None = None) -> asyncio.Task[Receipt | None]:
        """Executes the context on the mounted application's state and appends the result, again after each conflict, until the outcome is decided.
        Its hooks are called at each step. Waits only for room: `contexts_max`. Returns a task whose result is the receipt, once the application has
        applied the transaction, or None if there was nothing to append.

        `Context.partition` receives the number of partitions at the time that the client connected, so that the place of a key stays the same."""
        self._check_usable()
        if self._submitting is None:
            raise InvalidRequest(reason="no application is mounted")
        chosen = self._settings.append_timeout_s if timeout_s is None else checked_timeout(timeout_s)
        return await self._submitting.submit(context, self._spread, chosen, attempts)

    def _attempts(self, attempts: int, topic: TopicEpoch | None = None) -> Attempts:
        async def append(partition: int, draft: Draft, *, timeout_s: float) -> Receipt:
            return await (await self.enqueue(partition, draft, timeout_s, topic))

        async def turn(partition: int, checks: Collection[bytes], *, timeout_s: float) -> int | None:
            producer = self._producer(partition, topic)
            return await await_turn(producer, checks, producer.loop.time() + timeout_s)

        pauses = partial(Backoff, CONFLICT_BASE_S, self._settings.retry_cap_s, self._rng)
        return Attempts(append, pauses, self._budget, attempts, lambda: self._closed, turn, self._attempt_counts)

    # ---- checks ----------------------------------------------------------------------------------------------------------------------------------

    def _check_usable(self) -> None:
        self._belonging.expect_here()
        if self._closed:
            raise InvalidRequest(reason="the client is closed")

    def _check(self, partition: int) -> None:
        self._check_usable()
        if type(partition) is not int and (not isinstance(partition, int) or isinstance(partition, bool)):
            raise InvalidRequest(reason=f"a partition must be a number, not {type(partition).__name__}: partition={partition!r}")
        if not 0 <= partition < self.partitions:
            raise InvalidRequest(reason=f"no such partition: partition={partition} partitions={self.partitions}")

    def _producer(self, partition: int, topic: TopicEpoch | None = None) -> Producer:
        self._check(partition)
        return self._producers.get(partition, topic)


def traced_appends() -> TracedAppends:
    """Raises `ModuleNotFoundError`, with the command that installs it, without the extra `tracing`."""
    with explain_missing("tracing of appends", "tracing"):
        from waltz_log.client.append.traced_appends import TracedAppends
    return TracedAppends()
