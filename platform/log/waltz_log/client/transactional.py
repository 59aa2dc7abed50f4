"""A function as a transaction: run on the state that a follower built, appended under its locks, run again when somebody else was faster.

Each run reads `follower.applied` first, so the mark never claims more than the function could have seen. After a conflict the winner is applied
before the function runs again. A call returns when its transaction is applied here, so calls that follow each other do not conflict; calls at the
same time do not either where their locks are told beforehand. Nothing is retried whose outcome is unknown.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeAlias

from waltz_log.client.follow import Follower
from waltz_log.client.retry import Backoff
from waltz_log.client.transaction import Draft, Lock, Receipt
from waltz_log.errors import InvalidRequest, LockConflict, NotAppended, Unavailable

__all__ = ["Append", "TransactionContext", "transactional"]

P = ParamSpec("P")

Body: TypeAlias = Callable[Concatenate["TransactionContext", P], Any]


class Append(Protocol):
    """How a draft gets appended; `WaltzClient` gives its own."""

    def __call__(self, partition: int, draft: Draft, *, timeout_s: float) -> Awaitable[Receipt]: ...


class TransactionContext:
    """What the function is given. `high_water_mark`: the state it may rely on; `attempt`: 1, 2, …"""

    def __init__(self, partition: int, high_water_mark: int, attempt: int) -> None:
        self.partition = partition
        self.high_water_mark = high_water_mark
        self.attempt = attempt
        self.draft: Draft | None = None

    def append(
        self,
        data: bytes,
        header: int = 0,
        write_locks: Sequence[Lock] = (),
        read_locks: Sequence[Lock] = (),
        append_locks: Sequence[Lock] = (),
    ) -> None:
        """What to append when the function returns. Once at most; a function that does not call it appends nothing."""
        if self.draft is not None:
            raise InvalidRequest(reason="a transaction appends once")
        self.draft = Draft(data, header, write_locks, read_locks, append_locks, self.high_water_mark)


def transactional(
    follower: Follower,
    append: Append,
    backoff: Callable[[], Backoff],
    *,
    attempts: int,
    timeout_s: float,
    locks: Callable[P, Sequence[Lock]] | None = None,
) -> Callable[[Body[P]], Callable[P, Awaitable[Receipt | None]]]:
    if attempts < 1 or timeout_s <= 0:
        raise InvalidRequest(reason=f"attempts and timeout must be positive: attempts={attempts} timeout_s={timeout_s}")

    def decorate(body: Body[P]) -> Callable[P, Awaitable[Receipt | None]]:
        async def run(deadline: float, *arguments: P.args, **keywords: P.kwargs) -> Receipt | None:
            loop = asyncio.get_running_loop()
            pauses = backoff()
            attempt = 0
            while True:
                attempt += 1
                if follower.error is not None:
                    raise follower.error
                context = TransactionContext(follower.partition, follower.applied, attempt)
                result = body(context, *arguments, **keywords)
                if inspect.isawaitable(result):
                    await result
                if context.draft is None:
                    return None
                left = deadline - loop.time()
                if left <= 0:
                    raise NotAppended(partition=follower.partition, reason="deadline passed before it was sent")
                decided: LockConflict | NotAppended
                try:
                    receipt = await append(follower.partition, context.draft, timeout_s=left)
                except (LockConflict, NotAppended) as error:
                    decided = error
                else:
                    await _see_own(follower, receipt, deadline)
                    return receipt
                # Who meets others at a lock is told in turn by the owner. Pauses are for one who came in its turn and was passed all the same.
                pause = pauses.next_s() if attempt > 1 or isinstance(decided, NotAppended) else 0.0
                if attempt >= attempts or loop.time() + pause >= deadline:
                    raise decided
                await _see_winner(follower, decided, pause, deadline)

        @wraps(body)
        async def call(*arguments: P.args, **keywords: P.kwargs) -> Receipt | None:
            deadline = asyncio.get_running_loop().time() + timeout_s
            if locks is None:
                return await run(deadline, *arguments, **keywords)
            async with AsyncExitStack() as held:
                try:
                    async with asyncio.timeout_at(deadline):
                        await held.enter_async_context(follower.admission.at(locks(*arguments, **keywords)))
                except TimeoutError:
                    raise NotAppended(partition=follower.partition, reason="deadline passed while others of this client held its locks") from None
                return await run(deadline, *arguments, **keywords)

        return call

    return decorate


async def _see_own(follower: Follower, receipt: Receipt, deadline: float) -> None:
    """What was appended is applied here before the next decision. It is in the log in any case: nothing that goes wrong with seeing it may say
    otherwise."""
    with suppress(TimeoutError):
        async with asyncio.timeout_at(deadline):
            await follower.settled(receipt.transaction_id)


async def _see_winner(follower: Follower, decided: LockConflict | NotAppended, pause_s: float, deadline: float) -> None:
    if isinstance(decided, LockConflict):
        try:
            async with asyncio.timeout_at(deadline):
                await follower.wait(decided.winner)
        except TimeoutError:
            raise decided from Unavailable(reason=f"the follower did not reach the winner in time: applied={follower.applied}")
    await asyncio.sleep(pause_s)
