"""A frame that was sent and is not completely answered: its contents, its encoding, and how answers of the owner settle it.

A frame has parts: runs of single appends, and ranges of rows of bulk appends. Both encode the same transactions to the same bytes. An append or a row
is *answered* once the owner has reported its outcome; it may have an outcome before, such as a deadline that passed.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from typing import NamedTuple, TypeAlias

from waltz_log.client.append.pending_append import NO_LOCKS, PendingAppend
from waltz_log.client.append.pending_rows import RowOutcomes, UnsentRows
from waltz_log.client.append.record_encoding import encode_in_columns
from waltz_log.client.append.row_ranges import RowRanges
from waltz_log.client.append.unsent import Unsent
from waltz_log.client.transactions.transaction import Receipt
from waltz_log.core.formats.traces import pack_traces
from waltz_log.core.locks.lock_columns import TURN_MARK
from waltz_log.core.topics.catalogue import Durability
from waltz_log.errors import NotAppended, OutcomeUnknown, WaltzError
from waltz_log.transport.large_messages import AppendColumns

__all__ = ["SentAppends", "SentFrame", "SentPart", "SentRows", "Unknown"]

Unknown: TypeAlias = Callable[[int, int], OutcomeUnknown]
"""Makes the error of a range: first sequence, and how many."""


LATE_TURN = "no turn at its locks before the deadline"


class PartColumns(NamedTuple):
    """The columns of one part of an append frame. `own` and `lock_counts` have a value for each transaction, or are empty if there are no locks."""

    lengths: bytes
    marks: bytes
    lock_counts: bytes
    locks: bytes
    records: bytes
    own: bytes


class SentAppends:
    """A run of single appends. An append is replaced by None when it is answered."""

    __slots__ = ("appends", "count", "first_sequence")

    def __init__(self, first_sequence: int, appends: list[PendingAppend], since: int) -> None:
        """`since`: the mark of appends that have none."""
        for append in appends:
            if append.mark is None:
                append.mark = since
        self.first_sequence = first_sequence
        self.appends: list[PendingAppend | None] = [*appends]
        self.count = len(appends)

    def encode(self, client_id: int, generation: int, partition: int) -> PartColumns:
        """Before anything is answered."""
        appends: list[PendingAppend] = self.appends  # type: ignore[assignment]
        headers, bodies = [append.header for append in appends], [append.data for append in appends]
        lengths, records = encode_in_columns(client_id, generation, partition, self.first_sequence, headers, bodies)
        locks = b"".join([append.locks for append in appends])
        counts = b"".join([append.lock_counts for append in appends]) if locks else b""
        own = self.own() if locks else b""
        return PartColumns(lengths, struct.pack(f">{self.count}q", *[append.mark for append in appends]), counts, locks, records, own)

    def traces(self, traced: Mapping[object, bytes]) -> Iterator[tuple[int, bytes]]:
        """The positions of traced appends in the part, with their trace contexts."""
        for position, append in enumerate(self.appends):
            if append is not None and (context := traced.get(append.future)) is not None:
                yield position, context

    def own(self) -> bytes:
        """For each append: whether the client's own writes count as known. Call it before anything is answered."""
        return bytes([append.own_writes_known for append in self.appends])  # type: ignore[union-attr]

    def commit(self, start: int, stop: int, partition: int, transaction_id: int, append_time_ms: int, durability: Durability) -> int:
        """The appends `start` to `stop` are in the log, with consecutive ids from `transaction_id`. Settles those without an answer, and returns how
        many."""
        appends, new = self.appends[start:stop], tuple.__new__
        for identifier, append in enumerate(appends, transaction_id):
            if append is not None:
                future = append.future
                if not future.done():
                    future.set_result(new(Receipt, (partition, identifier, append_time_ms, durability)))
        self.appends[start:stop] = [None] * len(appends)
        return len(appends) - appends.count(None)

    def unanswered(self, at: int) -> bool:
        return self.appends[at] is not None

    def mark_of(self, at: int) -> int | None:
        append = self.appends[at]
        return None if append is None else append.mark

    def fail(self, at: int, error: WaltzError) -> None:
        """Answers an append with an error."""
        append, self.appends[at] = self.appends[at], None
        if append is not None and not append.future.done():
            append.future.set_exception(error)

    def expire(self, now: float, partition: int, unknown: Unknown) -> float:
        """Fails appends whose deadline has passed. Returns the next deadline, or infinity."""
        earliest = math.inf
        for sequence, append in self.undecided():
            if append.deadline <= now:
                asked = append.mark == TURN_MARK  # never in the log
                append.future.set_exception(NotAppended(partition=partition, reason=LATE_TURN) if asked else unknown(sequence, 1))
            else:
                earliest = min(earliest, append.deadline)
        return earliest

    def give_back(self, failure: WaltzError | None) -> list[Unsent]:
        """The appends to send again. `failure`: fails all of them with it instead, and returns none."""
        undecided = [append for _, append in self.undecided()]
        if failure is None:
            return [*undecided]
        for append in undecided:
            append.future.set_exception(copy(failure))
        return []

    def undecided(self) -> Iterator[tuple[int, PendingAppend]]:
        """Sequence and append of each append without an outcome. Read one at a time, because settling one can cancel others."""
        for sequence, append in enumerate(self.appends, self.first_sequence):
            if append is not None and not append.future.done():
                yield sequence, append


class SentRows:
    """A range of rows of a bulk append."""

    __slots__ = ("_failed", "_left", "_mark", "_pending", "count", "first_sequence", "start")

    def __init__(self, first_sequence: int, unsent: UnsentRows, since: int) -> None:
        """`since`: the mark of the rows if they have none."""
        self._pending = unsent.pending
        self._mark = since if unsent.mark is None else unsent.mark
        self._left = RowRanges(unsent.start, unsent.stop)
        self._failed = False
        self.first_sequence = first_sequence
        self.start = unsent.start
        self.count = unsent.count

    @property
    def outcomes(self) -> RowOutcomes:
        """The call that the rows belong to."""
        return self._pending.outcomes

    @property
    def position(self) -> int:
        """The position of the first row in that call."""
        return self._pending.position + self.start

    def encode(self, client_id: int, generation: int, partition: int) -> PartColumns:
        rows, start, count = self._pending.rows, self.start, self.count
        stop = start + count
        lengths, records = encode_in_columns(
            client_id, generation, partition, self.first_sequence, rows.headers(start, stop), rows.bodies(start, stop)
        )
        counts, locks = rows.lock_columns(start, stop)
        own = self.own() if locks else b""
        return PartColumns(lengths, struct.pack(">q", self._mark) * count, counts if locks else b"", locks, records, own)

    def traces(self, traced: Mapping[object, bytes]) -> Iterator[tuple[int, bytes]]:
        context = traced.get(self._pending.outcomes)
        if context is not None:
            yield 0, context

    def own(self) -> bytes:
        return bytes([self._pending.own_writes_known]) * self.count

    def commit(self, start: int, stop: int, partition: int, transaction_id: int, append_time_ms: int, durability: Durability) -> int:
        """As in `SentAppends`."""
        settled = 0
        for first, end in self._left.remove(self.start + start, self.start + stop):
            settled += end - first
            if not self._failed:
                self._pending.committed(first, end - first, transaction_id + first - self.start - start)
        return settled

    def unanswered(self, at: int) -> bool:
        return self.start + at in self._left

    def mark_of(self, at: int) -> int | None:
        return self._mark

    def fail(self, at: int, error: WaltzError) -> None:
        row = self.start + at
        if self._left.remove(row, row + 1) and not self._failed:
            self._pending.fail(row, 1, error)

    def expire(self, now: float, partition: int, unknown: Unknown) -> float:
        if self._failed or self._pending.given_up:
            return math.inf
        if self._pending.deadline > now:
            return self._pending.deadline
        self._failed = True
        for start, stop in self._left:
            self._pending.fail(start, stop - start, unknown(self.first_sequence + start - self.start, stop - start))
        return math.inf

    def give_back(self, failure: WaltzError | None) -> list[Unsent]:
        if self._failed or self._pending.given_up:
            return []
        if failure is None:
            return [UnsentRows(self._pending, start, stop, self._mark) for start, stop in self._left]
        for start, stop in self._left:
            self._pending.fail(start, stop - start, copy(failure))
        return []

    def undecided(self) -> Iterator[tuple[int, UnsentRows]]:
        """First sequence and rows of each range without an outcome."""
        if not self._failed and not self._pending.given_up:
            for start, stop in self._left:
                yield self.first_sequence + start - self.start, UnsentRows(self._pending, start, stop, self._mark)


SentPart: TypeAlias = SentAppends | SentRows


class SentFrame:
    """A frame that was sent and is not completely answered."""

    __slots__ = ("count", "first_sequence", "left", "parts", "sent_at", "since", "size")

    def __init__(self, parts: list[SentPart], since: int, size: int, sent_at: float) -> None:
        """`parts`: at least one, with consecutive sequences. `since`: the mark that the client knew; `size`: the bytes that it uses in the window."""
        self.parts = parts
        self.first_sequence = parts[0].first_sequence
        self.count = self.left = sum([part.count for part in parts])
        self.since = since
        self.size = size
        self.sent_at = sent_at

    def columns(self, client_id: int, generation: int, partition: int) -> AppendColumns:
        """The columns of its message. Call it before anything is answered."""
        found = [part.encode(client_id, generation, partition) for part in self.parts]
        lengths, marks, lock_counts, locks, records, own = found[0] if len(found) == 1 else self._joined(found)
        return AppendColumns(
            generation=generation,
            lengths=lengths,
            marks=marks,
            lock_counts=lock_counts,
            locks=locks,
            records=records,
            own=own if 1 in own else b"",
        )

    def traces(self, traced: Mapping[object, bytes]) -> bytes:
        """The column of trace contexts, sent beside the records. `traced`: as in `AppendWindow`."""
        start = self.first_sequence
        return pack_traces((part.first_sequence - start + position, context) for part in self.parts for position, context in part.traces(traced))

    def _joined(self, parts: list[PartColumns]) -> PartColumns:
        if any(part.locks for part in parts):
            parts = [
                part if part.locks else part._replace(lock_counts=NO_LOCKS * sent.count, own=sent.own())
                for part, sent in zip(parts, self.parts, strict=True)
            ]
        return PartColumns(*(b"".join(column) for column in zip(*parts, strict=True)))

    def commit(self, first: int, end: int, partition: int, transaction_id: int, append_time_ms: int, durability: Durability) -> int:
        """The sequences `first` to `end` are in the log; `transaction_id` is that of `first`. Settles those that are here and have no answer, and
        returns how many."""
        settled = 0
        for part in self.parts:
            base = part.first_sequence
            start, stop = max(first, base) - base, min(end, base + part.count) - base
            if start < stop:
                settled += part.commit(start, stop, partition, transaction_id + base + start - first, append_time_ms, durability)
        self.left -= settled
        return settled

    def find(self, sequence: int) -> tuple[SentPart, int] | None:
        """The part that holds the sequence, and its index in the part; None if it is not here, or is answered."""
        for part in self.parts:
            at = sequence - part.first_sequence
            if 0 <= at < part.count:
                return (part, at) if part.unanswered(at) else None
        return None
