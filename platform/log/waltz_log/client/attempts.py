"""One logical transaction from its first execution to its end: execute on the application's state, append, and again where somebody was faster.

Each execution is given a mark that never claims more than it could have seen. After a conflict the winner is applied before the next execution, so
what was rejected is never sent again as it was. Before anything is sent it waits for the transactions of this client that it would conflict with,
and is executed again where they changed what it read. Nothing is tried again whose outcome is unknown. Ends when the transaction is applied here, so
that calls that follow each other do not conflict.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, TypeVar

from waltz_log.client.admission import Admission, Ticket
from waltz_log.client.retry import Backoff, RetryBudget
from waltz_log.client.transaction import Draft, Receipt
from waltz_log.errors import InvalidRequest, LockConflict, NotAppended, Unavailable

__all__ = ["CONFLICT_BASE_S", "Append", "Attempts", "Execution", "Feeding"]

CONFLICT_BASE_S = 0.002
"""First pause after a conflict, at most. The wait for the winner paces most of it; this only parts clients that met."""

T = TypeVar("T")


class Append(Protocol):
    """How a draft gets appended; `WaltzClient` gives its own."""

    def __call__(self, partition: int, draft: Draft, *, timeout_s: float) -> Awaitable[Receipt]: ...


class Feeding(Protocol):
    """Who applies the feed to the application's state: a `Follower`, or what stands for it while it is made anew."""

    partition: int
    admission: Admission

    @property
    def applied(self) -> int: ...
    @property
    def error(self) -> BaseException | None: ...
    async def wait(self, transaction_id: int) -> None: ...
    async def settled(self, transaction_id: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Execution:
    """What one execution came to. `high_water_mark`: the state that it may rely on; `draft` None: there is nothing to append."""

    high_water_mark: int
    draft: Draft | None


async def _nothing(_: object) -> None:
    return


@dataclass(frozen=True, slots=True)
class Attempts:
    """How. `attempts`: how often it may be sent; a local execution more costs none. `closed`: whether the client takes nothing any more."""

    append: Append
    backoff: Callable[[], Backoff]
    budget: RetryBudget
    attempts: int
    closed: Callable[[], bool] = lambda: False

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise InvalidRequest(reason=f"attempts must be positive: attempts={self.attempts}")

    async def run(
        self,
        following: Feeding,
        execute: Callable[[int], Awaitable[Execution]],
        deadline: float,
        *,
        declared: Ticket | None = None,
        decided: Callable[[Receipt], Awaitable[None]] = _nothing,
        rejected: Callable[[LockConflict], Awaitable[None]] = _nothing,
    ) -> Receipt | None:
        """`execute` is given the number of the execution, from 1. `declared`: what it will lock, where that is known. `decided` is called when the
        transaction is in the log, before it is applied; `rejected` at each conflict. None: there was nothing to append."""
        turns = _Turns(following, deadline)
        try:
            if declared is not None:
                await turns.take(declared)
            return await self._run(following, execute, deadline, turns, decided, rejected)
        finally:
            turns.leave()

    async def _run(
        self,
        following: Feeding,
        execute: Callable[[int], Awaitable[Execution]],
        deadline: float,
        turns: _Turns,
        decided: Callable[[Receipt], Awaitable[None]],
        rejected: Callable[[LockConflict], Awaitable[None]],
    ) -> Receipt | None:
        loop = asyncio.get_running_loop()
        pauses = self.backoff()
        executions = sent = 0
        while True:
            executions += 1
            if following.error is not None:
                raise following.error
            execution = await execute(executions)
            if execution.draft is None:
                return None
            if not await turns.current(execution):
                continue
            left = deadline - loop.time()
            if left <= 0:
                raise NotAppended(partition=following.partition, reason="deadline passed before it was sent")
            if self.closed():
                raise NotAppended(partition=following.partition, reason="never sent: the client was closed")
            failed: LockConflict | NotAppended
            sent += 1
            try:
                receipt = await self.append(following.partition, execution.draft, timeout_s=left)
            except LockConflict as conflict:
                failed = conflict
                turns.rejected(conflict)
                await rejected(conflict)
            except NotAppended as error:
                failed = error
            else:
                turns.committed(receipt)
                self.budget.earn()
                await decided(receipt)
                await _see_own(following, receipt, deadline)
                return receipt
            # Who meets others at a lock is told in turn by the owner. Pauses are for one who came in its turn and was passed all the same.
            pause = pauses.next_s() if sent > 1 or isinstance(failed, NotAppended) else 0.0
            if sent >= self.attempts or loop.time() + pause >= deadline or self.closed():
                raise failed
            if isinstance(failed, LockConflict):
                await _see_winner(following, failed, deadline)
            elif not self.budget.spend():
                raise failed
            await asyncio.sleep(pause)


class _Turns:
    """The ticket of one logical transaction, as it learns what it locks."""

    def __init__(self, following: Feeding, deadline: float) -> None:
        self._following = following
        self._admission = following.admission
        self._deadline = deadline
        self._ticket: Ticket | None = None

    async def take(self, ticket: Ticket) -> None:
        self._join(ticket)
        await self._in_time(ticket.turn())

    def _join(self, ticket: Ticket) -> None:
        self.leave()
        self._ticket = self._admission.join(ticket)

    async def current(self, execution: Execution) -> bool:
        """Whether the execution may be sent: it saw all that this client wrote under its locks, and nobody of this client is ahead, or the owner is
        to judge that. If not, it is now for the next one."""
        assert execution.draft is not None
        needed = Ticket.of(execution.draft)
        held = self._ticket
        contested = self._admission.contested(needed)
        if held is None or not held.covers(needed):
            held = needed if held is None else held.with_all_of(needed)
            self._join(held)
            if held.waited and not contested:
                return await self._in_time(held.turn_or_contest())
        newest = self._admission.newest(needed)
        if contested or newest <= execution.high_water_mark:
            return True
        await self._in_time(self._following.wait(newest))
        return False

    def rejected(self, conflict: LockConflict) -> None:
        if self._ticket is not None:
            self._admission.rejected(self._ticket, conflict.winner)

    def committed(self, receipt: Receipt) -> None:
        if self._ticket is not None:
            self._admission.committed(self._ticket, receipt.transaction_id)

    def leave(self) -> None:
        ticket, self._ticket = self._ticket, None
        if ticket is not None:
            self._admission.leave(ticket)

    async def _in_time(self, work: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout_at(self._deadline):
                return await work
        except TimeoutError:
            reason = "deadline passed while others of this client held its locks"
            raise NotAppended(partition=self._following.partition, reason=reason) from None


async def _see_own(following: Feeding, receipt: Receipt, deadline: float) -> None:
    """What was appended is applied here before the next decision. It is in the log in any case: nothing that goes wrong with seeing it may say
    otherwise."""
    with suppress(TimeoutError):
        async with asyncio.timeout_at(deadline):
            await following.settled(receipt.transaction_id)


async def _see_winner(following: Feeding, conflict: LockConflict, deadline: float) -> None:
    try:
        async with asyncio.timeout_at(deadline):
            await following.wait(conflict.winner)
    except TimeoutError:
        raise conflict from Unavailable(reason=f"the follower did not reach the winner in time: applied={following.applied}")
