"""The life of a serving process: SIGTERM or SIGINT asks it to stop in order; a second signal ends it at once.

A node prints one line on stdout when it serves (`ready ...`), so that its parent process can wait for it. Its event loop is libuv's (decision 19).
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

import uvloop

__all__ = ["either", "run", "say_ready", "serve"]

T = TypeVar("T")


def say_ready(what: str, **facts: object) -> None:
    print(" ".join(["ready", what, *(f"{name}={value}" for name, value in facts.items())]), flush=True)


async def either(*events: Awaitable[object]) -> None:
    """Returns when the first of them is done; the others are cancelled, its error is raised."""
    tasks = [asyncio.ensure_future(event) for event in events]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError, Exception):
                await task


def run(main: Coroutine[Any, Any, T]) -> T:
    """Like `asyncio.run`, in the event loop of serving processes."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def serve(life: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    """Runs `life(stop)` in its own event loop; the first signal sets `stop`."""

    async def main() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()

        def asked(number: signal.Signals) -> None:
            if stop.is_set():
                os._exit(128 + number)
            stop.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, asked, number)
        await life(stop)

    run(main())
