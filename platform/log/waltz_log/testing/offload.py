"""The offload port without threads: blocking calls run in place, so that a run is repeatable."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["run_in_place"]

T = TypeVar("T")


async def run_in_place(call: Callable[..., T], /, *arguments: Any) -> T:
    # One pass of the event loop on each side, as with a thread: callers must not rely on nothing happening meanwhile.
    await asyncio.sleep(0)
    result = call(*arguments)
    await asyncio.sleep(0)
    return result
