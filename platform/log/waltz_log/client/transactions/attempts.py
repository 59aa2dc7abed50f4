"""One logical transaction from its first execution to its end: execute on the application's state, append, and repeat after a conflict.

Each execution gets a mark that never claims more than it could have seen. After a conflict the winner is applied before the next execution, so a
rejected append is never sent again unchanged. Before an append is sent, it waits for the transactions of this client that it would conflict with, and
is executed again if they changed what it read. An append with an unknown outcome is not repeated. A logical transaction ends when it is applied here,
so consecutive calls do not conflict.

Where other clients want its locks too, it asks the owner for its turn before it is executed, or after the execution that shows its locks, which is
then repeated. If it were sent without a turn, it would overtake those that wait: the client that has written a lock last is the first to know it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias, TypeVar

from waltz_log.client.base.retry import Backoff, RetryBudget
from waltz_log.client.transactions.admission import Admission, Ticket
from waltz_log.client.transactions.transaction import Draft, Receipt
from waltz_log.errors import GaveUp, GaveUpOnConflict, InvalidRequest, LockConflict, NotAppended, Unavailable

__all__ = ["CONFLICT_BASE_S", "Append", "AttemptCounts", "Attempts", "Execution", "Feeding"]

CONFLICT_BASE_S = 0.002
"""First pause after a conflict, at most. The wait for the winner paces most of it; this only parts clients that met."""

T = TypeVar("T")


class Append(Protocol):
    """How a draft gets appended; `WaltzClient` gives its own."""

    def __call__(self, partition: int, draft: Draft, *, timeout_s: float) -> Awaitable[Receipt]: ...


class Turn(Protocol):
    """Waits for a turn at locks, given by their hashes. Returns their last writer, or None if no turn can be asked for. Raises `NotAppended`."""

    def __call__(self, partition: int, checks: Collection[bytes], *, timeout_s: float) -> Awaitable[int | None]: ...


class Feeding(Protocol):
    """Applies the feed to the application's state: a `Follower`, or its substitute while it is created again."""

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


Limit: TypeAlias = Literal["attempts", "timeout_s", "retry_budget", "closed"]


@dataclass(slots=True)
class _Progress:
    """How far one logical transaction got, for the error with which it ends."""

    partition: int
    loop: asyncio.AbstractEventLoop
    began_s: float = field(init=False)
    sent: int = 0
    winner: int | None = None

    def __post_init__(self) -> None:
        self.began_s = self.loop.time()

    def gave_up(self, limit: Limit, failed: LockConflict | NotAppended | str) -> GaveUp | GaveUpOnConflict:
        elapsed_s = round(self.loop.time() - self.began_s, 3)
        if isinstance(failed, LockConflict):
            return GaveUpOnConflict(partition=self.partition, winner=failed.winner, attempts=self.sent, elapsed_s=elapsed_s, limit=limit)
        reason = failed if isinstance(failed, str) else failed.reason
        return GaveUp(partition=self.partition, reason=reason, attempts=self.sent, elapsed_s=elapsed_s, winner=self.winner, limit=limit)


async def _nothing(_: object) -> None:
    return


async def _no_turn(partition: int, checks: Collection[bytes], *, timeout_s: float) -> int | None:
    return None


@dataclass(slots=True)
class AttemptCounts:
    """The attempt counts of a client, since it was made."""

    retries: int = 0


@dataclass(frozen=True, slots=True)
class Attempts:
    """How transactions are retried. `attempts`: how often one may be sent; an additional local execution does not count. `closed`: whether the client
    accepts no more work."""

    append: Append
    backoff: Callable[[], Backoff]
    budget: RetryBudget
    attempts: int
    closed: Callable[[], bool] = lambda: False
    turn: Turn = _no_turn
    counts: AttemptCounts = field(default_factory=AttemptCounts)

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
        needs: Callable[[Ticket], None] = lambda needed: None,
        decided: Callable[[Receipt], Awaitable[None]] = _nothing,
        rejected: Callable[[LockConflict], Awaitable[None]] = _nothing,
    ) -> Receipt | None:
        """`execute` is given the number of the execution, from 1. `declared`: what it will lock, where that is known or expected. `needs` is called
        with what an execution locked, where that is not what was expected. `decided` is called when the transaction is in the log, before it is
        applied; `rejected` at each conflict. None: there was nothing to append. Raises `GaveUpOnConflict` or `GaveUp` if a limit ended the
        retries."""
        progress = _Progress(following.partition, asyncio.get_running_loop())
        turns = _Turns(following, deadline, progress, needs)
        try:
            if declared is not None:
                await turns.join(declared)
            return await self._run(following, execute, deadline, turns, progress, decided, rejected)
        finally:
            turns.leave()

    async def _run(
        self,
        following: Feeding,
        execute: Callable[[int], Awaitable[Execution]],
        deadline: float,
        turns: _Turns,
        progress: _Progress,
        decided: Callable[[Receipt], Awaitable[None]],
        rejected: Callable[[LockConflict], Awaitable[None]],
    ) -> Receipt | None:
        loop = asyncio.get_running_loop()
        pauses = self.backoff()
        executions = 0
        answered = False
        while True:
            executions += 1
            if following.error is not None:
                raise following.error
            if not answered and turns.wanted and not self.closed():
                await self._await_turn(following, deadline, turns, progress)
            answered = False
            execution = await execute(executions)
            if execution.draft is None:
                return None
            if not await turns.current(execution):
                continue
            left = deadline - loop.time()
            if left <= 0:
                raise progress.gave_up("timeout_s", "deadline passed before it was sent")
            if self.closed():
                raise progress.gave_up("closed", "never sent: the client was closed")
            failed: LockConflict | NotAppended
            progress.sent += 1
            try:
                receipt = await self.append(following.partition, execution.draft, timeout_s=left)
            except LockConflict as conflict:
                failed = conflict
                progress.winner = conflict.winner
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
            # The owner delays rejections at a lock that many want. A pause is only for a transaction that had its turn and was rejected again.
            pause = pauses.next_s() if progress.sent > 1 or isinstance(failed, NotAppended) else 0.0
            limit = self._limit_reached(progress.sent, in_time=loop.time() + pause < deadline)
            if limit is not None:
                raise progress.gave_up(limit, failed) from failed
            if isinstance(failed, LockConflict):
                answered = True  # in its turn
                await _see_winner(following, failed, deadline, progress)
            elif not self.budget.spend():
                raise progress.gave_up("retry_budget", failed) from failed
            self.counts.retries += 1
            await asyncio.sleep(pause)

    async def _await_turn(self, following: Feeding, deadline: float, turns: _Turns, progress: _Progress) -> None:
        """Returns in the turn of its locks, with their last writer applied; or without a turn, which costs at most a conflict."""
        loop = asyncio.get_running_loop()
        try:
            last = await self.turn(following.partition, turns.checks, timeout_s=max(0.0, deadline - loop.time()))
        except NotAppended as error:
            if loop.time() >= deadline:
                raise progress.gave_up("timeout_s", "deadline passed while others held its locks") from error
            return
        if last is not None:
            turns.given(last)
            await _see_winner(following, LockConflict(partition=following.partition, winner=last), deadline, progress)

    def _limit_reached(self, sent: int, *, in_time: bool) -> Limit | None:
        """What ends the retries, apart from the budget."""
        if sent >= self.attempts:
            return "attempts"
        if not in_time:
            return "timeout_s"
        return "closed" if self.closed() else None


class _Turns:
    """The ticket of one logical transaction, which records its locks when they become known."""

    def __init__(self, following: Feeding, deadline: float, progress: _Progress, needs: Callable[[Ticket], None]) -> None:
        self._following = following
        self._needs = needs
        self._progress = progress
        self._admission = following.admission
        self._deadline = deadline
        self._ticket: Ticket | None = None
        self._learned = False
        """Whether an execution was repeated, because it showed locks that others want, and had no turn at them."""

    @property
    def wanted(self) -> bool:
        """Whether to ask the owner for a turn: other clients want the locks that are known too, or may do so, and a line has formed here."""
        ticket, admission = self._ticket, self._admission
        return ticket is not None and (admission.contested(ticket) or (ticket.waited and admission.unknown(ticket)))

    @property
    def checks(self) -> frozenset[bytes]:
        return frozenset() if self._ticket is None else self._ticket.checks

    async def join(self, ticket: Ticket) -> None:
        """Returns when it is the ticket's turn, or the owner decides that."""
        self._join(ticket)
        if not self._admission.contested(ticket):
            await self._in_time(ticket.turn_or_contest())

    def _join(self, ticket: Ticket) -> None:
        self.leave()
        self._ticket = self._admission.join(ticket)

    async def current(self, execution: Execution) -> bool:
        """Whether the execution may be sent: it saw everything that this client wrote under its locks, and no transaction of this client is ahead, or
        the owner decides that. If not, it is the turn of the next execution now."""
        assert execution.draft is not None
        needed = Ticket.of(execution.draft)
        held = self._ticket
        if held is None or (needed.checks, needed.sets) != (held.checks, held.sets):
            self._needs(needed)
        contested = self._admission.contested(needed)
        if held is None or not held.covers(needed):
            held = needed if held is None else held.with_all_of(needed)
            self._join(held)
            if held.waited and not contested:
                return await self._in_time(held.turn_or_contest())
            if contested and not self._learned:
                self._learned = True
                return False  # the next execution is in the turn of these locks
        newest = self._admission.newest(needed)
        if contested or newest <= execution.high_water_mark:
            return True
        await self._in_time(self._following.wait(newest))
        return False

    def given(self, last: int) -> None:
        if self._ticket is not None:
            self._admission.given_turn(self._ticket, last)

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
            raise self._progress.gave_up("timeout_s", "deadline passed while others of this client held its locks") from None


async def _see_own(following: Feeding, receipt: Receipt, deadline: float) -> None:
    """What was appended is applied here before the next decision. It is in the log in any case: nothing that goes wrong with seeing it may say
    otherwise."""
    with suppress(TimeoutError):
        async with asyncio.timeout_at(deadline):
            await following.settled(receipt.transaction_id)


async def _see_winner(following: Feeding, conflict: LockConflict, deadline: float, progress: _Progress) -> None:
    try:
        async with asyncio.timeout_at(deadline):
            await following.wait(conflict.winner)
    except TimeoutError:
        slow = Unavailable(reason=f"the follower did not reach the winner in time: applied={following.applied}")
        raise progress.gave_up("timeout_s", conflict) from slow
