"""One owner's stream of blocks into one partition: what it sent, how much of that is received and on disk, and why it ended."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from waltz_log.core.flushing import Flushing
from waltz_log.core.formats.block import Block
from waltz_log.errors import WaltzError
from waltz_log.storage.replica.writer_memory import WriterMemory

__all__ = ["Appender", "Pending"]


class Appender:
    """The partition reports progress to it; the stream's receiver waits for memory, its sender for changes. Event loop only.

    `flushing`: blocks of this stream are acknowledged as received once they are written, and as on disk when they are synced; None: each block is
    synced before any acknowledgment."""

    def __init__(self, session: int, pending_bytes_max: int, memory: WriterMemory) -> None:
        self.session = session
        self.flushing: Flushing | None = None
        self.received: int | None = None
        """The last transaction of this stream that is written. None if nothing was written that is not synced too."""
        self.acknowledged: int | None = None
        """The last transaction of this stream that is on disk."""
        self.failed: WaltzError | None = None
        self._pending_bytes = 0
        self._pending_bytes_max = pending_bytes_max
        self._memory = memory
        self._finished = False
        self._changed = asyncio.Event()
        self._has_capacity = asyncio.Event()
        self._has_capacity.set()

    def queued(self, size: int) -> None:
        self._pending_bytes += size
        self._memory.acquire(size)
        if self._pending_bytes > self._pending_bytes_max:
            self._has_capacity.clear()

    def written_unsynced(self, last_transaction_id: int, size: int) -> None:
        """A block is written and not synced."""
        self._left(size)
        self.received = last_transaction_id
        self._changed.set()

    def written(self, last_transaction_id: int, size: int) -> None:
        """A block is on disk."""
        self._left(size)
        self.acknowledged = last_transaction_id if self.acknowledged is None else max(self.acknowledged, last_transaction_id)
        self._changed.set()

    def synced(self, last_transaction_id: int) -> None:
        """All that is written is on disk."""
        if self.received is not None:
            self.written(min(self.received, last_transaction_id), 0)
            if self.acknowledged == self.received:
                self.received = None

    def dropped(self, size: int, error: WaltzError) -> None:
        """A block and all that follow it are not written."""
        self._left(size)
        self.fail(error)

    def _left(self, size: int) -> None:
        self._pending_bytes -= size
        self._memory.release(size)
        if self._pending_bytes <= self._pending_bytes_max:
            self._has_capacity.set()

    def fail(self, error: WaltzError) -> None:
        """Keeps the first reason."""
        if self.failed is None:
            self.failed = error
        self._has_capacity.set()
        self._changed.set()

    def finish(self) -> None:
        """The owner sends nothing more."""
        self._finished = True
        self._changed.set()

    @property
    def done(self) -> bool:
        """The owner sends nothing more, and all it sent is on disk."""
        return self._finished and self._pending_bytes == 0 and self.received is None

    async def wait_for_capacity(self) -> None:
        """Returns when there is memory for one more block, or the stream failed: queued blocks are within the bounds of the stream and of all
        partitions, or no block of this stream is queued."""
        await self._has_capacity.wait()
        while self._memory.full and self._pending_bytes and self.failed is None:
            await self._memory.changed()

    async def changed(self) -> None:
        """Returns at the next change since the last return, at once if there was one."""
        await self._changed.wait()
        self._changed.clear()


@dataclass(frozen=True, slots=True)
class Pending:
    """A queued block, and the appender that it came from. `queued_s`: when, if it is traced."""

    block: Block
    appender: Appender
    queued_s: float = 0.0
