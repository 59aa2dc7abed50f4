"""The append task of a partition: a bounded queue of frames, one loop that orders them into blocks, one that answers them (Waltz Server, Partition
Object).

A few blocks are in flight while the queue builds the next one; a small one waits until nothing is in flight. A rejection whose winner is still in
flight is answered only when that block is committed: a client must never wait for an id that might not be committed. Rejections for a contended lock
are answered one at a time (`lock_queues`).
Barriers pass through the same queue and report when everything before them is decided.

A topic may want its appends answered when a majority has received them (`StoreSession.received`). Only these answers are sent before the block is on
disk. Everything that shows the block to other clients, that is feeds, rejections and barriers, still waits for the disk, and requests a sync without
delay.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from waltz_log.core.formats.columns import headers_array, verify_records
from waltz_log.core.locks.locks import LockStatistics, LockTable
from waltz_log.core.ports import Clock
from waltz_log.core.quotas import Meter, Refusal
from waltz_log.errors import CorruptData, ProtocolViolation
from waltz_log.loggers import get_logger
from waltz_log.server.base.pulse import Pulse
from waltz_log.server.base.settings import ServerSettings
from waltz_log.server.base.totals import Totals
from waltz_log.server.mounts.mount import Mount
from waltz_log.server.ordering.append_traces import AppendTraces, TracedAppend
from waltz_log.server.ordering.conflicts import Conflict
from waltz_log.server.ordering.frame_pieces import LockWeights, is_long, pieces_of
from waltz_log.server.ordering.lock_queues import TURN_S, LockQueues
from waltz_log.server.ordering.sequencer import Answers, Appender, ReceivedFrame, Sequenced, Sequencer
from waltz_log.server.replication.store_session import StoreSession
from waltz_log.transport import waltz_pb2 as pb

__all__ = ["AppendTask"]

log = get_logger(__name__)


UNCONFIRMED_MAX = 1024
"""Frames with a mark above the log that wait for the session to be confirmed, which takes one round trip. More of them, and ordering waits too."""


@dataclass(frozen=True, slots=True)
class _Barrier:
    decided: Callable[[int], None]


@dataclass(slots=True)
class _InFlight:
    last_transaction_id: int
    append_time_ms: int
    ordered_s: float
    answers: dict[Appender, Answers] = field(default_factory=dict)
    barriers: list[_Barrier] = field(default_factory=list)
    traced: list[TracedAppend] | None = None

    def of(self, appender: Appender) -> Answers:
        return self.answers.setdefault(appender, Answers())


class AppendTask:
    """`order` and `settle` run for as long as the store session does."""

    def __init__(
        self,
        store: StoreSession,
        sequencer: Sequencer,
        clock: Clock,
        settings: ServerSettings,
        last_append_time_ms: int,
        totals: Totals,
        traces: AppendTraces | None = None,
    ) -> None:
        """`traces`: records the spans of traced appends."""
        self._totals = totals
        self._traces = traces
        self._store = store
        self._sequencer = sequencer
        self._clock = clock
        self._settings = settings
        self._append_time_ms = last_append_time_ms
        self._queue: deque[ReceivedFrame | _Barrier] = deque()
        self._queue_bytes = 0
        self._in_flight: deque[_InFlight] = deque()
        self._received = 0
        """The number of the oldest appends in flight that are answered, because a majority has received them."""
        self._wake = Pulse()
        self._settle_wake = Pulse()
        self._capacity = Pulse()
        self._drained = Pulse()
        self._weights = LockWeights()
        self._lock_queues: LockQueues[Appender] = LockQueues(totals.lock_wait)
        self._queues_wake = Pulse()
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
        """Queues a frame; waits while the queue is full, which delays only this client. A long frame is queued piece by piece, so that other clients
        wait for one piece of it and not for all. Raises what ended the mount meanwhile: nothing more of the frame is queued."""
        previous: ReceivedFrame | None = None
        await self._may_queue(mount, previous)
        frame = ReceivedFrame(mount, message)
        frame.received_s = self._totals.now_s()
        for piece in pieces_of(frame, self._weights):
            if previous is not None:
                await self._may_queue(mount, previous)
            self._queue.append(piece)
            self._queue_bytes += piece.size
            self._wake.notify()
            previous = piece

    async def _may_queue(self, mount: Mount, previous: ReceivedFrame | None) -> None:
        """Waits until the queue has space and the previous piece of the same frame has left it."""

        def may() -> bool:
            return mount.failed is not None or (self._queue_bytes < self._settings.queue_bytes_max and (previous is None or previous.is_ordered))

        await self._capacity.wait_for(may)
        if mount.failed is not None:
            raise mount.failed

    def barrier(self, decided: Callable[[int], None]) -> None:
        """`decided` is called with the high-water mark once all that is queued now is decided."""
        self._queue.append(_Barrier(decided))
        self._wake.notify()

    def mount_failed(self) -> None:
        """Wakes waiters for space in the queue: one may have been fenced."""
        self._capacity.notify()

    # ---- ordering ------------------------------------------------------------------------------------------------------------------------------

    async def order(self) -> None:
        while True:
            await self._wake.wait_for(self._can_order)
            head = self._queue[0]
            if isinstance(head, _Barrier):
                self._queue.popleft()
                self._pass(head)
            else:
                self._order_block(self._pop_block())
                await asyncio.sleep(0)  # a block needs milliseconds, and one whose transactions are all rejected need not wait for the one before

    def _can_order(self) -> bool:
        if not self._queue:
            return False
        if isinstance(self._queue[0], _Barrier) or self._store.full:
            return True
        if len(self._above_log) >= UNCONFIRMED_MAX:
            return False
        in_flight = len(self._in_flight) - self._received
        enough = not in_flight or (in_flight < self._settings.blocks_in_flight and self._queue_bytes >= self._settings.overlap_bytes)
        return enough and not self._held

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

    def _pop_block(self) -> list[ReceivedFrame]:
        """All that waits, up to one block and the next barrier, and no more of a principal than its quota allows if all of it is accepted."""
        frames: list[ReceivedFrame] = []
        size = count = locks = 0
        planned: dict[Meter, tuple[int, int]] = {}
        while self._queue:
            head = self._queue[0]
            if isinstance(head, _Barrier) or (frames and size + head.size > self._settings.block_bytes_max):
                break
            count, locks = count + head.count, locks + self._weights.cost(head)
            if frames and is_long(count, locks):
                break
            if (meter := head.appender.meter) is not None:
                transactions, records_bytes = planned.get(meter, (0, 0))
                if transactions and not meter.fits(transactions, records_bytes, self._now_s()):
                    break
                planned[meter] = (transactions + head.count, records_bytes + len(head.records))
            frames.append(head)
            head.is_ordered = True
            size += head.size
            self._queue.popleft()
        self._queue_bytes -= size
        self._capacity.notify()
        return frames

    def _order_block(self, frames: list[ReceivedFrame]) -> None:
        frames = [frame for frame in frames if self._is_expected(frame)]
        if self.moving or self._store.full:
            for frame in frames:
                self._refuse(frame, pb.REFUSAL_MOVING if self.moving else pb.REFUSAL_STORAGE_FULL)
            return
        frames = self._within_quotas(frames)
        self._append_time_ms = max(self._append_time_ms, self._clock.now_ms())
        began_s = 0.0 if self._traces is None else self._totals.now_s()
        judged_singly = self._sequencer.locks.judged_singly
        sequenced = self._sequencer.sequence(frames, self._append_time_ms, max(self._store.committed, self._store.received))
        self._weights.judged(sum(len(frame.locks) for frame in frames) // 8, self._sequencer.locks.judged_singly - judged_singly)
        traced = None if self._traces is None else self._traces.order(frames, sequenced, began_s, self._totals.now_s())
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
            now_s = self._totals.now_s()
            self._totals.queue.observe(now_s - frames[0].received_s)
            entry = _InFlight(block.last_transaction_id, block.append_time_ms, now_s, traced=traced)
            for (appender, ranges), size in zip(sequenced.committed, sequenced.sizes, strict=True):
                entry.of(appender).committed.extend(ranges)
                if appender.meter is not None:
                    appender.meter.charge_append(sum(count for _, count, _ in ranges), size, self._now_s())
            self._in_flight.append(entry)
            self.blocks += 1
            self.appended_transactions += block.count
            self._store.append(block)
            self._settle_wake.notify()
        self.rejected += len(sequenced.rejected) - len(sequenced.turns)
        if sequenced.rejected:
            self._line_up(sequenced)

    # ---- quotas --------------------------------------------------------------------------------------------------------------------------------

    def _is_expected(self, frame: ReceivedFrame) -> bool:
        """False: the client sent the frame before it saw that an earlier one was refused over its quota. Ordering this one would change the order of
        the client's appends. The refusal says that it is not in the log."""
        seen, sent = frame.quota_refusals, frame.appender.quota_refusals
        if seen > sent:
            frame.appender.fail(ProtocolViolation(reason=f"a frame knows of {seen} quota refusals, of which {sent} were sent"))
        elif seen < sent:
            self.refused += frame.count
        return seen == sent

    def _within_quotas(self, frames: list[ReceivedFrame]) -> list[ReceivedFrame]:
        """The frames without those whose principal has used up its quota, which are refused. One decision for each principal."""
        verdicts: dict[Meter, Refusal | None] = {}
        within = []
        for frame in frames:
            appender, meter = frame.appender, frame.appender.meter
            if meter is not None and frame.count and not frame.follows:
                if meter not in verdicts:
                    verdicts[meter] = meter.append_refusal(self._now_s())
                refusal = verdicts[meter]
                if frame.quota_refusals != appender.quota_refusals:  # refused with an earlier frame of this block
                    self.refused += frame.count
                    continue
                if refusal is not None:
                    self._refuse_over_quota(frame, refusal)
                    continue
            within.append(frame)
        return within

    def _refuse_over_quota(self, frame: ReceivedFrame, refusal: Refusal) -> None:
        try:
            verify_records(frame.records, frame.lengths, first_transaction_id=None, partition=None, where="append that is refused")
        except CorruptData as error:
            frame.appender.fail(error)
            return
        self.refused += frame.count
        self._totals.append_refusals += 1
        frame.appender.refuse_over_quota(int(headers_array(frame.records, frame.lengths)["sequence"][0]), refusal)

    def _line_up(self, sequenced: Sequenced) -> None:
        """Queues each rejected append for its lock; if that queue is full, answers it with the winner's block, or at once if that is committed."""
        at_once: dict[Appender, Answers] = {}
        for (appender, sequence, winner), lock in zip(sequenced.rejected, sequenced.holders, strict=True):
            if self._lock_queues.enqueue(lock, appender, sequence, self._now_s()):
                continue
            waiting = next((entry for entry in self._in_flight if entry.last_transaction_id >= winner), None)
            answers = at_once.setdefault(appender, Answers()) if waiting is None else waiting.of(appender)
            answers.rejected.append((sequence, winner))
        self._store.hurry()
        _gather(at_once, self._due())
        for appender, answers in at_once.items():
            appender.answer(answers, 0)
        self._queues_wake.notify()

    def _due(self) -> list[tuple[Appender, int, int]]:
        return self._lock_queues.due(self._store.committed, self._sequencer.locks.last_writer, self._now_s())

    @staticmethod
    def _now_s() -> float:
        return asyncio.get_running_loop().time()

    def _refuse(self, frame: ReceivedFrame, reason: int) -> None:
        """Refuses a frame because the partition is being handed over, or its replicas are full: nothing more is ordered here, and every transaction
        is answered with that reason."""
        try:
            verify_records(frame.records, frame.lengths, first_transaction_id=None, partition=None, where="append that is refused")
        except CorruptData as error:
            frame.appender.fail(error)
            return
        sequences = headers_array(frame.records, frame.lengths)["sequence"].tolist()
        frame.appender.answer(Answers(refused=[(sequence, reason) for sequence in sequences]), 0)

    # ---- answers -------------------------------------------------------------------------------------------------------------------------------

    async def settle(self, committed: Callable[[], None]) -> None:
        """Waits for each block in turn, answers its clients, and calls `committed` once per block."""
        try:
            await self._settle(committed)
        finally:
            if self._traces is not None:
                for entry in self._in_flight:
                    self._traces.settle(entry.traced or (), self._totals.now_s(), committed=False)

    async def _settle(self, committed: Callable[[], None]) -> None:
        while True:
            await self._settle_wake.wait_for(lambda: bool(self._in_flight))
            entry = self._in_flight[0]
            await self._store.wait_committed(entry.last_transaction_id)
            self._in_flight.popleft()
            self._totals.commit.observe(self._totals.now_s() - entry.ordered_s)
            self._received = max(0, self._received - 1)
            if self._lock_queues:
                _gather(entry.answers, self._due())
            for appender, answers in entry.answers.items():
                if answers:
                    appender.answer(answers, entry.append_time_ms)
            committed()
            if self._traces is not None and entry.traced:
                self._traces.settle(entry.traced, self._totals.now_s(), committed=True)
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
        """Wakes the ordering loop when replicas become full, or have space again: waiting frames are refused then, or ordered."""
        store = self._store
        while True:
            await store.advanced.wait_for(lambda: store.full)
            log.warning("replicas are full, appends are refused", partition=store.partition)
            self._wake.notify()
            await store.advanced.wait_for(lambda: not store.full)
            log.info("replicas have room again", partition=store.partition)
            self._wake.notify()

    async def answer_due(self) -> None:
        """Answers the next rejections of queues whose turn is over."""
        while True:
            await self._queues_wake.wait_for(lambda: bool(self._lock_queues))
            await asyncio.sleep(TURN_S / 4)
            self._store.hurry()
            self._answer_rejections(self._due())

    def answer_queued(self, appender: Appender | None) -> None:
        """Answers all queued rejections of this client, or of all clients. Everything of it must be decided."""
        self._answer_rejections(self._lock_queues.remove(appender, self._sequencer.locks.last_writer))

    @staticmethod
    def _answer_rejections(rejected: list[tuple[Appender, int, int]]) -> None:
        found: dict[Appender, Answers] = {}
        _gather(found, rejected)
        for appender, answers in found.items():
            appender.answer(answers, 0)

    @property
    def stuck(self) -> bool:
        """Blocks are in flight for which no majority of the replicas has space. They are decided once there is space."""
        return self._store.full and bool(self._in_flight)

    @property
    def waiting(self) -> int:
        """The number of rejections in queues."""
        return self._lock_queues.waiting

    @property
    def locks(self) -> LockStatistics:
        return self._sequencer.locks.statistics()

    @property
    def conflicts(self) -> tuple[Conflict, ...]:
        return self._sequencer.conflicts.newest

    @property
    def lock_table(self) -> LockTable:
        return self._sequencer.locks

    @property
    def queued_bytes(self) -> int:
        return self._queue_bytes


def _gather(answers: dict[Appender, Answers], rejected: list[tuple[Appender, int, int]]) -> None:
    for appender, sequence, winner in rejected:
        answers.setdefault(appender, Answers()).rejected.append((sequence, winner))
