"""Several feeds as one: each in its own order, none waiting for another, nothing read ahead but one item of each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import TypeVar

from waltz_log.background_tasks import end_tasks, start_task

__all__ = ["merged"]

T = TypeVar("T")


async def merged(feeds: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[T, None]:
    """Items as they come, until one feed raises or all have ended. Closes the feeds."""
    pending: dict[asyncio.Future[T | None], AsyncGenerator[T, None]] = {}
    try:
        for feed in feeds:
            pending[start_task(_next(feed))] = feed
        while pending:
            await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in [task for task in pending if task.done()]:  # in one order always
                feed = pending.pop(task)
                item = task.result()
                if item is not None:
                    yield item
                    pending[start_task(_next(feed))] = feed
    finally:
        await end_tasks(pending)
        for feed in feeds:
            await feed.aclose()


async def _next(feed: AsyncGenerator[T, None]) -> T | None:
    """None: it has ended."""
    return await anext(feed, None)
