"""Appending much in one call: one result for all of it, which says by ranges what is in the log, and by position what is not.

What is handed in may be a list, an iterator of any length, an asynchronous one, or Arrow record batches. It is taken as there is room in the
partition's window and in that order; each entry stands for itself. Taking ends with what cannot be mended by the next entry: a deadline that passed,
an unknown outcome, a client that was closed. Nothing is made per entry but the window's own future.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

import structlog

from waltz_log.client.append.packing import pack_append
from waltz_log.client.append.producer import Producer
from waltz_log.client.base import arrow
from waltz_log.client.base.background import Background
from waltz_log.client.transactions.transaction import Draft, Receipt
from waltz_log.errors import InvalidRequest, LockConflict, WaltzError

__all__ = [
    "Appended",
    "BulkAppend",
    "BulkReceipt",
    "Entry",
    "NotInLog",
    "Source",
    "append_all",
    "append_all_blocking",
    "call_hook",
    "outcomes",
    "parts",
]

log = structlog.get_logger(__name__)

Result = TypeVar("Result", covariant=True)

Entry: TypeAlias = "bytes | Draft | Any"
"""Data, a draft, or an Arrow record batch with a column `data` and maybe `header` (`Any`: Arrow is not imported here)."""

Source: TypeAlias = "Iterable[Entry] | AsyncIterable[Entry] | Any"
"""Entries, one after the other, or one Arrow record batch or table."""

YIELD_AFTER = 512
"""Entries taken without a wait, before others have a turn of the event loop: about a millisecond."""


class Appended(NamedTuple):
    """Entries from position `first` of the call are in the log, under consecutive ids from `transaction_id`."""

    first: int
    length: int
    transaction_id: int


class NotInLog(NamedTuple):
    """The entry at that position of the call, and why: `LockConflict`, `NotAppended`, `InvalidRequest`; or `OutcomeUnknown`: ask `resolve`."""

    position: int
    error: WaltzError


@dataclass(slots=True)
class BulkReceipt:
    """What became of a call. `taken`: entries taken from the source; all of them, unless the last failure ended the taking."""

    partition: int
    taken: int = 0
    appended: list[Appended] = field(default_factory=list)
    failed: list[NotInLog] = field(default_factory=list)

    @property
    def committed(self) -> int:
        """How many are in the log."""
        return sum(each.length for each in self.appended)

    def transaction_id(self, position: int) -> int | None:
        """Where the entry stands; None: it failed."""
        at = bisect_right(self.appended, position, key=lambda each: each.first) - 1
        if at < 0 or position >= self.appended[at].first + self.appended[at].length:
            return None
        return self.appended[at].transaction_id + position - self.appended[at].first

    def raise_failed(self) -> None:
        """Raises the first failure, if there is one."""
        if self.failed:
            raise self.failed[0].error


class _BulkOutcome(asyncio.Future[Receipt]):
    """The outcome of one entry of a call, which it informs at once; nobody awaits it."""

    __slots__ = ("bulk", "position")

    bulk: BulkAppend
    position: int

    def set_result(self, result: Receipt) -> None:
        super().set_result(result)
        self.bulk._committed(self.position, result.transaction_id)

    def set_exception(self, exception: type | BaseException) -> None:
        super().set_exception(exception)
        self.bulk._failed(self.position, super().exception())


class BulkAppend:
    """One call: `enqueue` what there is, any number of times, then `finish`."""

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

    @property
    def ended(self) -> bool:
        """Nothing more is taken."""
        return self._ended

    async def enqueue(self, source: Source) -> None:
        """Enqueues from the source until it or the call is at its end. Raises what the source raises, and nothing else."""
        since_yield = 0
        if hasattr(source, "__aiter__"):
            async for entry in source:
                for draft in _drafts(entry):
                    await self._enqueue(draft)
                    if self._ended:
                        return
            return
        for entry in _entries(source):
            for draft in _drafts(entry):
                since_yield = 0 if await self._enqueue(draft) else since_yield + 1
                if since_yield >= YIELD_AFTER:
                    since_yield = 0
                    await asyncio.sleep(0)
                if self._ended:
                    return

    async def finish(self) -> BulkReceipt:
        """Returns when all that was taken is decided. Cancelled, as `cancel`."""
        try:
            await self._all_decided.wait()
        except asyncio.CancelledError:
            self.cancel()
            raise
        if self._reporting is not None:
            self._reporting.cancel()
            self._report()
        self.receipt.appended = _joined(self.receipt.appended)
        self.receipt.failed.sort()
        return self.receipt

    def cancel(self) -> None:
        """What was not sent yet never will be; no outcome of the rest is reported."""
        self._ended = True
        self._on_ack = self._on_error = None
        for future in self._producer.window.undecided():
            if isinstance(future, _BulkOutcome) and future.bulk is self:
                future.cancel()
        if self._reporting is not None:
            self._reporting.cancel()

    async def _enqueue(self, draft: Draft) -> bool:
        """Whether it waited."""
        outcome = self._next_outcome()
        try:
            append = pack_append(outcome, self._producer, draft, self._loop.time() + self._timeout_s)
        except WaltzError as error:
            outcome.set_exception(error)
            return False
        try:
            if self._producer.try_enqueue(append):
                return False
            await self._producer.enqueue(append)
        except WaltzError as error:
            self._ended = True  # no room in time, or a producer that takes nothing any more
            outcome.set_exception(error)
        return True

    def _next_outcome(self) -> _BulkOutcome:
        outcome = _BulkOutcome(loop=self._loop)
        outcome.bulk, outcome.position = self, self.receipt.taken
        self.receipt.taken += 1
        self._left += 1
        self._all_decided.clear()
        return outcome

    # ---- outcomes --------------------------------------------------------------------------------------------------------------------------------

    def _committed(self, position: int, transaction_id: int) -> None:
        for ranges in (self.receipt.appended,) if self._on_ack is None else (self.receipt.appended, self._unreported):
            last = ranges[-1] if ranges else None
            if last is not None and position == last.first + last.length and transaction_id == last.transaction_id + last.length:
                ranges[-1] = Appended(last.first, last.length + 1, last.transaction_id)
            else:
                ranges.append(Appended(position, 1, transaction_id))
        if self._unreported and self._reporting is None:
            self._reporting = self._loop.call_soon(self._report)
        self._decided()

    def _failed(self, position: int, error: BaseException | None) -> None:
        failure = NotInLog(position, error if isinstance(error, WaltzError) else InvalidRequest(reason=repr(error)))
        self.receipt.failed.append(failure)
        self._ended = self._ended or not isinstance(failure.error, LockConflict | InvalidRequest)
        if self._on_error is not None:
            call_hook(self._on_error, failure)
        self._decided()

    def _decided(self) -> None:
        self._left -= 1
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
    """Raises what the source raises, once what was taken before is decided."""
    try:
        await bulk.enqueue(source)
    except asyncio.CancelledError:
        bulk.cancel()
        raise
    except BaseException:
        await bulk.finish()
        raise
    return await bulk.finish()


def append_all_blocking(background: Background, begin: Callable[[], Bulk[Result]], source: Source) -> Result:
    """The same in a thread that blocks. The source is read in it; `begin` runs in the event loop."""
    bulk = background.call_soon(begin)
    try:
        for part in parts(source):
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
    """Of each, once all are decided. Raises the first that is neither."""
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
    """Calls it. What it raises changes nothing."""
    try:
        hook(argument)
    except Exception:
        log.exception("bulk append callback failed", told=repr(argument))


def _joined(ranges: list[Appended]) -> list[Appended]:
    """In order of position, neighbours as one: answers for what was sent twice come in any order."""
    found: list[Appended] = []
    for each in sorted(ranges):
        last = found[-1] if found else None
        if last is not None and each.first == last.first + last.length and each.transaction_id == last.transaction_id + last.length:
            found[-1] = Appended(last.first, last.length + each.length, last.transaction_id)
        else:
            found.append(each)
    return found


def _entries(source: Any) -> Iterable[Entry]:
    if arrow.is_batch(source):
        return (source,)
    if hasattr(source, "to_batches"):
        batches: Iterable[Entry] = source.to_batches()
        return batches
    if isinstance(source, bytes | str) or not hasattr(source, "__iter__"):
        raise InvalidRequest(reason=f"to append in bulk is a list, an iterator or a record batch, not {type(source).__name__}")
    entries: Iterable[Entry] = source
    return entries


def parts(source: Source) -> Iterator[Source]:
    """The source in parts of some hundred entries, or single record batches, for who hands it to another thread. What the source gave before it
    raised is a part too."""
    part: list[Entry] = []
    try:
        for entry in _entries(source):
            part.append(entry)
            if len(part) >= YIELD_AFTER or arrow.is_batch(entry):
                full, part = part, []
                yield full
    except Exception:
        if part:
            yield part
        raise
    if part:
        yield part


def _drafts(entry: Entry) -> Iterator[Draft]:
    if isinstance(entry, Draft):
        return iter((entry,))
    if arrow.is_batch(entry):
        return (Draft(data, header) for data, header in arrow.rows(entry))
    return iter((Draft(entry),))
