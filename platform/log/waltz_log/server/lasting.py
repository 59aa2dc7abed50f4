"""A task of the server that must not die in silence."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

__all__ = ["lasting"]

log = structlog.get_logger(__name__)

AGAIN_PAUSE_S = 0.5


async def lasting(what: str, work: Callable[[], Awaitable[None]]) -> None:
    """What it raises is logged and it starts again, unless it ends by itself."""
    while True:
        try:
            await work()
            return
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception("task failed and starts again", task=what)
            await asyncio.sleep(AGAIN_PAUSE_S)
