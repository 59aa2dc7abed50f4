"""The client for code that blocks: the same names, over an event loop in a background thread.

A method whose arguments and result need no translation is made from the asynchronous one by `blocking`; the others are written out below.

Functions given to `follow` and `transactional` run in that thread, one at a time and never at once, so state that only they touch needs no lock; they
must be short and must not call the client.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, Self, TypeVar  # Any: Future is invariant

from waltz_log.background_tasks import end_tasks, start_task
from waltz_log.client.append.arguments import append_nowait
from waltz_log.client.append.bulk import append_all_blocking
from waltz_log.client.append.bulk_receipt import Appended, BulkReceipt, NotInLog
from waltz_log.client.append.bulk_source import Source
from waltz_log.client.append.packing import checked_timeout
from waltz_log.client.append.unacknowledged import Unacknowledged
from waltz_log.client.base.background import Background, blocking
from waltz_log.client.base.belonging import FORKED
from waltz_log.client.base.settings import ClientSettings
from waltz_log.client.client import ATTEMPTS, WaltzClient
from waltz_log.client.feed.fetching import checked_ids
from waltz_log.client.owners.seeds import Seeds
from waltz_log.client.sync_follower import SyncFollower, blocking_decorator
from waltz_log.client.sync_topic import SyncTopicHandle
from waltz_log.client.transactions.context import Context
from waltz_log.client.transactions.transaction import Draft, Lock, Receipt, Transaction
from waltz_log.core.metadata import ClusterParameters
from waltz_log.core.ports import Network
from waltz_log.core.status.client_statistics import ClientStatistics
from waltz_log.core.topics.catalogue import TopicEpoch
from waltz_log.errors import InvalidRequest, NotAppended

__all__ = ["SyncWaltzClient"]

T = TypeVar("T")

INBOX_MAX = 16_384
"""Appends handed over by `append_nowait` and not yet in a partition's window. Full, the caller waits."""


class _Handover(NamedTuple):
    """The arguments of `WaltzClient.enqueue`."""

    partition: int
    draft: Draft
    timeout_s: float | None
    topic: TopicEpoch | None


class SyncWaltzClient:
    """A client for code that blocks: `with SyncWaltzClient("host:port") as client:`. The methods are those of `WaltzClient`. All threads of a
    process may use it."""

    def __init__(self, cluster: str, settings: ClientSettings | None = None) -> None:
        self._begin(lambda: WaltzClient.connect(cluster, settings))

    @classmethod
    def connect_over(cls, seeds: Seeds, network: Callable[[], Network], settings: ClientSettings | None = None) -> Self:
        """Connects over any addresses and network; the network is made in the client's own thread."""
        self = cls.__new__(cls)
        self._begin(lambda: WaltzClient.connect_over(seeds, network(), settings))
        return self

    def _begin(self, connect: Callable[[], Coroutine[Any, Any, WaltzClient]]) -> None:
        self.background = Background()
        self._inbox: deque[tuple[_Handover | None, Future[Any]]] = deque()
        """An append and the future of its outcome; or None, and who waits until all before it is handed over."""
        self._contexts: dict[Future[Any], contextvars.Context] = {}
        """With tracing: the context of the caller's thread, which has its current span."""
        self._inbox_room = threading.BoundedSemaphore(INBOX_MAX)
        self._pump: asyncio.Task[None] | None = None
        self._waking = False
        self._closed = False
        try:
            self.asynchronous = self.background.call(connect())
        except BaseException:
            self.background.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """As `WaltzClient.close`."""
        if self._closed:
            return
        self._closed = True
        if not self.background.forked:
            self.background.call(self._close())
        self.background.close()

    async def _close(self) -> None:
        if self._pump is not None:
            await asyncio.wait({self._pump}, timeout=self.asynchronous.settings.close_timeout_s)
        await self.asynchronous.close()
        if self._pump is not None:
            await end_tasks([self._pump])
        while self._inbox:
            append, outcome = self._inbox.popleft()
            if append is not None:
                self._inbox_room.release()
            if outcome.set_running_or_notify_cancel():
                outcome.set_exception(NotAppended(partition=-1 if append is None else append.partition, reason="the client was closed"))

    # ---- facts -----------------------------------------------------------------------------------------------------------------------------------

    @property
    def partitions(self) -> int:
        """As `WaltzClient.partitions`."""
        return self.asynchronous.partitions

    @property
    def client_id(self) -> int:
        """As `WaltzClient.client_id`."""
        return self.asynchronous.client_id

    @property
    def parameters(self) -> ClusterParameters:
        """As `WaltzClient.parameters`."""
        return self.asynchronous.parameters

    @property
    def settings(self) -> ClientSettings:
        """As `WaltzClient.settings`."""
        return self.asynchronous.settings

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def statistics(self) -> ClientStatistics:
        """As `WaltzClient.statistics`."""
        return self.asynchronous.statistics()

    high_water_mark = blocking(WaltzClient.high_water_mark)
    first_transaction_id = blocking(WaltzClient.first_transaction_id)
    position_at = blocking(WaltzClient.position_at)

    def topic(self, name: str) -> SyncTopicHandle:
        """As `WaltzClient.topic`."""
        return SyncTopicHandle(self.enqueue, self.background.call(self.asynchronous.topic(name)), self.background)

    # ---- appending -------------------------------------------------------------------------------------------------------------------------------

    append = blocking(WaltzClient.append)
    append_many = blocking(WaltzClient.append_many)
    append_nowait = append_nowait

    def enqueue(self, partition: int, draft: Draft, timeout_s: float | None = None, topic: TopicEpoch | None = None) -> Future[Receipt]:
        """`append_nowait` of a draft. Returns a future of the outcome, which also has errors of the arguments. Waits only while 16,384 appends are
        handed over and not yet enqueued; in a callback of a future it raises `NotAppended` instead. `topic`: through whose handle the caller
        appends."""
        if self._closed or self.background.forked:
            raise InvalidRequest(reason="the client is closed" if self._closed else FORKED)
        wait_s = self.asynchronous.settings.append_timeout_s if timeout_s is None else checked_timeout(timeout_s)
        if self.background.is_own_thread:  # in a callback of a future: it must not wait for what only its own thread can do
            if not self._inbox_room.acquire(blocking=False):
                raise NotAppended(partition=partition, reason=f"the queue is full and a callback cannot wait: {INBOX_MAX} appends are handed over")
        elif not self._inbox_room.acquire(timeout=min(wait_s, threading.TIMEOUT_MAX)):
            raise NotAppended(partition=partition, reason="no room before the deadline")
        outcome: Future[Receipt] = Future()
        if self.asynchronous.settings.tracing:
            self._contexts[outcome] = contextvars.copy_context()
        self._inbox.append((_Handover(partition, draft, timeout_s, topic), outcome))
        if not self._waking:
            self._waking = True
            self.background.soon(self._wake)
        return outcome

    def _wake(self) -> None:
        self._waking = False  # before the inbox is read: every call from now on wakes the loop again
        if self._inbox and (self._pump is None or self._pump.done()):
            self._pump = start_task(self._empty_inbox(), name="waltz inbox")
            self._pump.add_done_callback(lambda _: None if self._closed else self._wake())  # others can cancel it

    async def _empty_inbox(self) -> None:
        while self._inbox:
            append, outcome = self._inbox.popleft()
            try:
                await self._hand_over(append, outcome)
            finally:
                if append is not None:
                    self._inbox_room.release()

    async def _hand_over(self, append: _Handover | None, outcome: Future[Any]) -> None:
        context = self._contexts.pop(outcome, None) if self._contexts else None
        if not outcome.set_running_or_notify_cancel():
            return  # the caller cancelled it
        if append is None:
            outcome.set_result(None)
            return
        try:
            enqueuing = self.asynchronous.enqueue(*append)
            future = await (enqueuing if context is None else start_task(enqueuing, context=context))
        except asyncio.CancelledError:
            reason = "the client was closed" if self._closed else "a background task was cancelled: task=waltz inbox"
            outcome.set_exception(NotAppended(partition=append.partition, reason=reason))
            raise
        except Exception as error:  # whatever is wrong with it, those behind it go on
            outcome.set_exception(error)
        else:
            future.add_done_callback(_passing_to(outcome))

    def append_bulk(
        self,
        partition: int,
        source: Source,
        *,
        on_ack: Callable[[Appended], None] | None = None,
        on_error: Callable[[NotInLog], None] | None = None,
        timeout_s: float | None = None,
    ) -> BulkReceipt:
        """As `WaltzClient.append_bulk`. The source is read in the caller's thread; the callbacks run in the client's thread."""
        return append_all_blocking(self.background, lambda: self.asynchronous.bulk(partition, on_ack, on_error, timeout_s), source)

    def flush(self) -> None:
        """As `WaltzClient.flush`."""

        async def flush() -> None:
            if self._inbox:  # not until it is empty: others may go on handing over
                handed_over: Future[None] = Future()
                self._inbox.append((None, handed_over))
                self._wake()
                await asyncio.wrap_future(handed_over)
            await self.asynchronous.flush()

        self.background.call(flush())

    def unacknowledged(self, partition: int | None = None) -> list[Unacknowledged]:
        """As `WaltzClient.unacknowledged`. Appends that `append_nowait` has handed over a moment ago may be missing."""
        return self.background.call_soon(lambda: self.asynchronous.unacknowledged(partition))

    resolve = blocking(WaltzClient.resolve)
    resolve_range = blocking(WaltzClient.resolve_range)

    # ---- reading ---------------------------------------------------------------------------------------------------------------------------------

    def feed(self, partition: int, after: int = -1, data: bool = True) -> Generator[Transaction, None, None]:
        """As `WaltzClient.feed`: a generator that blocks until the next transaction is committed. Close it to end the feed."""
        for batch in self.feed_batches(partition, after, data):
            yield from batch

    def feed_batches(self, partition: int, after: int = -1, data: bool = True) -> Generator[list[Transaction], None, None]:
        """As `WaltzClient.feed_batches`: a generator that blocks until the next batch arrives. Close it to end the feed."""
        yield from self.background.iterate(self.asynchronous.feed_batches(partition, after, data))

    def fetch(self, partition: int, transaction_ids: Iterable[int], timeout_s: float | None = None) -> list[Transaction]:
        """As `WaltzClient.fetch`."""
        return self.background.call(self.asynchronous.fetch(partition, checked_ids(transaction_ids), timeout_s))

    def follow(
        self, partition: int, apply: Callable[[list[Transaction]], None], after: int = -1, again: Callable[[Exception], int | None] | None = None
    ) -> SyncFollower:
        """As `WaltzClient.follow`. `apply` and `again` run in the client's thread, one at a time with transactional functions."""

        async def asked(error: Exception) -> int | None:
            assert again is not None
            return again(error)

        follower = self.background.call(self.asynchronous.follow(partition, apply, after, None if again is None else asked))
        return SyncFollower(follower, self.background)

    # ---- transactions ----------------------------------------------------------------------------------------------------------------------------

    def transactional(
        self,
        follower: SyncFollower,
        *,
        attempts: int = ATTEMPTS,
        timeout_s: float | None = None,
        locks: Callable[..., Sequence[Lock]] | None = None,
    ) -> Callable[[Callable[..., None]], Callable[..., Receipt | None]]:
        """As `WaltzClient.transactional`. The function and `locks` run in the client's thread, one at a time with `apply`; the call blocks."""
        decorate = self.asynchronous.transactional(follower.asynchronous, attempts=attempts, timeout_s=timeout_s, locks=locks)
        return blocking_decorator(self.background, decorate)

    mount = blocking(WaltzClient.mount)
    unmount = blocking(WaltzClient.unmount)

    def applied(self, partition: int) -> SyncFollower:
        """As `WaltzClient.applied`."""
        return SyncFollower(self.asynchronous.applied(partition), self.background)

    def submit(self, context: Context, *, attempts: int = ATTEMPTS, timeout_s: float | None = None) -> Future[Receipt | None]:
        """As `WaltzClient.submit`: returns when there is room, with a future of the outcome. The context's hooks run in the client's thread.
        Cancelling the future does not stop the transaction."""
        outcome: Future[Receipt | None] = Future()
        outcome.set_running_or_notify_cancel()

        async def submit() -> None:
            task = await self.asynchronous.submit(context, attempts=attempts, timeout_s=timeout_s)
            task.add_done_callback(_passing_to(outcome))

        self.background.call(submit())
        return outcome


def _passing_to(outcome: Future[T]) -> Callable[[asyncio.Future[T]], None]:
    def settle(future: asyncio.Future[T]) -> None:
        if future.cancelled():
            outcome.set_exception(InvalidRequest(reason="the append was cancelled"))
        elif (error := future.exception()) is not None:
            outcome.set_exception(error)
        else:
            outcome.set_result(future.result())

    return settle
