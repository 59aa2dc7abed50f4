"""Bounds the memory that all partitions of a node together use for received, unwritten blocks.

Each owner's stream has its own bound (`Appender`). This one is over all of them, because a thousand partitions with a megabyte each are a gigabyte
(Partitioned WAL, max_bytes_in_writer_cache). Above it, a stream accepts its next block only when its last one is written. So at most the
bound and one block for each stream are held, however slow the disk is. Event loop only.
"""

from __future__ import annotations

import asyncio

__all__ = ["WriterMemory"]


class WriterMemory:
    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.held = 0
        self.highest = 0
        """The most that was ever held."""
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def full(self) -> bool:
        return self.held > self.bytes_max

    def acquire(self, size: int) -> None:
        self.held += size
        self.highest = max(self.highest, self.held)

    def release(self, size: int) -> None:
        self.held -= size
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for each in waiting:
                if not each.done():
                    each.set_result(None)

    async def changed(self) -> None:
        """Returns when memory was released."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        await waiter
