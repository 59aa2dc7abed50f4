"""Orders `on_completion` of a context before `apply` of its transaction (client/transactions/context.py).

The owner's answer and the feed travel on two streams, so the feed may deliver a context's transaction first. The feed then waits until the answer is
here, which the context's deadline bounds, and until the hook has returned, which `HOOK_S` bounds. Transactions of others never wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TypeAlias

from waltz_log.client.transactions.transaction import Draft, Receipt, Transaction
from waltz_log.loggers import get_logger

__all__ = ["AppendNowait", "Completions", "Sending"]


AppendNowait: TypeAlias = Callable[[int, Draft, float], Awaitable[asyncio.Future[Receipt]]]
"""Partition, draft and timeout in seconds to the future of the outcome: `WaltzClient.append_nowait`."""


log = get_logger(__name__)

HOOK_S = 10.0
"""After this time, `apply` no longer waits for a hook: one that waits for something to be applied would otherwise stop the feed permanently."""


class Completions:
    """The completions of one partition. `sending`: the appends of contexts whose hook has not returned, each with what is done then."""

    def __init__(self) -> None:
        self.sending: dict[asyncio.Future[Receipt], asyncio.Future[None]] = {}

    async def wait_for(self, transactions: Sequence[Transaction], in_flight: Collection[asyncio.Future[Receipt]]) -> None:
        """Returns when the hooks of those contexts have returned whose transactions these are. `in_flight`: the undecided appends among them."""
        first, last = transactions[0].transaction_id, transactions[-1].transaction_id
        unanswered = [future for future in in_flight if future in self.sending]
        waiting = [self.sending[future] for future in unanswered]
        waiting += [done for future, done in self.sending.items() if _is_between(future, first, last)]
        if unanswered:
            await asyncio.wait(unanswered)
        if waiting:
            _, late = await asyncio.wait(waiting, timeout=HOOK_S)
            if late:
                log.warning("on_completion holds up apply", contexts=len(late), waited_s=HOOK_S, first_transaction_id=first)


def _is_between(future: asyncio.Future[Receipt], first: int, last: int) -> bool:
    if not future.done() or future.cancelled() or future.exception() is not None:
        return False
    return first <= future.result().transaction_id <= last


class Sending:
    """The appends of one context, one after the other. `append` is an `Append` of `attempts`; `complete` it when its hook has returned, and in the
    end."""

    def __init__(self, append: AppendNowait, completions: Completions) -> None:
        self._append = append
        self._completions = completions
        self._future: asyncio.Future[Receipt] | None = None

    async def append(self, partition: int, draft: Draft, *, timeout_s: float) -> Receipt:
        future = self._future = await self._append(partition, draft, timeout_s)
        self._completions.sending[future] = asyncio.get_running_loop().create_future()
        try:
            return await future
        except BaseException:
            self.complete()
            raise

    def complete(self) -> None:
        """Lets `apply` continue."""
        future, self._future = self._future, None
        if future is not None:
            completed = self._completions.sending.pop(future)
            if not completed.done():
                completed.set_result(None)
