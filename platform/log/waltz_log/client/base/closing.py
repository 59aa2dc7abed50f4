"""How a client closes: it waits for pending work up to a limit, then ends everything. If it is cancelled, it stops waiting and still ends everything,
because a client cannot be closed twice."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from waltz_log.errors import Unavailable
from waltz_log.uninterrupted import uninterrupted

__all__ = ["close_in_time"]


async def close_in_time(flush: Callable[[], Awaitable[None]], end: Callable[[float], Coroutine[Any, Any, None]], wait_s: float) -> None:
    """`end` is given how long it may wait for the application's own code."""
    try:
        async with asyncio.timeout(wait_s):
            await flush()
    except (TimeoutError, Unavailable):
        pass  # each append reports it when it ends
    except asyncio.CancelledError:
        await uninterrupted(end(0.0))
        raise
    await uninterrupted(end(wait_s))
