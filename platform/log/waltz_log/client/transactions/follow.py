"""A follower: applies the feed of one partition to the application's state, in order, in the background.

`applied` is the application's high-water mark of the partition: what transactions are computed from. It moves only after `apply` returned, so it
never claims more than the state holds. An error in `apply` or in the feed ends the follower, unless its creator says where the feed starts again. All
callers that wait for a follower that ended get that error.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import TypeAlias

from waltz_log.background_tasks import end_tasks, outcome_of, start_task
from waltz_log.client.transactions.admission import Admission
from waltz_log.client.transactions.transaction import Transaction
from waltz_log.errors import InvalidRequest

__all__ = ["Again", "Apply", "Follower"]

Apply: TypeAlias = Callable[[list[Transaction]], Awaitable[None] | None]
"""Given every batch once, in order. A plain function runs in the event loop: keep it short, or give a coroutine function."""

Again: TypeAlias = Callable[[Exception], Awaitable[int | None]]
"""Given what ended the feed or `apply`: the mark of the state, to continue from there, or None to end with the error."""


class Follower:
    """Applies the feed of one partition to the application's state, in the background. Made by `client.follow`."""

    def __init__(
        self,
        partition: int,
        apply: Apply,
        after: int,
        feed: Callable[[int], AsyncGenerator[list[Transaction], None]],
        ended: Callable[[Follower], None],
        admission: Admission,
        again: Again | None = None,
    ) -> None:
        """`feed`: everything above the given mark; `admission`: that of this client's partition."""
        self.partition = partition
        self.admission = admission
        self._apply = apply
        self._applied = after
        self._feed = feed
        self._ended = ended
        self._again = again
        self._waiting: dict[asyncio.Future[None], int] = {}
        self._error: BaseException | None = None
        self._closing = False
        self._task = start_task(self._run(), name=f"waltz follower {partition}")
        self._task.add_done_callback(self._finish)

    @property
    def applied(self) -> int:
        """The last transaction that `apply` has returned from."""
        return self._applied

    @property
    def error(self) -> BaseException | None:
        """The error that ended the follower; None while it runs."""
        return self._error

    async def wait(self, transaction_id: int) -> None:
        """Returns once the transaction is applied. Raises the error that ended the follower, if it ends before that."""
        if self._applied >= transaction_id:
            return
        if self._error is not None:
            raise self._error
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[waiter] = transaction_id
        try:
            await waiter
        finally:
            self._waiting.pop(waiter, None)

    async def settled(self, transaction_id: int) -> None:
        """Returns once the transaction is applied, or never will be because the follower has ended."""
        while self._applied < transaction_id and self._error is None:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting[waiter] = transaction_id
            try:
                await asyncio.wait([waiter])
            finally:
                self._waiting.pop(waiter, None)
            if waiter.done() and not waiter.cancelled():
                waiter.exception()  # seen: what ended the follower is for those who rely on it

    async def close(self) -> None:
        """Ends the follower after the current batch. Pending calls of `wait` raise `InvalidRequest`."""
        self._closing = True
        await end_tasks([self._task])
        await asyncio.sleep(0)  # the task's own callbacks first

    async def _run(self) -> None:
        while True:
            try:
                await self._follow()
            except Exception as error:
                after = None if self._again is None else await self._again(error)
                if after is None:
                    raise
                self._applied = after
                self._wake()

    async def _follow(self) -> None:
        async with aclosing(self._feed(self._applied)) as batches:
            async for batch in batches:
                result = self._apply(batch)
                if inspect.isawaitable(result):
                    await result
                self._applied = batch[-1].transaction_id
                self._wake()

    def _finish(self, task: asyncio.Task[None]) -> None:
        error: BaseException | None = None
        if not self._closing:
            try:
                outcome_of(task)
            except BaseException as found:  # also what no application should raise
                error = found
        self._error = error or InvalidRequest(reason=f"the follower is closed: partition={self.partition}")
        self._ended(self)
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_exception(self._error)

    def _wake(self) -> None:
        for waiter, wanted in list(self._waiting.items()):
            if wanted <= self._applied and not waiter.done():
                waiter.set_result(None)
