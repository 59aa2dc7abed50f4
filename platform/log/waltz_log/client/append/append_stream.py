"""The append stream of one mount: sends what the window holds, applies the owner's answers, and ends with an error that says why.

The client leaves an owner that does not answer for too long, or that was replaced and does not know it. Appends in flight then stay undecided until
the next mount settles them. A single transaction needs no task and no message of its own.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import NamedTuple

from waltz_log.background_tasks import end_tasks, outcome_of, start_task
from waltz_log.client.append.append_window import AppendWindow
from waltz_log.client.append.sent_frame import SentFrame
from waltz_log.client.base.settings import ClientSettings
from waltz_log.client.owners.mounting import ranges
from waltz_log.client.owners.owners import Owners
from waltz_log.core.topics.catalogue import Durability
from waltz_log.errors import ConnectionLost, NotOwner, ProtocolViolation, QuotaExceeded
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.large_messages import AppendColumns, append_message
from waltz_log.transport.methods import MountStream

__all__ = ["AppendStream", "Mounted", "Signals"]

FRAMES_PER_RECORD_MAX = 8
"""The number of full frames that a durable client records on disk with one write."""

MOVE_GRACE_S = 0.5
"""How long the client waits for answers from an owner that is no longer assigned. Then it leaves the stream."""

QUOTA_REMEMBERED_S = 1.0
"""For how long after a refusal an append that was not sent in time is said to have waited for its quota. A quota admits a part of a long queue
between two refusals; the rest still waits for it."""

REASON_WAIT_S = 0.2
"""How long to wait for the peer's reason after a write failed. Only the text of the error depends on it."""


class Mounted(NamedTuple):
    """Where and as whom the stream was mounted."""

    client_id: int
    generation: int
    """The owner's generation, which each frame carries."""
    address: str
    assigned: int
    """The generation under which the coordinator named that owner."""
    sequence_last: int
    """The highest sequence to send under this client id."""
    principal: str = ""
    """As the client states it; only for error messages."""


class Signals:
    """Events with which the producer wakes the task that sends."""

    def __init__(self) -> None:
        self.work = asyncio.Event()
        """The window's queue has appends."""
        self.paced = asyncio.Event()
        """There is enough for another frame, or the owner has answered."""


class AppendStream:
    """One mount. `serve` runs until the stream ends."""

    def __init__(
        self,
        stream: MountStream,
        mounted: Mounted,
        window: AppendWindow,
        signals: Signals,
        owners: Owners,
        settings: ClientSettings,
        *,
        answered: Callable[[], None],
        sending: Callable[[list[SentFrame]], Awaitable[None]] | None,
    ) -> None:
        """`answered` is called at each message of the owner; `sending` returns when it is on disk that the frames may be sent."""
        self._stream = stream
        self._mounted = mounted
        self._window = window
        self._signals = signals
        self._owners = owners
        self._settings = settings
        self._answered = answered
        self._sending = sending
        self._loop = asyncio.get_running_loop()
        self._answered_at = self._loop.time()
        self._flush_id = 0
        self._flushes: dict[int, asyncio.Future[None]] = {}
        self._quota_refusals = 0
        self._resume_at = -math.inf
        self.first_sequence = window.next_sequence
        """All sequences below it were sent on earlier mounts, and are decided."""

    async def serve(self) -> None:
        """Sends and receives until the stream ends, which is always with an error."""
        tasks = [start_task(work) for work in (self._send(), self._receive(), self._stalled(), self._moved())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            # The reason that the peer gave is more precise than the error of the sender.
            await asyncio.wait(tasks[1:2], timeout=REASON_WAIT_S)
            for task in (*tasks[1:], tasks[0]):
                if task.done():
                    outcome_of(task)
        finally:
            try:
                await end_tasks(tasks)
            finally:
                self._break_flushes()

    # ---- sending -------------------------------------------------------------------------------------------------------------------------------

    async def _send(self) -> None:
        window, stream, work = self._window, self._stream, self._signals.work
        while True:
            if not window.queue:
                work.clear()
                window.awaited_bytes = 0
                await work.wait()
                continue
            if window.holds_back() and self._settings.linger_ms:
                await self._linger()
            if self._resume_at > self._loop.time():
                await asyncio.sleep(self._resume_at - self._loop.time())
                continue
            if window.next_sequence > self._mounted.sequence_last:
                await self._use_up()
            frame = self._pack()
            if frame is None:
                continue
            if self._sending is None:
                await stream.send(append_message(frame))
            else:
                await self._send_recorded(frame, self._sending)

    async def _linger(self) -> None:
        """Waits until the next frame is to be sent, at most `linger_ms`."""
        window, paced = self._window, self._signals.paced
        with suppress(TimeoutError):
            async with asyncio.timeout(self._settings.linger_ms / 1000):
                while window.holds_back():
                    paced.clear()
                    window.awaited_bytes = window.sendable_bytes
                    await paced.wait()

    def _pack(self) -> AppendColumns | None:
        window, mounted = self._window, self._mounted
        frame = window.pack(mounted.client_id, mounted.generation, window.known_mark, self._loop.time())
        return frame if frame is None or not self._quota_refusals else frame._replace(quota_refusals=self._quota_refusals)

    async def _send_recorded(self, frame: AppendColumns, sending: Callable[[list[SentFrame]], Awaitable[None]]) -> None:
        """Records the frame, and the full frames that wait after it, on disk. Then sends them. One record for all, because a sync takes longer than
        a frame."""
        window, frames = self._window, [frame]
        while window.queue_bytes >= self._settings.frame_bytes and len(frames) < FRAMES_PER_RECORD_MAX:
            another = self._pack()
            if another is not None:
                frames.append(another)
        await sending(list(window.frames)[-len(frames) :])
        for each in frames:
            await self._stream.send(append_message(each))

    async def _use_up(self) -> None:
        """Waits until nothing is in flight under this client id. The next mount uses another one."""
        paced = self._signals.paced
        while self._window.frames:
            paced.clear()
            await paced.wait()
        raise NotOwner(partition=self._window.partition, reason="sequences are used up; the client continues under another client id")

    # ---- answers -------------------------------------------------------------------------------------------------------------------------------

    async def _receive(self) -> None:
        window, stream, paced = self._window, self._stream, self._signals.paced
        while True:
            message = await stream.receive()
            if message is None:
                raise ConnectionLost(address=f"owner of partition {window.partition}", reason="stream finished")
            self._answered_at = self._loop.time()
            self._answered()
            kind = message.WhichOneof("kind")
            if kind == "result":
                self._apply_result(message.result)
                if not window.frames or window.queue:
                    paced.set()
            elif kind == "flushed":
                window.raise_known_mark(message.flushed.high_water_mark)
                flushed = self._flushes.get(message.flushed.flush_id)
                if flushed is not None and not flushed.done():
                    flushed.set_result(None)
            else:
                raise ProtocolViolation(reason=f"unexpected message on an append stream: kind={kind}")

    def _apply_result(self, result: pb.AppendResult) -> None:
        window = self._window
        if result.committed:
            durability: Durability = "quorum_memory" if result.in_memory else "quorum_sync"
            for first, count, transaction_id in ranges(result.committed, 3):
                if count < 1 or transaction_id < 0:
                    raise ProtocolViolation(reason=f"impossible answer: count={count} transaction_id={transaction_id}")
                if self._resume_at + QUOTA_REMEMBERED_S <= self._answered_at:
                    window.over_quota = None
                window.commit(first, count, transaction_id, result.append_time_ms, durability)
                if result.in_memory:
                    window.received_mark = transaction_id + count - 1
                    window.raise_known_mark(result.high_water_mark)
                else:
                    window.raise_known_mark(transaction_id + count - 1)
        if result.rejected:
            for sequence, winner in ranges(result.rejected, 2):
                window.reject(sequence, winner)
                window.raise_known_mark(winner)
        if result.above_log:
            for sequence, newest in ranges(result.above_log, 2):
                window.refuse_mark(sequence, newest)
        if result.HasField("over_quota"):
            self._wait_for_quota(result.over_quota)
        if result.refused:
            unsettled = [(sequence, reason) for sequence, reason in ranges(result.refused, 2) if not window.refuse(sequence, reason)]
            if unsettled:
                sequence, reason = unsettled[0]
                raise NotOwner(partition=window.partition, reason=f"refused: sequence={sequence} reason={reason}")

    def _wait_for_quota(self, refusal: pb.QuotaRefusal) -> None:
        """Sends nothing until the owner accepts appends again; deadlines still apply. The owner drops all frames after the refused one."""
        window, wait_s = self._window, refusal.retry_after_ms / 1000
        window.give_back(refusal.sequence)
        window.over_quota = QuotaExceeded(
            partition=window.partition, quota=refusal.quota, principal=self._mounted.principal, topic=refusal.topic, retry_after_s=wait_s
        )
        self._quota_refusals += 1
        self._resume_at = self._loop.time() + wait_s
        self._signals.work.set()

    async def flushed(self, deadline: float) -> None:
        """Returns when the owner has decided all appends that were sent before. Raises `TimeoutError`, or the error that ended the stream."""
        self._flush_id += 1
        flush_id, flushed = self._flush_id, self._loop.create_future()
        self._flushes[flush_id] = flushed
        try:
            async with asyncio.timeout_at(deadline):
                await self._stream.send(pb.ClientMessage(flush=pb.FlushRequest(flush_id=flush_id)))
                await flushed
        finally:
            self._flushes.pop(flush_id, None)

    def _break_flushes(self) -> None:
        for flushed in self._flushes.values():
            if not flushed.done():
                flushed.set_exception(ConnectionLost(address=f"partition {self._window.partition}", reason="stream ended"))
                flushed.exception()  # a caller that still waits gets it; without this line asyncio warns if the caller gave up

    # ---- leaving -------------------------------------------------------------------------------------------------------------------------------

    async def _stalled(self) -> None:
        """Raises `ConnectionLost` when the owner has answered nothing for too long."""
        limit, window = self._settings.stall_timeout_s, self._window
        while True:
            await asyncio.sleep(limit / 4)
            if window.frames:
                since = max(self._answered_at, window.frames[0].sent_at)
                if self._loop.time() - since > limit:
                    raise ConnectionLost(address=f"owner of partition {window.partition}", reason=f"no answer for {limit:g} s")

    async def _moved(self) -> None:
        """Ends the stream of an owner that was replaced and does not know it: it would notice only with its next write."""
        await self._owners.wait_moved(self._window.partition, self._mounted.address, self._mounted.assigned)
        await asyncio.sleep(MOVE_GRACE_S)
        raise NotOwner(partition=self._window.partition, reason="assigned elsewhere")
