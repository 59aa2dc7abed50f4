"""The life of a serving process: SIGTERM or SIGINT asks it to stop in order; a second signal ends it immediately.

A node prints one line on stdout when it serves (`ready ...`), so that its parent process can wait for it. It also notifies systemd if its unit has
`Type=notify`. Its event loop is `event_loop`.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from waltz_log.background_tasks import run_until_first_ends
from waltz_log.processes.event_loop import NodeLoop

__all__ = ["either", "freeze_modules", "run", "say_ready", "serve"]

T = TypeVar("T")

COLLECT_AFTER = (10_000, 3, 30)
"""New objects before the garbage collector visits them; how often it does before it also visits older ones, and how often that before it visits
all. Python's default of 700 is for programs whose objects die young; what waits in a server's queues is alive. With ten times instead of three, an
attack that makes many objects was a pause of 110 ms for all clients."""


def say_ready(what: str, **facts: object) -> None:
    """Raises `OSError` if systemd waits for the process and cannot be notified."""
    _notify_systemd()
    print(" ".join(["ready", what, *(f"{name}={value}" for name, value in facts.items())]), flush=True)


def _notify_systemd() -> None:
    """Once: a server that starts over is not started again by systemd, and child processes have nothing to report to it."""
    address = os.environ.pop("NOTIFY_SOCKET", "")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
        try:
            connection.sendto(b"READY=1", "\0" + address[1:] if address.startswith("@") else address)
        except OSError as error:
            raise OSError(f"cannot notify systemd at NOTIFY_SOCKET={address}: {error.strerror}") from None


async def either(*events: Awaitable[object]) -> None:
    """Returns when the first of them is done; the others are cancelled, its error is raised."""
    await run_until_first_ends(*events)


def freeze_modules() -> None:
    """The garbage collector ignores what exists by now, 70,000 objects of modules. A full collection would visit them for 30 ms or more while every
    client waits."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)


def run(main: Coroutine[Any, Any, T]) -> T:
    """Like `asyncio.run`, in the event loop of serving processes, with `freeze_modules`."""
    freeze_modules()
    with asyncio.Runner(loop_factory=NodeLoop) as runner:
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
