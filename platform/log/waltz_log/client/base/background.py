"""One event loop in a background thread for all blocking faces of this process: gRPC's asyncio does not like several.

Started by the first user, ended by the last. A forked child starts its own.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from concurrent.futures import CancelledError, Future
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from waltz_log.client.base import fork
from waltz_log.client.base.belonging import FORKED
from waltz_log.errors import InvalidRequest
from waltz_log.loggers import get_logger

__all__ = ["Background", "blocking"]

log = get_logger(__name__)

T = TypeVar("T")
P = ParamSpec("P")
A = TypeVar("A", covariant=True)

CLOSED = "the client is closed"


class _Loop:
    """The thread and its loop."""

    def __init__(self) -> None:
        self.users = 0
        self.fork = fork.count()
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(_report)
        self.thread = threading.Thread(target=self._run, name="waltz client", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            tasks = asyncio.all_tasks(self.loop)
            for task in tasks:
                task.cancel()
            self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.close()

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(timeout=10)


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
    if isinstance(context.get("exception"), BlockingIOError):
        # gRPC's poller, shared with another loop of the process, woke this one for nothing.
        log.debug("poller woke for another loop")
        return
    loop.default_exception_handler(context)


_lock = threading.RLock()
"""A call that holds it is in the loop's queue before the loop is stopped, so the call learns of the end. Reentrant, because garbage collection can
close a feed in any thread."""
_current: list[_Loop] = []
_inherited: list[_Loop] = []
"""Loops whose thread stayed behind in a parent. Kept, because the end of their tasks would run code that waits for it."""


def _forked() -> None:
    """Another thread may have held the lock when this process was forked."""
    global _lock
    _lock = threading.RLock()
    _inherited.extend(_current)
    _current.clear()


os.register_at_fork(after_in_child=_forked)


class Background:
    """One user's hold on the shared loop."""

    def __init__(self) -> None:
        with _lock:
            if not _current:
                _current[:] = [_Loop()]
            self._shared = _current[0]
            self._shared.users += 1
        self._held = True

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._shared.loop

    @property
    def forked(self) -> bool:
        """Whether the thread stayed behind in the parent of this process."""
        return self._shared.fork != fork.count()

    @property
    def is_own_thread(self) -> bool:
        """Whether the caller is the loop's thread, as in a callback of the client."""
        return threading.current_thread() is self._shared.thread

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Runs the coroutine in the loop. Not from the loop's own thread, which would wait for itself, nor in a forked child."""
        if self.forked:
            work.close()
            raise InvalidRequest(reason=FORKED)
        if self.is_own_thread:
            work.close()
            raise InvalidRequest(reason="a blocking call inside the client's own thread: from `apply` or a transactional function")
        with _lock:
            if self._held:
                return asyncio.run_coroutine_threadsafe(work, self._shared.loop)
        work.close()
        raise InvalidRequest(reason=CLOSED)

    def soon(self, callback: Callable[[], object]) -> None:
        """Calls it in the loop."""
        with _lock:
            if not self._held:
                raise InvalidRequest(reason=CLOSED)
            self._shared.loop.call_soon_threadsafe(callback)

    def call_soon(self, function: Callable[[], T]) -> T:
        """Runs the function in the loop and returns its result."""

        async def run() -> T:
            return function()

        return self.call(run())

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """The coroutine's result. Interrupted, it is cancelled. Ended by another thread's `close`: `InvalidRequest`."""
        future = self.start(work)
        try:
            return future.result()
        except CancelledError:
            raise InvalidRequest(reason=CLOSED) from None
        except BaseException:
            future.cancel()
            raise

    def iterate(self, source: AsyncGenerator[T, None]) -> Generator[T, None, None]:
        """What the source gives, to a thread that blocks. The source is closed with it, also when a wait for it was interrupted."""
        reading: list[asyncio.Task[object]] = []

        async def advance() -> T:
            reading[:] = [task for task in (asyncio.current_task(),) if task is not None]
            return await anext(source)

        async def end() -> None:
            if reading:
                await asyncio.wait(reading)  # a task that was interrupted is about to end; closed meanwhile, the source would complain
            await source.aclose()

        try:
            while True:
                yield self.call(advance())
        except StopAsyncIteration:
            return
        finally:
            if self._held and not self.forked:
                self.call(end())

    def close(self) -> None:
        with _lock:
            if not self._held:
                return
            self._held = False
            self._shared.users -= 1
            last = self._shared.users == 0 and not self.forked
            if last and _current and _current[0] is self._shared:
                _current.clear()
        if last:
            self._shared.stop()


class BlockingFace(Protocol[A]):
    """An object for code that blocks: the object that it represents, and the thread of that object."""

    @property
    def asynchronous(self) -> A: ...
    @property
    def background(self) -> Background: ...


def blocking(method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[BlockingFace[A], P], T]:
    """The same method for code that blocks, with the same arguments: `append = blocking(WaltzClient.append)`."""

    @wraps(method)
    def call(self: BlockingFace[A], /, *arguments: P.args, **keywords: P.kwargs) -> T:
        return self.background.call(method(self.asynchronous, *arguments, **keywords))

    return call
