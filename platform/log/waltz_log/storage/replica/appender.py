"""One owner's stream of blocks into one partition: what it sent, what of that is received and what on disk, and why it ended, if it did."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import NamedTuple

from waltz_log.core.formats.block import Block
from waltz_log.errors import WaltzError
from waltz_log.storage.replica.writer_memory import WriterMemory

__all__ = ["Appender", "Flushing", "Pending"]


class Flushing(NamedTuple):
    """When what was acknowledged from memory is synced: so long after the first of it, or when it is so much."""

    period_s: float
    bytes: int


class Appender:
    """The partition tells it what happened; the stream's receiver waits for room, its sender for news. Event loop only.

    `flushing`: what comes through here is acknowledged as received once it is written, and as on disk when that was synced; None: each block is
    synced before anything is said of it."""

    def __init__(self, session: int, pending_bytes_max: int, memory: WriterMemory) -> None:
        self.session = session
        self.flushing: Flushing | None = None
        self.received: int | None = None
        """The last transaction of what came through here and is written. None where nothing was that is not synced too."""
        self.acknowledged: int | None = None
        """The last transaction of what came through here and is on disk."""
        self.failed: WaltzError | None = None
        self._pending_bytes = 0
        self._pending_bytes_max = pending_bytes_max
        self._memory = memory
        self._finished = False
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    def queued(self, size: int) -> None:
        self._pending_bytes += size
        self._memory.take(size)
        if self._pending_bytes > self._pending_bytes_max:
            self._room.clear()

    def took(self, last_transaction_id: int, size: int) -> None:
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
        """A block is not written, and nothing that follows it."""
        self._left(size)
        self.fail(error)

    def _left(self, size: int) -> None:
        self._pending_bytes -= size
        self._memory.give(size)
        if self._pending_bytes <= self._pending_bytes_max:
            self._room.set()

    def fail(self, error: WaltzError) -> None:
        """The first reason stays."""
        if self.failed is None:
            self.failed = error
        self._room.set()
        self._changed.set()

    def finish(self) -> None:
        """Nothing more is sent."""
        self._finished = True
        self._changed.set()

    @property
    def done(self) -> bool:
        """Nothing more is sent, and what was is on disk."""
        return self._finished and self._pending_bytes == 0 and self.received is None

    async def room(self) -> None:
        """Returns when there is room for one more block, or none is wanted any more: no more waits than is allowed, here and in all partitions, or
        nothing of this stream does."""
        await self._room.wait()
        while self._memory.full and self._pending_bytes and self.failed is None:
            await self._memory.changed()

    async def changed(self) -> None:
        """Returns at the next change since the last return, at once where there was one."""
        await self._changed.wait()
        self._changed.clear()


@dataclass(frozen=True, slots=True)
class Pending:
    """A block that waits to be written, and who is told of it."""

    block: Block
    appender: Appender
