"""Lets one transaction at a time of this client at a lock, where its locks are known before it is computed.

Two transactions of one client that run on the same state and write the same lock conflict with each other as those of two clients do. Waiting here
costs nothing that waiting for the conflict would not, and saves the first of the two executions. It decides nothing: the log judges all the same.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from waltz_log.client.transaction import Lock, lock_hash

__all__ = ["Admission"]


class Admission:
    """Of one partition. First come, first served at each lock; locks are taken in one order by all, so nobody waits for each other."""

    def __init__(self) -> None:
        self._waiting: dict[bytes, deque[asyncio.Future[None]]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    @asynccontextmanager
    async def at(self, locks: Sequence[Lock]) -> AsyncIterator[None]:
        """Holds the locks against others who ask here. Cancelled or timed out, it holds none."""
        taken: list[bytes] = []
        try:
            for lock in sorted({lock_hash(lock) for lock in locks}):
                await self._take(lock)
                taken.append(lock)
            yield
        finally:
            for lock in taken:
                self._give(lock)

    async def _take(self, lock: bytes) -> None:
        line = self._waiting.get(lock)
        if line is None:
            self._waiting[lock] = deque()
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._give(lock)  # it had just been given
            raise

    def _give(self, lock: bytes) -> None:
        line = self._waiting[lock]
        while line:
            turn = line.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        del self._waiting[lock]
