"""Appends to one partition: one task that mounts at the owner, settles what an earlier connection left open, and then sends and receives.

When a connection ends, appends in flight are undecided. The producer mounts again with a higher mount sequence, which fences the old connection. When
the owner answers "ready", it has decided everything that it received on the old connection. So `Resolve` gives a final answer, and only appends that
are not in the log are sent again (docs/internals/protocol.md). Order within the partition is preserved. A single append needs no task and no
message of its own.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

from waltz_log.background_tasks import BackgroundTask
from waltz_log.client.append.append_stream import AppendStream, Mounted, Signals
from waltz_log.client.append.append_window import AppendWindow
from waltz_log.client.append.pending_append import PendingAppend
from waltz_log.client.append.pending_rows import PendingRows
from waltz_log.client.append.rows import Rows
from waltz_log.client.append.sent_frame import SentFrame
from waltz_log.client.append.sequence_query import SequenceQuery
from waltz_log.client.base.incidents import ConflictStorm, Incidents
from waltz_log.client.base.retry import Backoff
from waltz_log.client.base.settings import ClientSettings
from waltz_log.client.owners.mounting import mount_for_appends
from waltz_log.client.owners.owners import Owners
from waltz_log.core.mount_sequences import is_resolving, recovering_above
from waltz_log.core.status.client_statistics import ClientPartitionStatistics
from waltz_log.core.topics.catalogue import TopicEpoch
from waltz_log.errors import (
    BelongsToTopic,
    ClusterKeyMismatch,
    CorruptData,
    Fenced,
    InvalidRequest,
    NotAllowed,
    NotAppended,
    NotOwner,
    OutOfRange,
    PermissionDenied,
    ProtocolViolation,
    QuotaExceeded,
    StorageFull,
    TopicDeleted,
    Unavailable,
    WaltzError,
)
from waltz_log.loggers import get_logger
from waltz_log.transport.methods import RESOLVE, MountStream

__all__ = ["SEQUENCE_MAX", "DurableClient", "Producer"]

log = get_logger(__name__)

SEQUENCE_MAX = 2**31 - 1
"""A record holds a sequence in four bytes. A client that has used all of them in a partition continues there under another client id."""

INVALID_STREAMS_MAX = 3
"""After this many streams in a row that ended because of invalid bytes, the appends in flight fail instead of being sent again. A single such stream
can be a connection that was cut."""

EXPIRE_PAUSE_S = 0.01
"""The shortest interval between two checks of deadlines, because a check reads the whole window."""


class MarkSource(Protocol):
    """A follower, whose last applied transaction is the mark of appends."""

    @property
    def applied(self) -> int: ...


class DurableClient(NamedTuple):
    """The state of a client that outlives its process (decision 7)."""

    mount_sequence: int
    """Higher than all that earlier processes of this client used, so the first mount fences their frames that are still in the network."""
    next_sequence: int
    sending: Callable[[list[SentFrame]], Awaitable[None]]
    """Records the frames on disk before they are sent. If it raises, the stream ends, and the frames count as sent."""


class Producer:
    """`start` creates its task, `close` ends it."""

    def __init__(
        self,
        partition: int,
        client_id: int,
        owners: Owners,
        settings: ClientSettings,
        rng: random.Random,
        durable: DurableClient | None = None,
        *,
        topic: TopicEpoch | None = None,
        first_client_id: Callable[[], Awaitable[int]] | None = None,
        followers: Sequence[MarkSource] = (),
        incidents: Incidents | None = None,
    ) -> None:
        """`client_id` 0: get one before the first mount, from `first_client_id`. That is None if another producer of this client uses its id in the
        partition: this one then gets an id of its own, because sequences of one id must not repeat. `topic`: the topic whose handle appends here.
        `followers`: the client's followers at the partition, a list that changes. `incidents`: those of the client."""
        self.partition = partition
        self.client_id = client_id
        self.window = AppendWindow(
            partition,
            max_pending=settings.max_pending,
            max_pending_bytes=settings.max_pending_bytes,
            frame_bytes=settings.frame_bytes,
            overlap_bytes=settings.overlap_bytes,
            awaited=self._wake,
            due=self._watch_deadline,
        )
        self.try_enqueue: Callable[[PendingAppend], bool] = self.window.try_enqueue
        """Enqueues an append if there is room now, and returns whether there is. It is settled by its deadline at the latest. Raises the error that
        ended the producer."""
        self.record_bytes_max = settings.record_bytes_max
        self.locks_max = settings.locks_max
        self.sequence_max = SEQUENCE_MAX
        self.mounts = self.disconnects = 0
        self._incidents = Incidents() if incidents is None else incidents
        self._lost_s: float | None = None
        """When the connection ended, until it is restored."""
        self.followers = followers
        self._topic = topic
        self._first_client_id = first_client_id
        self._doubtful = False
        self._owners = owners
        self._settings = settings
        self.loop = asyncio.get_running_loop()
        self.clock: Callable[[], float] = time.monotonic if type(self.loop).time is asyncio.BaseEventLoop.time else self.loop.time
        """The loop's clock, without the call in between."""
        self._storm = ConflictStorm(self.loop.time())
        self._backoff = Backoff(settings.retry_base_s, settings.retry_cap_s, rng)
        self._mount_sequence = 0
        self._sending: Callable[[list[SentFrame]], Awaitable[None]] | None = None
        if durable is not None:
            self._mount_sequence, self.window.next_sequence, self._sending = durable
        self._mount_mark = -1
        self._invalid_streams = 0
        self._serving: AppendStream | None = None
        self._signals = Signals()
        self._mount_waiters: list[asyncio.Future[None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._reason: WaltzError = Unavailable(reason="not mounted yet")
        self._end_error: WaltzError | None = None
        self._task: BackgroundTask | None = None

    def start(self) -> None:
        self._task = BackgroundTask(f"waltz producer {self.partition}", self._run, self._failed)

    def _failed(self, error: BaseException) -> None:
        """Only `close` and a fence end the task. If another error ends it, all waiting callers get the error."""
        log.error("producer failed", partition=self.partition, exc_info=error)
        self._end(ProtocolViolation(reason=f"defect in the client: {type(error).__name__}: {error}"), str(error))

    # ---- what the client calls -----------------------------------------------------------------------------------------------------------------

    async def enqueue(self, append: PendingAppend) -> None:
        """Enqueues the append as soon as there is room, in the order of the calls. Raises `NotAppended` at its deadline."""
        await self.window.enqueue(append)
        self._check_ended()

    def fitting(self, rows: Rows, start: int) -> int:
        """For how many rows from `start` there is room now. Raises the error that ended the producer."""
        if self._end_error is not None:
            raise self._unsent(self._end_error)
        return self.window.fitting(rows, start)

    @property
    def room(self) -> tuple[int, int]:
        """How many more appends and bytes can be enqueued now."""
        return (0, 0) if self._end_error is not None else self.window.room

    def add_rows(self, pending: PendingRows) -> None:
        """Enqueues rows that fit now. They are settled by their deadline at the latest."""
        self.window.add_rows(pending)
        self._check_ended()

    async def enqueue_rows(self, pending: PendingRows) -> None:
        """Enqueues the rows as soon as there is room for all of them, in the order of the calls. Raises `NotAppended` at their deadline."""
        await self.window.enqueue_rows(pending)
        self._check_ended()

    def _check_ended(self) -> None:
        if self._end_error is not None:  # it ended after there was room
            self._end(self._end_error, "the client was closed")

    def _refuse(self, _append: PendingAppend) -> bool:
        assert self._end_error is not None
        raise self._unsent(self._end_error)

    def _wake(self) -> None:
        self._signals.work.set()
        self._signals.paced.set()

    @property
    def ready(self) -> bool:
        """Whether a mount is ready, so the owner accepts appends."""
        return self._serving is not None

    def default_mark(self) -> tuple[int | None, bool]:
        """The mark of an append whose caller gives none: the last transaction that all followers have applied, or the highest that this client knows
        to be committed. And whether the client's own writes count as known (`PendingAppend`)."""
        if self.followers:
            return min(follower.applied for follower in self.followers), False
        return self.window.known_mark if self.mounts else None, True

    @property
    def known_mark(self) -> int:
        """The highest transaction id known to be committed."""
        return self.window.known_mark

    async def ended(self) -> WaltzError:
        """Returns when the producer has ended, with the reason."""
        if self._task is not None:
            await self._task.wait_over()
        return self._end_error or Unavailable(reason=f"the producer is closed: partition={self.partition}")

    async def mounted(self, deadline: float) -> None:
        """Returns when a mount is ready and everything from earlier mounts is decided. Raises the error that ended the producer, or `Unavailable`."""
        if self._end_error is not None:
            raise self._end_error
        if self._serving is not None:
            return
        waiter: asyncio.Future[None] = self.loop.create_future()
        self._mount_waiters.append(waiter)
        self._signals.work.set()
        try:
            async with asyncio.timeout_at(deadline):
                await waiter
        except TimeoutError:
            raise Unavailable(reason=f"no mount before the deadline: partition={self.partition} last={self._reason}") from None

    async def settle(self, sequence: int, deadline: float) -> None:
        """Returns when the owner has decided the sequence with any outcome: in this mount, or because this mount fenced the one on which it was
        sent."""
        while True:
            await self.mounted(deadline)
            serving = self._serving
            if serving is None:
                continue
            if sequence < serving.first_sequence:
                return
            try:
                await serving.flushed(deadline)
                return
            except TimeoutError:
                raise Unavailable(reason=f"not decided before the deadline: partition={self.partition}") from None
            except WaltzError:
                # The stream ended; the next mount decides it.
                await asyncio.sleep(0)

    async def flush(self) -> None:
        """Returns when all earlier appends are decided, and the committed ones are on disk. Raises `Unavailable` if a receipt reported a transaction
        as received (`Receipt.durability`) and the connection broke before it was known to be on disk."""
        undecided = self.window.undecided()
        if undecided:
            await asyncio.wait(undecided)
        serving, received = self._serving, self.window.received_mark
        if received > self.known_mark and serving is not None:
            with suppress(TimeoutError, WaltzError):
                await serving.flushed(self.loop.time() + self._settings.request_timeout_s)
        doubtful, self._doubtful = self._doubtful, False
        if received > self.known_mark and (serving is None or self._serving is not serving):
            self.window.forget_received()  # reported once
        if received > self.known_mark or doubtful:
            log.warning("received transactions not confirmed on disk", partition=self.partition, known_mark=self.known_mark)
            raise Unavailable(reason=f"received appends are not known to be on disk: partition={self.partition} known_mark={self.known_mark}")

    async def close(self) -> None:
        """Appends in flight fail with `OutcomeUnknown`, those that were never sent with `NotAppended`."""
        self._end(InvalidRequest(reason="the client is closed"), "the client was closed")
        if self._task is not None:
            await self._task.end()
            self._task = None

    def _end(self, error: WaltzError, reason: str) -> None:
        self._end_error = self._end_error or error
        self.try_enqueue = self._refuse
        self._give_up(Unavailable(reason=reason) if isinstance(error, InvalidRequest) else error)

    def _unsent(self, error: WaltzError) -> WaltzError:
        """The error of a transaction that was never sent, if `error` ended the producer or prevented a mount. An outbox gets `error` itself, because
        it sends the transaction again in its next session."""
        if self._sending is not None or isinstance(error, BelongsToTopic | InvalidRequest | NotAllowed | ClusterKeyMismatch):
            return error
        return NotAppended(partition=self.partition, reason=f"never sent: {error.reason if type(error) is Unavailable else error}")

    def _give_up(self, error: WaltzError) -> None:
        self.window.fail(error, self.client_id, self._unsent(error))
        waiters, self._mount_waiters = self._mount_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(error)
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self.window.next_deadline = None, math.inf

    # ---- deadlines -----------------------------------------------------------------------------------------------------------------------------

    def _watch_deadline(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self.window.next_deadline = self.loop.call_at(deadline, self._expire), deadline

    def _expire(self) -> None:
        self._timer, self.window.next_deadline = None, math.inf
        earliest = self.window.expire(self.loop.time(), self.client_id, str(self._reason) if self._serving is None else "no answer yet")
        if earliest < math.inf:
            self._watch_deadline(max(earliest, self.loop.time() + EXPIRE_PAUSE_S))

    # ---- the task ------------------------------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            if not self.window.pending and not self._mount_waiters:
                self._signals.work.clear()
                self.window.awaited_bytes = 0
                await self._signals.work.wait()
            if self._sending is not None and self._used_up:
                # Its creator creates another producer with another client id.
                self._end(Unavailable(reason="sequences are used up"), "sequences are used up")
                return
            stream: MountStream | None = None
            wait_s = 0.0
            try:
                stream, mounted = await self._mount()
                await self._settle_in_flight(mounted.address)
                await self._serve(stream, mounted)
            except Fenced as error:
                if error.what == "mount" and error.newer > self._mount_sequence:
                    if self._sending is not None or not is_resolving(error.newer):
                        # Another process acts as this client: a copy of an outbox, or a client id that was assigned twice. The newer one continues.
                        self._end(error, str(error))
                        return
                    # Another process resolved an outcome that this one reported as unknown. This one never sends that append again, so it continues.
                    self._mount_sequence = recovering_above(error.newer)
                self._reason = error
            except (BelongsToTopic, ClusterKeyMismatch, NotAllowed, TopicDeleted) as error:
                self._reason = error
                self._give_up(error)
            except StorageFull as error:
                # Unsent appends fail as they would on a mount. Appends in flight wait for room, like the blocks that contain them.
                self._reason = error
                self.window.refuse_unsent()
            except QuotaExceeded as error:
                self._reason = self.window.over_quota = error
                wait_s = error.retry_after_s
            except OutOfRange as error:
                self._reason = error
                if error.asked < error.first:
                    self._mount_mark = error.first - 1
            except WaltzError as error:
                self._reason = error
                if isinstance(error, CorruptData | ProtocolViolation):
                    self._invalid_streams += 1
            finally:
                if self._serving is not None:
                    self._disconnected()
                self._serving = None
                if stream is not None:
                    await stream.cancel()
            await self._owners.wait_changed(max(wait_s, self._backoff.next_s()))

    @property
    def _sequence_last(self) -> int:
        return self.sequence_max - self._settings.max_pending

    @property
    def _used_up(self) -> bool:
        return self.window.next_sequence > self._sequence_last

    def next_mount_sequence(self) -> int:
        """Higher than all that this producer used. For a mount that settles outcomes before the producer's own first mount."""
        self._mount_sequence += 1
        return self._mount_sequence

    async def _mount(self) -> tuple[MountStream, Mounted]:
        """Mounts. When the owner has answered that the stream is ready, everything that this client sent before is decided."""
        if (self._used_up or not self.client_id) and not self.window.frames:
            acquire = self._owners.next_client_id if self._used_up or self._first_client_id is None else self._first_client_id
            try:
                self.client_id = await acquire()
            except PermissionDenied as error:
                raise error.naming(f"log:{self.partition}" if self._topic is None else self._topic.name) from None
            self.window.begin_sequences()
            self._mount_sequence = 0
        self.window.ticket = self._owners.ticket_of(self.client_id)
        timeout_s = self._settings.request_timeout_s
        address = await self._owners.owner(self.partition, timeout_s)
        assigned = self._owners.generation(self.partition)
        mark = max(self._mount_mark, self.known_mark)  # must be within the log: the first retained id, or the highest known to be committed
        mine = (self.partition, self.client_id, self.next_mount_sequence(), mark)
        # An outbox deletes an intent when it gets the receipt, so its receipts must come only after the log has synced.
        stream, answer = await mount_for_appends(self._owners, address, *mine, timeout_s, on_disk=self._sending is not None, topic=self._topic)
        self._doubtful = self.window.forget_received() or self._doubtful
        self.window.raise_known_mark(answer.high_water_mark)
        self.window.over_quota = None
        self.window.limit_frames(answer.frame_transactions_max, answer.frame_bytes_max)
        self.mounts += 1
        return stream, Mounted(self.client_id, answer.generation, address, assigned, self._sequence_last, self._owners.principal)

    async def _settle_in_flight(self, address: str) -> None:
        """Settles appends that an earlier mount left undecided: each is found in the log, or put back to be sent again."""
        frames = self.window.frames
        if not frames:
            return
        last = frames[-1].first_sequence + frames[-1].count - 1
        key, timeout_s = self._owners.parameters.key.bytes, self._settings.request_timeout_s
        search = SequenceQuery(self.partition, self.client_id, frames[0].first_sequence, last, frames[0].since, key, self.window.ticket)
        channel = self._owners.call_channel(address)
        while True:
            answer = await channel.call(RESOLVE, search.question(timeout_s), timeout_s=timeout_s)
            self.window.raise_known_mark(answer.high_water_mark)
            if search.add_answer(answer):
                break
            if search.contiguous:
                self.window.searched(search.committed, search.since)
        if not search.final:
            raise NotOwner(partition=self.partition, reason="appends in flight are not decided yet")
        self.window.resend(search.committed, self._reason if self._invalid_streams >= INVALID_STREAMS_MAX else None)

    async def _serve(self, stream: MountStream, mounted: Mounted) -> None:
        """Serves the stream until it ends, which is always with an error."""
        serving = AppendStream(
            stream, mounted, self.window, self._signals, self._owners, self._settings, answered=self._answered, sending=self._sending
        )
        self._serving = serving
        if self._lost_s is not None:
            self._incidents.restored(self.partition, self.loop.time(), self.loop.time() - self._lost_s, self.window.pending)
            self._lost_s = None
        waiters, self._mount_waiters = self._mount_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        await serving.serve()

    def _answered(self) -> None:
        self._backoff.reset()
        self._invalid_streams = 0
        now_s = self.loop.time()
        storm = self._storm.judge(now_s, self.window.rejected, self.window.committed)
        if storm is not None:
            self._incidents.storm(self.partition, now_s, *storm)

    def _disconnected(self) -> None:
        if self._end_error is None:
            self.disconnects += 1
            self._lost_s = self.loop.time()
            self._incidents.lost(self.partition, self._lost_s, str(self._reason), self.window.pending)

    def statistics(self) -> ClientPartitionStatistics:
        """A snapshot. May be read by any thread."""
        window = self.window
        return ClientPartitionStatistics(
            mounted=self._serving is not None,
            pending=window.pending,
            pending_bytes=window.pending_bytes,
            in_flight=sum(frame.left for frame in list(window.frames)),
            appended=window.committed,
            rejected=window.rejected,
            not_appended=window.not_appended,
            unknown=window.unknown,
            frames=window.packed,
            mounts=self.mounts,
            disconnects=self.disconnects,
        )
