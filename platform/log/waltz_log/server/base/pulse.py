"""A signal for many tasks: each waits until its own condition holds, and is woken when a change made it hold.

`notify` evaluates the conditions, so tasks that are not affected keep sleeping: a committed block wakes only the tasks that wait for it. Conditions
must be cheap and without side effects, and depend on state that changed before `notify`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["Pulse"]


class Pulse:
    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[None], Callable[[], bool]] = {}
        self._error: BaseException | None = None

    def notify(self) -> None:
        """Something changed: every waiter whose condition is true continues."""
        if not self._waiting:
            return
        for future, condition in list(self._waiting.items()):
            if self._error is not None or condition():
                del self._waiting[future]
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
            future = asyncio.get_running_loop().create_future()
            self._waiting[future] = condition
            try:
                await future
            finally:
                self._waiting.pop(future, None)
