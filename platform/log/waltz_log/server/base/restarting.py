"""Restarts a task of the server that ends with an error, and decides which errors are expected."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from waltz_log.errors import Fenced, WaltzError
from waltz_log.loggers import get_logger

__all__ = ["is_expected", "restart_on_error"]

log = get_logger(__name__)

AGAIN_PAUSE_S = 0.5


def is_expected(error: BaseException) -> bool:
    """Whether the cluster recovers by itself, as from a lost coordinator session, an unavailable peer, or a newer owner. No operator or developer has
    to act."""
    return isinstance(error, WaltzError) and (error.retriable or isinstance(error, Fenced))


async def restart_on_error(what: str, work: Callable[[], Awaitable[None]]) -> None:
    """Runs the work until it returns. After an error it logs the error and starts the work again. An expected error is a warning. Any other is an
    error with the traceback, because it may be a defect."""
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
