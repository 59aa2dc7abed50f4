"""A client that works like the programs of the original: a mounted application that submits many contexts at once. Each execution is a separate
attempt in the history, so that the checkers judge it like any append; the hooks report the outcome. Errors that only the application sees are
reported here: a hook that is called twice or never, and both `on_completion` and `on_exception`.
"""

from __future__ import annotations

import asyncio

from verification.simulation.clients import SETTINGS, Actor, client_kind, ended_by_the_network
from verification.simulation.history import Attempt, number_of
from verification.simulation.mix import CONTEXTS
from waltz_log.client import Application, Context, Lock, LockConflict, OutcomeUnknown, Receipt, Transaction, TransactionContext
from waltz_log.errors import NotAppended

__all__ = ["submit_contexts"]


class _Counting(Application):
    def __init__(self, actor: Actor) -> None:
        self.counts: dict[str, int] = {}
        self._actor = actor
        self._stream = actor.stream()
        self._applied = -1

    def client_high_water_mark(self, partition: int) -> int:
        return self._applied

    def apply(self, partition: int, transactions: list[Transaction]) -> None:
        self._actor.saw(self._stream, self._applied, transactions)
        self._applied = transactions[-1].transaction_id
        for transaction in transactions:
            attempt = self._actor.world.history.attempts[number_of(transaction.data)]
            if attempt.client == self._actor.name and attempt.outcome == "pending":
                self._actor.world.history.complaints.append(f"22: applied before on_completion: attempt={attempt.number} client={self._actor.name}")
            reported = transaction.data.split(b"|")[1]
            if reported:
                key, _, count = reported.decode().partition("=")
                self.counts[key] = int(count)


class _Count(Context):
    def __init__(self, actor: Actor, application: _Counting, key: str) -> None:
        self.ends = 0
        """Calls of `on_completion` and `on_exception`."""
        self._actor = actor
        self._application = application
        self._key = key
        self._attempt: Attempt | None = None
        self._reported = actor.rng.random() < 0.5

    def partition(self, count: int) -> int:
        return self._actor.partition

    def locks(self) -> list[Lock] | None:
        return [Lock("l", self._key)] if self._reported else None

    async def execute(self, tx: TransactionContext) -> None:
        self._settle("not appended")  # the one before was not sent, or was refused
        count = self._application.counts.get(self._key, 0) + 1
        await self._actor.pause(0.01)
        self._attempt = self._actor.begin(write=(self._key,), mark=tx.high_water_mark)
        tx.append(self._actor.data(self._attempt, f"{self._key}={count}"), write_locks=[Lock("l", self._key)])

    def on_lock_failure(self, conflict: LockConflict) -> None:
        if self._attempt is not None:
            self._attempt.winner = conflict.winner
        self._settle("rejected")

    def on_completion(self, receipt: Receipt | None) -> None:
        self.ends += 1
        assert receipt is not None
        assert self._attempt is not None
        self._attempt.transaction_id = receipt.transaction_id
        self._attempt.in_memory = receipt.durability == "quorum_memory"
        self._settle("committed")

    def on_exception(self, error: BaseException) -> None:
        self.ends += 1
        if isinstance(error, OutcomeUnknown) and self._attempt is not None:
            self._actor.unknown[self._attempt.number] = error
        self._settle("unknown" if isinstance(error, OutcomeUnknown) else "died" if isinstance(error, asyncio.CancelledError) else "not appended")

    def _settle(self, outcome: str) -> None:
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            attempt.outcome = outcome  # type: ignore[assignment]
            attempt.answers += 1
            attempt.ended_s = self._actor.world.now_s
            self._actor.announce(f"attempt {attempt.number} {outcome}")


@client_kind(CONTEXTS)
async def submit_contexts(actor: Actor) -> None:
    """Contexts of one application on shared counters, several of them at once."""
    client = await actor.connect()
    application = _Counting(actor)
    await client.mount(application, [actor.partition])
    contexts: list[_Count] = []
    running: list[asyncio.Task[Receipt | None]] = []
    try:
        for _ in range(actor.operations):
            if actor.over.is_set():
                break
            context = _Count(actor, application, f"c{actor.rng.randrange(3)}")
            try:
                running.append(await client.submit(context, timeout_s=SETTINGS.append_timeout_s))
            except NotAppended:
                continue
            contexts.append(context)
            while len(running) > actor.rng.choice((0, 2, 6)):
                await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                running = [each for each in running if not each.done()]
            await actor.pause(0.05)
        await asyncio.gather(*running, return_exceptions=True)
        if any(context.ends != 1 for context in contexts):
            actor.world.history.complaints.append(f"22: contexts ended {[context.ends for context in contexts]} times: client={actor.name}")
        ended = client.applied(actor.partition).error
        if ended is not None and not ended_by_the_network(actor, ended):
            actor.world.history.complaints.append(f"9: a feed ended with {ended!r}: client={actor.name}")
        await actor.resolve_all(client)
    finally:
        for task in running:
            task.cancel()
    await client.close()
