"""Appends to one partition: one task that mounts at the owner, settles what an earlier connection left open, and then sends and receives.

A connection that ended, for whatever reason, leaves what was in flight undecided. It is mounted again with a higher mount sequence, which fences the
old connection; at "ready" the owner has decided everything of it, so `Resolve` gives a final answer, and only what is not in the log is sent
again (design: Mount, resend, resolve). Order within the partition is preserved. Appends make no task and no message of their own.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import structlog

from waltz_log.client.mounting import mount_for_appends, ranges
from waltz_log.client.owners import Owners
from waltz_log.client.retry import Backoff
from waltz_log.client.search import Search
from waltz_log.client.settings import ClientSettings
from waltz_log.client.transaction import Receipt
from waltz_log.client.window import ITEM_OVERHEAD_BYTES, Frame, Item, Window
from waltz_log.core.ports import Stream
from waltz_log.errors import (
    ClusterKeyMismatch,
    ConnectionLost,
    CorruptData,
    Fenced,
    InvalidRequest,
    NotOwner,
    OutOfRange,
    ProtocolViolation,
    Unavailable,
    WaltzError,
)
from waltz_log.rpc import waltz_pb2 as pb
from waltz_log.rpc.methods import RESOLVE

__all__ = ["SEQUENCE_MAX", "Lasting", "Producer"]

log = structlog.get_logger(__name__)

SEQUENCE_MAX = 2**31 - 1
"""The record holds a sequence in four bytes; a client that used them up in a partition goes on there under another client id."""

FRAMES_UNANSWERED = 2
"""With so many frames unanswered a frame waits until it is full or `linger_ms` is over. Smaller frames close the window up:
throughput falls tenfold."""

FRAMES_TOGETHER = 8
"""Full frames that a lasting client says one word on disk for."""

STRIKES_MAX = 3
"""Streams in a row that end because of the bytes on them, before what was on them is no longer sent again. One can be a connection that was cut."""

EXPIRE_PAUSE_S = 0.01
"""Deadlines are looked after so often at most: one look goes over the whole window."""

MOVE_GRACE_S = 0.5
"""How long an owner that is no longer assigned may go on answering what is in flight before its stream is left."""

LAST_WORDS_S = 0.2
"""How long to wait for the peer's reason after a write failed. Only the text of errors depends on it."""


class Lasting(NamedTuple):
    """What a client brings along that outlives its process (design: protocol, rule 8)."""

    mount_sequence: int
    """Above every one that an earlier process of this client used, so that the first mount fences what that one still has on the wire."""
    next_sequence: int
    sending: Callable[[list[Frame]], Awaitable[None]]
    """Returns when it is on disk that the frames may be sent. An error ends the stream, and they count as sent."""


class Producer:
    """`start` makes its task, `close` ends it."""

    def __init__(
        self, partition: int, client_id: int, owners: Owners, settings: ClientSettings, rng: random.Random, lasting: Lasting | None = None
    ) -> None:
        self.partition = partition
        self.client_id = client_id
        self.window = Window(
            partition,
            max_pending=settings.max_pending,
            max_pending_bytes=settings.max_pending_bytes,
            frame_bytes=settings.frame_bytes,
        )
        self.known_mark = -1
        self.sequence_max = SEQUENCE_MAX
        self.mounts = 0
        self._owners = owners
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._backoff = Backoff(settings.retry_base_s, settings.retry_cap_s, rng)
        self._mount_sequence = 0
        self._sending: Callable[[list[Frame]], Awaitable[None]] | None = None
        if lasting is not None:
            self._mount_sequence, self.window.next_sequence, self._sending = lasting
        self._mount_mark = -1
        self._generation = 0
        self._address = ""
        self._assigned = 0
        self._strikes = 0
        self._first_of_mount = 1
        self._stream: Stream | None = None
        self._work = asyncio.Event()
        self._paced = asyncio.Event()
        self._mount_waiters: list[asyncio.Future[None]] = []
        self._flush_id = 0
        self._flushes: dict[int, asyncio.Future[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._answered_at = 0.0
        self._reason: WaltzError = Unavailable(reason="not mounted yet")
        self._dead: WaltzError | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=f"waltz producer {self.partition}")
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """The task must outlive everything but `close` and being fenced; if it does not, nobody may wait for it in vain."""
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("producer failed", partition=self.partition, exc_info=error)
            self._die(ProtocolViolation(reason=f"defect in the client: {type(error).__name__}: {error}"), str(error))

    # ---- what the client calls -----------------------------------------------------------------------------------------------------------------

    async def submit(self, data: bytes, header: int, mark: int, counts: bytes, locks: bytes, size: int, timeout_s: float) -> asyncio.Future[Receipt]:
        """Takes a transaction into the window, waiting for room. The future is settled by the deadline at the latest."""
        if self._dead is not None:
            raise self._dead
        window, loop = self.window, self._loop
        deadline = loop.time() + timeout_s
        reserved = not window.has_room(size)
        if reserved:
            await window.wait_room(size, deadline)
        future: asyncio.Future[Receipt] = loop.create_future()
        window.submit((future, data, header, mark, counts, locks, deadline), size, reserved=reserved)
        if not self._work.is_set():
            self._work.set()
        if window.queue_bytes >= self._settings.frame_bytes:
            self._paced.set()
        if self._timer is None or deadline < self._timer.when():
            self._watch_deadline(deadline)
        return future

    def offer(self, item: Item) -> bool:
        """Takes the transaction where there is room now. Its deadline is not watched: it stays until it is decided or the producer ends."""
        if self._dead is not None:
            raise self._dead
        size = len(item[1]) + len(item[5]) + ITEM_OVERHEAD_BYTES
        if not self.window.has_room(size):
            return False
        self.window.submit(item, size, reserved=False)
        self._work.set()
        if self.window.queue_bytes >= self._settings.frame_bytes:
            self._paced.set()
        return True

    @property
    def ready(self) -> bool:
        """Whether an owner takes appends now, as far as known."""
        return self._stream is not None

    async def ended(self) -> WaltzError:
        """Returns once nothing more is done here, and why."""
        if self._task is not None:
            await asyncio.wait([self._task])
        return self._dead or Unavailable(reason=f"the producer is closed: partition={self.partition}")

    async def mounted(self, deadline: float) -> None:
        """Returns while a mount is ready and all that earlier ones left open is decided."""
        if self._dead is not None:
            raise self._dead
        if self._stream is not None:
            return
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._mount_waiters.append(waiter)
        self._work.set()
        try:
            async with asyncio.timeout_at(deadline):
                await waiter
        except TimeoutError:
            raise Unavailable(reason=f"no mount before the deadline: partition={self.partition} last={self._reason}") from None

    async def settle(self, sequence: int, deadline: float) -> None:
        """Returns once the owner has decided the sequence, whatever became of it: in this mount, or by fencing the one it was sent on."""
        while True:
            await self.mounted(deadline)
            stream = self._stream
            if stream is None:
                continue
            if sequence < self._first_of_mount:
                return
            self._flush_id += 1
            flush_id, flushed = self._flush_id, self._loop.create_future()
            self._flushes[flush_id] = flushed
            try:
                async with asyncio.timeout_at(deadline):
                    await stream.send(pb.ClientMessage(flush=pb.FlushRequest(flush_id=flush_id)))
                    await flushed
                return
            except TimeoutError:
                raise Unavailable(reason=f"not decided before the deadline: partition={self.partition}") from None
            except WaltzError:
                # The stream ended; the next mount decides it.
                await asyncio.sleep(0)
            finally:
                self._flushes.pop(flush_id, None)

    async def flush(self) -> None:
        """Returns when all that was submitted before is decided, well or badly."""
        undecided = self.window.undecided()
        if undecided:
            await asyncio.wait(undecided)

    async def close(self) -> None:
        """What is in flight is reported unknown, what was never sent is not appended."""
        self._die(InvalidRequest(reason="the client is closed"), "the client was closed")
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def _die(self, error: WaltzError, reason: str) -> None:
        self._dead = self._dead or error
        self._give_up(Unavailable(reason=reason) if isinstance(error, InvalidRequest) else error)

    def _give_up(self, error: WaltzError) -> None:
        self.window.fail(error, self.client_id)
        waiters, self._mount_waiters = self._mount_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(error)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # ---- deadlines -----------------------------------------------------------------------------------------------------------------------------

    def _watch_deadline(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(deadline, self._expire)

    def _expire(self) -> None:
        self._timer = None
        earliest = self.window.expire(self._loop.time(), self.client_id, str(self._reason) if self._stream is None else "no answer yet")
        if earliest is not None:
            self._watch_deadline(max(earliest, self._loop.time() + EXPIRE_PAUSE_S))

    # ---- the task ------------------------------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            if not self.window.pending and not self._mount_waiters:
                self._work.clear()
                await self._work.wait()
            if self._sending is not None and self._used_up:
                self._die(Unavailable(reason="sequences are used up"), "sequences are used up")  # another client id is its owner's to take
                return
            stream: Stream | None = None
            try:
                stream = await self._mount()
                await self._settle_in_flight()
                await self._serve(stream)
            except Fenced as error:
                if error.what == "mount" and error.newer > self._mount_sequence:
                    # Somebody acts under our client id on purpose: an outbox that came back, or a resolve on our behalf. It must be the last word.
                    self._die(error, str(error))
                    return
                self._reason = error
            except ClusterKeyMismatch as error:
                self._reason = error
                self._give_up(error)
            except OutOfRange as error:
                self._reason = error
                if error.asked < error.first:
                    self._mount_mark = error.first - 1
            except WaltzError as error:
                self._reason = error
                if isinstance(error, CorruptData | ProtocolViolation):
                    self._strikes += 1
            finally:
                self._stream = None
                self._break_flushes()
                if stream is not None:
                    await stream.cancel()
            await self._owners.wait_changed(self._backoff.next_s())

    def _break_flushes(self) -> None:
        for flushed in self._flushes.values():
            if not flushed.done():
                flushed.set_exception(ConnectionLost(address=f"partition {self.partition}", reason="stream ended"))
                flushed.exception()  # whoever waits for it still sees it; one who gave up must not be warned about

    async def _mount(self) -> Stream:
        """A stream that the owner said is ready: everything this client sent before is decided."""
        if self._used_up and not self.window.frames:
            self.client_id = await self._owners.next_client_id()
            self.window.next_sequence = 1
            self._mount_sequence = 0
        timeout_s = self._settings.request_timeout_s
        self._address = await self._owners.owner(self.partition, timeout_s)
        self._assigned = self._owners.generation(self.partition)
        self._mount_sequence += 1
        mark = max(self._mount_mark, self.known_mark)  # within the log: the first retained, or what we know to be committed
        stream, mounted = await mount_for_appends(self._owners, self._address, self.partition, self.client_id, self._mount_sequence, mark, timeout_s)
        self._generation = mounted.generation
        self._know(mounted.high_water_mark)
        self.mounts += 1
        return stream

    def _know(self, mark: int) -> None:
        if mark > self.known_mark:
            self.known_mark = mark

    async def _settle_in_flight(self) -> None:
        """What an earlier mount left open: found in the log, or put back to be sent again."""
        frames = self.window.frames
        if not frames:
            return
        last = frames[-1].first_sequence + len(frames[-1].items) - 1
        key, timeout_s = self._owners.parameters.key.bytes, self._settings.request_timeout_s
        search = Search(self.partition, self.client_id, frames[0].first_sequence, last, frames[0].since, key)
        channel = self._owners.call_channel(self._address)
        while True:
            answer = await channel.call(RESOLVE, search.question(timeout_s), timeout_s=timeout_s)
            self._know(answer.high_water_mark)
            if search.take(answer):
                break
            if search.contiguous:
                self.window.searched(search.committed, search.since)
        if not search.final:
            raise NotOwner(partition=self.partition, reason="what was in flight is not decided yet")
        self.window.resend(search.committed, self._reason if self._strikes >= STRIKES_MAX else None)

    async def _serve(self, stream: Stream) -> None:
        """Until the stream ends, which is always by an error."""
        self._stream = stream
        self._first_of_mount = self.window.next_sequence
        self._answered_at = self._loop.time()
        waiters, self._mount_waiters = self._mount_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        tasks = [asyncio.ensure_future(work) for work in (self._send(stream), self._receive(stream), self._stalled(), self._moved())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            # What the peer said of the stream's end counts for more than what the sender met.
            await asyncio.wait(tasks[1:2], timeout=LAST_WORDS_S)
            for task in (*tasks[1:], tasks[0]):
                if task.done():
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _send(self, stream: Stream) -> None:
        window, work, paced = self.window, self._work, self._paced
        frame_bytes, linger_s = self._settings.frame_bytes, self._settings.linger_ms / 1000
        while True:
            if not window.queue:
                work.clear()
                await work.wait()
                continue
            if len(window.frames) >= FRAMES_UNANSWERED and window.queue_bytes < frame_bytes and linger_s:
                paced.clear()
                try:
                    async with asyncio.timeout(linger_s):
                        await paced.wait()
                except TimeoutError:
                    paced.set()
            if self._used_up:
                await self._use_up()
            frame = window.pack(self.client_id, self._generation, self.known_mark, self._loop.time())
            if frame is None:
                continue
            if self._sending is None:
                await stream.send(pb.ClientMessage(append=frame))
            else:
                await self._send_lasting(stream, frame, self._sending)

    async def _send_lasting(self, stream: Stream, frame: pb.AppendFrame, sending: Callable[[list[Frame]], Awaitable[None]]) -> None:
        """The frame and what else waits: the word on disk is one for all of them, for it takes longer than a frame."""
        window, frames = self.window, [frame]
        while window.queue_bytes >= self._settings.frame_bytes and len(frames) < FRAMES_TOGETHER:
            another = window.pack(self.client_id, self._generation, self.known_mark, self._loop.time())
            if another is not None:
                frames.append(another)
        await sending(list(window.frames)[-len(frames) :])
        for each in frames:
            await stream.send(pb.ClientMessage(append=each))

    @property
    def _used_up(self) -> bool:
        return self.window.next_sequence > self.sequence_max - self._settings.max_pending

    async def _use_up(self) -> None:
        """Waits until nothing is in flight under the old client id, then mounts under another."""
        while self.window.frames:
            self._paced.clear()
            await self._paced.wait()
        raise NotOwner(partition=self.partition, reason="sequences are used up, going on under another client id")

    async def _receive(self, stream: Stream) -> None:
        window = self.window
        while True:
            message = await stream.receive()
            if message is None:
                raise ConnectionLost(address=f"owner of partition {self.partition}", reason="stream finished")
            self._answered_at = self._loop.time()
            self._backoff.reset()
            self._strikes = 0
            kind = message.WhichOneof("kind")
            if kind == "result":
                self._take(message.result)
                if not window.frames or window.queue:
                    self._paced.set()
            elif kind == "flushed":
                self._know(message.flushed.high_water_mark)
                flushed = self._flushes.get(message.flushed.flush_id)
                if flushed is not None and not flushed.done():
                    flushed.set_result(None)
            else:
                raise ProtocolViolation(reason=f"unexpected message on an append stream: kind={kind}")

    def _take(self, result: pb.AppendResult) -> None:
        window = self.window
        if result.committed:
            for first, count, transaction_id in ranges(result.committed, 3):
                if count < 1 or transaction_id < 0:
                    raise ProtocolViolation(reason=f"impossible answer: count={count} transaction_id={transaction_id}")
                window.commit(first, count, transaction_id, result.append_time_ms)
                self._know(transaction_id + count - 1)
        if result.rejected:
            for sequence, winner in ranges(result.rejected, 2):
                window.reject(sequence, winner)
                self._know(winner)
        if result.refused:
            unsettled = [(sequence, reason) for sequence, reason in ranges(result.refused, 2) if not window.refuse(sequence, reason)]
            if unsettled:
                raise NotOwner(partition=self.partition, reason=f"refused: sequence={unsettled[0][0]} reason={unsettled[0][1]}")

    async def _stalled(self) -> None:
        """Returns an error when the owner has answered nothing for too long."""
        limit = self._settings.stall_timeout_s
        while True:
            await asyncio.sleep(limit / 4)
            if self.window.frames:
                since = max(self._answered_at, self.window.frames[0].sent_at)
                if self._loop.time() - since > limit:
                    raise ConnectionLost(address=f"owner of partition {self.partition}", reason=f"no answer for {limit:g} s")

    async def _moved(self) -> None:
        """Ends the stream of an owner that was deposed and does not know it: only by writing would it notice."""
        await self._owners.wait_moved(self.partition, self._address, self._assigned)
        await asyncio.sleep(MOVE_GRACE_S)
        raise NotOwner(partition=self.partition, reason="assigned elsewhere")
