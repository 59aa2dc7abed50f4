"""What an owner does to its replicas for the policies of the partition's topic: trims expired transactions, requests compacted views, removes deleted
data. In each round it asks every clean replica what it holds, decides (`core.retention`) and sends each the result, so that a replica that was down
follows later. Before anything is trimmed, the first retained id is raised in the coordinator, in two steps between which no subscriber can register
below it (`coordination.subscribers`). From then on no reader is served below it. All calls carry the store session, so a former owner changes
nothing. Upkeep delays no append: a failed round is repeated with the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from struct import iter_unpack
from typing import Final

from waltz_log.coordination.released import release_partition
from waltz_log.coordination.subscribers import propose_retained, read_subscribers, settle_retained, withdraw_proposal
from waltz_log.core.ports import Clock
from waltz_log.core.retention import Decision, Holding, SegmentFacts, agreed_now_ms, decide
from waltz_log.core.status.server_statistics import RetainedStatistics, UpkeepStatistics, ViewStatistics
from waltz_log.core.topics.catalogue import Policies, Topic
from waltz_log.errors import Fenced, WaltzError
from waltz_log.loggers import get_logger
from waltz_log.server.base.settings import ServerSettings
from waltz_log.server.base.topics import ServedTopics
from waltz_log.server.replication.store_session import StoreSession
from waltz_log.server.upkeep.upkeep_calls import ask
from waltz_log.server.upkeep.view_upkeep import ViewUpkeep, topic_partition
from waltz_log.transport import methods
from waltz_log.transport import waltz_pb2 as pb

__all__ = ["Upkeep"]

log = get_logger(__name__)

SEGMENTS_MAX: Final = 1024
"""Asked for of each replica: the oldest. More than one round removes."""

CLEARING_PAUSE_S: Final = 1.0
"""Between two rounds while what a deleted topic left is removed."""

PHASES: Final = 16
"""Partitions start their rounds at this many different moments of the pause, not all at once."""


class Upkeep:
    """The upkeep of one store session; `run` it as long as that lives."""

    def __init__(self, store: StoreSession, topics: ServedTopics, clock: Clock, settings: ServerSettings) -> None:
        self._store = store
        self._topics = topics
        self._clock = clock
        self._pause_s = settings.upkeep_s
        self._views = ViewUpkeep(store, settings)
        self._statistics = UpkeepStatistics()
        self._settled = False
        """The coordinator records no proposed trim."""

    async def run(self) -> None:
        """Runs until cancelled. The log and the statistics report failures."""
        await self._pause(self._pause_s * (1 + self._store.partition % PHASES) / PHASES)
        while True:
            try:
                await self.round()
            except Fenced as error:
                self._store.fenced(error)
            except WaltzError as error:
                log.info("upkeep failed and is retried", partition=self._store.partition, error=str(error))
                self._statistics = UpkeepStatistics(error=str(error))
            except Exception as error:
                log.exception("upkeep failed unexpectedly", partition=self._store.partition)
                self._statistics = UpkeepStatistics(error=repr(error))
            await self._pause(self._pause_s)

    async def _pause(self, pause_s: float) -> None:
        """The pause between rounds. It is shorter if the partition's topic was deleted, because a new topic may wait for the partition."""
        try:
            async with asyncio.timeout(pause_s):
                await self._topics.changed.wait_for(lambda: self._store.partition in self._topics.catalogue.retired)
        except TimeoutError:
            return
        await asyncio.sleep(min(pause_s, CLEARING_PAUSE_S))

    def statistics(self) -> UpkeepStatistics:
        return self._statistics

    async def round(self) -> None:
        store = self._store
        found = self._topics.of(store.partition)
        deleted = store.partition in self._topics.catalogue.retired
        if found is None and not deleted:
            self._statistics = UpkeepStatistics()
            return
        if not self._settled:
            # This owner or an earlier one may have proposed a trim and not done it. The proposal keeps subscribers from registering below it.
            await withdraw_proposal(store.coordinator, store.partition, store.probes.known)
            self._settled = True
        described = await self._describe(found)
        now_ms = agreed_now_ms([self._clock.now_ms(), *(each.now_ms for each in described.values())])
        if found is not None and found[0].type == "compaction":
            await self._views.compact(found[0], found[1], described, now_ms)
        elif deleted:
            await self._views.drop(described)
        decision = await self._trim(found, described, now_ms)
        if deleted and self._cleared(described):
            await release_partition(store.coordinator, store.partition)
        store.checkpoint_due = decision.wants_checkpoint
        if decision.wants_checkpoint:
            store.advanced.notify()
        self._statistics = UpkeepStatistics(
            first=store.first_transaction_id,
            held_by=decision.held_by,
            replicas={name: _retained(each) for name, each in sorted(described.items())},
        )

    def _cleared(self, described: Mapping[str, pb.DescribeResponse]) -> bool:
        """Every assigned replica says that nothing of the deleted topic is left: no transaction, no view."""
        store = self._store
        first = store.committed + 1
        if store.first_transaction_id != first or described.keys() != set(store.assigned):
            return False
        return all(each.first_transaction_id == first and not each.view.exists and not each.view.error for each in described.values())

    # ---- asking ------------------------------------------------------------------------------------------------------------------------------------

    async def _describe(self, found: tuple[Topic, int] | None) -> dict[str, pb.DescribeResponse]:
        """What each clean replica holds, as far as they answer. A regular topic is named, so that replicas record its properties."""
        store = self._store
        request = pb.DescribeRequest(cluster_key=store.cluster.key.bytes, partition=store.partition, session=store.session, segments_max=SEGMENTS_MAX)
        if found is not None and found[0].type == "regular":
            request.of.CopyFrom(topic_partition(*found))
        members = store.members()
        answers = await asyncio.gather(*(ask(store, replica, methods.DESCRIBE, request) for replica in members))
        return {replica.name: answer for replica, answer in zip(members, answers, strict=True) if answer is not None}

    # ---- trimming ----------------------------------------------------------------------------------------------------------------------------------

    async def _trim(self, found: tuple[Topic, int] | None, described: Mapping[str, pb.DescribeResponse], now_ms: int) -> Decision:
        holdings = {name: _holding(answer) for name, answer in described.items()}
        # First decide without the subscribers. They are read only if something may be trimmed without them.
        decision = self._decide(found, holdings, {}, now_ms)
        if decision.first > self._store.first_transaction_id:
            decision = await self._raise_first(found, holdings, decision, now_ms)
        await self._trim_replicas(found, described)
        return decision

    def _decide(self, found: tuple[Topic, int] | None, holdings: Mapping[str, Holding], subscribers: Mapping[str, int], now_ms: int) -> Decision:
        store = self._store
        return decide(
            Policies() if found is None else found[0].policies,
            holdings,
            assigned=len(store.assigned),
            retained=store.first_transaction_id,
            committed=store.committed,
            subscribers=subscribers,
            compacted=found is not None and found[0].type == "compaction",
            deleted=found is None,
            now_ms=now_ms,
            begins_at=0 if found is None else found[0].begin_of(found[1]),
            keeps_existing=found is not None and found[0].keeps_existing,
        )

    async def _raise_first(self, found: tuple[Topic, int] | None, holdings: Mapping[str, Holding], wanted: Decision, now_ms: int) -> Decision:
        """Agrees with the subscribers, in the coordinator, on what is trimmed. From then on no reader is served below it."""
        store = self._store
        decision = self._decide(found, holdings, await self._subscribers(), now_ms)
        if decision.first <= store.first_transaction_id:
            return decision
        self._settled = False
        before, version = await propose_retained(store.coordinator, store.partition, decision.first, store.probes.known)
        decision = self._decide(found, holdings, await self._subscribers(), now_ms)
        first = max(decision.first, before.first)
        self._settled = await settle_retained(store.coordinator, store.partition, first, version)
        if self._settled:
            log.info("log trimmed", partition=store.partition, first=first, was=store.first_transaction_id, held_by=decision.held_by)
            store.first_transaction_id = max(store.first_transaction_id, first)
        return decision

    async def _subscribers(self) -> dict[str, int]:
        """The mark of each that is registered for the partition."""
        partition = self._store.partition
        return {each.name: each.marks[partition] for each in await read_subscribers(self._store.coordinator) if partition in each.marks}

    async def _trim_replicas(self, found: tuple[Topic, int] | None, described: Mapping[str, pb.DescribeResponse]) -> None:
        """Sends every replica that holds more than is retained a request to trim it."""
        store = self._store
        behind = [replica for replica in store.members() if replica.name in described]
        behind = [replica for replica in behind if described[replica.name].first_transaction_id < store.first_transaction_id]
        request = pb.TrimRequest(
            cluster_key=store.cluster.key.bytes,
            partition=store.partition,
            session=store.session,
            first_transaction_id=store.first_transaction_id,
            compacted=found is not None and found[0].type == "compaction",
        )
        await asyncio.gather(*(ask(store, replica, methods.TRIM, request) for replica in behind))


def _holding(answer: pb.DescribeResponse) -> Holding:
    segments = tuple(SegmentFacts(*row) for row in iter_unpack(">4q", answer.segments))
    whole = bool(segments) and segments[-1].last >= answer.last_transaction_id
    return Holding(answer.last_transaction_id, answer.low_water_mark, answer.bytes, segments, whole, answer.view.bound if answer.view.exists else 0)


def _retained(answer: pb.DescribeResponse) -> RetainedStatistics:
    view = answer.view
    return RetainedStatistics(
        first=answer.first_transaction_id,
        last=answer.last_transaction_id,
        bytes=answer.bytes,
        view=ViewStatistics(start=view.start, bound=view.bound, records=view.records, bytes=view.bytes) if view.exists else None,
        view_error=view.error or None,
    )
