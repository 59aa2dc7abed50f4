"""What a topic's handle asks of the client that it appends and reads through: the client's methods, with the topic as whose handle calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from typing import Any, Protocol  # Any: a decorator of the application's functions

from waltz_log.client.append.bulk import BulkAppend
from waltz_log.client.append.bulk_receipt import Appended, NotInLog
from waltz_log.client.base.settings import ClientSettings
from waltz_log.client.transactions.follow import Apply, Follower
from waltz_log.client.transactions.transaction import Draft, Lock, Receipt, Transaction
from waltz_log.core.topics.catalogue import TopicEpoch

__all__ = ["TopicClient"]


class TopicClient(Protocol):
    """`WaltzClient` is one. Partitions are those of the log."""

    @property
    def settings(self) -> ClientSettings: ...

    async def high_water_mark(self, partition: int) -> int: ...

    async def enqueue(
        self, partition: int, draft: Draft, timeout_s: float | None = None, topic: TopicEpoch | None = None
    ) -> asyncio.Future[Receipt]: ...

    def bulk(
        self,
        partition: int,
        on_ack: Callable[[Appended], None] | None = None,
        on_error: Callable[[NotInLog], None] | None = None,
        timeout_s: float | None = None,
        *,
        topic: TopicEpoch | None = None,
    ) -> BulkAppend: ...

    def feed_batches(
        self, partition: int, after: int = -1, data: bool = True, *, topic: TopicEpoch | None = None
    ) -> AsyncGenerator[list[Transaction], None]: ...

    async def fetch(
        self, partition: int, transaction_ids: Iterable[int], timeout_s: float | None = None, *, topic: TopicEpoch | None = None
    ) -> list[Transaction]: ...

    async def follow(self, partition: int, apply: Apply, after: int = -1, *, topic: TopicEpoch | None = None) -> Follower: ...

    def transactional(
        self,
        follower: Follower,
        *,
        attempts: int = ...,
        timeout_s: float | None = None,
        locks: Callable[..., Sequence[Lock]] | None = None,
        topic: TopicEpoch | None = None,
    ) -> Callable[[Callable[..., Any]], Any]: ...
