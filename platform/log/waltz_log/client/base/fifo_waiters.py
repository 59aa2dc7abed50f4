"""Callers that wait for capacity, first come, first served. The owner of the capacity counts it; this module keeps only the queue."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from copy import copy
from typing import Generic, TypeVar

from waltz_log.errors import WaltzError

__all__ = ["FifoWaiters"]


Amount = TypeVar("Amount")


class FifoWaiters(Generic[Amount]):
    """`admit` whenever capacity came back. A caller asks the owner first and waits only where `queue` is not empty or nothing fits."""

    def __init__(self, fits: Callable[[Amount], bool], reserve: Callable[[Amount], None], release: Callable[[Amount], None]) -> None:
        """`fits`: whether there is capacity for an amount now. `reserve` acquires it and `release` returns it."""
        self._fits = fits
        self._reserve = reserve
        self._release = release
        self.queue: deque[tuple[asyncio.Future[None], Amount]] = deque()
        """The waiters and the amount that each needs. Always the same object."""

    async def wait(self, amount: Amount, deadline: float) -> None:
        """Returns once the amount is reserved. Raises `TimeoutError` at the deadline, on the loop's clock; or what `fail` was given."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = waiter, amount
        self.queue.append(entry)
        try:
            async with asyncio.timeout_at(deadline):
                await waiter
        except BaseException:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._release(amount)  # reserved at the moment at which its caller gave up
            elif entry in self.queue:
                self.queue.remove(entry)
                self.admit()  # those behind it may fit
            raise

    def admit(self) -> None:
        """Lets in, in order, who fits now."""
        queue = self.queue
        while queue and self._fits(queue[0][1]):
            waiter, amount = queue.popleft()
            if not waiter.done():
                self._reserve(amount)
                waiter.set_result(None)

    def fail(self, error: WaltzError) -> None:
        """Ends every wait with a copy of the error."""
        waiting = list(self.queue)
        self.queue.clear()
        for waiter, _ in waiting:
            if not waiter.done():
                waiter.set_exception(copy(error))
