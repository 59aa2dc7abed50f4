"""A follower, and functions decorated with `transactional`, for code that blocks: what the blocking client and its topics share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import wraps
from typing import Any  # a decorator of the application's functions

from waltz_log.client.base.background import Background, blocking
from waltz_log.client.transactions.follow import Follower
from waltz_log.client.transactions.transaction import Receipt

__all__ = ["SyncFollower", "blocking_decorator"]


class SyncFollower:
    """A follower for code that blocks, made by `SyncWaltzClient.follow`."""

    def __init__(self, follower: Follower, background: Background) -> None:
        self.asynchronous = follower
        self.background = background

    @property
    def partition(self) -> int:
        """The partition that is followed."""
        return self.asynchronous.partition

    @property
    def applied(self) -> int:
        """As `Follower.applied`."""
        return self.asynchronous.applied

    @property
    def error(self) -> BaseException | None:
        """As `Follower.error`."""
        return self.asynchronous.error

    def wait(self, transaction_id: int, timeout_s: float | None = None) -> None:
        """As `Follower.wait`; raises `TimeoutError` after `timeout_s` seconds."""

        async def wait() -> None:
            async with asyncio.timeout(timeout_s):
                await self.asynchronous.wait(transaction_id)

        self.background.call(wait())

    close = blocking(Follower.close)


def blocking_decorator(
    background: Background, decorate: Callable[[Callable[..., Any]], Any]
) -> Callable[[Callable[..., None]], Callable[..., Receipt | None]]:
    """The decorator for code that blocks: `decorate` is what `transactional` of the asynchronous client or topic returns."""

    def decorate_blocking(body: Callable[..., None]) -> Callable[..., Receipt | None]:
        run = decorate(body)

        @wraps(body)
        def call(*arguments: Any, **keywords: Any) -> Receipt | None:
            receipt: Receipt | None = background.call(run(*arguments, **keywords))
            return receipt

        return call

    return decorate_blocking
