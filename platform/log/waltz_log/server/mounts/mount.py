"""One mounted client of a partition: its answers and its feed, sent by one writer (Client-Server Communication, Mounting a partition).

Answers precede the feed. So a reader that lags does not delay an append, even while its next frame is read from a replica. A client that does not
read stops only its own writer: one frame waits for it, and a bounded number of answers, above which nothing more is read from it
(`wait_for_capacity`).
"""

from __future__ import annotations

import math
import struct
from collections import deque
from collections.abc import Coroutine
from typing import Any, Final, TypeVar  # Any: what a coroutine is sent

from waltz_log.background_tasks import end_tasks, outcome_of, start_task
from waltz_log.core.ports import Sender
from waltz_log.core.quotas import Meter, Refusal
from waltz_log.core.session_states import MOUNT, MountState, StateMachine
from waltz_log.core.topics.catalogue import TopicEpoch
from waltz_log.errors import OutOfRange, WaltzError
from waltz_log.security.access import AccessControl
from waltz_log.security.callers import caller
from waltz_log.security.identity import Identity
from waltz_log.security.rules import Operation
from waltz_log.server.base.pulse import Pulse
from waltz_log.server.mounts.feed import Feed
from waltz_log.server.mounts.feed_frames import FeedFrame
from waltz_log.server.ordering.sequencer import Answers
from waltz_log.server.replication.store_session import StoreSession
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.unread import Room, Unread

__all__ = ["ANSWER_BYTES_MAX", "Mount", "expect_mount"]

ANSWER_BYTES_MAX: Final = 1024 * 1024
"""Answers that a client does not read: above it nothing more is read from that client. One answer has up to 24 bytes for each transaction of a
block."""

T = TypeVar("T")


def expect_mount(access: AccessControl, partition: int, request: pb.MountRequest, peer: Identity | None = None) -> None:
    """Raises `PermissionDenied` if the peer, by default the caller, may not mount the partition for what the request asks."""
    if request.client_id:
        access.expect(partition, Operation.RESOLVE if request.appends_nothing else Operation.APPEND, topic=request.topic, peer=peer)
    if request.feed != pb.FEED_NONE or not request.client_id:
        access.expect(partition, Operation.READ, topic=request.topic, peer=peer)


class Mount:
    """`client_id` 0 is a reader: it may not append and fences no other mount."""

    def __init__(
        self,
        request: pb.MountRequest,
        stream: Sender[pb.ServerMessage],
        store: StoreSession,
        feed: Feed,
        generation: int,
        version: int,
        meter: Meter | None = None,
        unread: Unread | None = None,
    ) -> None:
        self.client_id = request.client_id
        self.mount_sequence = request.mount_sequence
        self.feed = request.feed
        self.principal = request.principal
        self.request = request
        self.caller = caller()
        self.on_disk = request.on_disk
        self.topic = TopicEpoch(request.topic, request.topic_epoch) if request.topic else None
        self.topics = frozenset(request.topics)
        self.appends = bool(request.client_id) and not request.appends_nothing
        self.meter = meter
        self.quota_refusals = 0
        self.last_sequence = -1
        self.failed: WaltzError | None = None
        self._state = StateMachine(MOUNT)
        self._fed = request.client_high_water_mark
        self._stream = stream
        self._store = store
        self._source = feed
        self._headers = request.feed == pb.FEED_HEADERS
        self._generation = generation
        self._version = version
        self._outgoing: deque[pb.ServerMessage] = deque()
        self._outgoing_bytes = 0
        self._wake = Pulse()
        self._drained = Pulse()
        self._flushes = 0
        self._unread = unread or Unread(0)

    @property
    def ready(self) -> bool:
        """Whether the client may append, and all its older requests are decided."""
        return self._state.current is MountState.READY

    # ---- called by the partition -------------------------------------------------------------------------------------------------------------------

    def answer(self, answers: Answers, append_time_ms: int) -> None:
        message = pb.ServerMessage(
            result=pb.AppendResult(
                committed=_pack(answers.committed),
                rejected=_pack(answers.rejected),
                refused=_pack(answers.refused),
                above_log=_pack(answers.above_log),
                append_time_ms=append_time_ms,
                in_memory=answers.in_memory,
                high_water_mark=self._store.committed if answers.in_memory else 0,
            )
        )
        self._enqueue(message)

    def _enqueue(self, message: pb.ServerMessage) -> None:
        self._outgoing.append(message)
        self._outgoing_bytes += message.ByteSize()
        self._wake.notify()

    def refuse_over_quota(self, sequence: int, refusal: Refusal) -> None:
        """The frame that begins with this transaction is not ordered, nor what follows on the stream until the client has seen this."""
        self.quota_refusals += 1
        topic = "" if self.meter is None else self.meter.topic
        after_ms = math.ceil(1000 * refusal.retry_after_s)
        found = pb.QuotaRefusal(sequence=sequence, retry_after_ms=after_ms, quota=refusal.quota, topic=topic)
        self._enqueue(pb.ServerMessage(result=pb.AppendResult(over_quota=found)))

    def flushing(self) -> None:
        """A flush was asked for; `flushed` answers it."""
        self._flushes += 1

    def flushed(self, flush_id: int, high_water_mark: int) -> None:
        self._flushes -= 1
        self._enqueue(pb.ServerMessage(flushed=pb.FlushResponse(flush_id=flush_id, high_water_mark=high_water_mark)))

    def fail(self, error: WaltzError) -> None:
        """Ends the stream with the error, which the client receives."""
        if self.failed is None:
            self._state.move(MountState.FAILED)
            self.failed = error
            self._wake.notify()

    def committed(self) -> None:
        """The committed mark rose: there may be something to feed."""
        if self.feed != pb.FEED_NONE:
            self._wake.notify()

    async def drained(self) -> None:
        """Returns when every answer was handed to the stream."""
        await self._drained.wait_for(lambda: not self._outgoing)

    async def wait_for_capacity(self, answers_max: int) -> None:
        """Returns when fewer than this many answers wait to be read, including flushes in the queue, and no more than `ANSWER_BYTES_MAX`; raises what
        ended the mount."""
        await self._drained.wait_for(lambda: self._has_capacity(answers_max) or self.failed is not None)
        if self.failed is not None:
            raise self.failed

    def _has_capacity(self, answers_max: int) -> bool:
        return len(self._outgoing) + self._flushes < answers_max and self._outgoing_bytes <= ANSWER_BYTES_MAX

    @property
    def catching_up(self) -> bool:
        """Whether what it is fed next must be read from a replica."""
        return self.feed != pb.FEED_NONE and not self._source.near(self._fed + 1)

    @property
    def lag(self) -> int:
        """Committed transactions that it was not sent yet; 0 without a feed."""
        return max(0, self._store.committed - self._fed) if self.feed != pb.FEED_NONE else 0

    # ---- the writer ----------------------------------------------------------------------------------------------------------------------------

    async def write(self, target: int) -> None:
        """Feeds up to `target`, says that the partition is ready, and continues with answers and feed until it is cancelled."""
        store = self._store
        if self._fed > target or (self.feed != pb.FEED_NONE and self._fed < store.first_transaction_id - 1):
            raise OutOfRange(partition=store.partition, asked=self._fed + 1, first=store.first_transaction_id, last=target)
        if self.feed != pb.FEED_NONE:
            while self._fed < target:
                await self._feed(target)
        response = pb.MountResponse(
            generation=self._generation,
            high_water_mark=target,
            protocol_version=self._version,
            frame_transactions_max=0 if self.meter is None else self.meter.batch_transactions,
            frame_bytes_max=0 if self.meter is None else self.meter.batch_bytes,
        )
        if self.failed is not None:
            raise self.failed
        self._state.move(MountState.READY)  # before the answer is sent: the client's first append may arrive before this task continues
        await self._stream.send(pb.ServerMessage(mounted=response))
        while True:
            await self._wake.wait_for(self._has_work)
            await self._send_answers()
            if self.feed != pb.FEED_NONE and self._fed < store.committed:
                await self._feed(store.committed)

    def _has_work(self) -> bool:
        return self._has_answers() or (self.feed != pb.FEED_NONE and self._fed < self._store.committed)

    def _has_answers(self) -> bool:
        return self.failed is not None or bool(self._outgoing)

    async def _send_answers(self) -> None:
        """All that wait. Raises what ended the mount."""
        if self.failed is not None:
            raise self.failed
        while self._outgoing:
            await self._stream.send(self._outgoing[0])
            self._outgoing_bytes -= self._outgoing.popleft().ByteSize()
            self._drained.notify()
        self._drained.notify()

    async def _feed(self, target: int) -> None:
        """One frame of the feed. Between two, and while room for one is awaited or one is read from a replica, answers go out."""
        size, rooms = self._source.bytes_max, list[Room]()

        async def wait_for_room() -> None:
            rooms.append(await self._unread.acquire(self.caller, size))

        try:  # a room that is granted while this mount ends is returned too
            if (at_once := self._unread.acquire_now(self.caller, size)) is not None:
                rooms.append(at_once)
            else:
                await self._while_answering(wait_for_room())
            frame = self._source.ready(self._headers, self._fed + 1, target)
            if frame is None:
                frame = await self._while_answering(self._source.fetch(self._headers, self._fed + 1, target))
            (room,) = rooms
            room.shrink(frame.size)
            async with room:
                await self._send_frame(frame)
        finally:
            for each in rooms:
                each.release()

    async def _while_answering(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of the work. Answers go out meanwhile."""
        working = start_task(work)
        working.add_done_callback(lambda _: self._wake.notify())
        try:
            while not working.done():
                await self._wake.wait_for(lambda: working.done() or self._has_answers())
                if self._has_answers():
                    await self._send_answers()
            return outcome_of(working)
        finally:
            await end_tasks([working])

    async def _send_frame(self, frame: FeedFrame) -> None:
        await self._stream.send(frame.message)
        self._fed = frame.last


def _pack(rows: list[tuple[int, int, int]] | list[tuple[int, int]]) -> bytes:
    flat = [value for row in rows for value in row]
    return struct.pack(f">{len(flat)}q", *flat)
