"""The append task of a partition: a bounded queue of frames, one loop that orders them into blocks, one that tells what became of them
(Waltz Server, Partition Object).

A few blocks are in flight while the queue builds the next one. A rejection whose winner is still in flight is told only when that block is committed:
a client must never wait for an id that might not come. Where many want one lock they are told one at a time (`lines`). Barriers pass through the same
queue and report when everything before them is decided.

A topic may want its appends answered when a majority has received them (`StoreSession.received`). Only these answers come then before the block is on
disk; everything that tells somebody else of it, feeds, rejections and barriers, waits for that as ever, and has it synced without delay.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from waltz_log.core.formats.columns import headers_array, verify_records
from waltz_log.core.locks.locks import LockStatistics, LockTable
from waltz_log.core.ports import Clock
from waltz_log.errors import CorruptData
from waltz_log.server.base.pulse import Pulse
from waltz_log.server.base.settings import ServerSettings
from waltz_log.server.mounts.mount import Mount
from waltz_log.server.ordering.lines import TURN_S, Lines
from waltz_log.server.ordering.sequencer import Answers, Appender, Frame, Sequenced, Sequencer
from waltz_log.server.replication.store import StoreSession
from waltz_log.transport import waltz_pb2 as pb

__all__ = ["AppendTask"]

log = structlog.get_logger(__name__)


UNCONFIRMED_MAX = 1024
"""Frames with a mark above the log that wait for the session to be confirmed, which takes one round trip. More of them, and ordering waits too."""


@dataclass(frozen=True, slots=True)
class _Barrier:
    decided: Callable[[int], None]


@dataclass(slots=True)
class _InFlight:
    last_transaction_id: int
    append_time_ms: int
    answers: dict[Appender, Answers] = field(default_factory=dict)
    barriers: list[_Barrier] = field(default_factory=list)

    def of(self, appender: Appender) -> Answers:
        return self.answers.setdefault(appender, Answers())


class AppendTask:
    """`order` and `settle` run for as long as the store session does."""

    def __init__(self, store: StoreSession, sequencer: Sequencer, clock: Clock, settings: ServerSettings, last_append_time_ms: int) -> None:
        self._store = store
        self._sequencer = sequencer
        self._clock = clock
        self._settings = settings
        self._append_time_ms = last_append_time_ms
        self._queue: deque[Frame | _Barrier] = deque()
        self._queue_bytes = 0
        self._in_flight: deque[_InFlight] = deque()
        self._received = 0
        """So many of the oldest in flight are answered, as a majority has received them."""
        self._wake = Pulse()
        self._settle_wake = Pulse()
        self._room = Pulse()
        self._drained = Pulse()
        self._lines: Lines[Appender] = Lines()
        self._lines_wake = Pulse()
        self._above_log: list[tuple[Appender, list[tuple[int, int]]]] = []
        self._above_log_changed = Pulse()
        self._confirming = False
        self._held = False
        self.moving = False
        self.appended_transactions = 0
        self.rejected = 0
        self.refused = 0
        self.blocks = 0

    # ---- what streams hand in ------------------------------------------------------------------------------------------------------------------

    async def submit(self, mount: Mount, message: pb.AppendFrame) -> None:
        """Queues a frame; waits while the queue is full, which holds up this client alone. Raises what ended the mount meanwhile."""
        await self._room.wait_for(lambda: self._queue_bytes < self._settings.queue_bytes_max or mount.failed is not None)
        if mount.failed is not None:
            raise mount.failed
        frame = Frame(mount, message)
        self._queue.append(frame)
        self._queue_bytes += frame.size
        self._wake.notify()

    def barrier(self, decided: Callable[[int], None]) -> None:
        """`decided` is called with the high-water mark once all that is queued now is decided."""
        self._queue.append(_Barrier(decided))
        self._wake.notify()

    def mount_failed(self) -> None:
        """Somebody who waits for room may have been fenced."""
        self._room.notify()

    # ---- ordering ------------------------------------------------------------------------------------------------------------------------------

    async def order(self) -> None:
        while True:
            await self._wake.wait_for(self._can_order)
            head = self._queue[0]
            if isinstance(head, _Barrier):
                self._queue.popleft()
                self._pass(head)
            else:
                self._order_block(self._take())

    def _can_order(self) -> bool:
        if not self._queue:
            return False
        if isinstance(self._queue[0], _Barrier) or self._store.full:
            return True
        if len(self._above_log) >= UNCONFIRMED_MAX:
            return False
        return not self._held and len(self._in_flight) - self._received < self._settings.blocks_in_flight

    async def hold(self) -> None:
        """Orders no more blocks, until `release`, and returns once none is in flight. What clients send waits in the queue."""
        self._held = True
        self._store.hurry()
        await self._drained.wait_for(lambda: not self._in_flight)

    def release(self) -> None:
        self._held = False
        self._wake.notify()

    def _pass(self, barrier: _Barrier) -> None:
        if self._in_flight:
            self._in_flight[-1].barriers.append(barrier)
            self._store.hurry()
        else:
            barrier.decided(self._store.committed)

    def _take(self) -> list[Frame]:
        """All that waits, up to one block and the next barrier."""
        frames: list[Frame] = []
        size = 0
        while self._queue:
            head = self._queue[0]
            if isinstance(head, _Barrier) or (frames and size + head.size > self._settings.block_bytes_max):
                break
            frames.append(head)
            size += head.size
            self._queue.popleft()
        self._queue_bytes -= size
        self._room.notify()
        return frames

    def _order_block(self, frames: list[Frame]) -> None:
        if self.moving or self._store.full:
            for frame in frames:
                self._refuse(frame, pb.REFUSAL_MOVING if self.moving else pb.REFUSAL_STORAGE_FULL)
            return
        self._append_time_ms = max(self._append_time_ms, self._clock.now_ms())
        sequenced = self._sequencer.sequence(frames, self._append_time_ms, max(self._store.committed, self._store.received))
        block = sequenced.block
        for appender, error in sequenced.broken:
            appender.fail(error)
        for appender, refused in sequenced.refused:
            self.refused += len(refused)
            appender.answer(Answers(refused=refused), 0)
        if sequenced.above_log:
            self.refused += sum(len(rows) for _, rows in sequenced.above_log)
            self._above_log.extend(sequenced.above_log)
            self._above_log_changed.notify()
        if block is not None:
            entry = _InFlight(block.last_transaction_id, block.append_time_ms)
            for appender, ranges in sequenced.committed:
                entry.of(appender).committed.extend(ranges)
            self._in_flight.append(entry)
            self.blocks += 1
            self.appended_transactions += block.count
            self._store.append(block)
            self._settle_wake.notify()
        self.rejected += len(sequenced.rejected)
        if sequenced.rejected:
            self._line_up(sequenced)

    def _line_up(self, sequenced: Sequenced) -> None:
        """Rejections of a block: into the line for their lock, or, where there is no place, to their winner's block, or out."""
        at_once: dict[Appender, Answers] = {}
        for (appender, sequence, winner), lock in zip(sequenced.rejected, sequenced.holders, strict=True):
            if self._lines.join(lock, appender, sequence):
                continue
            waiting = next((entry for entry in self._in_flight if entry.last_transaction_id >= winner), None)
            answers = at_once.setdefault(appender, Answers()) if waiting is None else waiting.of(appender)
            answers.rejected.append((sequence, winner))
        self._store.hurry()
        _gather(at_once, self._due())
        for appender, answers in at_once.items():
            appender.answer(answers, 0)
        self._lines_wake.notify()

    def _due(self) -> list[tuple[Appender, int, int]]:
        return self._lines.due(self._store.committed, self._sequencer.locks.last_writer, self._now_s())

    @staticmethod
    def _now_s() -> float:
        return asyncio.get_running_loop().time()

    def _refuse(self, frame: Frame, reason: int) -> None:
        """The partition is being handed over, or its replicas have no room: nothing more is ordered here, and the client is told so for every
        transaction."""
        try:
            verify_records(frame.records, frame.lengths, first_transaction_id=None, partition=None, where="append that is refused")
        except CorruptData as error:
            frame.appender.fail(error)
            return
        sequences = headers_array(frame.records, frame.lengths)["sequence"].tolist()
        frame.appender.answer(Answers(refused=[(sequence, reason) for sequence in sequences]), 0)

    # ---- telling -------------------------------------------------------------------------------------------------------------------------------

    async def settle(self, committed: Callable[[], None]) -> None:
        """Waits for each block in turn, answers everybody concerned, and calls `committed` once per block."""
        while True:
            await self._settle_wake.wait_for(lambda: bool(self._in_flight))
            entry = self._in_flight[0]
            await self._store.wait_committed(entry.last_transaction_id)
            self._in_flight.popleft()
            self._received = max(0, self._received - 1)
            if self._lines:
                _gather(entry.answers, self._due())
            for appender, answers in entry.answers.items():
                if answers:
                    appender.answer(answers, entry.append_time_ms)
            committed()
            for barrier in entry.barriers:
                barrier.decided(self._store.committed)
            self._wake.notify()
            self._drained.notify()

    async def settle_received(self) -> None:
        """Answers the appends of blocks that a majority has received, before they are on disk, where the topic's policy lets it."""
        store = self._store

        def received() -> bool:
            return store.received > store.committed and self._received < len(self._in_flight)

        while True:
            await store.advanced.wait_for(lambda: received() and self._in_flight[self._received].last_transaction_id <= store.received)
            entry = self._in_flight[self._received]
            self._received += 1
            for appender, answers in entry.answers.items():
                if answers.committed and appender.on_disk:
                    store.hurry()
                elif answers.committed:
                    appender.answer(Answers(committed=answers.committed, in_memory=True), entry.append_time_ms)
                    answers.committed = []
            self._wake.notify()

    async def refuse_marks(self) -> None:
        """Answers transactions whose mark is above the log, once a majority of the replicas confirmed the session: the mark may come from a newer
        owner that this one does not know of, and then the session ends and the client appends there."""
        while True:
            await self._above_log_changed.wait_for(lambda: bool(self._above_log))
            rows, self._above_log, self._confirming = self._above_log, [], True
            self._wake.notify()
            await self._store.confirm()
            for appender, above_log in rows:
                appender.answer(Answers(above_log=above_log), 0)
            self._confirming = False
            self._above_log_changed.notify()

    async def marks_refused(self) -> None:
        """Returns when no transaction with a mark above the log waits for its answer."""
        await self._above_log_changed.wait_for(lambda: not self._above_log and not self._confirming)

    async def watch_space(self) -> None:
        """Looks at the queue again when replicas run out of room, or have room again: what waits is refused then, or ordered."""
        store = self._store
        while True:
            await store.advanced.wait_for(lambda: store.full)
            log.warning("replicas are full, appends are refused", partition=store.partition)
            self._wake.notify()
            await store.advanced.wait_for(lambda: not store.full)
            log.info("replicas have room again", partition=store.partition)
            self._wake.notify()

    async def usher(self) -> None:
        """Goes on with lines whose turn is over."""
        while True:
            await self._lines_wake.wait_for(lambda: bool(self._lines))
            await asyncio.sleep(TURN_S / 4)
            self._store.hurry()
            self._tell(self._due())

    def leave_lines(self, appender: Appender | None) -> None:
        """Tells what waits in lines of this client, or of all. Everything of it must be decided."""
        self._tell(self._lines.leave(appender, self._sequencer.locks.last_writer))

    @staticmethod
    def _tell(rejected: list[tuple[Appender, int, int]]) -> None:
        found: dict[Appender, Answers] = {}
        _gather(found, rejected)
        for appender, answers in found.items():
            appender.answer(answers, 0)

    @property
    def stuck(self) -> bool:
        """Blocks are in flight that no majority of the replicas has room for: they are decided once there is room, and not before."""
        return self._store.full and bool(self._in_flight)

    @property
    def waiting(self) -> int:
        """Rejected, and in line to be told."""
        return self._lines.waiting

    @property
    def locks(self) -> LockStatistics:
        return self._sequencer.locks.statistics()

    @property
    def lock_table(self) -> LockTable:
        return self._sequencer.locks

    @property
    def queued_bytes(self) -> int:
        return self._queue_bytes


def _gather(answers: dict[Appender, Answers], rejected: list[tuple[Appender, int, int]]) -> None:
    for appender, sequence, winner in rejected:
        answers.setdefault(appender, Answers()).rejected.append((sequence, winner))
