"""`waltz append` with lines on standard input: each line becomes a transaction, in the order of the lines.

A thread of its own reads, so that a pipe that is silent delays neither the client nor Ctrl-C. Memory is bounded: `READ_BYTES` are read ahead, the
client's append window holds what is sent, and outcomes are kept of `LINES_TOGETHER` lines at a time. Reading ends at the end of the input, at a line
that cannot be appended, at the first line that fails, and at Ctrl-C. What was read before is then decided and counted, so the report says what is
in the log.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from waltz_log.background_tasks import start_task
from waltz_log.client import BulkReceipt, Receipt
from waltz_log.client.append.bulk import Bulk
from waltz_log.client.append.bulk_source import Source
from waltz_log.client.topics.topic_bulk import TopicBulkReceipt
from waltz_log.errors import OutcomeUnknown, WaltzError

__all__ = ["BulkSink", "InputLines", "LineSplitter", "Placed", "SingleSink", "Sink", "Tally", "Unfit", "append_lines"]

READ_BYTES: Final = 256 * 1024
"""Bytes that are read and handed over at once; a pipe of Linux holds 64 KiB."""

LINES_TOGETHER: Final = 65_536
"""Lines of one bulk append. Its outcome keeps some bytes for each line; at most two bulk appends are open."""


class Unfit(NamedTuple):
    """Why no more lines are appended: `reason` completes "line 7 …" if the line that follows the last one is named, else it is a sentence."""

    reason: str
    names_line: bool = True


class LineSplitter:
    """Cuts bytes into lines, without their ends. Keeps at most one line that is not complete."""

    def __init__(self, line_bytes_max: int) -> None:
        self._line_bytes_max = line_bytes_max
        self.rest = b""
        """The begin of the next line."""

    def split(self, data: bytes) -> tuple[list[bytes], Unfit | None]:
        """The lines that `data` completes, and what is wrong with the line after them, if anything is."""
        *lines, self.rest = (self.rest + data).split(b"\n")
        for at, line in enumerate(lines):
            if len(line) > self._line_bytes_max:
                return lines[:at], self._too_large(f"{len(line)} bytes, more")
        return lines, self._too_large("more bytes") if len(self.rest) > self._line_bytes_max else None

    def _too_large(self, size: str) -> Unfit:
        return Unfit(f"has {size} than the {self._line_bytes_max} that a transaction may have (record_bytes_max)")


class InputLines:
    """Lines of a file descriptor, read in a thread. `stop` ends them where they are. It belongs to the running event loop."""

    def __init__(self, descriptor: int, line_bytes_max: int) -> None:
        self._splitter = LineSplitter(line_bytes_max)
        self._chunks: asyncio.Queue[bytes | OSError | None] = asyncio.Queue(1)
        self.stopped = False
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._read, args=(descriptor, loop), name="waltz stdin", daemon=True).start()

    def _read(self, descriptor: int, loop: asyncio.AbstractEventLoop) -> None:
        chunk: bytes | OSError = b"-"
        with suppress(RuntimeError, CancelledError):  # the loop has ended
            while isinstance(chunk, bytes) and chunk:
                try:
                    chunk = os.read(descriptor, READ_BYTES)
                except OSError as error:
                    chunk = error
                waiting = self._chunks.put(chunk)
                try:
                    handed = asyncio.run_coroutine_threadsafe(waiting, loop)
                except RuntimeError:
                    waiting.close()
                    raise
                handed.result()

    def stop(self) -> None:
        """What was read and not given out is dropped."""
        self.stopped = True
        while not self._chunks.empty():
            self._chunks.get_nowait()
        self._chunks.put_nowait(None)

    async def next_lines(self) -> tuple[list[bytes], Unfit | None, bool]:
        """The next lines, why none can follow, and whether the input has ended. Raises `OSError` if it cannot be read."""
        chunk = await self._chunks.get()
        if chunk is None:
            return [], Unfit("interrupted", names_line=False), True
        if isinstance(chunk, OSError):
            raise chunk
        if chunk:
            lines, unfit = self._splitter.split(chunk)
            return lines, unfit, unfit is not None
        rest = len(self._splitter.rest)
        return [], Unfit(f"has no end: the input ended after {rest} bytes of it, which are not appended") if rest else None, True


@dataclass(slots=True)
class Placed:
    """Lines in one partition of the log. Ids between `first` and `last` can be those of other clients."""

    lines: int
    first: int
    last: int


@dataclass(slots=True)
class Tally:
    """What became of the lines. `unknown`: lines whose outcome is unknown; `first_failed`: the number of a line, from 1."""

    read: int = 0
    committed: int = 0
    unknown: int = 0
    first_failed: int | None = None
    error: WaltzError | OSError | None = None
    partitions: dict[int, Placed] = field(default_factory=dict)

    def add_placed(self, partition: int, first: int, last: int, lines: int) -> None:
        self.committed += lines
        found = self.partitions.setdefault(partition, Placed(0, first, last))
        found.lines += lines
        found.first, found.last = min(found.first, first), max(found.last, last)

    def add_failed(self, number: int, error: WaltzError, lines: int = 1) -> None:
        """`number`: of the first of these lines, from 1."""
        self.unknown += lines if isinstance(error, OutcomeUnknown) else 0
        if self.first_failed is None or number < self.first_failed:
            self.first_failed, self.error = number, error

    def sentence(self) -> str:
        """What is in the log, and which line is the first that is not known to be."""
        lost = self.read - self.committed - self.unknown
        parts = [f"{_lines(self.committed)} committed"]
        if lost:
            parts.append(f"{_lines(lost)} not appended")
        if self.unknown:
            parts.append(f"the outcome of {self.unknown} {'line' if self.unknown == 1 else 'lines'} is unknown")
        first = self.committed + 1 if self.first_failed is None else self.first_failed
        return ", ".join(parts) + f"; line {first} is the first that is not committed"


def _lines(count: int) -> str:
    return f"{count} line is" if count == 1 else f"{count} lines are"


class Sink(Protocol):
    """Where lines go. `tally` counts those that are decided."""

    tally: Tally

    @property
    def ended(self) -> bool:
        """Whether a line failed, so that no more are wanted."""
        ...

    async def add(self, lines: Sequence[bytes]) -> None: ...
    async def finish(self) -> None: ...


class BulkSink:
    """Bulk appends, one after the other. `source`: from lines to what a bulk append accepts."""

    def __init__(self, begin: Callable[[], Bulk[BulkReceipt] | Bulk[TopicBulkReceipt]], source: Callable[[Sequence[bytes]], Source]) -> None:
        self.tally = Tally()
        self._begin, self._source = begin, source
        self._open: list[tuple[int, Bulk[BulkReceipt] | Bulk[TopicBulkReceipt]]] = []  # with the number of lines before it

    @property
    def ended(self) -> bool:
        return self.tally.error is not None or any(bulk.ended for _, bulk in self._open)

    async def add(self, lines: Sequence[bytes]) -> None:
        if not self._open or self.tally.read - self._open[-1][0] >= LINES_TOGETHER:
            self._open.append((self.tally.read, self._begin()))
        self.tally.read += len(lines)
        await self._open[-1][1].enqueue(self._source(lines))
        if len(self._open) > 1:
            await self._finish_first()

    async def finish(self) -> None:
        while self._open:
            await self._finish_first()

    async def _finish_first(self) -> None:
        before, bulk = self._open.pop(0)
        receipt = await bulk.finish()
        for part in receipt.partitions.values() if isinstance(receipt, TopicBulkReceipt) else [receipt]:
            for each in part.appended:
                self.tally.add_placed(part.partition, each.transaction_id, each.transaction_id + each.length - 1, each.length)
        for failure in receipt.failed:
            self.tally.add_failed(before + failure.position + 1, failure.error, failure.length)


class SingleSink:
    """One append after the other, each reported as soon as it is committed. `stopped`: whether Ctrl-C was pressed."""

    def __init__(
        self, append: Callable[[bytes], Awaitable[Receipt]], report: Callable[[Receipt], None], stopped: Callable[[], bool] = lambda: False
    ) -> None:
        self.tally = Tally()
        self._append, self._report, self._stopped = append, report, stopped

    @property
    def ended(self) -> bool:
        return self.tally.error is not None

    async def add(self, lines: Sequence[bytes]) -> None:
        for line in lines:
            if self._stopped():
                return
            self.tally.read += 1
            try:
                receipt = await self._append(line)
            except WaltzError as error:
                self.tally.add_failed(self.tally.read, error)
                return
            self.tally.add_placed(receipt.partition, receipt.transaction_id, receipt.transaction_id, 1)
            self._report(receipt)

    async def finish(self) -> None:
        pass


async def append_lines(lines: InputLines, sink: Sink, *, empty: Unfit | None = None) -> Unfit | None:
    """Appends until the input ends or a line cannot be appended, and returns why it stopped before the end; None: at the end, or because a line
    failed, which the sink's tally has. `empty`: why an empty line cannot be appended. Ctrl-C ends the reading; a second one ends the call."""
    pumping = start_task(_pump(lines, sink, empty))
    try:
        return await asyncio.shield(pumping)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or pumping.cancelled():
            raise
        task.uncancel()
        lines.stop()
        return await pumping


async def _pump(lines: InputLines, sink: Sink, empty: Unfit | None) -> Unfit | None:
    unfit: Unfit | None = None
    ended = False
    while not ended and not sink.ended:
        try:
            found, unfit, ended = await lines.next_lines()
        except OSError as error:
            sink.tally.error = error
            break
        if empty is not None and b"" in found:
            found, unfit, ended = found[: found.index(b"")], empty, True
        try:
            if found:
                await sink.add(found)
        except WaltzError as error:
            sink.tally.error = error
    await sink.finish()
    if sink.tally.error is not None:
        return None
    return Unfit("interrupted", names_line=False) if lines.stopped else unfit
