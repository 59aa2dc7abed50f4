"""An application mounted at the log, and the contexts submitted to it.

Each partition has one follower that applies the feed; if applying fails and the application wants to continue, the feed starts again from the mark
that the application states. Each context is one task, of which there are `contexts_max` at most: past that `submit` waits. What a hook raises is
logged and changes nothing: the outcome is what the log says.
"""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from waltz_log.background_tasks import end_tasks, start_task
from waltz_log.client.base.retry import Backoff
from waltz_log.client.base.settings import ClientSettings
from waltz_log.client.transactions.admission import Ticket
from waltz_log.client.transactions.attempts import Attempts, Execution
from waltz_log.client.transactions.completions import AppendNowait, Completions, Sending
from waltz_log.client.transactions.context import Application, Context, checked_mark
from waltz_log.client.transactions.follow import Again, Apply, Follower
from waltz_log.client.transactions.transaction import Receipt, Transaction
from waltz_log.core.metadata import ClusterParameters
from waltz_log.errors import InvalidRequest, LockConflict, NotAppended
from waltz_log.loggers import get_logger

__all__ = ["Follow", "Submitting"]

log = get_logger(__name__)


class Follow(Protocol):
    """How a partition is followed; `WaltzClient` gives its own."""

    def __call__(self, partition: int, apply: Apply, after: int, again: Again) -> Awaitable[Follower]: ...


class Submitting:
    """One application's mounts and contexts."""

    def __init__(
        self,
        application: Application,
        follow: Follow,
        append: AppendNowait,
        attempts: Callable[[int], Attempts],
        in_flight: Callable[[int, Sequence[Transaction]], list[asyncio.Future[Receipt]]],
        settings: ClientSettings,
        rng: random.Random,
    ) -> None:
        """`in_flight`: which undecided appends of this client the transactions of a partition are."""
        self.application = application
        self._append = append
        self._in_flight = in_flight
        self._completions: dict[int, Completions] = {}
        self._follow = follow
        self._attempts = attempts
        self._settings = settings
        self._rng = rng
        self.followers: dict[int, Follower] = {}
        self._tasks: set[asyncio.Task[Receipt | None]] = set()
        self._room = asyncio.Semaphore(settings.contexts_max)

    # ---- mounting --------------------------------------------------------------------------------------------------------------------------------

    async def begin(self, cluster: ClusterParameters) -> None:
        begun = self.application.begin(cluster)
        if inspect.isawaitable(begun):
            await begun

    async def mount(self, partitions: Collection[int]) -> None:
        """Returns when each of them is being fed. Those that are stay as they are."""
        for partition in partitions:
            present = self.followers.get(partition)
            if present is None or present.error is not None:
                again = partial(self._again, partition, Backoff(self._settings.retry_base_s, self._settings.retry_cap_s, self._rng))
                after = await self._mark(partition)
                self.followers[partition] = await self._follow(partition, partial(self._apply, partition), after, again)

    async def unmount(self, partitions: Collection[int]) -> None:
        """Feeds them no more; their contexts in progress end with their outcome, and new ones are refused."""
        for partition in partitions:
            follower = self.followers.pop(partition, None)
            if follower is not None:
                await follower.close()

    async def _apply(self, partition: int, transactions: list[Transaction]) -> None:
        """After `on_completion` of every context that is among the transactions."""
        completions = self._completions.get(partition)
        if completions is not None and completions.sending:
            await completions.wait_for(transactions, self._in_flight(partition, transactions))
        applied = self.application.apply(partition, transactions)
        if inspect.isawaitable(applied):
            await applied

    async def _mark(self, partition: int) -> int:
        mark = self.application.client_high_water_mark(partition)
        return checked_mark(await mark if inspect.isawaitable(mark) else mark)

    async def _again(self, partition: int, backoff: Backoff, error: Exception) -> int | None:
        """Where the feed is to begin after an error; None: nowhere."""
        wanted = self.application.on_error(partition, error)
        if not (await wanted if inspect.isawaitable(wanted) else wanted):
            return None
        pause_s = backoff.next_s()
        log.warning("feed restarted after an error", partition=partition, error=f"{type(error).__name__}: {error}", pause_s=round(pause_s, 3))
        await asyncio.sleep(pause_s)
        return await self._mark(partition)

    # ---- contexts --------------------------------------------------------------------------------------------------------------------------------

    async def submit(self, context: Context, partitions: int, timeout_s: float, attempts: int) -> asyncio.Task[Receipt | None]:
        """Waits only for room, until the deadline. The task ends when it is applied here, or with the error that its `on_exception` receives."""
        partition = context.partition(partitions)
        follower = self.followers.get(partition)
        if follower is None:
            raise InvalidRequest(reason=f"the application is not mounted at this partition: partition={partition!r}")
        deadline = asyncio.get_running_loop().time() + timeout_s
        try:
            async with asyncio.timeout_at(deadline):
                await self._room.acquire()
        except TimeoutError:
            raise NotAppended(partition=partition, reason="no room for another context before the deadline") from None
        task = start_task(self._carry_out(context, follower, deadline, self._attempts(attempts)), name=f"waltz context {partition}")
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Receipt | None]) -> None:
        self._tasks.discard(task)
        self._room.release()
        if not task.cancelled():
            task.exception()  # `on_exception` received it; a caller that awaits the task gets it too

    async def _carry_out(self, context: Context, follower: Follower, deadline: float, attempts: Attempts) -> Receipt | None:
        async def execute(attempt: int) -> Execution:
            tx = await self.application.execute(context, follower.partition, follower.applied, attempt)
            return Execution(tx.high_water_mark, tx.draft)

        completed = False
        sending = Sending(self._append, self._completions.setdefault(follower.partition, Completions()))

        async def decided(receipt: Receipt) -> None:
            nonlocal completed
            completed = True
            await _call_hook(context.on_completion, receipt)
            sending.complete()

        async def rejected(conflict: LockConflict) -> None:
            await _call_hook(context.on_lock_failure, conflict)

        try:
            locks = context.locks()
            declared = None if locks is None else Ticket.whole(locks)
            tracked = replace(attempts, append=sending.append)
            receipt = await tracked.run(follower, execute, deadline, declared=declared, decided=decided, rejected=rejected)
        except (Exception, asyncio.CancelledError) as error:
            if not completed:  # cancelled while it was applied, it is in the log all the same
                await _call_hook(context.on_exception, error)
            raise
        finally:
            sending.complete()
        if receipt is None:
            await _call_hook(context.on_completion, None)
        elif follower.applied >= receipt.transaction_id:
            await _call_hook(context.on_application)
        return receipt

    @property
    def pending(self) -> int:
        """Contexts that are not done."""
        return len(self._tasks)

    async def flush(self) -> None:
        """Returns when all contexts submitted before are done."""
        tasks = list(self._tasks)
        if tasks:
            await asyncio.wait(tasks)

    async def close(self, timeout_s: float) -> None:
        """Waits until contexts received their outcomes from the closed producers. What still runs after `timeout_s`, in the application's own code,
        is cancelled."""
        await self.unmount(list(self.followers))
        tasks = list(self._tasks)
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)
        await end_tasks(tasks)


async def _call_hook(hook: Callable[..., object], *arguments: object) -> None:
    try:
        result = hook(*arguments)
        if inspect.isawaitable(result):
            await result
    except Exception:
        log.exception("context hook failed", hook=getattr(hook, "__qualname__", repr(hook)))
