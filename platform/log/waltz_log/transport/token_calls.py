"""Ends the calls of a token with the token: when it expires, or when its key leaves the node's keys.

A call is admitted once, and a mount can last for days. Here each call with a token is judged again every half second. The client connects again then,
with the token that its file holds by now.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from waltz_log.errors import Unavailable
from waltz_log.loggers import get_logger
from waltz_log.security.tokens import Credential, Tokens

__all__ = ["TokenCalls"]

log = get_logger(__name__)

JUDGE_S: Final = 0.5
"""Between two judgments of the calls in progress."""


class TokenCalls:
    """The token calls of one network, on one event loop."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._calls: dict[asyncio.Timeout, Credential] = {}
        self._ended: dict[asyncio.Timeout, str] = {}
        self._timer: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def limited(self, credential: Credential) -> AsyncIterator[None]:
        """The block is one call of the token. Raises `Unavailable` when the token ends before the call."""
        limit = asyncio.timeout(None)
        try:
            async with limit:
                self._calls[limit] = credential
                self._schedule()
                yield
        except TimeoutError:
            reason = self._ended.pop(limit, None)
            if reason is None:
                raise  # of the call itself
            log.warning("call ended with its token", principal=credential.identity.principal, reason=reason)
            raise Unavailable(reason=f"the token of this call is not valid any more, {reason}") from None
        finally:
            self._calls.pop(limit, None)
            self._ended.pop(limit, None)

    def _schedule(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(JUDGE_S, self._judge)

    def _judge(self) -> None:
        self._timer = None
        now_s = asyncio.get_running_loop().time()
        for limit, credential in list(self._calls.items()):
            reason = self._tokens.ended(credential)
            if reason is not None:
                del self._calls[limit]
                self._ended[limit] = reason
                limit.reschedule(now_s)
        if self._calls:
            self._schedule()
