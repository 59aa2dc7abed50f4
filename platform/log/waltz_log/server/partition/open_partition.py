"""An open partition: what exists while its store session is open, and the answers that need it (Waltz Server, Partition Object).

A new store session of another number makes a new `OpenPartition`. A renewed session keeps it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any  # Future is invariant

from waltz_log.background_tasks import end_tasks, outcome_of, start_task
from waltz_log.core.formats.block import Block
from waltz_log.core.locks.locks import LockStatistics
from waltz_log.core.status.server_statistics import ConflictStatistics, HotLockStatistics, LockTableStatistics, OpenPartitionStatistics
from waltz_log.errors import InvalidRequest, NotOwner, OutOfRange, Unavailable
from waltz_log.server.base.settings import ServerSettings
from waltz_log.server.mounts.by_id import gather, rising_ids
from waltz_log.server.mounts.feed import Feed
from waltz_log.server.mounts.mount import Mount
from waltz_log.server.mounts.sequence_search import SequenceSearch
from waltz_log.server.ordering.conflicts import Conflict
from waltz_log.server.partition.append_task import AppendTask
from waltz_log.server.replication.store_session import StoreSession
from waltz_log.server.upkeep.upkeep import Upkeep
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.block_messages import fill_message

__all__ = ["OpenPartition", "until_failed"]

FEED_WAIT_S = 0.05
"""If a client follows the feed, what is received is synced at the latest after this time, whatever the period: feeds send what is on disk."""

SEARCH_S_MAX = 30.0
"""How long one request searches, however much the log holds."""

SEARCH_GRACE = 1.5
"""The limit of a whole search, as a multiple of the time that the client requests: a stalled replica must not withhold what was found."""


class OpenPartition:
    """The parts of an open partition, and the answers that need them."""

    def __init__(self, generation: int, settings: ServerSettings, store: StoreSession, append: AppendTask, feed: Feed, upkeep: Upkeep) -> None:
        self.partition = store.partition
        self.generation = generation
        self._settings = settings
        self.store = store
        self.upkeep = upkeep
        self.append = append
        self.feed = feed
        self.mounts: dict[Mount, None] = {}

    def committed(self) -> None:
        for mount in self.mounts:
            mount.committed()

    @property
    def followed(self) -> bool:
        return any(mount.feed != pb.FEED_NONE for mount in self.mounts)

    async def sync_for_feeds(self) -> None:
        """Requests a sync of what a majority received, if a client waits for it."""
        store = self.store
        while True:
            await store.advanced.wait_for(lambda: store.received > store.committed and self.followed)
            await asyncio.sleep(FEED_WAIT_S)
            store.hurry()

    def ready(self, client_id: int) -> bool:
        """Whether the client's newest mount is ready: then no older mount can append any more."""
        return any(mount.client_id == client_id and mount.ready for mount in self.mounts)

    # ---- outcomes ------------------------------------------------------------------------------------------------------------------------------

    async def decided(self) -> int:
        """The high-water mark once all that is queued now is decided. Raises what ended the session before that."""
        decided: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.append.barrier(lambda mark: None if decided.done() else decided.set_result(mark))
        ended = start_task(until_failed(self.store))
        either: list[asyncio.Future[Any]] = [decided, ended]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.cancel()
        if not decided.done():
            raise NotOwner(partition=self.partition, reason="store session ended")
        return decided.result()

    async def decided_or_full(self) -> int:
        """As `decided`. Raises `StorageFull` if blocks in flight wait for space, because it is unknown when they will be decided."""
        deciding = start_task(self.decided())
        stuck = start_task(self.store.advanced.wait_for(lambda: self.append.stuck))
        try:
            await asyncio.wait([deciding, stuck], return_when=asyncio.FIRST_COMPLETED)
            if deciding.done():
                return outcome_of(deciding)
            raise self.store.storage_full()
        finally:
            await end_tasks([deciding, stuck])

    # ---- answers -------------------------------------------------------------------------------------------------------------------------------

    async def resolve(self, request: pb.ResolveRequest, began_s: float) -> pb.ResolveResponse:
        """Which of a client's sequences are in the log. Final if the client's newest mount is ready: then no older mount can append any more. A
        search that takes longer than the client waits is answered in parts, each of which extends the one before."""
        search_s = min(request.search_ms / 1000 or SEARCH_S_MAX, SEARCH_S_MAX)
        store = self.store
        search = SequenceSearch(request, store.first_transaction_id)
        mark = -1
        ready = self.ready(request.client_id)
        try:
            async with asyncio.timeout_at(began_s + SEARCH_GRACE * search_s):
                mark = await self.decided()
                await store.confirm()
                await search.run(store, mark, began_s + search_s)
        except TimeoutError:
            if not search.advanced:
                raise Unavailable(reason=f"the search did not finish in time: partition={self.partition} since={request.since}") from None
        more = search.searched_to < mark
        return pb.ResolveResponse(
            committed=search.committed(),
            final=ready and self.ready(request.client_id) and not search.trimmed and not more,
            high_water_mark=mark,
            more=more,
            searched_to=search.searched_to,
            trimmed=search.trimmed,
        )

    async def transactions(self, request: pb.TransactionRequest) -> pb.TransactionResponse:
        """Records by id, within one frame: of the range, or the first of `transaction_ids`. Raises `OutOfRange` if one is not in the log."""
        if request.transaction_ids:
            return _transaction_response(await self._by_id(rising_ids(request.transaction_ids)))
        store = self.store
        first, last = request.first_transaction_id, request.first_transaction_id + request.count - 1
        if request.count < 1:
            raise InvalidRequest(reason=f"count must be positive count={request.count}")
        if store.committed < last <= store.received:
            await self.decided()
        if first < store.first_transaction_id or last > store.committed:
            raise OutOfRange(partition=self.partition, asked=first, first=store.first_transaction_id, last=store.committed)
        return _transaction_response(await self.feed.blocks(first, last))

    async def _by_id(self, ids: Sequence[int]) -> list[Block]:
        store = self.store
        if store.committed < ids[-1] <= store.received:
            await self.decided()
        if ids[-1] > store.committed:
            await store.confirm()  # the id may be one of a newer owner that this one does not know of
        if ids[-1] > store.committed:
            beyond = next(each for each in ids if each > store.committed)
            raise OutOfRange(partition=self.partition, asked=beyond, first=store.first_transaction_id, last=store.committed)
        store.expect_retained(ids[0])
        return await gather(self.feed, ids, self._settings.feed_bytes_max)

    def statistics(self) -> OpenPartitionStatistics:
        append, store = self.append, self.store
        return OpenPartitionStatistics(
            generation=self.generation,
            state="open",
            mounts=len(self.mounts),
            catching_up=sum(mount.catching_up for mount in self.mounts),
            feed=self.feed.statistics(),
            last_transaction_id=store.window.last_transaction_id,
            appended_transactions=append.appended_transactions,
            rejected=append.rejected,
            refused=append.refused,
            blocks=append.blocks,
            queued_bytes=append.queued_bytes,
            locks=_locks(append.locks, append.waiting, self._settings.lock_entries_max, append.conflicts),
            upkeep=self.upkeep.statistics(),
            session=store.session,
            low_water_mark=store.resolved,
            committed=store.committed,
            in_memory=max(0, store.received - store.committed),
            replicas=store.replica_statistics(),
            feed_lag=max((mount.lag for mount in self.mounts), default=0),
        )


def _transaction_response(blocks: list[Block]) -> pb.TransactionResponse:
    response = pb.TransactionResponse()
    for block in blocks:
        fill_message(response.blocks.add(), block)
    return response


def _locks(found: LockStatistics, waiting: int, entries_max: int, recent: Sequence[Conflict]) -> LockTableStatistics:
    """Locks as the sixteen digits that `lock_hash` of the client gives."""
    return LockTableStatistics(
        entries=found.entries,
        floor=found.floor,
        conflicts=found.conflicts,
        floor_conflicts=found.floor_conflicts,
        hottest=tuple(HotLockStatistics(lock=_digits(hot.key), conflicts=hot.times, error=hot.error) for hot in found.hottest),
        waiting=waiting,
        entries_max=entries_max,
        recent=tuple(
            ConflictStatistics(_digits(each.lock), each.winner, each.client_id, each.sequence, each.time_ms, each.remembered) for each in recent
        ),
    )


def _digits(lock: int) -> str:
    return f"{lock & (1 << 64) - 1:016x}"


async def until_failed(store: StoreSession) -> None:
    """Returns when the session has ended."""
    await store.advanced.wait_for(lambda: store.failed is not None)
