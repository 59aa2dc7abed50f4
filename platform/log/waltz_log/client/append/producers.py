"""The producers of one client: one for each partition that it appends to by number, and one for each partition and topic."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import TypeAlias

from waltz_log.client.append.producer import MarkSource, Producer
from waltz_log.client.base.incidents import Incidents
from waltz_log.client.base.settings import ClientSettings
from waltz_log.client.owners.owners import Owners
from waltz_log.client.transactions.transaction import Receipt, Transaction
from waltz_log.core.status.client_statistics import ClientPartitionStatistics
from waltz_log.core.topics.catalogue import TopicEpoch
from waltz_log.errors import OutcomeUnknown
from waltz_log.statistics import merge

__all__ = ["Producers"]

Key: TypeAlias = int | tuple[int, TopicEpoch]


class Producers:
    """They share the client's id, except a second one in a partition, because sequences of one id must not repeat there."""

    def __init__(self, owners: Owners, settings: ClientSettings, rng: random.Random, followers: Callable[[int], Sequence[MarkSource]]) -> None:
        """`followers`: those of the client at a partition, a list that changes."""
        self._owners = owners
        self._settings = settings
        self._rng = rng
        self._followers = followers
        self._incidents = Incidents()
        self._acquiring = asyncio.Lock()
        self.client_id = 0
        """0: none is acquired yet."""
        self.by_key: dict[Key, Producer] = {}

    def get(self, partition: int, topic: TopicEpoch | None) -> Producer:
        """Started with the first call."""
        key = partition if topic is None else (partition, topic)
        producer = self.by_key.get(key)
        if producer is None:
            beside = any(each.partition == partition for each in self.by_key.values())
            producer = self.by_key[key] = Producer(
                partition,
                0 if beside else self.client_id,
                self._owners,
                self._settings,
                self._rng,
                topic=topic,
                first_client_id=None if beside else self.acquire_client_id,
                followers=self._followers(partition),
                incidents=self._incidents,
            )
            producer.start()
        return producer

    async def acquire_client_id(self) -> int:
        """The id that the producers share, acquired with the first call."""
        async with self._acquiring:
            if not self.client_id:
                self.client_id = await self._owners.next_client_id()
            return self.client_id

    def of(self, partition: int | None) -> list[Producer]:
        """Those of a partition; None: all."""
        return [each for each in list(self.by_key.values()) if partition in (None, each.partition)]

    def sender(self, error: OutcomeUnknown) -> Producer | None:
        """The one that sent the append, if it was one of these."""
        return next((each for each in self.of(error.partition) if each.client_id == error.client_id), None)

    def in_flight(self, partition: int, transactions: Sequence[Transaction]) -> list[asyncio.Future[Receipt]]:
        """The undecided appends of this client that these transactions are."""
        found: list[asyncio.Future[Receipt]] = []
        for producer in self.of(partition):
            found += producer.window.sent([each.sequence for each in transactions if each.client_id == producer.client_id])
        return found

    def statistics(self) -> dict[int, ClientPartitionStatistics]:
        """By partition. Any thread may call it."""
        found: dict[int, ClientPartitionStatistics] = {}
        for producer in self.of(None):
            mine = producer.statistics()
            before = found.get(producer.partition)
            found[producer.partition] = mine if before is None else merge([before, mine])
        return dict(sorted(found.items()))

    async def flush(self) -> None:
        await asyncio.gather(*(producer.flush() for producer in self.of(None)))

    async def close(self) -> None:
        for producer in self.of(None):
            await producer.close()
