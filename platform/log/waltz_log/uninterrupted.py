"""Cleanup that is not left half done: a task can be cancelled again while it already ends, at each `await` of its `finally` block."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

__all__ = ["uninterrupted"]


async def uninterrupted(work: Coroutine[Any, Any, None]) -> None:
    """Returns when the work is done, however often the caller is cancelled meanwhile; then raises `CancelledError` if it was."""
    task = asyncio.ensure_future(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            cancelled = True
    task.result()
    if cancelled:
        raise asyncio.CancelledError
