"""One partition on a storage node: who may change it, in which order changes happen, and what it reports.

Everything that changes the partition runs within its turn, one at a time: opening a session, write rounds, truncation, marks. A raised session is
durable before any answer in its name, and from then on nothing of an older session is written, not even blocks queued before. Appended blocks are
queued and written in rounds (`write_rounds`). If an owner wants them acknowledged before they are synced, everything else that the partition does or
reports begins with the sync.

Invariants: what is acknowledged as on disk is durable, and nothing else is served or counted in marks; a partition whose disk failed answers only
with that error until the node restarts.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from waltz_log.core.formats.block import Block
from waltz_log.core.formats.block_checksum import verify_block
from waltz_log.core.formats.columns import slice_block
from waltz_log.core.formats.control_format import SessionMark
from waltz_log.core.ports import Clock, Offload
from waltz_log.core.retention import SegmentFacts
from waltz_log.core.status.latency import Latency
from waltz_log.core.status.storage_statistics import PartitionStatistics
from waltz_log.errors import (
    CorruptData,
    OutOfRange,
    ProtocolViolation,
    StorageFailed,
    StorageFull,
    Unavailable,
    WaltzError,
)
from waltz_log.loggers import get_logger
from waltz_log.storage.base.corruption import Corruption
from waltz_log.storage.base.settings import StorageSettings
from waltz_log.storage.base.snapshots import ReplicaState
from waltz_log.storage.base.space import DiskSpace
from waltz_log.storage.control.control import ControlFiles
from waltz_log.storage.replica.appender import Appender
from waltz_log.storage.replica.committed_mark import CommittedMark
from waltz_log.storage.replica.range_reads import RangeReads
from waltz_log.storage.replica.session_marks import SessionMarks
from waltz_log.storage.replica.shielded_tasks import ShieldedTasks
from waltz_log.storage.replica.unsynced import UnsyncedMark
from waltz_log.storage.replica.write_rounds import WriteRounds
from waltz_log.storage.replica.writer_memory import WriterMemory
from waltz_log.storage.segments.fitting import expect_to_fit
from waltz_log.storage.segments.holdings import Holdings
from waltz_log.storage.segments.locating import Located
from waltz_log.storage.segments.open_files import OpenFiles
from waltz_log.storage.segments.segment_log import SegmentLog
from waltz_log.telemetry.tracer import Tracer

if TYPE_CHECKING:
    from waltz_log.storage.segments.replacement import Replacement

__all__ = ["PartitionStore", "Shared"]

log = get_logger(__name__)


class Shared(NamedTuple):
    """What the partitions of a node share. `offload` is for changes, `reads` for the rest; `control_turn` is held during changes of the control
    files."""

    settings: StorageSettings
    files: OpenFiles
    clock: Clock
    control: ControlFiles
    space: DiskSpace
    offload: Offload
    reads: Offload
    control_turn: asyncio.Lock
    memory: WriterMemory
    corruption: Corruption
    write_latency: Latency
    sync_latency: Latency
    tracer: Tracer | None = None


class PartitionStore:
    """Created by `open`."""

    def __init__(self, files: SegmentLog, shared: Shared, unsynced: UnsyncedMark) -> None:
        self.committed_mark = CommittedMark()
        self.partition = files.partition
        self._log = files
        self._clock = shared.clock
        self._unsynced = unsynced
        self._offload = shared.offload
        self._reads = shared.reads
        self._memory = shared.memory
        self._ranges = RangeReads(files, shared.reads, shared.corruption.report)
        self._corruption = shared.corruption
        self._holdings = Holdings(files)
        self._listing = asyncio.Lock()
        self._turn = asyncio.Lock()
        self._sessions = SessionMarks(self.partition, shared.control, shared.control_turn, shared.offload, self._guarded)
        self._sessions.note_growth(files.first_id, files.written_id)
        self._failed: WaltzError | None = None
        self._closing = False
        self._tasks = ShieldedTasks(self._broke)
        latencies = (shared.write_latency, shared.sync_latency)
        tasks = (self._turn, self._tasks, self._stop)
        self._rounds = WriteRounds(files, shared.space, shared.offload, unsynced, *tasks, *latencies, tracer=shared.tracer)

    @classmethod
    async def open(cls, partition: int, shared: Shared) -> PartitionStore:
        """Opens the log. Raises `CorruptData` or `StorageFailed`, which is then the answer to every request for the partition."""
        settings, control = shared.settings, shared.control
        known_good = control.mark(partition).local_low_water_mark
        opening = partial(SegmentLog.open, files=shared.files, preallocate_bytes=settings.preallocate_bytes, cached_bytes=settings.cached_bytes)
        key = control.header.cluster_key
        found = await shared.offload(opening, shared.files.disk, shared.clock, key, partition, settings.segment_bytes, known_good)
        log.info("partition open", partition=partition, first=found.first_id, last=found.tail.last_id, segments=found.segments)
        unsynced = await shared.offload(UnsyncedMark, shared.files.disk, found.directory)
        store = cls(found, shared, unsynced)
        if found.suspects:
            store._tasks.start(store._repair_indexes(found.suspects))
        return store

    async def _repair_indexes(self, suspects: list[int]) -> None:
        """Runs in the background; a read of such a segment repairs its index at once."""
        for first in suspects:
            if self._closing:
                return
            try:
                await self._reads(self._log.repair_index, first)
            except (OSError, CorruptData) as error:
                log.error("closed segment is damaged", partition=self.partition, segment=first, error=str(error))
                self._corruption.add(self.partition, first, str(error))

    # ---- sessions --------------------------------------------------------------------------------------------------------------------------------

    def _check(self, session: int) -> None:
        if self._failed is not None:
            raise self._failed
        if session < self._sessions.fence:
            raise self._sessions.fenced(session)

    async def _admit(self, session: int) -> None:
        """Within a turn: refuses an older session. A newer one is durable when this returns, and no block of an older one is queued any more."""
        self._check(session)
        sessions = self._sessions
        if session == sessions.fence:
            return
        await sessions.end_fill(self._log.tail.last_id)
        sessions.note_growth(self._log.first_id, self._log.written_id)
        await sessions.raise_fence(session)
        # Every queued block came through a stream of an older session.
        dropped = self._rounds.drop(lambda appender: sessions.fenced(appender.session))
        for appender in self._rounds.appenders:
            appender.fail(sessions.fenced(appender.session))
        log.info("session admitted", partition=self.partition, session=session, dropped_blocks=dropped)

    def _broke(self, error: BaseException) -> None:
        log.error("partition task failed unexpectedly", partition=self.partition, exc_info=error)
        self._stop(StorageFailed(partition=self.partition, reason=f"unexpected error in the partition's task: {error!r}"))

    async def _guarded(self, work: Awaitable[object]) -> None:
        """Stops the partition if the disk fails."""
        try:
            await work
        except StorageFull:
            raise
        except StorageFailed as error:
            self._stop(error)
            raise

    def _stop(self, error: WaltzError) -> None:
        if self._failed is None:
            log.error("partition stopped", partition=self.partition, error=str(error))
            self._failed = error
        self._rounds.end(error)

    async def open_session(self, session: int, stream_epoch: int = 0) -> ReplicaState:
        """Fences older sessions, and streams of this session with a lower epoch; then returns the replica's state. Raises `Fenced`."""
        return await self._tasks.whole(self._open_session(session, stream_epoch))

    async def _open_session(self, session: int, stream_epoch: int = 0) -> ReplicaState:
        async with self._turn:
            await self._admit(session)
            sessions = self._sessions
            sessions.raise_stream_epoch(stream_epoch)
            await self._rounds.sync()
            return ReplicaState(sessions.mark, self._log.first_id, self._log.tail.last_id, self._unsynced.may_lack, sessions.grew_as_member)

    async def set_low_water_mark(self, session: int, low_water_mark: int, stream_epoch: int = 0) -> int:
        """Makes the replica a clean member of the session: everything that it holds is committed. Returns its last id. Raises `ProtocolViolation` if
        the mark would fall, `OutOfRange` if the log is longer than the mark."""
        return await self._tasks.whole(self._set_low_water_mark(session, low_water_mark, stream_epoch))

    async def _set_low_water_mark(self, session: int, low_water_mark: int, stream_epoch: int) -> int:
        async with self._turn:
            await self._admit(session)
            await self._rounds.sync()
            last, sessions = self._log.tail.last_id, self._sessions
            if low_water_mark < sessions.mark.low_water_mark:
                reason = f"low-water mark decreases partition={self.partition} from={sessions.mark.low_water_mark} to={low_water_mark}"
                raise ProtocolViolation(reason=reason)
            if last > low_water_mark or self._rounds.pending:
                queued_last = self._rounds.queued_last
                raise OutOfRange(partition=self.partition, asked=low_water_mark, first=queued_last, last=queued_last)
            sessions.raise_stream_epoch(stream_epoch)
            mark = SessionMark(session, low_water_mark, last)
            if mark != sessions.mark:
                # From here on the log grows by what the session orders. A stream of its recovery may still hold a block of an abandoned copy.
                reason = f"the stream was opened before the replica became clean partition={self.partition} session={session}"
                for appender in self._rounds.appenders:
                    appender.fail(ProtocolViolation(reason=reason))
                await sessions.make_clean(mark)
                if self._unsynced.there:
                    await self._guarded(self._offload(self._unsynced.settle, self._log))
            log.info("session clean", partition=self.partition, session=session, low_water_mark=low_water_mark, last=last)
            return last

    async def keep_progress(self, session: int, low_water_mark: int, kept: int) -> int:
        """For a replica that is being filled: what it holds up to `kept` is committed, and so is everything that this session still appends up to the
        mark. Both outlast the session. Returns the id up to which everything is kept already. Raises as `mark_of_progress` does."""
        return await self._tasks.whole(self._keep_progress(session, low_water_mark, kept))

    async def _keep_progress(self, session: int, low_water_mark: int, kept: int) -> int:
        async with self._turn:
            await self._admit(session)
            await self._rounds.sync()
            return await self._sessions.keep_progress(session, low_water_mark, kept, self._log.tail.last_id)

    async def truncate(self, session: int, last_id: int, *, lost: bool = False) -> int:
        """Truncates the log above the id. Durable when it returns. `lost`: the owner knows that this replica acknowledged more than it holds. Then
        the replica counts as restored first (docs/decisions, 8), until a session makes it clean again. Raises `OutOfRange` if the id is above the
        log or below what is known to be clean, `ProtocolViolation` if the replica is clean in this session and has lost nothing."""
        return await self._tasks.whole(self._truncate(session, last_id, lost))

    async def _truncate(self, session: int, last_id: int, lost: bool = False) -> int:
        async with self._turn:
            await self._admit(session)
            await self._rounds.sync()
            tail = self._log.tail
            if lost and self._sessions.mark.session == session:
                reason = f"the replica lost what it acknowledged partition={self.partition} session={session}"
                for appender in self._rounds.appenders:
                    appender.fail(ProtocolViolation(reason=reason))
                await self._sessions.disown(self._clock.now_ms(), tail.last_id)
                log.warning("replica lost acknowledged data", partition=self.partition, session=session, last=tail.last_id)
            lowest = max(self._log.first_id - 1, self._sessions.mark.local_low_water_mark)
            if not lowest <= last_id <= tail.last_id:
                raise OutOfRange(partition=self.partition, asked=last_id, first=lowest, last=tail.last_id)
            if last_id < tail.last_id:
                if self._sessions.mark.session == session:
                    # Only a recovery truncates, and it has ended: the call is late, and it could remove acknowledged transactions.
                    raise ProtocolViolation(reason=f"a clean replica is not truncated in its session partition={self.partition} session={session}")
                await self._guarded(self._offload(self._log.truncate, last_id))
                self._rounds.drop(lambda _: OutOfRange(partition=self.partition, asked=last_id, first=lowest, last=last_id))
                log.info("truncated", partition=self.partition, session=session, was=tail.last_id, last=last_id)
            return self._log.tail.last_id

    async def trim(self, first_id: int, session: int | None = None) -> int:
        """Removes whole segments below the id, oldest first, each durably before the next; returns the first retained id. Removes only what is known
        to be committed: raises `OutOfRange` if the id is above the low-water marks. `session`: the owner's, in which this replica must be clean
        (`Fenced`, `SessionTooOld`); None for a caller that is alone with the directory."""
        return await self._tasks.whole(self._trim(first_id, session))

    async def _trim(self, first_id: int, session: int | None) -> int:
        async with self._turn:
            if self._failed is not None:
                raise self._failed
            if session is not None:
                self.expect_member(session)
            highest = self.trimmable + 1
            if first_id > highest:
                raise OutOfRange(partition=self.partition, asked=first_id, first=self._log.first_id, last=highest)
            await self._guarded(self._offload(self._log.trim, first_id))
            return self._log.first_id

    @property
    def trimmable(self) -> int:
        """The last transaction that may be trimmed: everything up to it is known to be committed, and recovery never truncates below it."""
        return self._sessions.committed

    async def holdings(self) -> list[SegmentFacts]:
        """All segments. Raises `OSError` if one is removed meanwhile."""
        async with self._listing:
            return await self._reads(self._holdings.segments)

    def expect_member(self, session: int) -> None:
        """Raises `Fenced` if a newer session was seen, `SessionTooOld` if this replica is not clean in this one."""
        self._check(session)
        self._sessions.expect_member(session)

    async def begin(self, session: int, first_id: int) -> int:
        """If the log ends below the id, empties it and lets it continue at the id: no replica retains the transactions between. Returns the last id,
        which is then `first_id - 1`. Raises `ProtocolViolation` if the replica is clean in this session already."""
        return await self._tasks.whole(self._begin(session, first_id))

    async def _begin(self, session: int, first_id: int) -> int:
        async with self._turn:
            await self._admit(session)
            await self._rounds.sync()
            if self._sessions.mark.session == session:
                raise ProtocolViolation(reason=f"a clean replica cannot start empty in its own session: partition={self.partition} session={session}")
            if self._log.tail.last_id < first_id - 1:
                await self._guarded(self._offload(self._log.begin, first_id))
                self._rounds.drop(lambda _: OutOfRange(partition=self.partition, asked=first_id, first=first_id, last=first_id - 1))
            return self._log.tail.last_id

    # ---- appending -------------------------------------------------------------------------------------------------------------------------------

    async def attach(self, session: int, pending_bytes_max: int, stream_epoch: int = 0) -> Appender:
        """The receiving end of a stream of blocks. It fails when a newer session comes. Raises `Fenced`; `ProtocolViolation` for a stream that
        arrives after the replica was opened again or became clean: it may bring blocks of a copy that was abandoned."""
        await self._admit_apart(session)
        self._sessions.expect_stream(session, stream_epoch)
        appender = Appender(session, pending_bytes_max, self._memory)
        self._rounds.appenders[appender] = None
        return appender

    def detach(self, appender: Appender) -> None:
        """The stream ended. Its queued blocks are still written."""
        self._rounds.appenders.pop(appender, None)

    async def _admit_apart(self, session: int) -> None:
        """Outside of a turn; waits for one only if there is something to change."""
        self._check(session)
        if session != self._sessions.fence:
            await self._tasks.whole(self._open_session(session))
            self._check(session)

    async def append(self, appender: Appender, block: Block) -> None:
        """Queues a block; the appender learns when it is on disk. Transactions that the log already holds are compared and skipped.

        Raises `CorruptData`, `OutOfRange` if a block before it is missing, `ProtocolViolation` if other transactions have its ids,
        `TransactionTooLarge`, `Fenced`, `StorageFailed`. If the disk is full when the block is written, the appender fails with `StorageFull`, and
        the block and those after it are dropped."""
        self._check(appender.session)
        if appender.failed is not None:
            raise appender.failed
        first = block.first_transaction_id
        if not block.lengths or first < 0:
            raise ProtocolViolation(reason=f"empty block partition={self.partition} first_transaction_id={first}")
        expect_to_fit(block)
        verify_block(block, self.partition, where=f"block for partition {self.partition}")
        rounds = self._rounds
        if first <= rounds.queued_last:
            known = await self._tasks.whole(self._skip_known(appender, block))
            if known is None:
                return
            block, first = known, known.first_transaction_id
        if first != rounds.queued_last + 1:
            raise OutOfRange(partition=self.partition, asked=first, first=self._log.first_id, last=rounds.queued_last)
        rounds.queue(appender, block)

    def flush(self) -> None:
        """Syncs early what was received until now, because a caller waits for it."""
        self._rounds.flush()

    async def _skip_known(self, appender: Appender, block: Block) -> Block | None:
        """The part of a resent block that the log lacks, None if it holds all of it. The bytes of the rest are compared, not trusted."""
        async with self._turn:
            await self._rounds.write_all()
            await self._rounds.sync()
            self._check(appender.session)
            last = min(block.last_transaction_id, self._log.tail.last_id)
            async with aclosing(self._ranges.runs(block.first_transaction_id, last, 1024 * 1024)) as runs:
                for found in [found async for run in runs for found in run]:
                    sent = slice_block(block, found.first_transaction_id, found.last_transaction_id)
                    if sent.records != found.records:
                        ids = f"{found.first_transaction_id}..{found.last_transaction_id}"
                        raise ProtocolViolation(reason=f"other transactions hold the ids partition={self.partition} ids={ids}")
        appender.written(last, 0)
        return None if last == block.last_transaction_id else slice_block(block, last + 1, block.last_transaction_id)

    # ---- reading ---------------------------------------------------------------------------------------------------------------------------------

    async def committed(self, wanted: int) -> int:
        """Up to where the log is known to be committed here. Waits a moment if this replica holds the wanted id and does not know that of it."""
        begun_with = self._sessions.mark.low_water_mark
        if begun_with < wanted <= self.last_id:
            await self.committed_mark.wait(wanted)
        return max(self._sessions.mark.low_water_mark, self.committed_mark.mark)

    async def read(self, session: int, fence: int, first: int, last: int, max_bytes: int) -> AsyncGenerator[list[Block], None]:
        """Stored blocks from `first` to `last`, in runs of about `max_bytes`, ending earlier if this replica holds no more.

        A session of 0 or more requires a replica that is clean in it or a newer one (`SessionTooOld`); -1 is the owner in recovery, in the session
        `fence`, which it has opened: a read never raises the fence. Raises `Fenced` if a newer session was seen, `SessionTooOld` if `fence` was never
        opened."""
        if session >= 0:
            self.expect_clean(session)
        else:
            self._check(fence)
            self._sessions.expect_opened(fence)
        if first < self._log.first_id or first > last + 1:
            raise OutOfRange(partition=self.partition, asked=first, first=self._log.first_id, last=min(last, self._log.tail.last_id))
        async with aclosing(self._ranges.runs(first, last, max_bytes)) as runs:
            async for run in runs:
                yield run

    async def locate(self, session: int, times_ms: Sequence[int], first: int, last: int, max_bytes: int) -> Located:
        """Finds ids by append time, and the size of a range in bytes. Raises `SessionTooOld` if this replica was last clean in an older session."""
        self.expect_clean(session)
        return await self._ranges.locate(times_ms, first, last, max_bytes)

    def expect_clean(self, session: int) -> None:
        """Raises `SessionTooOld` if this replica was last clean in an older session."""
        if self._failed is not None:
            raise self._failed
        self._sessions.expect_clean(session)

    # ---- repairing ---------------------------------------------------------------------------------------------------------------------------------

    @property
    def log(self) -> SegmentLog:
        """For code that inspects closed segments as a whole. Changes of the log go through this class."""
        return self._log

    def settled_session(self) -> int | None:
        """The session that this replica is clean in; None after a newer one was seen, while it is unknown what of the log will stay."""
        return self._sessions.fence if self._failed is None and self._sessions.settled else None

    async def close_segment(self, first: int) -> int:
        """Begins a new segment if the one at `first` is being written, so that it can be repaired. Returns the segment's last id. Raises
        `Unavailable` if it is empty or gone, `StorageFull`, `StorageFailed`."""
        return await self._tasks.whole(self._close_segment(first))

    async def _close_segment(self, first: int) -> int:
        async with self._turn:
            if self._failed is not None:
                raise self._failed
            await self._rounds.write_all()
            await self._rounds.sync()
            if self._log.tail.segment == first:
                await self._guarded(self._offload(self._log.close_active))
            last = dict(self._log.closed()).get(first)
            if last is None:
                raise Unavailable(reason=f"the segment holds nothing to repair, or is gone: partition={self.partition} segment={first}")
            return last

    async def put_in_place(self, replacement: Replacement, session: int) -> None:
        """Replaces a closed segment by the copy, unless the replica has left the session that the copy was made in (`Fenced`)."""
        await self._tasks.whole(self._put_in_place(replacement, session))

    async def _put_in_place(self, replacement: Replacement, session: int) -> None:
        async with self._turn:
            self._check(session)
            await self._guarded(self._offload(replacement.put_in_place))

    # ---- state, closing --------------------------------------------------------------------------------------------------------------------------

    @property
    def clean_session(self) -> int:
        """The newest session in which the replica was clean; negative if there was none."""
        return self._sessions.mark.session

    @property
    def newest_session(self) -> int:
        """The newest session that this replica has seen: no older one writes to it. -1: none."""
        return self._sessions.fence

    @property
    def last_id(self) -> int:
        """The last transaction on the medium."""
        return self._log.tail.last_id

    def statistics(self) -> PartitionStatistics:
        return PartitionStatistics(
            partition=self.partition,
            session=self._sessions.mark.session,
            fence=self._sessions.fence,
            low_water_mark=self._sessions.mark.low_water_mark,
            first_transaction_id=self._log.first_id,
            last_transaction_id=self._log.tail.last_id,
            segments=self._log.segments,
            write_rounds=self._rounds.rounds,
            transactions_written=self._rounds.transactions_written,
            bytes_written=self._rounds.bytes_written,
            unsynced_transactions=self._log.written_id - self._log.tail.last_id,
            writer_bytes=self._rounds.held_bytes,
            failed=None if self._failed is None else str(self._failed),
            fenced=self._sessions.refused,
        )

    async def close(self) -> None:
        """Writes what is queued, then closes the files."""
        self._closing = True
        await self._tasks.all_ended()
        async with self._turn:
            if self._failed is None:
                self._failed = StorageFailed(partition=self.partition, reason="the node is closing")
            ending = self._failed
            self._rounds.cancel_flush()
            self._rounds.drop(lambda _: ending)
            await self._offload(self._leave)

    def _leave(self) -> None:
        if self._log.close() and not self._unsynced.may_lack:
            self._unsynced.settle(self._log)
