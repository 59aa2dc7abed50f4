"""A service with an outbox as a client of the simulator. Its machine dies repeatedly, and the service restarts with what is left on its disk. It
submits data, and calls that increment counters under their locks. It learns the outcome of an intent from the feed, which continues over restarts. An
accepted intent that never appears there is a complaint. Everything else is judged by the checkers, as for every client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

from verification.simulation.clients import SETTINGS, Actor, client_kind
from verification.simulation.history import Attempt, number_of
from waltz_log.client import Intent, IntentReceipt, Lock, Outbox, OutboxSettings, Transaction, TransactionContext
from waltz_log.testing.disk import SimulatedDisk
from waltz_log.testing.offload import run_in_place

__all__ = ["forward_from_an_outbox"]

OUTBOX = OutboxSettings(file_bytes=64 * 1024, bytes_max=1024 * 1024, retry_base_s=0.01, retry_cap_s=0.3, attempts_max=1_000_000)
SEEN_WITHIN_S = 30.0
"""The limit for the feed after everything has healed and was forwarded."""


class _Service:
    def __init__(self, actor: Actor) -> None:
        self.actor = actor
        self.disk = SimulatedDisk()
        self.accepted: dict[int, Attempt] = {}
        self.receipts: dict[int, IntentReceipt] = {}
        self.counts: dict[str, int] = {}

    def outbox(self) -> Outbox:
        actor = self.actor

        clock = actor.world.clock(actor.name)
        outbox = Outbox(self.disk, run_in_place, clock, actor.process.seeds, actor.process.host, OUTBOX, SETTINGS, rng=Random(actor.rng.random()))
        outbox.follow(actor.partition, self._following())
        outbox.handler("count")(self._count)
        return outbox

    def _following(self) -> Callable[[list[Transaction]], None]:
        """The state of one process; it starts empty."""
        self.counts = counts = {}
        actor, stream = self.actor, self.actor.stream()
        after = -1

        def apply(transactions: list[Transaction]) -> None:
            nonlocal after
            actor.saw(stream, after, transactions)
            after = transactions[-1].transaction_id
            for transaction in transactions:
                reported = transaction.data.split(b"|")[1]
                if reported:
                    key, _, count = reported.decode().partition("=")
                    counts[key] = int(count)
                attempt = self.accepted.get(number_of(transaction.data))
                if attempt is not None and attempt.outcome == "pending":
                    attempt.outcome, attempt.transaction_id = "committed", transaction.transaction_id
                    attempt.ended_s, attempt.answers = actor.world.now_s, 1
                    actor.announce(f"attempt {attempt.number} is in the log as {transaction.transaction_id}")

        return apply

    def _count(self, tx: TransactionContext, arguments: Any) -> None:
        key, number = arguments["key"], arguments["number"]
        self.actor.world.history.attempts[number].mark = tx.high_water_mark
        tx.append(f"{number}|{key}={self.counts.get(key, 0) + 1}|".encode(), write_locks=[Lock("l", key)])

    async def submit(self, outbox: Outbox) -> None:
        actor = self.actor
        attempts, intents = [], []
        for _ in range(actor.rng.choice((1, 1, 3, 8))):
            if actor.rng.random() < 0.3:
                key = f"c{actor.rng.randrange(3)}"
                attempt = actor.begin(write=(key,), timeout_s=1e9)
                intents.append(Intent.call("count", {"key": key, "number": attempt.number}, actor.partition))
            else:
                attempt = actor.begin(timeout_s=1e9)
                intents.append(Intent.data(actor.partition, actor.data(attempt), key=actor.rng.choice((None, "k"))))
            attempts.append(attempt)
        try:
            receipts = await outbox.submit(intents)
        except BaseException:
            for attempt in attempts:
                attempt.outcome = "died"
            raise
        self.accepted.update((attempt.number, attempt) for attempt in attempts)
        self.receipts.update((attempt.number, receipt) for attempt, receipt in zip(attempts, receipts, strict=True))
        actor.announce(f"accepted {[attempt.number for attempt in attempts]}")

    async def live(self, lasts_s: float) -> None:
        """One process, until it is killed."""
        outbox = self.outbox()
        await outbox.start()

        async def submitting() -> None:
            while len(self.accepted) < self.actor.operations:
                await self.submit(outbox)
                await self.actor.pause(0.1)

        task = asyncio.ensure_future(submitting())
        try:
            await asyncio.sleep(lasts_s)
        finally:
            # Also where the process is killed by a fault: a dead process accepts nothing.
            await outbox.abort()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        self.disk = self.disk.crash(self.actor.rng, keep=self.actor.rng.random() < 0.3)
        self.actor.announce("died, and comes back")

    async def settle(self) -> None:
        """The last process: forwards everything that is left, and the feed shows everything that was accepted."""
        outbox = self.outbox()
        await outbox.start()
        try:
            await self._forwarded(outbox)
        except asyncio.CancelledError:
            await outbox.abort()
            raise
        await outbox.close()

    async def _forwarded(self, outbox: Outbox) -> None:
        actor = self.actor
        await outbox.flush()
        deadline = actor.world.now_s + SEEN_WITHIN_S
        while any(attempt.outcome == "pending" for attempt in self.accepted.values()) and actor.world.now_s < deadline:
            await asyncio.sleep(0.05)
        complaints = actor.world.history.complaints
        complaints += [f"21: accepted by an outbox and not in the log: {each.number}" for each in self.accepted.values() if each.outcome == "pending"]
        complaints += [f"21: given up: {dead.reason}" for dead in outbox.dead_letters()]
        for number, receipt in self.receipts.items():
            if receipt.known is not None and receipt.known.transaction_id != self.accepted[number].transaction_id:
                complaints.append(f"21: attempt {number} was told {receipt.known}, the feed has it as {self.accepted[number].transaction_id}")


@client_kind("outbox")
async def forward_from_an_outbox(actor: Actor) -> None:
    """Runs as long as the load; later processes only forward. Ends when everything that it accepted is in the log."""
    service = _Service(actor)
    while not actor.over.is_set():
        await service.live(actor.rng.choice((0.0, actor.rng.uniform(0, 0.2), actor.rng.uniform(0, 1.5))))
    await service.settle()
