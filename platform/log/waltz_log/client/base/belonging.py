"""The process and the event loop that an object belongs to. Its tasks, timers and connections exist only there."""

from __future__ import annotations

import asyncio
from threading import get_ident

from waltz_log.client.base import fork
from waltz_log.errors import InvalidRequest

__all__ = ["FORKED", "Belonging"]

FORKED = (
    "made before the process forked, and belongs to the parent: create one after the fork, where the parent closed its own before it, or start the "
    "process with the method spawn or forkserver"
)


class Belonging:
    """Made in the event loop that its owner belongs to."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._fork = fork.count()
        self._thread = get_ident()

    def expect_here(self) -> None:
        """Raises `InvalidRequest` in a forked child, and in another event loop. A thread without one only prepares work for the right loop."""
        if fork.COUNT[0] == self._fork and get_ident() == self._thread and self._loop.is_running():
            return  # the usual case; to ask for the running loop is a call of the system, which costs as much as an append
        if self._fork != fork.count():
            raise InvalidRequest(reason=FORKED)
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            return
        if here is not self._loop:
            over = "which is closed" if self._loop.is_closed() else "which still runs"
            raise InvalidRequest(reason=f"belongs to another event loop, {over}: create one in each loop, or use the blocking form")

    def ended(self) -> bool:
        """Whether nothing of the owner can run any more: its loop is closed, or it stayed behind in a parent. Raises `InvalidRequest` in another
        event loop while its own runs."""
        if self._fork != fork.count() or self._loop.is_closed():
            return True
        self.expect_here()
        return False
