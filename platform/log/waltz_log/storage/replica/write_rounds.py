"""How the blocks of a partition reach its log: queued, written together in rounds, synced, and acknowledged to their appenders.

A round writes and syncs all queued blocks once, off the event loop, and then notifies their appenders. If all of their owners asked for it because of
a topic (`Flushing`), blocks are acknowledged as received when they are written, and a sync follows within the period or at a number of bytes. Does
not decide what may be queued. Changes of the log run within the partition's turn, one at a time; `queue` and `flush` may be called at any time.

Invariants: what is acknowledged as on disk is durable; a block is acknowledged as received once it is written and the marker file for a crash is
durable; nothing is written after the partition was stopped. A failed sync stops it, also one in the background.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence

from waltz_log.core.flushing import Flushing
from waltz_log.core.formats.block import Block
from waltz_log.core.ports import Offload
from waltz_log.core.status.latency import Latency
from waltz_log.errors import StorageFailed, StorageFull, WaltzError
from waltz_log.storage.base.space import DiskSpace
from waltz_log.storage.replica.appender import Appender, Pending
from waltz_log.storage.replica.shielded_tasks import ShieldedTasks
from waltz_log.storage.replica.unsynced import UnsyncedMark
from waltz_log.storage.replica.write_traces import trace_writes
from waltz_log.storage.segments.segment_log import SegmentLog
from waltz_log.telemetry.tracer import Tracer

__all__ = ["WriteRounds"]

RETRY_S = 1.0
"""Pause before a sync that a full disk refused is tried again, if a caller asked for it."""


class WriteRounds:
    """For one partition. `stop` is called with the error that ends it and calls `end` in turn. `latency`: counts the rounds, `sync_latency`
    their syncs and those in the background; `now_s` is for nothing else."""

    def __init__(
        self,
        segments: SegmentLog,
        space: DiskSpace,
        offload: Offload,
        unsynced: UnsyncedMark,
        turn: asyncio.Lock,
        tasks: ShieldedTasks,
        stop: Callable[[WaltzError], None],
        latency: Latency,
        sync_latency: Latency,
        now_s: Callable[[], float] = time.perf_counter,
        tracer: Tracer | None = None,
    ) -> None:
        self._tracer = tracer
        self._latency = latency
        self._sync_latency = sync_latency
        self._now_s = now_s
        self.pending: deque[Pending] = deque()
        self.appenders: dict[Appender, None] = {}
        self.queued_last = segments.tail.last_id
        self.rounds = self.transactions_written = self.bytes_written = 0
        self._log = segments
        self._space = space
        self._offload = offload
        self._unsynced = unsynced
        self._turn = turn
        self._tasks = tasks
        self._stop = stop
        self._ended = False
        self._writing = False
        self._unsynced_bytes = 0
        self._flush_timer: asyncio.TimerHandle | None = None

    # ---- queueing --------------------------------------------------------------------------------------------------------------------------------

    def queue(self, appender: Appender, block: Block) -> None:
        """Queues a block that was verified and follows `queued_last`."""
        self.queued_last = block.last_transaction_id
        self.pending.append(Pending(block, appender, self._now_s() if block.traces else 0.0))
        appender.queued(len(block.records))
        if not self._writing:
            self._writing = True
            self._tasks.start(self._write_pending())

    def drop(self, why: Callable[[Appender], WaltzError], kept: int = 0) -> int:
        """Drops the queued blocks except the first `kept`; `why` gives the error for each appender. Returns how many blocks were dropped."""
        gone = [self.pending.pop() for _ in range(len(self.pending) - kept)]
        self.queued_last = self.pending[-1].block.last_transaction_id if self.pending else self._log.written_id
        for pending in gone:
            pending.appender.dropped(len(pending.block.records), why(pending.appender))
        return len(gone)

    def end(self, error: WaltzError) -> None:
        """Nothing is written any more, and every appender fails, also one without queued blocks: blocks acknowledged as received may never be
        synced."""
        self._ended = True
        self.cancel_flush()
        self.drop(lambda _: error)
        for appender in self.appenders:
            appender.fail(error)

    @property
    def held_bytes(self) -> int:
        """Memory for unwritten blocks and for index entries of unsynced ones."""
        return sum(len(pending.block.records) for pending in self.pending) + self._log.held_bytes

    # ---- rounds ----------------------------------------------------------------------------------------------------------------------------------

    async def _write_pending(self) -> None:
        try:
            while self.pending and not self._ended:
                async with self._turn:
                    await self._round()
        finally:
            self._writing = False

    async def write_all(self) -> None:
        """Within a turn: every block queued until now is in the log, or dropped, when this returns."""
        while self.pending and not self._ended:
            await self._round()

    async def _round(self) -> None:
        """Writes everything queued, with one write and one sync, or without a sync if all appenders accept that; then acknowledges; then makes a
        checkpoint, if one is due, before the next round."""
        batch = list(self.pending)
        blocks = [pending.block for pending in batch]
        if not blocks:
            return
        size = sum(len(block.records) for block in blocks)
        flushing = _flushing_of(batch)
        began_s = self._now_s()
        try:
            if flushing is not None and not self._unsynced.there:
                await self._offload(self._unsynced.put, self._log)
            await self._offload(self._append, blocks, size, flushing is None)
        except WaltzError as error:
            if self._log.failed is not None:
                self._stop(self._log.failed)
            else:
                failure = error  # Python deletes the name `error` at the end of the except clause
                self.drop(lambda _: failure, self._before(batch[0]))
            return
        ended_s = self._now_s()
        self._latency.observe(ended_s - began_s)
        if flushing is None:
            self._sync_latency.observe(self._log.last_sync_s)
        self.rounds += 1
        self.bytes_written += size
        for pending in batch:
            self.transactions_written += pending.block.count
            if self.pending and self.pending[0] is pending:  # false if the partition was stopped meanwhile
                self.pending.popleft()
            report = pending.appender.written if flushing is None else pending.appender.written_unsynced
            report(pending.block.last_transaction_id, len(pending.block.records))
        if self._tracer is not None:
            trace_writes(self._tracer, self._log.partition, batch, began_s, ended_s, self._log.last_sync_s if flushing is None else None)
        if flushing is None:
            self._all_synced()
        else:
            await self._flush_later(flushing, size)
        await self._checkpoint()

    def _before(self, first: Pending) -> int:
        """How many queued blocks precede it."""
        return next((place for place, pending in enumerate(self.pending) if pending is first), len(self.pending))

    def _append(self, blocks: list[Block], size: int, sync: bool) -> None:
        self._space.require(size, self._log.partition)
        self._log.append(blocks, sync=sync)

    async def _checkpoint(self) -> None:
        if self._log.checkpoint_due:
            try:
                await self._offload(self._log.checkpoint)
            except StorageFull:
                pass  # the next append tries it again, and is refused if it fails
            except StorageFailed as error:
                self._stop(error)

    # ---- what is received and not synced ---------------------------------------------------------------------------------------------------------

    async def _flush_later(self, flushing: Flushing, size: int) -> None:
        """After a round without a sync."""
        self._unsynced_bytes += size
        if self._unsynced_bytes >= flushing.bytes:
            await self._flush_round(flushing.period_s)
        elif self._flush_timer is None:
            self._flush_after(flushing.period_s)

    def _flush_after(self, period_s: float) -> None:
        self._flush_timer = asyncio.get_running_loop().call_later(period_s, self.flush, period_s)

    def flush(self, retry_s: float = RETRY_S) -> None:
        """Syncs everything received until now; its appenders learn of it. If the disk is full, it is tried again after `retry_s`."""
        if self._unsynced_bytes or self.pending:
            self._tasks.start(self._flush(retry_s))

    async def _flush(self, retry_s: float) -> None:
        async with self._turn:
            await self.write_all()
            if not self._ended:
                await self._flush_round(retry_s)

    async def _flush_round(self, retry_s: float) -> None:
        try:
            await self.sync()
        except StorageFull:
            self._flush_after(retry_s)
        except StorageFailed:
            pass  # the partition is stopped, and each waiting appender has the reason
        else:
            await self._checkpoint()

    async def sync(self) -> None:
        """Within a turn: everything written is durable when this returns. Raises `StorageFull`, after which it can be tried again, and
        `StorageFailed`, which is final."""
        if self._unsynced_bytes:
            try:
                await self._offload(self._log.sync)
            except StorageFailed as error:
                if not isinstance(error, StorageFull):
                    self._stop(error)
                raise
            self._sync_latency.observe(self._log.last_sync_s)
            self._all_synced()

    def _all_synced(self) -> None:
        if self._unsynced_bytes:
            self._unsynced_bytes = 0
            self.cancel_flush()
            for appender in self.appenders:
                appender.synced(self._log.tail.last_id)

    def cancel_flush(self) -> None:
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None


def _flushing_of(batch: Sequence[Pending]) -> Flushing | None:
    """None if a block of the batch must be synced before it is acknowledged."""
    for pending in batch:
        if pending.appender.flushing is None:
            return None
    return batch[-1].appender.flushing
