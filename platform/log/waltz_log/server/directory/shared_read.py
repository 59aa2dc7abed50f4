"""A read of the coordinator that all calls of the same moment share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from waltz_log.background_tasks import end_tasks, result_of, start_task

__all__ = ["SharedRead"]


class SharedRead:
    """`read`: what is shared. `pause_s`: at least so long between two reads, so that their rate does not depend on the number of callers."""

    def __init__(self, read: Callable[[], Awaitable[None]], pause_s: float) -> None:
        self._read = read
        self._pause_s = pause_s
        self._reading: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None

    async def wait(self) -> None:
        """Returns when a read has ended that began after the call. Raises what it raised."""
        if self._next is None or self._next.done():
            self._next = start_task(self._read_after(self._reading))
        await result_of(self._next)

    async def _read_after(self, running: asyncio.Task[None] | None) -> None:
        if running is not None:
            await asyncio.wait([running])
            await asyncio.sleep(self._pause_s)
        self._reading, self._next = self._next, None
        await self._read()

    async def close(self) -> None:
        await end_tasks([task for task in (self._reading, self._next) if task is not None])
