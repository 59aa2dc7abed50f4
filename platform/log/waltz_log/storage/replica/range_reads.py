"""Serves ranges of one partition's log to readers without delaying appends.

A log is read segment by segment, in runs of a bounded size; between two runs a reader holds nothing. Readers make blocking calls through `ReadShare`,
which limits them to a part of the threads: however many readers of cold data wait for the disk, an append finds a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, TypeVar  # Any: Future is invariant

from waltz_log.background_tasks import result_of, start_task
from waltz_log.core.formats.block import Block
from waltz_log.core.ports import Offload
from waltz_log.errors import CorruptData, OutOfRange, StorageFailed, WaltzError
from waltz_log.loggers import get_logger
from waltz_log.storage.segments.locating import Located, locate
from waltz_log.storage.segments.segment_log import SegmentLog

__all__ = ["RangeReads", "ReadShare"]

log = get_logger(__name__)

T = TypeVar("T")


class ReadShare:
    """An offload for readers: at most `calls_max` of the concurrent calls of `offload`. A call whose caller was cancelled counts until it has
    ended."""

    def __init__(self, offload: Offload, calls_max: int) -> None:
        self._offload = offload
        self._places = asyncio.Semaphore(calls_max)

    async def __call__(self, call: Callable[..., T], /, *arguments: object) -> T:
        await self._places.acquire()
        work = start_task(self._offload(call, *arguments))
        work.add_done_callback(self._ended)
        return await result_of(work)

    def _ended(self, work: asyncio.Future[Any]) -> None:
        self._places.release()
        if not work.cancelled():
            work.exception()  # mark as retrieved, also if the caller was cancelled


class RangeReads:
    """For one partition. `offload`: the readers' share; `corrupt`: called with corruption that a read found."""

    def __init__(self, files: SegmentLog, offload: Offload, corrupt: Callable[[CorruptData], None] = lambda error: None) -> None:
        self._log = files
        self._offload = offload
        self._corrupt = corrupt

    async def runs(self, first: int, last: int, max_bytes: int) -> AsyncGenerator[list[Block], None]:
        """Stored blocks from `first` to `last` or the end of the log, in runs of about `max_bytes`. Raises `OutOfRange` if they were truncated or
        trimmed meanwhile, `CorruptData`, `StorageFailed`."""
        cuts = self._log.cuts
        while first <= min(last, self._log.tail.last_id):
            reader = await self._read(cuts, first, self._log.reader, first)
            while run := await self._read(cuts, first, self._log.read, reader, first, last, max_bytes):
                yield run
                first = run[-1].last_transaction_id + 1

    async def locate(self, times_ms: Sequence[int], first: int, last: int, max_bytes: int) -> Located:
        return await self._read(self._log.cuts, first if first <= last else self._log.first_id, locate, self._log, times_ms, first, last, max_bytes)

    async def _read(self, cuts: int, first: int, call: Callable[..., T], *arguments: object) -> T:
        try:
            found = await self._offload(call, *arguments)
        except (OSError, WaltzError) as error:
            if self._was_cut(cuts) or first < self._log.first_id:
                raise self._gone(first) from None
            log.error("read failed", partition=self._log.partition, error=str(error))
            if isinstance(error, CorruptData):
                self._corrupt(error)
            if isinstance(error, WaltzError):
                raise
            raise StorageFailed(partition=self._log.partition, reason=f"cannot read: {error}") from None
        if self._was_cut(cuts):
            raise self._gone(first)
        return found

    def _was_cut(self, cuts: int) -> bool:
        """Whether the log was truncated since its counter was `cuts`, or was being truncated then."""
        return cuts != self._log.cuts or cuts % 2 == 1

    def _gone(self, first: int) -> OutOfRange:
        """The error for a log that was truncated while it was read."""
        return OutOfRange(partition=self._log.partition, asked=first, first=self._log.first_id, last=self._log.tail.last_id)
