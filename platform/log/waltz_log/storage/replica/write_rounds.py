"""How blocks that a partition takes reach its log: queued, written together in rounds, synced, and their appenders told.

A round takes every block that is queued, writes and syncs them once off the event loop, then tells their appenders. Where all of their owners said
that a topic wants it (`Flushing`), it is written and told as received, and a sync follows within the period or when there is so much. Decides nothing
about what may be queued. What changes the log runs within the partition's turn, one at a time; `queue` and `flush` may be called from anywhere.

Invariants: what is told to be on disk is on the medium; a block is told to be received once it is written and the mark is there that says so after a
crash; nothing is written any more once the partition was stopped, which a failed sync does, also one in the background.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from waltz_log.core.formats.block import Block
from waltz_log.core.ports import Offload
from waltz_log.errors import StorageFailed, StorageFull, WaltzError
from waltz_log.storage.base.space import DiskSpace
from waltz_log.storage.replica.appender import Appender, Flushing, Pending
from waltz_log.storage.replica.undertaken import Undertaken
from waltz_log.storage.replica.unsynced import UnsyncedMark
from waltz_log.storage.segments.segment_log import SegmentLog

__all__ = ["WriteRounds"]

RETRY_S = 1.0
"""Until what a full disk did not let be synced is tried again, where somebody asked for it."""


class WriteRounds:
    """Of one partition. `stop` is told of what ends it and calls `end` in turn."""

    def __init__(
        self,
        segments: SegmentLog,
        space: DiskSpace,
        offload: Offload,
        unsynced: UnsyncedMark,
        turn: asyncio.Lock,
        tasks: Undertaken,
        stop: Callable[[WaltzError], None],
    ) -> None:
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
        """A block that was verified and follows on `queued_last`."""
        self.queued_last = block.last_transaction_id
        self.pending.append(Pending(block, appender))
        appender.queued(len(block.records))
        if not self._writing:
            self._writing = True
            self._tasks.start(self._write_pending())

    def drop(self, why: Callable[[Appender], WaltzError], kept: int = 0) -> int:
        """Forgets what is queued but for the first `kept`; each appender learns why. How many blocks those were."""
        gone = [self.pending.pop() for _ in range(len(self.pending) - kept)]
        self.queued_last = self.pending[-1].block.last_transaction_id if self.pending else self._log.written_id
        for pending in gone:
            pending.appender.dropped(len(pending.block.records), why(pending.appender))
        return len(gone)

    def end(self, error: WaltzError) -> None:
        """Nothing is written any more, and every appender is told, also where nothing of it waits: what it was told to be received may never be
        synced."""
        self._ended = True
        self.cancel_flush()
        self.drop(lambda _: error)
        for appender in self.appenders:
            appender.fail(error)

    @property
    def held_bytes(self) -> int:
        """Memory for what is not written, and for the index of what is not synced."""
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
        """Within a turn: everything queued until now is in the log, or dropped, when this returns."""
        while self.pending and not self._ended:
            await self._round()

    async def _round(self) -> None:
        """Everything queued, with one write and one sync, or without a sync where all appenders want that; then the answers; then the checkpoint, if
        one is due, before the next round."""
        batch = list(self.pending)
        blocks = [pending.block for pending in batch]
        if not blocks:
            return
        size = sum(len(block.records) for block in blocks)
        flushing = _flushing_of(batch)
        try:
            if flushing is not None and not self._unsynced.there:
                await self._offload(self._unsynced.put, self._log)
            await self._offload(self._append, blocks, size, flushing is None)
        except WaltzError as error:
            if self._log.failed is not None:
                self._stop(self._log.failed)
            else:
                told = error  # the name of a caught error is gone when a function outlives it
                self.drop(lambda _: told, self._before(batch[0]))
            return
        self.rounds += 1
        self.bytes_written += size
        for pending in batch:
            self.transactions_written += pending.block.count
            if self.pending and self.pending[0] is pending:  # not so where the partition was stopped meanwhile
                self.pending.popleft()
            tell = pending.appender.written if flushing is None else pending.appender.took
            tell(pending.block.last_transaction_id, len(pending.block.records))
        if flushing is None:
            self._all_synced()
        else:
            await self._flush_later(flushing, size)
        await self._checkpoint()

    def _before(self, first: Pending) -> int:
        """How many queued blocks stand before it."""
        return next((place for place, pending in enumerate(self.pending) if pending is first), len(self.pending))

    def _append(self, blocks: list[Block], size: int, sync: bool) -> None:
        self._space.require(size, self._log.partition)
        self._log.append(blocks, sync=sync)

    async def _checkpoint(self) -> None:
        if self._log.checkpoint_due:
            try:
                await self._offload(self._log.checkpoint)
            except StorageFull:
                pass  # it is tried again before the next append, which is refused then
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
        """Has all that was received until now synced; its appenders learn of it. On a disk that is full it is tried again after so long."""
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
            pass  # the partition is stopped, and everybody who waits was told why
        else:
            await self._checkpoint()

    async def sync(self) -> None:
        """Within a turn: everything that is written is on the medium when this returns. Raises `StorageFull`, after which it can be tried again, and
        `StorageFailed`, which is as final here as anywhere."""
        if self._unsynced_bytes:
            try:
                await self._offload(self._log.sync)
            except StorageFailed as error:
                if not isinstance(error, StorageFull):
                    self._stop(error)
                raise
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
    """None where a block of the batch is to be synced before anybody is told of it."""
    for pending in batch:
        if pending.appender.flushing is None:
            return None
    return batch[-1].appender.flushing
