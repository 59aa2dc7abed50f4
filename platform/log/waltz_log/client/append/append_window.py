"""The undecided appends of one client in one partition: a bounded queue of appends to send, and the frames in flight. Sets their outcomes.

A sequence is assigned when its frame is packed. So each sending encodes the transaction again, with the generation of that time and a new sequence,
but with the same marks and locks. All frames in flight belong to one mount. This module uses no network and no task. A single append has a future and
a `PendingAppend`; rows of bulk appends are kept as ranges.

An append is settled once. If its caller gave it up, or its deadline passed, it is skipped from then on and never sent again.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from typing import Any  # Future is invariant

from waltz_log.client.append.pending_append import PendingAppend
from waltz_log.client.append.pending_rows import PendingRows, RowOutcomes, UnsentRows
from waltz_log.client.append.rows import Rows
from waltz_log.client.append.sent_frame import SentAppends, SentFrame, SentPart, SentRows, Unknown
from waltz_log.client.append.unsent import Unsent, count_of, counted, fail, is_done
from waltz_log.client.base.fifo_waiters import FifoWaiters
from waltz_log.client.transactions.transaction import Receipt
from waltz_log.core.locks.lock_columns import TURN_MARK
from waltz_log.core.topics.catalogue import Durability
from waltz_log.errors import InvalidRequest, LockConflict, NotAppended, OutcomeUnknown, ProtocolViolation, QuotaExceeded, WaltzError
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.large_messages import AppendColumns

__all__ = ["STORAGE_FULL", "AppendWindow"]

AWAITED_PART = 8
"""If there is no room for rows, they wait until an eighth of the window is free, so they are not admitted one by one."""

EXPIRED_UNSENT = "deadline passed before it was sent"

STORAGE_FULL = "storage is full"
"""The reason of a `NotAppended`: no majority of the replicas has room. It can end without an action of the caller."""


class AppendWindow:
    def __init__(
        self,
        partition: int,
        *,
        max_pending: int,
        max_pending_bytes: int,
        frame_bytes: int,
        overlap_bytes: int,
        awaited: Callable[[], None] = lambda: None,
        due: Callable[[float], None] = lambda _: None,
    ) -> None:
        """`awaited`: called when the queue has reached `awaited_bytes`. `due`: called with a deadline that is before `next_deadline`."""
        self.partition = partition
        self.ticket = ""
        """For the client id that frames are sent under; set by the owner of the window."""
        self._awaited = awaited
        self._due = due
        self.awaited_bytes: float = 0
        """How many bytes the sending task waits for in the queue; infinity if it does not wait for any. Set by the task before it waits."""
        self.next_deadline = math.inf
        """When `expire` is called next, on the loop's clock. Kept by the owner of the window."""
        self._max_pending = max_pending
        self._max_pending_bytes = max_pending_bytes
        self._frame_bytes = frame_bytes
        self._overlap_bytes = min(overlap_bytes, frame_bytes)
        self.queue: deque[Unsent] = deque()
        self.queue_bytes = 0
        self.frames: deque[SentFrame] = deque()
        self.pending = 0
        self.pending_bytes = 0
        self.committed = self.rejected = self.not_appended = self.unknown = self.packed = 0
        """Numbers of appends by outcome, and of frames, only for statistics."""
        self.next_sequence = 1
        self._answered_sequence = 0
        """The highest sequence that the owner has answered. It has decided the frame of this sequence and all frames before it."""
        self.known_mark = -1
        """The highest transaction id known to be committed."""
        self.over_quota: QuotaExceeded | None = None
        """The newest refusal, while it delays what is not sent yet: until the owner has accepted appends for a second without another one."""
        self._batch_transactions = self._batch_bytes = 0
        self.received_mark = -1
        """The highest transaction id that was reported as received by a majority before it was on disk."""
        self._waiters = FifoWaiters[tuple[int, int]](self._fits, self._reserve, lambda amount: self._release(*amount))
        self._waiting = self._waiters.queue
        self.traced: dict[object, bytes] = {}
        """Trace contexts: by the future of a single append, or by the bulk append."""

    def limit_frames(self, transactions: int, size: int) -> None:
        """Limits frames of several transactions, because a quota allows no more at once. `size`: bytes. 0: no limit."""
        self._batch_transactions, self._batch_bytes = transactions, size

    def forget_received(self) -> bool:
        """Returns whether transactions were reported as received that are not known to be on disk. After the call, no answer will confirm them."""
        doubtful, self.received_mark = self.received_mark > self.known_mark, -1
        return doubtful

    def begin_sequences(self) -> None:
        """Restarts sequences, for another client id. Nothing may be in flight."""
        self.next_sequence, self._answered_sequence = 1, 0

    def lacks_answers(self, count: int) -> bool:
        """Whether none of the last `count` frames has an answer. A frame that only waits for turns at locks counts until a later one is answered."""
        return len(self.frames) >= count and self.frames[-count].first_sequence > self._answered_sequence

    @property
    def sendable_bytes(self) -> int:
        """The queue size in bytes from which the next frame is sent before an answer: any if the last frame has its answer, enough for an
        overlapping one if it has none, and a full frame if the last two have none."""
        if not self.lacks_answers(1):
            return 0
        return self._frame_bytes if self.lacks_answers(2) else self._overlap_bytes

    def holds_back(self) -> bool:
        """Whether the next frame should wait for an answer, so that more appends share it."""
        return self.queue_bytes < self.sendable_bytes

    def raise_known_mark(self, mark: int) -> None:
        if mark > self.known_mark:
            self.known_mark = mark

    # ---- in ------------------------------------------------------------------------------------------------------------------------------------

    def try_enqueue(self, append: PendingAppend) -> bool:
        """Enqueues the append if there is room for it now. Returns whether there is."""
        size = append.size
        pending, pending_bytes = self.pending, self.pending_bytes + size
        if self._waiting or (pending and (pending >= self._max_pending or pending_bytes > self._max_pending_bytes)):
            return False
        self.pending = pending + 1
        self.pending_bytes = pending_bytes
        self.queue.append(append)
        self.queue_bytes = queued = self.queue_bytes + size
        if queued >= self.awaited_bytes or append.deadline < self.next_deadline:
            self._queued(append.deadline)
        return True

    async def enqueue(self, append: PendingAppend) -> None:
        """Enqueues the append as soon as there is room, in the order of the calls. Raises `NotAppended` at its deadline."""
        await self._wait((1, append.size), append.deadline)
        self.queue.append(append)
        self.queue_bytes += append.size
        self._queued(append.deadline)

    def _queued(self, deadline: float) -> None:
        if self.queue_bytes >= self.awaited_bytes:
            self.awaited_bytes = math.inf
            self._awaited()
        if deadline < self.next_deadline:
            self._due(deadline)

    @property
    def room(self) -> tuple[int, int]:
        """How many more transactions and bytes the window can hold."""
        return (0, 0) if self._waiting else (self._max_pending - self.pending, self._max_pending_bytes - self.pending_bytes)

    def fitting(self, rows: Rows, start: int) -> int:
        """For how many rows from `start` there is room now."""
        if self._waiting:
            return 0
        count = min(rows.count - start, self._max_pending - self.pending)
        if count > 0:
            count = rows.fitting(start, start + count, self._max_pending_bytes - self.pending_bytes)
        return max(count, 0 if self.pending else 1)

    def rows_to_await(self, rows: Rows, start: int) -> int:
        """If there is no room for a row: how many rows from `start` should wait together."""
        count = min(rows.count - start, max(1, self._max_pending // AWAITED_PART))
        return max(1, rows.fitting(start, start + count, self._max_pending_bytes // AWAITED_PART))

    def add_rows(self, pending: PendingRows) -> None:
        """Enqueues rows that fit now."""
        self._reserve((pending.count, pending.size))
        self._queue_rows(pending)

    async def enqueue_rows(self, pending: PendingRows) -> None:
        """Like `enqueue`, for all of the rows together."""
        await self._wait((pending.count, pending.size), pending.deadline)
        self._queue_rows(pending)

    def _queue_rows(self, pending: PendingRows) -> None:
        self.queue.append(UnsentRows(pending, pending.start, pending.stop, pending.mark))
        self.queue_bytes += pending.size
        self._queued(pending.deadline)

    async def _wait(self, amount: tuple[int, int], deadline: float) -> None:
        try:
            await self._waiters.wait(amount, deadline)
        except TimeoutError:
            raise self._expired_error("no room in the window before the deadline") from None

    def _fits(self, amount: tuple[int, int]) -> bool:
        if self.pending == 0:
            return True
        return self.pending + amount[0] <= self._max_pending and self.pending_bytes + amount[1] <= self._max_pending_bytes

    def _reserve(self, amount: tuple[int, int]) -> None:
        self.pending += amount[0]
        self.pending_bytes += amount[1]

    def _release(self, count: int, size: int) -> None:
        self.pending -= count
        self.pending_bytes -= size
        if self._waiting:
            self._waiters.admit()

    # ---- out -----------------------------------------------------------------------------------------------------------------------------------

    def pack(self, client_id: int, generation: int, since: int, now: float) -> AppendColumns | None:
        """Packs the next frame, up to `frame_bytes` and at least one transaction, in the order of the calls; None if nothing is left to send.
        `since`: the mark that the client knows; `now`: on the loop's clock."""
        runs, size = self._pop_unsent(now)
        if not runs:
            return None
        parts: list[SentPart] = []
        for run in runs:
            parts.append(SentAppends(self.next_sequence, run, since) if isinstance(run, list) else SentRows(self.next_sequence, run, since))
            self.next_sequence += parts[-1].count
        self.queue_bytes -= size
        frame = SentFrame(parts, since, size, now)
        self.frames.append(frame)
        self.packed += 1
        columns = frame.columns(client_id, generation, self.partition)
        return columns._replace(traces=frame.traces(self.traced)) if self.traced else columns

    def _pop_unsent(self, now: float) -> tuple[list[list[PendingAppend] | UnsentRows], int]:
        """The contents of the next frame, single appends in runs, and its size. Drops appends that their caller gave up, and those whose deadline
        has passed. If everything pending waits here and is enough for two frames, the frame holds half of it: an application may wait for answers
        before it submits more, and then the client and the owner would wait for each other."""
        queue, limit = self.queue, min(self._frame_bytes, self._batch_bytes or self._frame_bytes)
        if not self.lacks_answers(1) and self.pending_bytes >= 2 * self._overlap_bytes:
            limit = min(limit, self.pending_bytes // 2)
        left = self._batch_transactions or self._max_pending + 1
        if queue and self.queue_bytes <= limit and len(queue) <= left:  # usually the queue has only single appends, and all of them are to be sent
            sendable = [append for append in queue if type(append) is PendingAppend and append.deadline > now and not append.future.done()]
            if len(sendable) == len(queue):
                queue.clear()
                return [sendable], self.queue_bytes
        runs: list[list[PendingAppend] | UnsentRows] = []
        total = 0
        while queue and left:
            head = queue[0]
            if isinstance(head, UnsentRows):
                first = self._cut(head, limit - total, left, now, whole=not total)
                if first is not None:
                    total += first.size
                    left -= first.count
                    runs.append(first)
                if queue and queue[0] is head:
                    break
                continue
            if total and total + head.size > limit:
                break
            appends, total = self._pop_appends(limit, total, left, now)
            if appends:
                left -= len(appends)
                runs.append(appends)
        return runs, total

    def _pop_appends(self, limit: int, total: int, count: int, now: float) -> tuple[list[PendingAppend], int]:
        """A run of single appends from the head of the queue, at most `count`, and the size of the frame with them; `total`: without them."""
        queue, popleft = self.queue, self.queue.popleft
        appends: list[PendingAppend] = []
        for _ in range(min(count, len(queue))):
            append = queue[0]
            if type(append) is not PendingAppend:
                break
            size = append.size
            if total + size > limit and total:
                break
            popleft()
            if append.deadline <= now or append.future.done():
                self._drop(append)
            else:
                total += size
                appends.append(append)
        return appends, total

    def _drop(self, append: PendingAppend) -> None:
        """Fails an append that left the queue too late, or that its caller cancelled."""
        fail(append, self._expired_error(EXPIRED_UNSENT))
        self.queue_bytes -= append.size
        self._release(1, append.size)

    def _expired_error(self, reason: str) -> NotAppended:
        """The error of a transaction that was not sent before its deadline."""
        return NotAppended(partition=self.partition, reason=reason) if self.over_quota is None else copy(self.over_quota)

    def _cut(self, rows: UnsentRows, limit: int, count: int, now: float, *, whole: bool) -> UnsentRows | None:
        """Removes rows from the head of the queue, at most `limit` bytes and `count` rows. None if none fits, or none is to be sent. `whole`: one row
        always fits."""
        if rows.deadline <= now:
            rows.fail(self._expired_error(EXPIRED_UNSENT))
        if rows.done:
            self.queue.popleft()
            self.queue_bytes -= rows.size
            self._release(rows.count, rows.size)
            return None
        first = rows.cut(limit, count) or (rows.cut_rows(1) if whole else None)
        if first is rows:
            self.queue.popleft()
        return first

    # ---- answers -------------------------------------------------------------------------------------------------------------------------------

    def commit(self, first: int, count: int, transaction_id: int, append_time_ms: int, durability: Durability = "quorum_sync") -> None:
        """Settles `count` sequences from `first`: they are in the log under consecutive ids from `transaction_id`. Raises `ProtocolViolation` for a
        sequence that is not in flight."""
        self._answered_sequence = max(self._answered_sequence, first + count - 1)
        if self._settle_committed(first, count, transaction_id, append_time_ms, durability) != count:
            raise ProtocolViolation(reason=f"answer for appends that are not in flight: partition={self.partition} sequence={first} count={count}")
        self._retire()

    def _settle_committed(self, first: int, count: int, transaction_id: int, append_time_ms: int, durability: Durability = "quorum_sync") -> int:
        """Settles those of the sequences that are in flight and undecided. Returns how many."""
        end = first + count
        settled = 0
        for frame in self.frames:
            if first < frame.first_sequence + frame.count and frame.first_sequence < end:
                settled += frame.commit(first, end, self.partition, transaction_id, append_time_ms, durability)
        self.committed += settled
        return settled

    def reject(self, sequence: int, winner: int) -> None:
        if self._decide(sequence, LockConflict(partition=self.partition, winner=winner)) != TURN_MARK:
            self.rejected += 1

    def refuse(self, sequence: int, reason: int) -> bool:
        """The server refused to order the transaction. False: for another reason than those that end an append, so the next mount settles it."""
        if reason == pb.REFUSAL_STORAGE_FULL:
            self._decide(sequence, NotAppended(partition=self.partition, reason=STORAGE_FULL))
            self.not_appended += 1
        elif reason == pb.REFUSAL_TOO_LARGE:
            self._decide(sequence, InvalidRequest(reason=f"transaction larger than the server's limit: partition={self.partition}"))
        else:
            return False
        return True

    def refuse_mark(self, sequence: int, newest: int) -> None:
        """The owner refused the transaction because its mark is above `newest`, the highest transaction id that existed."""
        _, part, at = self._find(sequence)
        reason = f"high-water mark is above the log: partition={self.partition} high_water_mark={part.mark_of(at)} newest={newest}"
        self._decide(sequence, InvalidRequest(reason=reason))

    def _find(self, sequence: int) -> tuple[SentFrame, SentPart, int]:
        """The frame and the part of a sequence that is not answered, and its index in the part. Raises `ProtocolViolation`."""
        for frame in self.frames:
            if 0 <= sequence - frame.first_sequence < frame.count and (found := frame.find(sequence)) is not None:
                return frame, *found
        raise ProtocolViolation(reason=f"answer for appends that are not in flight: partition={self.partition} sequence={sequence}")

    def _decide(self, sequence: int, error: WaltzError) -> int | None:
        """Fails the append. Returns its mark."""
        self._answered_sequence = max(self._answered_sequence, sequence)
        frame, part, at = self._find(sequence)
        mark = part.mark_of(at)
        part.fail(at, error)
        frame.left -= 1
        if frame.left == 0:
            self._retire()
        return mark

    def _retire(self) -> None:
        frames = self.frames
        while frames and frames[0].left == 0:
            frame = frames.popleft()
            self._release(frame.count, frame.size)

    def give_back(self, sequence: int) -> None:
        """The owner refused the frame that begins with the sequence, and drops the frames after it, because a quota is exceeded. All of them go back
        to the head of the queue, in order. Raises `ProtocolViolation` if no such frame is in flight."""
        frames = self.frames
        if not any(frame.first_sequence == sequence for frame in frames):
            raise ProtocolViolation(reason=f"refusal of appends that are not in flight: partition={self.partition} sequence={sequence}")
        refused: deque[SentFrame] = deque()
        while not refused or refused[0].first_sequence != sequence:
            refused.appendleft(frames.pop())
        self._requeue(refused, None)

    # ---- after another mount -------------------------------------------------------------------------------------------------------------------

    def searched(self, found: Iterable[tuple[int, ...]], searched_to: int) -> None:
        """The log up to `searched_to` was searched for the sequences in flight. `since` rises, so later searches for them do not repeat it."""
        for first, count, transaction_id in found:
            self._settle_committed(first, count, transaction_id, 0)
        self._retire()
        for frame in self.frames:
            frame.since = max(frame.since, searched_to)

    def resend(self, found: Iterable[tuple[int, ...]], failure: WaltzError | None) -> None:
        """Everything in flight is decided: `found` (first sequence, count, first id) is in the log. All other appends never will be, and go back to
        the head of the queue, in order. If a rejection was lost in transit, the append is rejected again, because its mark stays and the last writers
        of locks only increase. `failure`: the server refused these bytes, so the appends fail and are not sent again."""
        for first, count, transaction_id in found:
            self._settle_committed(first, count, transaction_id, 0)  # some were answered before the connection broke
        self._retire()
        frames, self.frames = self.frames, deque()
        self._requeue(frames, None if failure is None else NotAppended(partition=self.partition, reason=str(failure)))

    def _requeue(self, frames: Iterable[SentFrame], refused: NotAppended | None) -> None:
        """Puts appends without an outcome back into the queue. `refused`: fails them with this error instead."""
        again = [unsent for frame in frames for part in frame.parts for unsent in part.give_back(refused)]
        again_bytes = sum(unsent.size for unsent in again)
        self.queue.extendleft(reversed(again))
        self.queue_bytes += again_bytes
        dropped = sum(frame.count for frame in frames) - sum(count_of(unsent) for unsent in again)
        self._release(dropped, sum(frame.size for frame in frames) - again_bytes)

    # ---- giving up -----------------------------------------------------------------------------------------------------------------------------

    def expire(self, now: float, client_id: int, reason: str) -> float:
        """Fails appends whose deadline has passed, as not appended if they were never sent, otherwise as unknown. Returns the next deadline, or
        infinity."""
        earliest = math.inf
        late = 0
        for unsent in self.queue:
            if not is_done(unsent) and unsent.deadline <= now:
                self.not_appended += counted(unsent)
                fail(unsent, self._expired_error(f"{EXPIRED_UNSENT}: {reason}"))
            if is_done(unsent):
                late += 1
            else:
                earliest = min(earliest, unsent.deadline)
        if late:
            self._drop_done()
        for frame in self.frames:
            for part in frame.parts:
                earliest = min(earliest, part.expire(now, self.partition, self._unknown_of(client_id, frame.since, f"deadline passed: {reason}")))
        return earliest

    def refuse_unsent(self) -> None:
        """Fails all appends that were never sent with `NotAppended`, because the storage is full."""
        for unsent in self.queue:
            self.not_appended += 0 if is_done(unsent) else counted(unsent)
            fail(unsent, NotAppended(partition=self.partition, reason=STORAGE_FULL))
        self._drop_done()

    def _drop_done(self) -> None:
        kept: deque[Unsent] = deque()
        count = dropped_bytes = 0
        for unsent in self.queue:
            if is_done(unsent):
                count += count_of(unsent)
                dropped_bytes += unsent.size
            else:
                kept.append(unsent)
        self.queue = kept
        self.queue_bytes -= dropped_bytes
        self._release(count, dropped_bytes)

    def give_up(self, outcomes: RowOutcomes) -> None:
        """Gives up all rows of that call: unsent rows are never sent, and no outcomes are reported for the sent ones."""
        for _, _, sent in [*self.undecided_sent()]:
            if isinstance(sent, UnsentRows) and sent.pending.outcomes is outcomes:
                sent.pending.give_up()
        for unsent in self.queue:
            if isinstance(unsent, UnsentRows) and unsent.pending.outcomes is outcomes:
                unsent.pending.give_up()

    def fail(self, error: WaltzError, client_id: int, unsent: WaltzError) -> None:
        """`error` ends all appends: those in flight fail with `OutcomeUnknown`, those that were never sent with `unsent`."""
        frames, self.frames = self.frames, deque()
        queue, queue_bytes, self.queue, self.queue_bytes = self.queue, self.queue_bytes, deque(), 0
        self.pending -= sum(map(count_of, queue)) + sum(frame.count for frame in frames)
        self.pending_bytes -= queue_bytes + sum(frame.size for frame in frames)
        for frame in frames:
            for part in frame.parts:
                part.expire(math.inf, self.partition, self._unknown_of(client_id, frame.since, str(error)))
        for each in queue:
            self.not_appended += counted(each) if isinstance(unsent, NotAppended) and not is_done(each) else 0
            fail(each, copy(unsent))
        self._waiters.fail(unsent)

    def _unknown_of(self, client_id: int, since: int, reason: str) -> Unknown:
        return lambda sequence, count: self._unknown(client_id, sequence, since, reason, count)

    def _unknown(self, client_id: int, sequence: int, since: int, reason: str, count: int = 1) -> OutcomeUnknown:
        self.unknown += count
        where, ticket = self.partition, self.ticket
        return OutcomeUnknown(partition=where, client_id=client_id, sequence=sequence, since=since, reason=reason, count=count, ticket=ticket)

    def sent(self, sequences: Iterable[int]) -> list[asyncio.Future[Receipt]]:
        """The futures of the given sequences that are in flight and undecided. Rows of bulk appends have no futures."""
        found = []
        for sequence in sequences:
            for frame in self.frames:
                if 0 <= sequence - frame.first_sequence < frame.count and (place := frame.find(sequence)) is not None:
                    part, at = place
                    if isinstance(part, SentAppends) and (append := part.appends[at]) is not None:
                        found.append(append.future)
        return found

    def undecided_sent(self) -> Iterator[tuple[int, int, Unsent]]:
        """All sent appends without an outcome, in order: sequence (of rows: the first one), `SentFrame.since`, and the append or the rows."""
        for frame in self.frames:
            for part in frame.parts:
                for sequence, unsent in part.undecided():
                    yield sequence, frame.since, unsent

    def undecided_unsent(self) -> Iterator[Unsent]:
        """The appends that wait to be sent, or to be sent again, in order."""
        return (unsent for unsent in self.queue if not is_done(unsent))

    def undecided(self) -> list[asyncio.Future[Any]]:
        """Futures of all appends that have no outcome now, in order. Each is done when its append has one."""
        unsettled = (*(sent for _, _, sent in self.undecided_sent()), *self.undecided_unsent())
        return [each.future if isinstance(each, PendingAppend) else each.pending.decided() for each in unsettled]
