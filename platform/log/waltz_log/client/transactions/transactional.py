"""A function as a transaction: it runs on the state that a follower built, is appended under its locks, and runs again after a conflict.

`attempts` decides when it runs, and in which order with others of this client. The function gets a `TransactionContext`, whose mark is read before it
runs.

Without `locks`, a call is expected to use the locks that the last call with the same arguments used. If it uses others, that costs an execution.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from functools import partial, wraps
from typing import Concatenate, ParamSpec, TypeAlias

from waltz_log.client.transactions.admission import Ticket
from waltz_log.client.transactions.attempts import Attempts, Execution, Feeding
from waltz_log.client.transactions.transaction import Draft, Lock, Receipt
from waltz_log.errors import InvalidRequest

__all__ = ["TransactionContext", "transactional"]

P = ParamSpec("P")

EXPECTED_MAX = 8_192
"""Calls with different arguments whose locks are remembered, of each decorated function: some MB. The arguments themselves are not kept."""

Body: TypeAlias = Callable[Concatenate["TransactionContext", P], object]


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


class _ExpectedLocks:
    """The expected locks of one function: what its last call with the same arguments locked. Only a guess: the transaction says what it locks."""

    def __init__(self) -> None:
        self._found: OrderedDict[int, Ticket] = OrderedDict()

    def of(self, call_key: int) -> Ticket | None:
        found = self._found.get(call_key)
        if found is None:
            return None
        self._found.move_to_end(call_key)
        return Ticket(found.checks, found.sets)

    def remember(self, call_key: int, needed: Ticket) -> None:
        self._found[call_key] = Ticket(needed.checks, needed.sets)
        self._found.move_to_end(call_key)
        if len(self._found) > EXPECTED_MAX:
            self._found.popitem(last=False)


def _call_key(arguments: tuple[object, ...], keywords: dict[str, object]) -> int | None:
    """The same for equal arguments; None if they have no hash."""
    try:
        return hash((arguments, *sorted(keywords.items())) if keywords else arguments)
    except TypeError:
        return None


def transactional(
    following: Feeding, attempts: Attempts, *, timeout_s: float, locks: Callable[P, Sequence[Lock]] | None = None
) -> Callable[[Body[P]], Callable[P, Awaitable[Receipt | None]]]:
    def decorate(body: Body[P]) -> Callable[P, Awaitable[Receipt | None]]:
        expected = _ExpectedLocks()

        @wraps(body)
        async def call(*arguments: P.args, **keywords: P.kwargs) -> Receipt | None:
            async def execute(attempt: int) -> Execution:
                context = TransactionContext(following.partition, following.applied, attempt)
                result = body(context, *arguments, **keywords)
                if inspect.isawaitable(result):
                    await result
                return Execution(context.high_water_mark, context.draft)

            deadline = asyncio.get_running_loop().time() + timeout_s
            if locks is not None:
                return await attempts.run(following, execute, deadline, declared=Ticket.whole(locks(*arguments, **keywords)))
            call_key = _call_key(arguments, keywords)
            if call_key is None:
                return await attempts.run(following, execute, deadline)
            needs = partial(expected.remember, call_key)
            return await attempts.run(following, execute, deadline, declared=expected.of(call_key), needs=needs)

        return call

    return decorate
