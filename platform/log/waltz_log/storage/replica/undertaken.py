"""Work that is carried to its end once it was begun, whoever stops waiting for it: a disk call on a thread cannot be taken back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from waltz_log.errors import WaltzError

__all__ = ["Undertaken"]

T = TypeVar("T")


class Undertaken:
    """`broke` is told of what ended with an error that is nobody's answer, a defect. Event loop only."""

    def __init__(self, broke: Callable[[BaseException], None]) -> None:
        self._broke = broke
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        """How much is under way."""
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def whole(self, work: Coroutine[Any, Any, T]) -> T:
        """Its result, for as long as the caller waits."""
        return await asyncio.shield(self.start(work))

    async def all_ended(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, WaltzError):
            self._broke(error)
