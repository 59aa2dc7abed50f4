"""What one partition's appends wait for: a bounded queue of what is to be sent, and the frames in flight. Decides what each append is told.

Sequences are given when a frame is packed, so a transaction is encoded once per sending with the generation that then holds, and a resend is a
new decision under a new sequence with the same marks and locks. Frames in flight are all of one mount. Knows no network and no task;
nothing is made per transaction but the future and one tuple.

A future is settled once: a caller that gave up, or whose deadline passed, is skipped from then on and never sent again.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Iterable
from copy import copy
from typing import TypeAlias

from waltz_log.client.transactions.transaction import Receipt
from waltz_log.core.formats.block import RECORD_OVERHEAD_BYTES
from waltz_log.core.formats.records import encode_records
from waltz_log.core.topics.catalogue import Durability
from waltz_log.errors import InvalidRequest, LockConflict, NotAppended, OutcomeUnknown, ProtocolViolation, WaltzError
from waltz_log.transport import waltz_pb2 as pb

__all__ = ["AS_KNOWN", "ITEM_OVERHEAD_BYTES", "NO_LOCKS", "STORAGE_FULL", "Frame", "Item", "Window", "left_to_client"]

Item: TypeAlias = "tuple[asyncio.Future[Receipt], bytes, int, int, bytes, bytes, float]"
"""future, data, header, mark, lock counts (three bytes, or empty), locks (eight bytes each), deadline on the loop's clock."""

AS_KNOWN = -2
"""Stands for a mark that is taken when the transaction is sent for the first time, and kept from then on: `left_to_client` of it."""

ITEM_OVERHEAD_BYTES = 64
"""What a transaction takes in a frame beyond data and locks: record overhead, length, mark, lock counts, some framing."""

HALVED_BYTES = 64 * 1024
"""Where more than twice this is pending a frame holds half of it at most."""

NO_LOCKS = b"\0\0\0"


def left_to_client(mark: int) -> int:
    """A mark that the caller did not give, as an item holds it: its transaction was computed from nothing that was read, so that beside the mark it
    counts as known what this client wrote before."""
    return -4 - mark


STORAGE_FULL = "storage is full"
"""The reason of a `NotAppended` that time alone may mend: no majority of the replicas has room."""


class Frame:
    """Sent and not wholly decided. An item is None once it is decided."""

    __slots__ = ("first_sequence", "items", "left", "sent_at", "since", "size")

    def __init__(self, first_sequence: int, items: list[Item | None], since: int, size: int, sent_at: float) -> None:
        self.first_sequence = first_sequence
        self.items = items
        self.left = len(items)
        self.since = since
        self.size = size
        self.sent_at = sent_at


class Window:
    def __init__(self, partition: int, *, max_pending: int, max_pending_bytes: int, frame_bytes: int) -> None:
        self.partition = partition
        self._max_pending = max_pending
        self._max_pending_bytes = max_pending_bytes
        self._frame_bytes = frame_bytes
        self.queue: deque[Item] = deque()
        self.queue_bytes = 0
        self.frames: deque[Frame] = deque()
        self.pending = 0
        self.pending_bytes = 0
        self.next_sequence = 1
        self.known_mark = -1
        """The highest transaction id known to be committed."""
        self.received_mark = -1
        """The highest that was told as received by a majority, before it was on disk."""
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()

    def forget_received(self) -> bool:
        """Whether something was told as received of which it will not be known any more that it is on disk."""
        doubtful, self.received_mark = self.received_mark > self.known_mark, -1
        return doubtful

    def know(self, mark: int) -> None:
        if mark > self.known_mark:
            self.known_mark = mark

    # ---- in ------------------------------------------------------------------------------------------------------------------------------------

    def take(self, item: Item, size: int) -> bool:
        """Takes the transaction where there is room for it now. `size` is data, locks and `ITEM_OVERHEAD_BYTES`."""
        pending, pending_bytes = self.pending, self.pending_bytes + size
        if self._waiting or (pending and (pending >= self._max_pending or pending_bytes > self._max_pending_bytes)):
            return False
        self.pending = pending + 1
        self.pending_bytes = pending_bytes
        self.queue.append(item)
        self.queue_bytes += size
        return True

    async def take_in_turn(self, item: Item, size: int) -> None:
        """Takes the transaction once there is room, in the order of asking. Raises `NotAppended` at its deadline."""
        await self._wait_room(size, item[6])
        self.queue.append(item)
        self.queue_bytes += size

    def _fits(self, size: int) -> bool:
        if self.pending == 0:
            return True
        return self.pending < self._max_pending and self.pending_bytes + size <= self._max_pending_bytes

    async def _wait_room(self, size: int, deadline: float) -> None:
        """Returns once the room is there and reserved, in the order of asking. Raises `NotAppended` at the deadline."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((waiter, size))
        try:
            async with asyncio.timeout_at(deadline):
                await waiter
        except BaseException as error:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._release(1, size)
            else:
                self._waiting = deque(entry for entry in self._waiting if entry[0] is not waiter)
                self._admit()
            if isinstance(error, TimeoutError):
                raise NotAppended(partition=self.partition, reason="no room in the window before the deadline") from None
            raise

    def _release(self, count: int, size: int) -> None:
        self.pending -= count
        self.pending_bytes -= size
        if self._waiting:
            self._admit()

    def _admit(self) -> None:
        while self._waiting and self._fits(self._waiting[0][1]):
            waiter, size = self._waiting.popleft()
            if not waiter.done():
                self.pending += 1
                self.pending_bytes += size
                waiter.set_result(None)

    # ---- out -----------------------------------------------------------------------------------------------------------------------------------

    def pack(self, client_id: int, generation: int, since: int, now: float) -> pb.AppendFrame | None:
        """The next frame, up to `frame_bytes` and at least one transaction, in the order of submission; None where nothing is left to send."""
        queue, limit = self.queue, min(self._frame_bytes, max(self.pending_bytes // 2, HALVED_BYTES))
        items: list[Item | None] = []
        headers: list[int] = []
        bodies: list[bytes] = []
        marks: list[int] = []
        all_counts: list[bytes] = []
        all_locks: list[bytes] = []
        total = 0
        while queue:
            item = queue[0]
            future, data, header, mark, counts, locks, deadline = item
            size = len(data) + len(locks) + ITEM_OVERHEAD_BYTES
            if total and total + size > limit:
                break
            queue.popleft()
            if deadline <= now and not future.done():
                future.set_exception(NotAppended(partition=self.partition, reason="deadline passed before it was sent"))
            if future.done():  # its caller gave up before it was sent, or its deadline passed
                self.queue_bytes -= size
                self._release(1, size)
                continue
            if mark == AS_KNOWN:
                mark = left_to_client(since)
                item = (future, data, header, mark, counts, locks, deadline)
            total += size
            items.append(item)
            headers.append(header)
            bodies.append(data)
            marks.append(mark)
            all_counts.append(counts)
            all_locks.append(locks)
        if not items:
            return None
        first, count = self.next_sequence, len(items)
        self.queue_bytes -= total
        self.next_sequence += count
        self.frames.append(Frame(first, items, since, total, now))
        locked = b"".join(all_locks)
        own = b""
        if min(marks) < AS_KNOWN:
            own = bytes([mark < AS_KNOWN for mark in marks]) if locked else b""
            marks = [left_to_client(mark) if mark < AS_KNOWN else mark for mark in marks]
        return pb.AppendFrame(
            generation=generation,
            lengths=struct.pack(f">{count}i", *[len(data) + RECORD_OVERHEAD_BYTES for data in bodies]),
            marks=struct.pack(f">{count}q", *marks),
            lock_counts=b"".join(all_counts) if locked else b"",
            locks=locked,
            records=encode_records(client_id, generation, self.partition, first, headers, bodies),
            own=own,
        )

    # ---- answers -------------------------------------------------------------------------------------------------------------------------------

    def commit(self, first: int, count: int, transaction_id: int, append_time_ms: int, durability: Durability = "quorum_sync") -> None:
        """Sequences from `first` are in the log under consecutive ids. Raises `ProtocolViolation` for a sequence that is not in flight."""
        if self._found(first, count, transaction_id, append_time_ms, durability) != count:
            raise ProtocolViolation(reason=f"answer for what is not in flight: partition={self.partition} sequence={first} count={count}")
        self._retire()

    def _found(self, first: int, count: int, transaction_id: int, append_time_ms: int, durability: Durability = "quorum_sync") -> int:
        """Settles which of these sequences are in flight and undecided; how many those were."""
        end = first + count
        told = 0
        new, partition = tuple.__new__, self.partition
        for frame in self.frames:
            base = frame.first_sequence
            start, stop = max(first, base) - base, min(end, base + len(frame.items)) - base
            if start >= stop:
                continue
            items = frame.items[start:stop]
            identifier = transaction_id + base + start - first
            for item in items:
                if item is not None:
                    future = item[0]
                    if not future.done():
                        future.set_result(new(Receipt, (partition, identifier, append_time_ms, durability)))
                identifier += 1
            left = len(items) - items.count(None)
            told += left
            frame.items[start:stop] = [None] * len(items)
            frame.left -= left
        return told

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
        mark = self._item(sequence)[3]
        given = left_to_client(mark) if mark < AS_KNOWN else mark
        reason = f"high-water mark is above the log: partition={self.partition} high_water_mark={given} newest={newest}"
        self._decide(sequence, InvalidRequest(reason=reason))

    def _item(self, sequence: int) -> Item:
        for frame in self.frames:
            at = sequence - frame.first_sequence
            if 0 <= at < len(frame.items) and (item := frame.items[at]) is not None:
                return item
        raise ProtocolViolation(reason=f"answer for what is not in flight: partition={self.partition} sequence={sequence}")

    def _decide(self, sequence: int, error: WaltzError) -> None:
        for frame in self.frames:
            at = sequence - frame.first_sequence
            if 0 <= at < len(frame.items):
                item = frame.items[at]
                if item is None:
                    break
                if not item[0].done():
                    item[0].set_exception(error)
                frame.items[at] = None
                frame.left -= 1
                if frame.left == 0:
                    self._retire()
                return
        raise ProtocolViolation(reason=f"answer for what is not in flight: partition={self.partition} sequence={sequence}")

    def _retire(self) -> None:
        frames = self.frames
        while frames and frames[0].left == 0:
            frame = frames.popleft()
            self._release(len(frame.items), frame.size)

    # ---- after another mount -------------------------------------------------------------------------------------------------------------------

    def searched(self, found: Iterable[tuple[int, ...]], searched_to: int) -> None:
        """A part of the log was searched for what is in flight: that need not be done again, also by who asks later for what is given up here."""
        for first, count, transaction_id in found:
            self._found(first, count, transaction_id, 0)
        self._retire()
        for frame in self.frames:
            frame.since = max(frame.since, searched_to)

    def resend(self, found: Iterable[tuple[int, ...]], failure: WaltzError | None) -> None:
        """Everything in flight is decided: `found` (first sequence, count, first id) is in the log, the rest never will be and goes back to the
        head of the queue, in order. One that was rejected, and only the answer lost, is rejected again: its mark stays, and locks never go back.
        `failure`: the server would not take these bytes; they are not sent again."""
        for first, count, transaction_id in found:
            self._found(first, count, transaction_id, 0)  # of some the answer had come before the connection broke
        self._retire()
        frames, self.frames = self.frames, deque()
        again: list[Item] = []
        dropped = dropped_bytes = 0
        for frame in frames:
            size = 0
            for item in frame.items:
                if item is None:
                    continue
                if not item[0].done():
                    if failure is not None:
                        item[0].set_exception(NotAppended(partition=self.partition, reason=str(failure)))
                    else:
                        again.append(item)
                        size += len(item[1]) + len(item[5]) + ITEM_OVERHEAD_BYTES
                        continue
            dropped += len(frame.items)
            dropped_bytes += frame.size - size
            self.queue_bytes += size
        self.queue.extendleft(reversed(again))
        self._release(dropped - len(again), dropped_bytes)

    # ---- giving up -----------------------------------------------------------------------------------------------------------------------------

    def expire(self, now: float, client_id: int, reason: str) -> float | None:
        """Tells those whose deadline passed what is known of them; the next deadline."""
        earliest: float | None = None
        late = 0
        for item in self.queue:
            if item[0].done():
                late += 1
            elif item[6] <= now:
                item[0].set_exception(NotAppended(partition=self.partition, reason=f"deadline passed before it was sent: {reason}"))
                late += 1
            elif earliest is None or item[6] < earliest:
                earliest = item[6]
        if late:
            self._drop_done()
        for frame in self.frames:
            for sequence, sent in enumerate(frame.items, frame.first_sequence):
                if sent is None or sent[0].done():
                    continue
                if sent[6] <= now:
                    sent[0].set_exception(self._unknown(client_id, sequence, frame.since, f"deadline passed: {reason}"))
                elif earliest is None or sent[6] < earliest:
                    earliest = sent[6]
        return earliest

    def refuse_unsent(self) -> None:
        """Answers all that was never sent as not appended: the storage is full."""
        for item in self.queue:
            if not item[0].done():
                item[0].set_exception(NotAppended(partition=self.partition, reason=STORAGE_FULL))
        self._drop_done()

    def _drop_done(self) -> None:
        kept = deque(item for item in self.queue if not item[0].done())
        size = sum(len(item[1]) + len(item[5]) + ITEM_OVERHEAD_BYTES for item in kept)
        count, dropped = len(self.queue) - len(kept), self.queue_bytes - size
        self.queue, self.queue_bytes = kept, size
        self._release(count, dropped)

    def fail(self, error: WaltzError, client_id: int, unsent: WaltzError) -> None:
        """`error` ends everything: the outcome of what is in flight is unknown, what was never sent gets `unsent`."""
        frames, self.frames = self.frames, deque()
        queue, queue_bytes, self.queue, self.queue_bytes = self.queue, self.queue_bytes, deque(), 0
        waiting, self._waiting = self._waiting, deque()
        self.pending -= len(queue) + sum(len(frame.items) for frame in frames)
        self.pending_bytes -= queue_bytes + sum(frame.size for frame in frames)
        for frame in frames:
            for sequence, item in enumerate(frame.items, frame.first_sequence):
                if item is not None and not item[0].done():
                    item[0].set_exception(self._unknown(client_id, sequence, frame.since, str(error)))
        for item in queue:
            if not item[0].done():
                item[0].set_exception(copy(unsent))
        for waiter, _ in waiting:
            if not waiter.done():
                waiter.set_exception(copy(unsent))

    def _unknown(self, client_id: int, sequence: int, since: int, reason: str) -> OutcomeUnknown:
        return OutcomeUnknown(partition=self.partition, client_id=client_id, sequence=sequence, since=since, reason=reason)

    def sent(self, sequences: Iterable[int]) -> list[asyncio.Future[Receipt]]:
        """The futures of those sequences that are in flight and undecided."""
        found = []
        for sequence in sequences:
            for frame in self.frames:
                at = sequence - frame.first_sequence
                if 0 <= at < len(frame.items) and (item := frame.items[at]) is not None:
                    found.append(item[0])
        return found

    def undecided(self) -> list[asyncio.Future[Receipt]]:
        """The futures of all that was submitted and not decided."""
        sent = [item[0] for frame in self.frames for item in frame.items if item is not None]
        return [future for future in (*sent, *(item[0] for item in self.queue)) if not future.done()]
