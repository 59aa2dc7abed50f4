"""What one partition's appends wait for: a bounded queue of what is to be sent, and the frames in flight. Decides the outcome of each append.

Sequences are assigned when a frame is packed, so a transaction is encoded once per sending with the generation that then holds, and a resend is a
new decision under a new sequence with the same marks and locks. Frames in flight are all of one mount. Knows no network and no task;
nothing is made per transaction but the future and the `PendingAppend`.

An append is settled once: one that its caller gave up, or whose deadline passed, is skipped from then on and never sent again.
"""

from __future__ import annotations

import asyncio
import math
import struct
from collections import deque
from collections.abc import Iterable, Iterator
from copy import copy

from waltz_log.client.append.pending_append import PendingAppend
from waltz_log.client.base.fifo_waiters import FifoWaiters
from waltz_log.client.transactions.transaction import Receipt
from waltz_log.core.formats.block import RECORD_OVERHEAD_BYTES
from waltz_log.core.formats.records import encode_records
from waltz_log.core.topics.catalogue import Durability
from waltz_log.errors import InvalidRequest, LockConflict, NotAppended, OutcomeUnknown, ProtocolViolation, WaltzError
from waltz_log.transport import waltz_pb2 as pb

__all__ = ["STORAGE_FULL", "Frame", "Window"]

HALVED_BYTES = 64 * 1024
"""Where more than twice this is pending a frame holds half of it at most."""

STORAGE_FULL = "storage is full"
"""The reason of a `NotAppended` that time alone may mend: no majority of the replicas has room."""


class Frame:
    """Sent and not wholly decided. An append is None once it is decided."""

    __slots__ = ("appends", "first_sequence", "left", "sent_at", "since", "size")

    def __init__(self, first_sequence: int, appends: list[PendingAppend | None], since: int, size: int, sent_at: float) -> None:
        self.first_sequence = first_sequence
        self.appends = appends
        self.left = len(appends)
        self.since = since
        self.size = size
        self.sent_at = sent_at


class Window:
    def __init__(self, partition: int, *, max_pending: int, max_pending_bytes: int, frame_bytes: int) -> None:
        self.partition = partition
        self._max_pending = max_pending
        self._max_pending_bytes = max_pending_bytes
        self._frame_bytes = frame_bytes
        self.queue: deque[PendingAppend] = deque()
        self.queue_bytes = 0
        self.frames: deque[Frame] = deque()
        self.pending = 0
        self.pending_bytes = 0
        self.next_sequence = 1
        self.known_mark = -1
        """The highest transaction id known to be committed."""
        self.received_mark = -1
        """The highest that was reported as received by a majority, before it was on disk."""
        self._waiters = FifoWaiters(self._fits, self._reserve, lambda size: self._release(1, size))
        self._waiting = self._waiters.queue

    def forget_received(self) -> bool:
        """Whether something was reported as received of which it will not be known any more that it is on disk."""
        doubtful, self.received_mark = self.received_mark > self.known_mark, -1
        return doubtful

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
        try:
            await self._waiters.wait(append.size, append.deadline)
        except TimeoutError:
            raise NotAppended(partition=self.partition, reason="no room in the window before the deadline") from None
        self.queue.append(append)
        self.queue_bytes += append.size

    def _fits(self, size: int) -> bool:
        if self.pending == 0:
            return True
        return self.pending < self._max_pending and self.pending_bytes + size <= self._max_pending_bytes

    def _reserve(self, size: int) -> None:
        self.pending += 1
        self.pending_bytes += size

    def _release(self, count: int, size: int) -> None:
        self.pending -= count
        self.pending_bytes -= size
        if self._waiting:
            self._waiters.admit()

    # ---- out -----------------------------------------------------------------------------------------------------------------------------------

    def pack(self, client_id: int, generation: int, since: int, now: float) -> pb.AppendFrame | None:
        """The next frame, up to `frame_bytes` and at least one transaction, in the order of submission; None where nothing is left to send."""
        appends, size = self._pop_unsent(now)
        if not appends:
            return None
        first, count = self.next_sequence, len(appends)
        self.queue_bytes -= size
        self.next_sequence += count
        self.frames.append(Frame(first, list(appends), since, size, now))
        for append in appends:
            if append.mark is None:
                append.mark = since
        bodies = [append.data for append in appends]
        locks = b"".join([append.locks for append in appends])
        own = [append.own_writes_known for append in appends]
        return pb.AppendFrame(
            generation=generation,
            lengths=struct.pack(f">{count}i", *[len(data) + RECORD_OVERHEAD_BYTES for data in bodies]),
            marks=struct.pack(f">{count}q", *[append.mark for append in appends]),
            lock_counts=b"".join([append.lock_counts for append in appends]) if locks else b"",
            locks=locks,
            records=encode_records(client_id, generation, self.partition, first, [append.header for append in appends], bodies),
            own=bytes(own) if locks and True in own else b"",
        )

    def _pop_unsent(self, now: float) -> tuple[list[PendingAppend], int]:
        """What goes into the next frame, and its size. Drops on the way what its caller gave up or what is late."""
        queue, limit = self.queue, min(self._frame_bytes, max(self.pending_bytes // 2, HALVED_BYTES))
        appends: list[PendingAppend] = []
        total = 0
        while queue:
            append = queue[0]
            size = append.size
            if total and total + size > limit:
                break
            queue.popleft()
            future = append.future
            if append.deadline <= now and not future.done():
                future.set_exception(NotAppended(partition=self.partition, reason="deadline passed before it was sent"))
            if future.done():  # late, or given up by its caller
                self.queue_bytes -= size
                self._release(1, size)
                continue
            total += size
            appends.append(append)
        return appends, total

    # ---- answers -------------------------------------------------------------------------------------------------------------------------------

    def commit(self, first: int, count: int, transaction_id: int, append_time_ms: int, durability: Durability = "quorum_sync") -> None:
        """Sequences from `first` are in the log under consecutive ids. Raises `ProtocolViolation` for a sequence that is not in flight."""
        if self._settle_committed(first, count, transaction_id, append_time_ms, durability) != count:
            raise ProtocolViolation(reason=f"answer for what is not in flight: partition={self.partition} sequence={first} count={count}")
        self._retire()

    def _settle_committed(self, first: int, count: int, transaction_id: int, append_time_ms: int, durability: Durability = "quorum_sync") -> int:
        """Settles which of these sequences are in flight and undecided; how many those were."""
        end = first + count
        settled = 0
        new, partition = tuple.__new__, self.partition
        for frame in self.frames:
            base = frame.first_sequence
            start, stop = max(first, base) - base, min(end, base + len(frame.appends)) - base
            if start >= stop:
                continue
            appends = frame.appends[start:stop]
            identifier = transaction_id + base + start - first
            for append in appends:
                if append is not None:
                    future = append.future
                    if not future.done():
                        future.set_result(new(Receipt, (partition, identifier, append_time_ms, durability)))
                identifier += 1
            left = len(appends) - appends.count(None)
            settled += left
            frame.appends[start:stop] = [None] * len(appends)
            frame.left -= left
        return settled

    def reject(self, sequence: int, winner: int) -> None:
        self._decide(sequence, LockConflict(partition=self.partition, winner=winner))

    def refuse(self, sequence: int, reason: int) -> bool:
        """What the server would not order. False: the transaction is still wanted, and another mount settles it."""
        if reason == pb.REFUSAL_STORAGE_FULL:
            self._decide(sequence, NotAppended(partition=self.partition, reason=STORAGE_FULL))
        elif reason == pb.REFUSAL_TOO_LARGE:
            self._decide(sequence, InvalidRequest(reason=f"transaction above the server's limit: partition={self.partition}"))
        else:
            return False
        return True

    def refuse_mark(self, sequence: int, newest: int) -> None:
        """The owner refused the transaction because its mark is above `newest`, the highest transaction id that existed."""
        _, _, append = self._find(sequence)
        reason = f"high-water mark is above the log: partition={self.partition} high_water_mark={append.mark} newest={newest}"
        self._decide(sequence, InvalidRequest(reason=reason))

    def _find(self, sequence: int) -> tuple[Frame, int, PendingAppend]:
        """Of an undecided append: its frame, its position there, and itself. Raises `ProtocolViolation`."""
        for frame in self.frames:
            at = sequence - frame.first_sequence
            if 0 <= at < len(frame.appends) and (append := frame.appends[at]) is not None:
                return frame, at, append
        raise ProtocolViolation(reason=f"answer for what is not in flight: partition={self.partition} sequence={sequence}")

    def _decide(self, sequence: int, error: WaltzError) -> None:
        frame, at, append = self._find(sequence)
        if not append.future.done():
            append.future.set_exception(error)
        frame.appends[at] = None
        frame.left -= 1
        if frame.left == 0:
            self._retire()

    def _retire(self) -> None:
        frames = self.frames
        while frames and frames[0].left == 0:
            frame = frames.popleft()
            self._release(len(frame.appends), frame.size)

    # ---- after another mount -------------------------------------------------------------------------------------------------------------------

    def searched(self, found: Iterable[tuple[int, ...]], searched_to: int) -> None:
        """A part of the log was searched for what is in flight: that need not be done again, also by who asks later for what is given up here."""
        for first, count, transaction_id in found:
            self._settle_committed(first, count, transaction_id, 0)
        self._retire()
        for frame in self.frames:
            frame.since = max(frame.since, searched_to)

    def resend(self, found: Iterable[tuple[int, ...]], failure: WaltzError | None) -> None:
        """Everything in flight is decided: `found` (first sequence, count, first id) is in the log, the rest never will be and goes back to the
        head of the queue, in order. One that was rejected, and only the answer lost, is rejected again: its mark stays, and locks never go back.
        `failure`: the server would not take these bytes; they are not sent again."""
        for first, count, transaction_id in found:
            self._settle_committed(first, count, transaction_id, 0)  # of some the answer had come before the connection broke
        self._retire()
        frames, self.frames = self.frames, deque()
        again: list[PendingAppend] = []
        dropped = dropped_bytes = 0
        for frame in frames:
            size = 0
            for append in frame.appends:
                if append is None:
                    continue
                if failure is not None and not append.future.done():
                    append.future.set_exception(NotAppended(partition=self.partition, reason=str(failure)))
                if not append.future.done():
                    again.append(append)
                    size += append.size
            dropped += len(frame.appends)
            dropped_bytes += frame.size - size
            self.queue_bytes += size
        self.queue.extendleft(reversed(again))
        self._release(dropped - len(again), dropped_bytes)

    # ---- giving up -----------------------------------------------------------------------------------------------------------------------------

    def expire(self, now: float, client_id: int, reason: str) -> float:
        """Settles those whose deadline passed with what is known of them; the next deadline, or infinity."""
        earliest = math.inf
        late = 0
        for append in self.queue:
            if append.future.done():
                late += 1
            elif append.deadline <= now:
                append.future.set_exception(NotAppended(partition=self.partition, reason=f"deadline passed before it was sent: {reason}"))
                late += 1
            else:
                earliest = min(earliest, append.deadline)
        if late:
            self._drop_done()
        for sequence, since, sent in _undecided(self.frames):
            if sent.deadline <= now:
                sent.future.set_exception(self._unknown(client_id, sequence, since, f"deadline passed: {reason}"))
            else:
                earliest = min(earliest, sent.deadline)
        return earliest

    def refuse_unsent(self) -> None:
        """Answers all that was never sent as not appended: the storage is full."""
        for append in self.queue:
            if not append.future.done():
                append.future.set_exception(NotAppended(partition=self.partition, reason=STORAGE_FULL))
        self._drop_done()

    def _drop_done(self) -> None:
        kept: deque[PendingAppend] = deque()
        count = dropped_bytes = 0
        for append in self.queue:
            if append.future.done():
                count += 1
                dropped_bytes += append.size
            else:
                kept.append(append)
        self.queue = kept
        self.queue_bytes -= dropped_bytes
        self._release(count, dropped_bytes)

    def fail(self, error: WaltzError, client_id: int, unsent: WaltzError) -> None:
        """`error` ends everything: the outcome of what is in flight is unknown, what was never sent gets `unsent`."""
        frames, self.frames = self.frames, deque()
        queue, queue_bytes, self.queue, self.queue_bytes = self.queue, self.queue_bytes, deque(), 0
        self.pending -= len(queue) + sum(len(frame.appends) for frame in frames)
        self.pending_bytes -= queue_bytes + sum(frame.size for frame in frames)
        for sequence, since, append in _undecided(frames):
            append.future.set_exception(self._unknown(client_id, sequence, since, str(error)))
        for append in queue:
            if not append.future.done():
                append.future.set_exception(copy(unsent))
        self._waiters.fail(unsent)

    def _unknown(self, client_id: int, sequence: int, since: int, reason: str) -> OutcomeUnknown:
        return OutcomeUnknown(partition=self.partition, client_id=client_id, sequence=sequence, since=since, reason=reason)

    def sent(self, sequences: Iterable[int]) -> list[asyncio.Future[Receipt]]:
        """The futures of those of the sequences that are in flight and undecided."""
        found = []
        for sequence in sequences:
            for frame in self.frames:
                at = sequence - frame.first_sequence
                if 0 <= at < len(frame.appends) and (append := frame.appends[at]) is not None:
                    found.append(append.future)
        return found

    def undecided_sent(self) -> Iterator[tuple[int, int, PendingAppend]]:
        """Sequence, `Frame.since` and append of all that was sent and has no outcome, in order."""
        return _undecided(self.frames)

    def undecided_unsent(self) -> Iterator[PendingAppend]:
        """What waits to be sent, or to be sent again, in order."""
        return (append for append in self.queue if not append.future.done())

    def undecided(self) -> list[asyncio.Future[Receipt]]:
        """The futures of all that was submitted and has no outcome, in order."""
        return [append.future for append in (*(sent for _, _, sent in self.undecided_sent()), *self.undecided_unsent())]


def _undecided(frames: Iterable[Frame]) -> Iterator[tuple[int, int, PendingAppend]]:
    """Each is looked at when it is its turn: settling one may cancel others."""
    for frame in frames:
        for sequence, append in enumerate(frame.appends, frame.first_sequence):
            if append is not None and not append.future.done():
                yield sequence, frame.since, append
