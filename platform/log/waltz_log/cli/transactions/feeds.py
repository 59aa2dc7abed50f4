"""Several feeds as one: each in its own order, none waiting for another, nothing read ahead but one item of each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import TypeVar

__all__ = ["merged"]

T = TypeVar("T")


async def merged(feeds: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[T, None]:
    """Items as they come, until one feed raises or all have ended. Closes the feeds."""
    pending: dict[asyncio.Future[T | None], AsyncGenerator[T, None]] = {}
    try:
        for feed in feeds:
            pending[asyncio.ensure_future(_next(feed))] = feed
        while pending:
            await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in [task for task in pending if task.done()]:  # in one order always
                feed = pending.pop(task)
                item = task.result()
                if item is not None:
                    yield item
                    pending[asyncio.ensure_future(_next(feed))] = feed
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        for feed in feeds:
            await feed.aclose()


async def _next(feed: AsyncGenerator[T, None]) -> T | None:
    """None: it has ended."""
    return await anext(feed, None)
