"""Work that always runs to its end once it has begun, even if the caller is cancelled: a disk call on a thread cannot be stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from waltz_log.background_tasks import result_of, start_task
from waltz_log.errors import WaltzError

__all__ = ["ShieldedTasks"]

T = TypeVar("T")


class ShieldedTasks:
    """`broke` is called with an unexpected error that no caller receives, a defect. Event loop only."""

    def __init__(self, broke: Callable[[BaseException], None]) -> None:
        self._broke = broke
        self._tasks: set[asyncio.Task[object]] = set()

    def __len__(self) -> int:
        """How many tasks are running."""
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = start_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def whole(self, work: Coroutine[Any, Any, T]) -> T:
        """Returns the result, unless the caller is cancelled before; the work continues."""
        return await result_of(self.start(work))

    async def all_ended(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _ended(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, WaltzError):
            self._broke(error)
