"""A task of the server that must not die in silence, and which of its ends are expected."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from waltz_log.errors import Fenced, WaltzError

__all__ = ["is_expected", "lasting"]

log = structlog.get_logger(__name__)

AGAIN_PAUSE_S = 0.5


def is_expected(error: BaseException) -> bool:
    """Whether the cluster deals with it by itself, as with a lost coordinator session, a peer that is away, or a newer owner. No operator and no
    developer has to act."""
    return isinstance(error, WaltzError) and (error.retriable or isinstance(error, Fenced))


async def lasting(what: str, work: Callable[[], Awaitable[None]]) -> None:
    """What it raises is logged and it starts again, unless it ends by itself. Expected events are warnings; everything else is an error, with the
    traceback that a defect needs."""
    while True:
        try:
            await work()
            return
        except asyncio.CancelledError:
            raise
        except WaltzError as error:
            if is_expected(error):
                log.warning("task interrupted and is restarted", task=what, reason=str(error))
            else:
                log.exception("task failed and is restarted", task=what)
            await asyncio.sleep(AGAIN_PAUSE_S)
        except Exception:
            log.exception("task failed and is restarted", task=what)
            await asyncio.sleep(AGAIN_PAUSE_S)
