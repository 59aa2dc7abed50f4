"""A signal that many tasks wait for: each waits until a condition of its own holds, and is woken once per change.

One future per change however many wait, and none while nobody does, so that a block costs the same with one reader or a hundred.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["Pulse"]


class Pulse:
    def __init__(self) -> None:
        self._future: asyncio.Future[None] | None = None
        self._error: BaseException | None = None

    def notify(self) -> None:
        """Something changed: every waiter looks again."""
        if self._future is not None:
            future, self._future = self._future, None
            if not future.done():
                future.set_result(None)

    def fail(self, error: BaseException) -> None:
        """Nothing changes any more: every waiter, now and later, gets the error unless its condition holds."""
        self._error = error
        self.notify()

    async def wait_for(self, condition: Callable[[], bool]) -> None:
        while not condition():
            if self._error is not None:
                raise self._error
            if self._future is None:
                self._future = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._future)
