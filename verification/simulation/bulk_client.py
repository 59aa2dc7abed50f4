"""The kind of client that appends in bulk: lists, iterators and columns with locks, some larger than the window, some with deadlines that pass. Each
row is an attempt in the history. Its outcome is that of its position in the receipt of the call."""

from __future__ import annotations

import asyncio
from typing import Any

from verification.simulation.clients import LOCKS, SETTINGS, Actor, client_kind
from verification.simulation.history import Attempt
from verification.simulation.mix import BATCHES
from waltz_log.client import BulkColumns, BulkReceipt, Receipt, WaltzClient
from waltz_log.core.topics.catalogue import Durability
from waltz_log.errors import NotAppended, OutcomeUnknown, Unavailable, WaltzError

__all__ = ["append_in_bulk"]


@client_kind(BATCHES)
async def append_in_bulk(actor: Actor) -> None:
    """One call after the other. Unknown outcomes of a call are resolved in the ranges that the call reported."""
    client = await actor.connect()
    left, known = actor.operations, -1
    while left > 0 and not actor.over.is_set():
        rows = min(left, actor.rng.choice((1, 4, 15, 50)))
        left -= rows
        timeout_s = actor.rng.choice((0.05, 0.5, 8.0, 8.0))
        locked = actor.rng.random() < 0.5
        mark = max(-1, known - actor.rng.choice((0, 0, 3))) if locked and actor.rng.random() < 0.5 else None
        # A row's deadline begins when the window admits it. Without room it waits for an eighth of the window.
        longest_s = timeout_s * (2 + 8 * rows // SETTINGS.max_pending)
        attempts = [actor.begin(write=_names(actor) if locked else (), mark=mark, timeout_s=longest_s) for _ in range(rows)]
        known = max(known, await _append(actor, client, attempts, timeout_s))
        await actor.pause(0.05)
    await client.close()


def _names(actor: Actor) -> tuple[str, ...]:
    return tuple({f"l{actor.rng.randrange(LOCKS)}": None for _ in range(actor.rng.choice((0, 1, 1, 2)))})


async def _append(actor: Actor, client: WaltzClient, attempts: list[Attempt], timeout_s: float) -> int:
    """The highest id known to be in the log."""
    data = [actor.data(attempt) for attempt in attempts]
    columns = BulkColumns(data, write_locks=[attempt.write for attempt in attempts], lock_name="l", high_water_mark=attempts[0].mark)
    plain = not any(attempt.write for attempt in attempts) and attempts[0].mark is None
    source: Any = actor.rng.choice((data, iter(data))) if plain else columns
    try:
        receipt = await client.append_bulk(actor.partition, source, timeout_s=timeout_s)
    except asyncio.CancelledError:
        for attempt in attempts:
            attempt.outcome = "died"
        raise
    for attempt, outcome in zip(attempts, _outcomes(actor, receipt, len(attempts)), strict=True):
        await actor.settle(attempt, outcome)
    for position, error, length in receipt.failed:
        if isinstance(error, OutcomeUnknown):
            await _resolve(actor, client, attempts[position : position + length], error)
    return max((attempt.transaction_id for attempt in attempts if attempt.transaction_id is not None), default=-1)


def _outcomes(actor: Actor, receipt: BulkReceipt, rows: int) -> list[asyncio.Future[Receipt]]:
    """The outcome of each row according to the receipt. A receipt does not say what is already on disk, so nothing counts as on disk in a partition
    that answers before it syncs."""
    durability: Durability = "quorum_memory" if actor.partition in actor.world.mix.in_memory else "quorum_sync"
    found: list[asyncio.Future[Receipt]] = [asyncio.get_running_loop().create_future() for _ in range(rows)]
    for first, length, transaction_id in receipt.appended:
        for at in range(length):
            found[first + at].set_result(Receipt(receipt.partition, transaction_id + at, 0, durability))
    for position, error, length in receipt.failed:
        for at in range(length):
            own: WaltzError = error.part(at, 1) if isinstance(error, OutcomeUnknown) else error
            found[position + at].set_exception(own)
    for future in found[receipt.submitted :]:
        future.set_exception(NotAppended(partition=receipt.partition, reason="never taken"))
    return found


async def _resolve(actor: Actor, client: WaltzClient, attempts: list[Attempt], error: OutcomeUnknown) -> None:
    while True:
        try:
            ranges = await client.resolve_range(error, timeout_s=3.0)
        except Unavailable as unavailable:
            actor.announce(f"attempts from {attempts[0].number} not resolved: {unavailable}")
            await asyncio.sleep(0.1)
            continue
        break
    for attempt in attempts:
        attempt.resolved = "absent"
        actor.unknown.pop(attempt.number, None)
    for first, length, transaction_id in ranges:
        for at in range(length):
            attempts[first + at].resolved, attempts[first + at].transaction_id = "committed", transaction_id + at
    actor.announce(f"attempts {attempts[0].number} to {attempts[-1].number} resolved {ranges}")
