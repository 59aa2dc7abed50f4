"""Runs the handlers of one lane. A handler runs on the state that a follower built. Its result is appended under its locks. After a conflict it runs
again.

A handler must have no other effect than what it appends: it may run several times, also after a crash. The number of each run is on disk before it
starts, so that an intent that kills its process is also given up after `attempts_max`. Any error that a handler raises counts as a failed run;
`GiveUp` ends the intent at once. After a lock conflict, the next run waits until the follower has applied the winner.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeAlias  # Any: JSON values, and the application's functions

from waltz_log.background_tasks import TaskSet
from waltz_log.client.append.packing import pack_append
from waltz_log.client.append.pending_append import PendingAppend
from waltz_log.client.append.producer import Producer
from waltz_log.client.base.retry import pause_s
from waltz_log.client.transactions.attempts import CONFLICT_BASE_S
from waltz_log.client.transactions.follow import Follower
from waltz_log.client.transactions.transaction import Receipt
from waltz_log.client.transactions.transactional import TransactionContext
from waltz_log.errors import InvalidRequest, LockConflict, WaltzError
from waltz_log.outbox.journal_writer import JournalWriter
from waltz_log.outbox.ledger import Entry, Ledger
from waltz_log.outbox.settings import OutboxSettings

__all__ = ["Calls", "GiveUp", "Handler"]

Handler: TypeAlias = Callable[[TransactionContext, Any], Awaitable[None] | None]
"""`handler(tx, arguments)`, plain or a coroutine function: reads the application's state, and calls `tx.append` at most once."""


class GiveUp(Exception):
    """Raised by a handler: this intent will never succeed. It becomes a dead letter with this reason."""


class CallingLane(Protocol):
    """What the calls need of their lane."""

    loop: asyncio.AbstractEventLoop
    producer: Producer

    async def mounted(self) -> None: ...
    def outcome_of(self, entry: Entry) -> asyncio.Future[Receipt]: ...
    async def send(self, append: PendingAppend) -> None: ...
    def nothing_to_append(self, entry: Entry) -> None: ...
    def requeue(self, entry: Entry) -> None: ...
    def give_up(self, entry: Entry, reason: str) -> None: ...
    def wake(self) -> None: ...


class Calls:
    """The calls of one lane. `run` ends only with an error that no handler raised."""

    def __init__(
        self,
        lane: CallingLane,
        handlers: Mapping[str, Handler],
        follower: Callable[[], Awaitable[Follower | None]],
        settings: OutboxSettings,
        ledger: Ledger,
        writer: JournalWriter,
        rng: random.Random,
    ) -> None:
        self._lane = lane
        self._handlers = handlers
        self._follower = follower
        self._settings = settings
        self._ledger = ledger
        self._writer = writer
        self._rng = rng
        self._running = 0
        self._limit = settings.calls_max
        self._tasks = TaskSet(self._broken)
        self._failed: asyncio.Future[None] = lane.loop.create_future()

    @property
    def has_capacity(self) -> bool:
        """Whether another call may start. A call runs until it is decided. Each conflict halves how many calls run at once, each success adds one."""
        return self._running < self._limit

    def decided(self, conflict: bool) -> None:
        """Records the outcome of a call that was sent."""
        self._running -= 1
        self._limit = max(1, self._limit // 2) if conflict else min(self._settings.calls_max, self._limit + 1)

    async def run(self) -> None:
        try:
            await self._failed
        finally:
            await self._tasks.end()

    def _broken(self, error: BaseException) -> None:
        if not self._failed.done():
            self._failed.set_exception(error)

    # ---- one run of a handler --------------------------------------------------------------------------------------------------------------------

    def start(self, entry: Entry) -> None:
        self._running += 1
        self._tasks.start(self._call(entry))

    async def _call(self, entry: Entry) -> None:
        if not await self._run_handler(entry):
            self._running -= 1
            self._lane.wake()

    async def _run_handler(self, entry: Entry) -> bool:
        """Whether an append was sent whose outcome is pending."""
        handler = self._handlers.get(entry.intent.handler)
        if handler is None:
            self._lane.give_up(entry, f"no handler of this name: {entry.intent.handler}")
            return False
        if entry.tries >= self._settings.attempts_max:
            self._lane.give_up(entry, f"the process ended in each of {entry.tries} runs of the handler")
            return False
        follower = await self._follower()
        await self._lane.mounted()
        await self._writer.write(self._ledger.tried(entry))
        mark = self._lane.producer.known_mark if follower is None else follower.applied
        context = TransactionContext(entry.intent.partition, mark, entry.tries)
        try:
            async with asyncio.timeout(self._settings.handler_timeout_s):
                result = handler(context, entry.intent.arguments)
                if inspect.isawaitable(result):
                    await result
        except GiveUp as error:
            self._lane.give_up(entry, str(error) or "given up by its handler")
            return False
        except Exception as error:  # an application's error: it counts, and the next run may do better
            self._failed_run(entry, f"{type(error).__name__}: {error}")
            return False
        return await self._append(entry, context)

    async def _append(self, entry: Entry, context: TransactionContext) -> bool:
        draft = context.draft
        if draft is None:
            self._lane.nothing_to_append(entry)
            return False
        try:
            append = pack_append(self._lane.outcome_of(entry), self._lane.producer, draft, math.inf)
        except InvalidRequest as error:
            self._lane.give_up(entry, str(error))
            return False
        await self._lane.send(append)
        return True

    # ---- when it did not get into the log --------------------------------------------------------------------------------------------------------

    def refused(self, entry: Entry, error: WaltzError) -> None:
        """It is certain that what a handler computed is not in the log."""
        if isinstance(error, InvalidRequest):
            self._lane.give_up(entry, str(error))
            return
        if isinstance(error, LockConflict) and entry.tries < self._settings.attempts_max:
            self._tasks.start(self._after_winner(entry, error))
        else:
            self._failed_run(entry, str(error))

    def count(self, entry: Entry, error: WaltzError) -> bool:
        """Counts a refused sending of data. Whether it is to be sent again."""
        entry.tries += 1
        if entry.tries >= self._settings.attempts_max:
            self._lane.give_up(entry, f"after {entry.tries} attempts: {error}")
            return False
        return True

    def _failed_run(self, entry: Entry, reason: str) -> None:
        if entry.tries >= self._settings.attempts_max:
            self._lane.give_up(entry, f"after {entry.tries} attempts: {reason}")
            return
        self._tasks.start(self._later(entry, self._pause_s(entry, self._settings.retry_base_s)))

    async def _after_winner(self, entry: Entry, conflict: LockConflict) -> None:
        follower = await self._follower()
        try:
            if follower is not None:
                await follower.wait(conflict.winner)
        except Exception as error:  # the follower ended, by the application's error: another follows
            self._failed_run(entry, f"the follower ended: {type(error).__name__}: {error}")
            return
        await self._later(entry, self._pause_s(entry, CONFLICT_BASE_S))

    async def _later(self, entry: Entry, pause_s: float) -> None:
        await asyncio.sleep(pause_s)
        self._lane.requeue(entry)

    def _pause_s(self, entry: Entry, base_s: float) -> float:
        return pause_s(max(entry.tries - 1, 0), base_s, self._settings.retry_cap_s, self._rng)
