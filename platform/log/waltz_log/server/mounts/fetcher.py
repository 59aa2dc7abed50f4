"""Reads runs of stored transactions of a partition from its replicas; equal reads that meet are made once (the original's transaction fetcher).

Each run is one bounded answer of one replica. A limited number of reads at a time: those beyond wait their turn, in this partition alone. A replica
that does not answer in time counts as failed for the read, which continues at another replica. Decides no bound: what may be read is the caller's
to know.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from waltz_log.background_tasks import end_tasks, outcome_of, start_task
from waltz_log.errors import CorruptData, Fenced, NotOwner, Unavailable, WaltzError
from waltz_log.loggers import get_logger
from waltz_log.server.base.settings import ServerSettings
from waltz_log.server.replication.memory import Run
from waltz_log.server.replication.received_blocks import expect_unchanged
from waltz_log.server.replication.replica_reads import ReplicaReads
from waltz_log.server.replication.store_session import StoreSession

__all__ = ["Fetcher"]

log = get_logger(__name__)


class Fetcher:
    """The fetcher of one store session; `close` it with that. `remember` is given every run that was read, and whether it is one of headers."""

    def __init__(self, store: StoreSession, settings: ServerSettings, remember: Callable[[Run, bool], None]) -> None:
        self._store = store
        self._remember = remember
        self._settings = settings
        self._places = asyncio.Semaphore(settings.fetches_max)
        self._reads: dict[tuple[int, bool, int | None], asyncio.Task[Run]] = {}
        self._closed = False
        self.reads = 0
        self.joined = 0
        """Reads that found an equal one in progress."""

    async def fetch(self, first: int, *, headers_only: bool, last: int | None = None) -> Run:
        """Committed transactions from `first` on, up to `last` if that is given, one answer of about `feed_bytes_max`. Raises what ended the session,
        `NotOwner` if that was closed meanwhile, or `Unavailable` if no replica serves them."""
        if self._closed:
            raise self._over()
        read = self.start(first, headers_only=headers_only, last=last)
        await asyncio.wait([read])
        if read.cancelled():
            raise self._over()
        return outcome_of(read)

    def _over(self) -> NotOwner:
        return NotOwner(partition=self._store.partition, reason="store session ended")

    def start(self, first: int, *, headers_only: bool, last: int | None = None) -> asyncio.Task[Run]:
        """The read in progress, started here if there was none."""
        key = (first, headers_only, last)
        task = self._reads.get(key)
        if task is not None:
            self.joined += 1
            return task
        task = start_task(self._read(first, headers_only, last))
        self._reads[key] = task
        task.add_done_callback(lambda ended: self._ended(key, ended))
        self.reads += 1
        return task

    def ahead(self, first: int, *, headers_only: bool) -> None:
        """Begins a read that a feed will need, without waiting for it."""
        if not self._closed:
            self.start(first, headers_only=headers_only)

    def _ended(self, key: tuple[int, bool, int | None], task: asyncio.Task[Run]) -> None:
        self._reads.pop(key, None)
        if not task.cancelled():
            task.exception()  # marks the error as retrieved, because there may be no waiter any more

    async def _read(self, first: int, headers_only: bool, last: int | None) -> Run:
        async with self._places:
            run = await self._from_some_replica(first, headers_only, last)
        self._remember(run, headers_only)
        return run

    async def _from_some_replica(self, first: int, headers_only: bool, last: int | None) -> Run:
        store, settings = self._store, self._settings
        failed: Counter[str] = Counter()
        while True:
            store.expect_retained(first)
            sources = await store.sources(first)
            source = min(sources, key=lambda replica: failed[replica.name])
            try:
                async with asyncio.timeout(settings.rpc_timeout_s):
                    run = await self._one(source, first, headers_only, last)
                if run is not None:
                    return run
            except TimeoutError:
                source.check_reachable()
                log.warning("replica does not serve a read in time", partition=store.partition, replica=source.name, transaction_id=first)
            except Fenced as error:
                store.fenced(error)
                if store.failed is not None:
                    raise store.failed from None
            except WaltzError as error:
                log.warning("read failed", partition=store.partition, replica=source.name, transaction_id=first, error=str(error))
                if isinstance(error, CorruptData):
                    source.corrupt_reads += 1
            failed[source.name] += 1
            if failed.total() > 2 * len(store.assigned):
                raise Unavailable(reason=f"no replica could serve partition={store.partition} transaction_id={first}")
            await asyncio.sleep(0 if failed.total() < len(sources) else settings.replica_retry_s)

    async def _one(self, source: ReplicaReads, first: int, headers_only: bool, last: int | None) -> Run | None:
        committed = self._store.committed
        blocks = await source.read_run(first, committed if last is None else min(last, committed), headers_only=headers_only)
        expect_unchanged(source.name, self._store.partition, blocks, headers_only=headers_only)
        return Run(tuple(blocks)) if blocks else None

    async def close(self) -> None:
        """Ends all reads. Tasks that wait for one get an error."""
        self._closed = True
        reads, self._reads = list(self._reads.values()), {}
        await end_tasks(reads)
