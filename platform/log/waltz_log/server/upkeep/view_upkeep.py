"""Has the replicas of a compaction topic's partition make and keep its compacted view, and those that cannot given another's.

Each replica folds its own log, up to what is committed. One whose log does not reach back to where its view ends, as it came late or was emptied, and
one whose view is damaged, is given the view of a replica that has it, page by page through the owner. Decides no safety: a replica folds nothing
above what the owner, in its session, said is committed, and trims nothing that its own view does not hold.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from typing import TypeVar

from waltz_log.core.topics.catalogue import Topic
from waltz_log.errors import Fenced, WaltzError
from waltz_log.loggers import get_logger
from waltz_log.server.base.settings import ServerSettings
from waltz_log.server.replication.replica_session import ReplicaSession
from waltz_log.server.replication.store_session import StoreSession
from waltz_log.server.upkeep.upkeep_calls import ask
from waltz_log.transport import methods
from waltz_log.transport import waltz_pb2 as pb

__all__ = ["ViewUpkeep", "topic_partition"]

log = get_logger(__name__)

T = TypeVar("T")


def topic_partition(topic: Topic, partition: int) -> pb.TopicPartition:
    return pb.TopicPartition(namespace=topic.name.namespace, topic=topic.name.topic, partition=partition, properties=topic.properties_of(partition))


class ViewUpkeep:
    """The view upkeep of one store session."""

    def __init__(self, store: StoreSession, settings: ServerSettings) -> None:
        self._store = store
        self._settings = settings
        self._wrong: dict[str, str] = {}
        """What each replica reported about its view in the previous round. A problem that is reported twice does not resolve itself."""

    async def compact(self, topic: Topic, partition: int, described: Mapping[str, pb.DescribeResponse], now_ms: int) -> None:
        """Sends every replica the bound up to which it may fold, and copies views between replicas. `described`: what the clean replicas reported."""
        store = self._store
        of = topic_partition(topic, partition)
        request = pb.CompactRequest(
            cluster_key=store.cluster.key.bytes,
            partition=store.partition,
            session=store.session,
            of=of,
            bound=store.committed + 1,
            now_ms=now_ms,
            tombstone_retention_ms=topic.policies.tombstone_retention_ms,
            start=max(topic.begin_of(partition), self._start(described)),
        )
        members = {replica.name: replica for replica in store.members() if replica.name in described}
        answers = await asyncio.gather(*(ask(store, replica, methods.COMPACT, request) for replica in members.values()))
        views = {name: answer.view for name, answer in zip(members, answers, strict=True) if answer is not None}
        for name in self._needing_a_copy(views, described, request.start):
            whole = [(view.bound, other) for other, view in views.items() if other != name and view.exists and not view.error]
            reach, source = max(whole, default=(-1, ""))
            if reach >= described[name].first_transaction_id:
                await self._copy_view(members[source], members[name], of)
        self._wrong = {name: view.error for name, view in views.items() if view.error}

    def _start(self, described: Mapping[str, pb.DescribeResponse]) -> int:
        """Where a view that is made now begins: where the log does, unless a replica may have one that reaches further back."""
        known = len(described) < len(self._store.assigned) or any(each.view.exists or each.view.error for each in described.values())
        return 0 if known else self._store.first_transaction_id

    def _needing_a_copy(self, views: Mapping[str, pb.ViewDescription], described: Mapping[str, pb.DescribeResponse], start: int) -> list[str]:
        """Replicas whose view has a gap before the log, or an error that was reported twice: they need a copy of another view."""
        found = []
        for name, view in sorted(views.items()):
            first = described[name].first_transaction_id
            cut_off = view.bound < first if view.exists else start < first
            if cut_off or (view.error and self._wrong.get(name) == view.error):
                found.append(name)
        return found

    async def _copy_view(self, source: ReplicaSession, target: ReplicaSession, of: pb.TopicPartition) -> None:
        store = self._store
        key, partition, session = store.cluster.key.bytes, store.partition, store.session
        log.info("copying compacted view to a replica", partition=partition, source=source.name, replica=target.name)
        request = pb.ReadViewRequest(
            cluster_key=key,
            partition=partition,
            session=session,
            fence=session,
            owner_token=store.owner_token,
            max_bytes=self._settings.feed_bytes_max,
        )
        reading, loading = source.read(methods.READ_VIEW, request), target.open(methods.LOAD_VIEW)
        try:
            page = await self._in_time(reading.receive())
            if page is not None:
                opening = pb.LoadViewOpen(cluster_key=key, partition=partition, session=session, of=of, start=page.start, bound=page.bound)
                await self._in_time(loading.send(pb.LoadViewRequest(open=opening)))
            while page is not None:
                await self._in_time(loading.send(pb.LoadViewRequest(page=page)))
                page = None if page.done else await self._in_time(reading.receive())
            await loading.finish()
            await self._in_time(loading.receive())
        except Fenced as error:
            store.fenced(error)
        except (TimeoutError, WaltzError) as error:
            log.info("compacted view not copied, retried later", partition=partition, replica=target.name, error=str(error) or type(error).__name__)
        finally:
            try:
                await reading.cancel()
            finally:
                await loading.cancel()

    async def _in_time(self, step: Awaitable[T]) -> T:
        async with asyncio.timeout(self._settings.rpc_timeout_s):
            return await step

    # ---- topics that are no more -------------------------------------------------------------------------------------------------------------------

    async def drop(self, described: Mapping[str, pb.DescribeResponse]) -> None:
        """Every replica removes the view it still has."""
        store = self._store
        request = pb.DropViewRequest(cluster_key=store.cluster.key.bytes, partition=store.partition, session=store.session)
        having = {name for name, each in described.items() if each.view.exists or each.view.error}
        await asyncio.gather(*(ask(store, replica, methods.DROP_VIEW, request) for replica in store.members() if replica.name in having))
