"""How much all partitions of a node together keep in memory of what they received and have not written yet.

Each owner's stream has a bound of its own (`Appender`); this one is over all of them, because a thousand partitions with a megabyte each are a
gigabyte (seeds/partitioned_wal.md, max_bytes_in_writer_cache). Beyond it a stream takes its next block only when its last one is written: what is
held is at most the bound and one block for each stream, however slow the disk. Event loop only.
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

    def take(self, size: int) -> None:
        self.held += size
        self.highest = max(self.highest, self.held)

    def give(self, size: int) -> None:
        self.held -= size
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for each in waiting:
                if not each.done():
                    each.set_result(None)

    async def changed(self) -> None:
        """Returns when something was given back."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        await waiter
