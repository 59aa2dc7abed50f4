"""A function as a transaction: it runs on the state that a follower built, is appended under its locks, and runs again after a conflict.

`attempts` decides when it runs, and in which order with others of this client. The function gets a `TransactionContext`, whose mark is read before it
runs.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeAlias

from waltz_log.client.transactions.admission import Ticket
from waltz_log.client.transactions.attempts import Attempts, Execution, Feeding
from waltz_log.client.transactions.transaction import Draft, Lock, Receipt
from waltz_log.errors import InvalidRequest

__all__ = ["TransactionContext", "transactional"]

P = ParamSpec("P")

Body: TypeAlias = Callable[Concatenate["TransactionContext", P], Any]


class TransactionContext:
    """The argument of an execution. `high_water_mark`: the last transaction of the state that it reads; `attempt`: 1 for the first execution, then
    2, and so on."""

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
        """Sets what is appended when the function returns. A function that does not call it appends nothing. Raises `InvalidRequest` at the second
        call."""
        if self.draft is not None:
            raise InvalidRequest(reason="a transaction appends once")
        self.draft = Draft(data, header, write_locks, read_locks, append_locks, self.high_water_mark)


def transactional(
    following: Feeding, attempts: Attempts, *, timeout_s: float, locks: Callable[P, Sequence[Lock]] | None = None
) -> Callable[[Body[P]], Callable[P, Awaitable[Receipt | None]]]:
    def decorate(body: Body[P]) -> Callable[P, Awaitable[Receipt | None]]:
        @wraps(body)
        async def call(*arguments: P.args, **keywords: P.kwargs) -> Receipt | None:
            async def execute(attempt: int) -> Execution:
                context = TransactionContext(following.partition, following.applied, attempt)
                result = body(context, *arguments, **keywords)
                if inspect.isawaitable(result):
                    await result
                return Execution(context.high_water_mark, context.draft)

            deadline = asyncio.get_running_loop().time() + timeout_s
            declared = None if locks is None else Ticket.whole(locks(*arguments, **keywords))
            return await attempts.run(following, execute, deadline, declared=declared)

        return call

    return decorate
