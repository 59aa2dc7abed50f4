"""What one partition's appends wait for: a bounded queue of what is to be sent, and the frames in flight. Decides the outcome of each append.

Sequences are assigned when a frame is packed, so a transaction is encoded once per sending with the generation that then holds, and a resend is a
new decision under a new sequence with the same marks and locks. Frames in flight are all of one mount. Knows no network and no task;
nothing is made per transaction but the future and the `PendingAppend` of a single append. Rows of bulk appends are kept as ranges.

An append is settled once: one that its caller gave up, or whose deadline passed, is skipped from then on and never sent again.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Iterable, Iterator
from copy import copy
from typing import Any  # Future is invariant

from waltz_log.client.append.pending_append import PendingAppend
from waltz_log.client.append.pending_rows import PendingRows, RowOutcomes, UnsentRows
from waltz_log.client.append.rows import Rows
from waltz_log.client.append.sent_frame import SentAppends, SentFrame, SentPart, SentRows, Unknown, Unsent
from waltz_log.client.base.fifo_waiters import FifoWaiters
from waltz_log.client.transactions.transaction import Receipt
from waltz_log.core.locks.locks import TURN_MARK
from waltz_log.core.topics.catalogue import Durability
from waltz_log.errors import InvalidRequest, LockConflict, NotAppended, OutcomeUnknown, ProtocolViolation, QuotaExceeded, WaltzError
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.large_messages import AppendColumns

__all__ = ["STORAGE_FULL", "AppendWindow"]

HALVED_BYTES = 64 * 1024
"""Where more than twice this is pending a frame holds half of it at most."""

ADMITTED_PART = 8
"""Rows that find no room wait for an eighth of the window, so that they are not admitted one by one."""

LATE_UNSENT = "deadline passed before it was sent"

STORAGE_FULL = "storage is full"
"""The reason of a `NotAppended` that can pass without action: no majority of the replicas has room."""


class AppendWindow:
    def __init__(self, partition: int, *, max_pending: int, max_pending_bytes: int, frame_bytes: int) -> None:
        self.partition = partition
        self._max_pending = max_pending
        self._max_pending_bytes = max_pending_bytes
        self._frame_bytes = frame_bytes
        self.queue: deque[Unsent] = deque()
        self.queue_bytes = 0
        self.frames: deque[SentFrame] = deque()
        self.pending = 0
        self.pending_bytes = 0
        self.committed = self.rejected = self.not_appended = self.unknown = 0
        """Appends by outcome, for statistics alone."""
        self.next_sequence = 1
        self._heard = 0
        """The highest sequence that the owner answered for: it has judged all frames up to that one's."""
        self.known_mark = -1
        """The highest transaction id known to be committed."""
        self.over_quota: QuotaExceeded | None = None
        """Why nothing is sent now; None: no quota is exceeded."""
        self._batch_transactions = self._batch_bytes = 0
        self.received_mark = -1
        """The highest that was reported as received by a majority, before it was on disk."""
        self._waiters = FifoWaiters[tuple[int, int]](self._fits, self._reserve, lambda amount: self._release(*amount))
        self._waiting = self._waiters.queue
        self.traced: dict[object, bytes] = {}
        """The trace contexts of appends by their future, and of bulk appends."""

    def limit_frames(self, transactions: int, size: int) -> None:
        """The most that a frame of several transactions holds, because a quota allows no more at once; 0: no limit."""
        self._batch_transactions, self._batch_bytes = transactions, size

    def forget_received(self) -> bool:
        """Whether something was reported as received of which it will not be known any more that it is on disk."""
        doubtful, self.received_mark = self.received_mark > self.known_mark, -1
        return doubtful

    def begin_sequences(self) -> None:
        """Another client id counts from the beginning. Nothing is in flight."""
        self.next_sequence, self._heard = 1, 0

    def unheard(self, count: int) -> bool:
        """Whether the owner has said nothing yet about the last `count` frames. A frame that only waits for turns at locks does not count."""
        return len(self.frames) >= count and self.frames[-count].first_sequence > self._heard

    def raise_known_mark(self, mark: int) -> None:
        if mark > self.known_mark:
            self.known_mark = mark

    # ---- in ------------------------------------------------------------------------------------------------------------------------------------

    def try_enqueue(self, append: PendingAppend) -> bool:
        """Enqueues the append where there is room for it now."""
        size = append.size
        pending, pending_bytes = self.pending, self.pending_bytes + size
        if self._waiting or (pending and (pending >= self._max_pending or pending_bytes > self._max_pending_bytes)):
            return False
        self.pending = pending + 1
        self.pending_bytes = pending_bytes
        self.queue.append(append)
        self.queue_bytes += size
        return True

    async def enqueue(self, append: PendingAppend) -> None:
        """Enqueues the append once there is room, in the order of asking. Raises `NotAppended` at its deadline."""
        await self._wait((1, append.size), append.deadline)
        self.queue.append(append)
        self.queue_bytes += append.size

    @property
    def room(self) -> tuple[int, int]:
        """Transactions and bytes."""
        return (0, 0) if self._waiting else (self._max_pending - self.pending, self._max_pending_bytes - self.pending_bytes)

    def fitting(self, rows: Rows, start: int) -> int:
        """How many rows from `start` there is room for now."""
        if self._waiting:
            return 0
        count = min(rows.count - start, self._max_pending - self.pending)
        if count > 0:
            count = rows.fitting(start, start + count, self._max_pending_bytes - self.pending_bytes)
        return max(count, 0 if self.pending else 1)

    def wanted(self, rows: Rows, start: int) -> int:
        """How many rows from `start` to wait for where not one fits."""
        count = min(rows.count - start, max(1, self._max_pending // ADMITTED_PART))
        return max(1, rows.fitting(start, start + count, self._max_pending_bytes // ADMITTED_PART))

    def add_rows(self, pending: PendingRows) -> None:
        """Enqueues rows that fit now."""
        self._reserve((pending.count, pending.size))
        self._queue_rows(pending)

    async def enqueue_rows(self, pending: PendingRows) -> None:
        """As `enqueue`, for all of the rows together."""
        await self._wait((pending.count, pending.size), pending.deadline)
        self._queue_rows(pending)

    def _queue_rows(self, pending: PendingRows) -> None:
        self.queue.append(UnsentRows(pending, pending.start, pending.stop, pending.mark))
        self.queue_bytes += pending.size

    async def _wait(self, amount: tuple[int, int], deadline: float) -> None:
        try:
            await self._waiters.wait(amount, deadline)
        except TimeoutError:
            raise self._late("no room in the window before the deadline") from None

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
        """The next frame, up to `frame_bytes` and at least one transaction, in the order of submission; None if nothing is left to send."""
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
        columns = frame.columns(client_id, generation, self.partition)
        return columns._replace(traces=frame.traces(self.traced)) if self.traced else columns

    def _pop_unsent(self, now: float) -> tuple[list[list[PendingAppend] | UnsentRows], int]:
        """What goes into the next frame, single appends in runs, and its size. Drops appends that their caller gave up, and those whose deadline
        has passed."""
        queue, limit = self.queue, min(self._frame_bytes, max(self.pending_bytes // 2, HALVED_BYTES), self._batch_bytes or self._frame_bytes)
        left = self._batch_transactions or self._max_pending + 1
        runs: list[list[PendingAppend] | UnsentRows] = []
        appends: list[PendingAppend] | None = None
        total = 0
        while queue and left:
            append = queue[0]
            if type(append) is UnsentRows:
                first = self._cut(append, limit - total, left, now, whole=not total)
                if first is not None:
                    total += first.size
                    left -= first.count
                    runs.append(first)
                    appends = None
                if queue and queue[0] is append:
                    break
                continue
            assert isinstance(append, PendingAppend)
            size = append.size
            if total and total + size > limit:
                break
            queue.popleft()
            future = append.future
            if append.deadline <= now and not future.done():
                future.set_exception(self._late(LATE_UNSENT))
            if future.done():  # late, or given up by its caller
                self.queue_bytes -= size
                self._release(1, size)
                continue
            total += size
            left -= 1
            if appends is None:
                appends = []
                runs.append(appends)
            appends.append(append)
        return runs, total

    def _late(self, reason: str) -> NotAppended:
        """What a transaction that was not sent before its deadline ends with."""
        return NotAppended(partition=self.partition, reason=reason) if self.over_quota is None else copy(self.over_quota)

    def _cut(self, rows: UnsentRows, limit: int, count: int, now: float, *, whole: bool) -> UnsentRows | None:
        """Of the rows at the head of the queue those that fit, `count` at most; None if none do, or none are to be sent. `whole`: one fits
        always."""
        if rows.deadline <= now:
            rows.fail(self._late(LATE_UNSENT))
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
        """Sequences from `first` are in the log under consecutive ids. Raises `ProtocolViolation` for a sequence that is not in flight."""
        self._heard = max(self._heard, first + count - 1)
        if self._settle_committed(first, count, transaction_id, append_time_ms, durability) != count:
            raise ProtocolViolation(reason=f"answer for what is not in flight: partition={self.partition} sequence={first} count={count}")
        self._retire()

    def _settle_committed(self, first: int, count: int, transaction_id: int, append_time_ms: int, durability: Durability = "quorum_sync") -> int:
        """Settles which of these sequences are in flight and undecided; how many those were."""
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
        """What the server would not order. False: the transaction is still wanted, and another mount settles it."""
        if reason == pb.REFUSAL_STORAGE_FULL:
            self._decide(sequence, NotAppended(partition=self.partition, reason=STORAGE_FULL))
            self.not_appended += 1
        elif reason == pb.REFUSAL_TOO_LARGE:
            self._decide(sequence, InvalidRequest(reason=f"transaction above the server's limit: partition={self.partition}"))
        else:
            return False
        return True

    def refuse_mark(self, sequence: int, newest: int) -> None:
        """The owner refused the transaction because its mark is above `newest`, the highest transaction id that existed."""
        _, part, at = self._find(sequence)
        reason = f"high-water mark is above the log: partition={self.partition} high_water_mark={part.mark_of(at)} newest={newest}"
        self._decide(sequence, InvalidRequest(reason=reason))

    def _find(self, sequence: int) -> tuple[SentFrame, SentPart, int]:
        """Of a sequence that is not answered: its frame, and its place in a part of it. Raises `ProtocolViolation`."""
        for frame in self.frames:
            if 0 <= sequence - frame.first_sequence < frame.count and (found := frame.find(sequence)) is not None:
                return frame, *found
        raise ProtocolViolation(reason=f"answer for what is not in flight: partition={self.partition} sequence={sequence}")

    def _decide(self, sequence: int, error: WaltzError) -> int | None:
        """Returns the mark of the append."""
        self._heard = max(self._heard, sequence)
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
        """The owner refused the frame that begins with the sequence, and drops what follows it, because a quota is exceeded: all of it goes back to
        the head of the queue, in order. Raises `ProtocolViolation` if no such frame is in flight."""
        frames = self.frames
        if not any(frame.first_sequence == sequence for frame in frames):
            raise ProtocolViolation(reason=f"refusal of what is not in flight: partition={self.partition} sequence={sequence}")
        refused: deque[SentFrame] = deque()
        while not refused or refused[0].first_sequence != sequence:
            refused.appendleft(frames.pop())
        self._requeue(refused, None)

    # ---- after another mount -------------------------------------------------------------------------------------------------------------------

    def searched(self, found: Iterable[tuple[int, ...]], searched_to: int) -> None:
        """A part of the log was searched for what is in flight: that need not be done again, also by who asks later for what is given up here."""
        for first, count, transaction_id in found:
            self._settle_committed(first, count, transaction_id, 0)
        self._retire()
        for frame in self.frames:
            frame.since = max(frame.since, searched_to)

    def resend(self, found: Iterable[tuple[int, ...]], failure: WaltzError | None) -> None:
        """Everything in flight is decided: `found` (first sequence, count, first id) is in the log. The rest never will be, and goes back to the
        head of the queue, in order. An append whose rejection was lost in transit is rejected again, because its mark stays and locks only rise.
        `failure`: the server refused these bytes, and they are not sent again."""
        for first, count, transaction_id in found:
            self._settle_committed(first, count, transaction_id, 0)  # of some the answer had come before the connection broke
        self._retire()
        frames, self.frames = self.frames, deque()
        self._requeue(frames, None if failure is None else NotAppended(partition=self.partition, reason=str(failure)))

    def _requeue(self, frames: Iterable[SentFrame], refused: NotAppended | None) -> None:
        """Puts back what has no outcome. `refused`: what it fails with instead."""
        again = [unsent for frame in frames for part in frame.parts for unsent in part.give_back(refused)]
        again_bytes = sum(unsent.size for unsent in again)
        self.queue.extendleft(reversed(again))
        self.queue_bytes += again_bytes
        dropped = sum(frame.count for frame in frames) - sum(_count(unsent) for unsent in again)
        self._release(dropped, sum(frame.size for frame in frames) - again_bytes)

    # ---- giving up -----------------------------------------------------------------------------------------------------------------------------

    def expire(self, now: float, client_id: int, reason: str) -> float:
        """Settles those whose deadline passed with what is known of them; the next deadline, or infinity."""
        earliest = math.inf
        late = 0
        for unsent in self.queue:
            if not _done(unsent) and unsent.deadline <= now:
                self.not_appended += _counted(unsent)
                _fail(unsent, self._late(f"{LATE_UNSENT}: {reason}"))
            if _done(unsent):
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
        """Answers all that was never sent as not appended: the storage is full."""
        for unsent in self.queue:
            self.not_appended += 0 if _done(unsent) else _counted(unsent)
            _fail(unsent, NotAppended(partition=self.partition, reason=STORAGE_FULL))
        self._drop_done()

    def _drop_done(self) -> None:
        kept: deque[Unsent] = deque()
        count = dropped_bytes = 0
        for unsent in self.queue:
            if _done(unsent):
                count += _count(unsent)
                dropped_bytes += unsent.size
            else:
                kept.append(unsent)
        self.queue = kept
        self.queue_bytes -= dropped_bytes
        self._release(count, dropped_bytes)

    def give_up(self, outcomes: RowOutcomes) -> None:
        """Of all rows of that call: what was not sent is not sent, and no outcome of the rest is reported."""
        for _, _, sent in [*self.undecided_sent()]:
            if isinstance(sent, UnsentRows) and sent.pending.outcomes is outcomes:
                sent.pending.give_up()
        for unsent in self.queue:
            if isinstance(unsent, UnsentRows) and unsent.pending.outcomes is outcomes:
                unsent.pending.give_up()

    def fail(self, error: WaltzError, client_id: int, unsent: WaltzError) -> None:
        """`error` ends everything: the outcome of what is in flight is unknown, what was never sent gets `unsent`."""
        frames, self.frames = self.frames, deque()
        queue, queue_bytes, self.queue, self.queue_bytes = self.queue, self.queue_bytes, deque(), 0
        self.pending -= sum(map(_count, queue)) + sum(frame.count for frame in frames)
        self.pending_bytes -= queue_bytes + sum(frame.size for frame in frames)
        for frame in frames:
            for part in frame.parts:
                part.expire(math.inf, self.partition, self._unknown_of(client_id, frame.since, str(error)))
        for each in queue:
            self.not_appended += _counted(each) if isinstance(unsent, NotAppended) and not _done(each) else 0
            _fail(each, copy(unsent))
        self._waiters.fail(unsent)

    def _unknown_of(self, client_id: int, since: int, reason: str) -> Unknown:
        return lambda sequence, count: self._unknown(client_id, sequence, since, reason, count)

    def _unknown(self, client_id: int, sequence: int, since: int, reason: str, count: int = 1) -> OutcomeUnknown:
        self.unknown += count
        return OutcomeUnknown(partition=self.partition, client_id=client_id, sequence=sequence, since=since, reason=reason, count=count)

    def sent(self, sequences: Iterable[int]) -> list[asyncio.Future[Receipt]]:
        """The futures of those of the sequences that are in flight and undecided. Rows of bulk appends have none."""
        found = []
        for sequence in sequences:
            for frame in self.frames:
                if 0 <= sequence - frame.first_sequence < frame.count and (place := frame.find(sequence)) is not None:
                    part, at = place
                    if isinstance(part, SentAppends) and (append := part.appends[at]) is not None:
                        found.append(append.future)
        return found

    def undecided_sent(self) -> Iterator[tuple[int, int, Unsent]]:
        """Of all that was sent and has no outcome, in order: sequence (of rows: the first one), `SentFrame.since`, and the append or the rows."""
        for frame in self.frames:
            for part in frame.parts:
                for sequence, unsent in part.undecided():
                    yield sequence, frame.since, unsent

    def undecided_unsent(self) -> Iterator[Unsent]:
        """What waits to be sent, or to be sent again, in order."""
        return (unsent for unsent in self.queue if not _done(unsent))

    def undecided(self) -> list[asyncio.Future[Any]]:
        """Futures that are done when all that was submitted, and has no outcome now, has one; in order."""
        all_of_it = (*(sent for _, _, sent in self.undecided_sent()), *self.undecided_unsent())
        return [each.future if isinstance(each, PendingAppend) else each.pending.decided() for each in all_of_it]


def _done(unsent: Unsent) -> bool:
    """It is not to be sent."""
    return unsent.future.done() if isinstance(unsent, PendingAppend) else unsent.done


def _count(unsent: Unsent) -> int:
    return 1 if isinstance(unsent, PendingAppend) else unsent.count


def _counted(unsent: Unsent) -> int:
    """How many appends it is in the statistics of outcomes: a turn request is none."""
    return 0 if isinstance(unsent, PendingAppend) and unsent.mark == TURN_MARK else _count(unsent)


def _fail(unsent: Unsent, error: WaltzError) -> None:
    if isinstance(unsent, UnsentRows):
        unsent.fail(error)
    elif not unsent.future.done():
        unsent.future.set_exception(error)
