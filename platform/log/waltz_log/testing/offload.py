"""The offload port without threads: blocking calls run in the event loop, so that a run is repeatable."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from waltz_log.core.ports import Offload

__all__ = ["HangingOffload", "SlowOffload", "run_in_place"]

T = TypeVar("T")


async def run_in_place(call: Callable[..., T], /, *arguments: object) -> T:
    # One pass of the event loop on each side, as with a thread: callers must not rely on nothing happening meanwhile.
    await asyncio.sleep(0)
    result = call(*arguments)
    await asyncio.sleep(0)
    return result


class SlowOffload:
    """Each call lasts as long as `duration_s` returns. Its changes become visible at some moment of that time."""

    def __init__(self, duration_s: Callable[[], float]) -> None:
        self._duration_s = duration_s

    async def __call__(self, call: Callable[..., T], /, *arguments: object) -> T:
        await asyncio.sleep(self._duration_s())
        try:
            return call(*arguments)
        finally:
            await asyncio.sleep(self._duration_s())


class HangingOffload:
    """The offload of one node whose disk may hang: then no call begins, and none that was made returns, until `resume`."""

    def __init__(self, offload: Offload) -> None:
        self._offload = offload
        self._works = asyncio.Event()
        self._works.set()

    def hang(self) -> None:
        self._works.clear()

    def resume(self) -> None:
        self._works.set()

    async def __call__(self, call: Callable[..., T], /, *arguments: object) -> T:
        await self._works.wait()
        try:
            return await self._offload(call, *arguments)
        finally:
            await self._works.wait()
