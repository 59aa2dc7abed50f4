"""Bulk appends: one result for the whole call, which has ranges of entries that are in the log, and positions of entries that are not.

The source can be columns, a list, an iterator of any length, an asynchronous one, or Arrow record batches. It is read in order, while there is room
in the partition's append window. A complete batch is refused as a whole if one of its rows can never be appended. Entries of an iterator and drafts
are checked one by one. Reading ends at an error that the next entries would have too: a deadline that passed, an unknown outcome, a closed client.
Rows of a batch and bytes of an iterator have no objects of their own: their outcomes are ranges. Each draft has a future.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple, Protocol, TypeVar  # Any: the application's own function

from waltz_log.client.append.bulk_columns import BulkColumns
from waltz_log.client.append.bulk_receipt import Appended, BulkReceipt, NotInLog, joined
from waltz_log.client.append.bulk_source import ENTRIES_TOGETHER, Entry, Source, batches_of, checked, entries_of, source_parts
from waltz_log.client.append.data_frames import without_frames
from waltz_log.client.append.packing import pack_append
from waltz_log.client.append.pending_append import FRAME_OVERHEAD_BYTES
from waltz_log.client.append.pending_rows import PendingRows
from waltz_log.client.append.producer import Producer
from waltz_log.client.append.rows import ListedBodies, Rows
from waltz_log.client.base import arrow
from waltz_log.client.base.background import Background
from waltz_log.client.transactions.transaction import Draft, Receipt
from waltz_log.errors import InvalidRequest, LockConflict, NotAppended, WaltzError
from waltz_log.loggers import get_logger

__all__ = ["Bulk", "BulkAppend", "append_all", "append_all_blocking", "call_hook", "outcomes"]

log = get_logger(__name__)

Result = TypeVar("Result", covariant=True)


class _BulkOutcome(asyncio.Future[Receipt]):
    """The outcome of one draft of a bulk call. It reports to the call immediately, and is never awaited."""

    __slots__ = ("bulk", "position")

    bulk: BulkAppend
    position: int

    def set_result(self, result: Receipt) -> None:
        super().set_result(result)
        self.bulk.rows_committed(self.position, 1, result.transaction_id)

    def set_exception(self, exception: type | BaseException) -> None:
        super().set_exception(exception)
        error = super().exception()
        self.bulk.rows_failed(self.position, 1, error if isinstance(error, WaltzError) else InvalidRequest(reason=repr(error)))


class _Raised(NamedTuple):
    """An error that the source raised instead of giving an entry."""

    error: Exception


_NOTHING: Final = object()
"""Reading stopped because there is no more room. No entry is left over."""

_END: Final = object()
"""The source is at its end."""


class BulkAppend:
    """One bulk call: `enqueue` any number of sources, then `finish`."""

    def __init__(
        self,
        producer: Producer,
        timeout_s: float,
        on_ack: Callable[[Appended], None] | None,
        on_error: Callable[[NotInLog], None] | None,
    ) -> None:
        self.receipt = BulkReceipt(producer.partition)
        self._producer = producer
        self._timeout_s = timeout_s
        self._on_ack = on_ack
        self._on_error = on_error
        self._loop = asyncio.get_running_loop()
        self._left = 0
        self._ended = False
        self._all_decided = asyncio.Event()
        self._all_decided.set()
        self._unreported: list[Appended] = []
        self._reporting: asyncio.Handle | None = None
        self.when_done: Callable[[], None] | None = None
        """Called when the call is decided or given up."""

    @property
    def ended(self) -> bool:
        """Whether the call reads no more entries."""
        return self._ended

    async def enqueue(self, source: Source) -> None:
        """Enqueues entries until the source or the call ends. Raises errors of the source, and `InvalidBatch` if a batch is refused."""
        if isinstance(source, AsyncIterable):
            async for entry in source:
                await self._enqueue_entry(entry)
                if self._ended:
                    return
            return
        batches = batches_of(source)
        if batches is None:
            await self._enqueue_entries(entries_of(source))
        else:
            await self._enqueue_batches(batches)

    async def finish(self) -> BulkReceipt:
        """Returns when every submitted entry is decided. Canceling it has the effect of `cancel`."""
        try:
            await self._all_decided.wait()
        except asyncio.CancelledError:
            self.cancel()
            raise
        if self._reporting is not None:
            self._reporting.cancel()
            self._report()
        self.receipt.appended = joined(self.receipt.appended)
        self.receipt.failed.sort(key=lambda failure: failure.position)
        if self.when_done is not None:
            self.when_done()
        return self.receipt

    def cancel(self) -> None:
        """Gives up the call: unsent entries are never sent, and no outcomes are reported for the sent ones."""
        self._ended = True
        self._on_ack = self._on_error = None
        self._producer.window.give_up(self)
        for future in self._producer.window.undecided():
            if isinstance(future, _BulkOutcome) and future.bulk is self:
                future.cancel()
        if self._reporting is not None:
            self._reporting.cancel()
        if self.when_done is not None:
            self.when_done()

    # ---- batches and bytes: as columns -----------------------------------------------------------------------------------------------------------

    async def _enqueue_batches(self, batches: Iterable[BulkColumns]) -> None:
        """Checks all batches before it enqueues the first row."""
        found: list[Rows] = []
        for rows in checked(batches, self._producer.record_bytes_max, self._producer.locks_max):
            if found:
                await asyncio.sleep(0)
            found.append(rows)
        for rows in found:
            await self.enqueue_rows(rows)

    async def enqueue_rows(self, rows: Rows) -> None:
        """Enqueues rows that were checked, as soon as there is room."""
        first = self.receipt.submitted
        start = 0
        while start < rows.count and not self._ended:
            start += await self._enqueue_some(rows, start, first)

    async def _enqueue_some(self, rows: Rows, start: int, first: int) -> int:
        """Enqueues as many rows from `start` as there is room for. If there is no room, waits until some rows can be enqueued together. Returns how
        many. `first`: the position of the batch's first row in the call."""
        producer, mark, own_writes_known = self._producer, rows.mark, rows.mark is None
        if mark is None and rows.locks is not None:
            mark, own_writes_known = producer.default_mark()
        try:
            fitting = producer.fitting(rows, start)
        except WaltzError as error:
            self._end(error)
            return 1
        stop = start + (fitting or producer.window.rows_to_await(rows, start))
        pending = PendingRows(rows, start, stop, first, self, mark, own_writes_known, self._loop.time() + self._timeout_s)
        self._expect(pending.count)
        if fitting:
            producer.add_rows(pending)
            return pending.count
        try:
            await producer.enqueue_rows(pending)
        except WaltzError as error:
            self._expect(-pending.count)
            self._end(error)
        return pending.count

    # ---- entries, one after the other --------------------------------------------------------------------------------------------------------------

    async def _enqueue_entries(self, entries: Iterator[Entry]) -> None:
        since_yield = 0
        while not self._ended:
            listed, other = self._read(entries)
            if listed:
                await self.enqueue_rows(Rows(ListedBodies(listed)))
            if isinstance(other, _Raised):
                raise other.error
            if other is _END:
                return
            if other is not _NOTHING and self._ended:
                self._end(NotAppended(partition=self.receipt.partition, reason="an earlier entry ended the call"))
            elif other is not _NOTHING:
                await self._enqueue_entry(other)
            since_yield += len(listed) + 1
            if since_yield > ENTRIES_TOGETHER:
                since_yield = 0
                await asyncio.sleep(0)

    def _read(self, entries: Iterator[Entry]) -> tuple[list[bytes], object]:
        """Reads bytes for which there is room. The second value is what ended the reading: an entry of another kind, `_NOTHING`, `_END` or `_Raised`.
        If there is no room, one entry is read, which then waits for it."""
        listed: list[bytes] = []
        record_bytes_max = self._producer.record_bytes_max
        room, room_bytes = self._producer.room
        try:
            for entry in entries:
                if type(entry) is not bytes or len(entry) > record_bytes_max:
                    return listed, entry
                listed.append(entry)
                room_bytes -= len(entry) + FRAME_OVERHEAD_BYTES
                if len(listed) >= min(room, ENTRIES_TOGETHER) or room_bytes <= 0:
                    return listed, _NOTHING
        except Exception as error:
            return listed, _Raised(error)
        return listed, _END

    async def _enqueue_entry(self, entry: Entry) -> None:
        if isinstance(entry, BulkColumns) or arrow.is_batch(entry):
            await self._enqueue_batches([entry if isinstance(entry, BulkColumns) else BulkColumns.of_batch(entry)])
        else:
            await self._enqueue(entry if isinstance(entry, Draft) else Draft(entry))

    async def _enqueue(self, draft: Draft) -> None:
        outcome = self._next_outcome()
        try:
            append = pack_append(outcome, self._producer, draft, self._loop.time() + self._timeout_s)
        except WaltzError as error:
            outcome.set_exception(error)
            return
        try:
            if not self._producer.try_enqueue(append):
                await self._producer.enqueue(append)
        except WaltzError as error:
            self._ended = True  # no room before the deadline, or the producer has ended
            outcome.set_exception(error)

    def _next_outcome(self) -> _BulkOutcome:
        outcome = _BulkOutcome(loop=self._loop)
        outcome.bulk, outcome.position = self, self.receipt.submitted
        self._expect(1)
        return outcome

    # ---- outcomes --------------------------------------------------------------------------------------------------------------------------------

    def _expect(self, count: int) -> None:
        """Counts more entries as submitted, without an outcome yet."""
        self.receipt.submitted += count
        self._left += count
        if self._left:
            self._all_decided.clear()

    def _end(self, error: WaltzError) -> None:
        """Fails the next entry and stops reading the source."""
        self._ended = True
        self._expect(1)
        self.rows_failed(self.receipt.submitted - 1, 1, error)

    def rows_committed(self, position: int, count: int, transaction_id: int) -> None:
        """See `RowOutcomes`."""
        for ranges in (self.receipt.appended,) if self._on_ack is None else (self.receipt.appended, self._unreported):
            last = ranges[-1] if ranges else None
            if last is not None and position == last.first + last.length and transaction_id == last.transaction_id + last.length:
                ranges[-1] = Appended(last.first, last.length + count, last.transaction_id)
            else:
                ranges.append(Appended(position, count, transaction_id))
        if self._unreported and self._reporting is None:
            self._reporting = self._loop.call_soon(self._report)
        self._decided(count)

    def rows_failed(self, position: int, count: int, error: WaltzError) -> None:
        """See `RowOutcomes`."""
        failure = NotInLog(position, error, count)
        self.receipt.failed.append(failure)
        self._ended = self._ended or not isinstance(error, LockConflict | InvalidRequest)
        if self._on_error is not None:
            call_hook(self._on_error, failure)
        self._decided(count)

    def _decided(self, count: int) -> None:
        self._left -= count
        if not self._left:
            self._all_decided.set()

    def _report(self) -> None:
        self._reporting = None
        unreported, self._unreported = self._unreported, []
        if self._on_ack is not None:
            for each in unreported:
                call_hook(self._on_ack, each)


class Bulk(Protocol[Result]):
    """A `BulkAppend`, or one of a topic."""

    @property
    def ended(self) -> bool: ...
    async def enqueue(self, source: Source) -> None: ...
    async def finish(self) -> Result: ...
    def cancel(self) -> None: ...


async def append_all(bulk: Bulk[Result], source: Source) -> Result:
    """Enqueues the source and returns the result. An error of the source is raised after the entries before it are decided."""
    try:
        await bulk.enqueue(without_frames(source))
    except asyncio.CancelledError:
        bulk.cancel()
        raise
    except BaseException:
        await bulk.finish()
        raise
    return await bulk.finish()


def append_all_blocking(background: Background, begin: Callable[[], Bulk[Result]], source: Source) -> Result:
    """`append_all` for a thread that blocks. The source is read in that thread; `begin` runs in the event loop."""
    bulk = background.call_soon(begin)
    try:
        for part in source_parts(without_frames(source)):
            background.call(bulk.enqueue(part))
            if bulk.ended:
                break
    except Exception:
        background.call(bulk.finish())
        raise
    except BaseException:
        background.soon(bulk.cancel)
        raise
    return background.call(bulk.finish())


async def outcomes(futures: Iterable[asyncio.Future[Receipt]]) -> list[Receipt | LockConflict]:
    """The receipt or conflict of each future, when all are decided. Raises the first other error."""
    found: list[Receipt | LockConflict] = []
    failed: WaltzError | None = None
    for future in futures:
        try:
            found.append(await future)
        except LockConflict as conflict:
            found.append(conflict)
        except WaltzError as error:
            failed = failed or error
    if failed is not None:
        raise failed
    return found


def call_hook(hook: Callable[[Any], None], argument: object) -> None:
    """Calls the hook. An error that it raises is logged."""
    try:
        hook(argument)
    except Exception:
        log.exception("bulk append callback failed", argument=repr(argument))
