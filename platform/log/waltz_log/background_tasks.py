"""Tasks beside their caller: the only place of the platform that makes them.

Others than its owner can cancel a task: an application cancels all tasks of its event loop, a library cancels what it did not start. So a
cancelled task does not mean that its owner ended it. A group of tasks ends with an error that names the task, and its owner begins again as after a
lost connection. A task that runs as long as its owner is a `BackgroundTask`, which starts again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextvars import Context
from typing import Any, Final, TypeVar  # Any: what a coroutine sends and receives, and results that are not read

from waltz_log.errors import Fenced, Unavailable, WaltzError
from waltz_log.loggers import get_logger

__all__ = [
    "AGAIN_PAUSE_S",
    "BackgroundTask",
    "TaskSet",
    "end_tasks",
    "is_expected",
    "outcome_of",
    "result_of",
    "run_all",
    "run_until_first_ends",
    "start_task",
]

log = get_logger(__name__)

T = TypeVar("T")

AGAIN_PAUSE_S: Final = 0.5
"""Before a task starts again that failed or was cancelled."""


def start_task(work: Coroutine[Any, Any, T], name: str | None = None, *, context: Context | None = None) -> asyncio.Task[T]:
    """Starts a task in the running loop. Its caller awaits it, or ends it with `end_tasks`, and reads its result with `outcome_of`."""
    return asyncio.get_running_loop().create_task(work, name=name, context=context)


async def end_tasks(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancels the tasks and returns when all have ended, whatever they ended with."""
    ending = list(tasks)
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)


def outcome_of(task: asyncio.Future[T]) -> T:
    """The result of a task that is done. Raises its error, and `Unavailable` if others than its owner cancelled it."""
    if task.cancelled():
        raise Unavailable(reason=f"a background task was cancelled: task={_name(task)}")
    return task.result()


async def result_of(task: asyncio.Future[T]) -> T:
    """`outcome_of` the task once it is done. The task goes on if the caller is cancelled, and its error is for those that still wait."""
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        task.add_done_callback(_read_error)
        raise
    return outcome_of(task)


def _read_error(task: asyncio.Future[Any]) -> None:
    """Python reports an error that is never read. All who waited may have left."""
    if not task.cancelled():
        task.exception()


def _name(task: asyncio.Future[Any]) -> str:
    """The function that the task runs, or the name that it was given."""
    if not isinstance(task, asyncio.Task):
        return "future"
    name = task.get_name()
    return getattr(task.get_coro(), "__qualname__", name) if name.startswith("Task-") else name


async def run_until_first_ends(*work: Awaitable[Any]) -> None:
    """Runs all of it until the first ends, and ends the others. Raises the error of the first; if several end together, of the one named first."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                outcome_of(task)
    finally:
        await end_tasks(tasks)


async def run_all(*work: Coroutine[Any, Any, Any]) -> None:
    """Runs all of it to its end. The first error ends the others and is raised."""
    tasks = [start_task(each) for each in work]
    running = set(tasks)
    try:
        while running:
            _, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    outcome_of(task)
    finally:
        await end_tasks(tasks)


def is_expected(error: BaseException) -> bool:
    """Whether the cluster recovers by itself, as from a lost coordinator session, an unavailable peer, or a newer owner. No operator or developer has
    to act."""
    return isinstance(error, WaltzError) and (error.retriable or isinstance(error, Fenced))


class TaskSet:
    """Tasks that an owner starts as they are needed. The first that fails, or that others cancel, is reported once."""

    def __init__(self, failed: Callable[[BaseException], None]) -> None:
        self._failed = failed
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._over = False

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = start_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        is_owned = self._tasks.pop(task, True) is None
        try:
            outcome_of(task)
        except BaseException as error:
            if is_owned and not self._over:
                self._over = True
                self._failed(error)

    async def end_one(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        await end_tasks([task])

    async def end(self) -> None:
        self._over = True
        await end_tasks(self._tasks)


class BackgroundTask:
    """Work that goes on as long as its owner: until it returns, or `end` is called. If others cancel it, or it fails, it starts again after a pause.
    Where `failed` is given, it gets an error instead, and the work has ended."""

    def __init__(self, name: str, work: Callable[[], Coroutine[Any, Any, None]], failed: Callable[[BaseException], None] | None = None) -> None:
        self.name = name
        self._work = work
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._again: asyncio.TimerHandle | None = None
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._begin()

    def _begin(self) -> None:
        self._again = None
        self._task = start_task(self._work(), self.name)
        self._task.add_done_callback(self._ended)

    def _begin_cancelled(self) -> None:
        log.warning("task was cancelled by others and is restarted", task=self.name)
        self._begin()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if self._over.done():
            return
        error = None if task.cancelled() else task.exception()
        if error is None and not task.cancelled():
            self._over.set_result(None)
            return
        if error is not None and self._failed is not None:
            self._over.set_result(None)
            self._failed(error)
            return
        if error is not None and is_expected(error):
            log.warning("task interrupted and is restarted", task=self.name, reason=str(error))
        elif error is not None:
            log.error("task failed and is restarted", task=self.name, exc_info=error)
        # A timer, not a pause inside of the task: where the loop ends, which cancels all tasks, it never fires.
        self._again = self._loop.call_later(AGAIN_PAUSE_S, self._begin if error is not None else self._begin_cancelled)

    @property
    def over(self) -> bool:
        """Whether the work has ended and does not start again."""
        return self._over.done()

    async def wait_over(self) -> None:
        await asyncio.wait([self._over])

    def cancel(self) -> None:
        """Ends the work, without waiting for it."""
        if not self._over.done():
            self._over.set_result(None)
        if self._again is not None:
            self._again.cancel()
        self._task.cancel()

    async def end(self) -> None:
        """Returns when the work has ended."""
        self.cancel()
        await end_tasks([self._task])
