"""Settles an unknown outcome from the log (docs/internals/protocol.md).

The answer "not in the log" is final only if the owner has decided everything that the client sent before. For a sequence of this client, that is the
case after a mount newer than the sending, or after a flush on the same stream. For a sequence of another client id, it is the case after a mount
under that id, which fences the connection that the other process may still have. If that process runs, it mounts again above this mount and
continues. The answer stays final, because a process never sends a transaction again after it reported its outcome as unknown (docs/decisions, 28).

The error's `since` records how far the log was searched without a result: if `resolve` is called again after a deadline that was too short, the
search continues there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TypeAlias

from waltz_log.client.append.producer import Producer
from waltz_log.client.append.sequence_query import SequenceQuery
from waltz_log.client.base.settings import ClientSettings
from waltz_log.client.owners.mounting import mount_for_appends
from waltz_log.client.owners.owners import Owners
from waltz_log.client.transactions.transaction import Receipt
from waltz_log.core.mount_sequences import resolving_above
from waltz_log.errors import Fenced, NotAllowed, OutcomeUnknown, OutOfRange, Unavailable, WaltzError
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.methods import RESOLVE, TRANSACTIONS

__all__ = ["Ranges", "receipt_of", "resolve_foreign", "resolve_own"]

Ranges: TypeAlias = list[tuple[int, int, int]]
"""First sequence, count, first transaction id."""

PAUSE_S = 0.05
"""The pause between two requests to an owner that cannot give a final answer yet."""


async def resolve_own(error: OutcomeUnknown, producer: Producer, owners: Owners, settings: ClientSettings, deadline: float) -> Ranges:
    """The sequences of the error that are in the log. They were sent under the producer's current client id."""
    search = _search(error, owners)
    while True:
        await producer.settle(error.sequence + error.count - 1, deadline)
        final, found = await _ask(error, search, owners, settings, deadline)
        if final:
            return found
        await asyncio.sleep(PAUSE_S)


async def resolve_foreign(error: OutcomeUnknown, owners: Owners, settings: ClientSettings, deadline: float) -> Ranges:
    """Like `resolve_own`, for sequences of any other client id. Ends that client's connection for appends to this partition, if it has one. With TLS
    it needs the ticket in the error, which fits the principal that got the id, or the permission to resolve for others."""
    owners.keep_ticket(error.client_id, error.ticket)
    mount_sequence = resolving_above(0)
    mark = error.since
    search = _search(error, owners)
    while True:
        try:
            async with _mounted(error, owners, mount_sequence, mark, _left(settings, deadline)):
                final, found = await _ask(error, search, owners, settings, deadline)
            if final:
                return found
        except Fenced as fenced:
            mount_sequence = resolving_above(max(mount_sequence, fenced.newer))
        except OutOfRange as range_error:
            mark = max(mark, range_error.first - 1)
        except WaltzError as failed:
            if not failed.retriable:
                raise
        if asyncio.get_running_loop().time() >= deadline:
            raise Unavailable(reason=f"not resolved before the deadline: partition={error.partition} sequence={error.sequence}")
        await asyncio.sleep(PAUSE_S)


@asynccontextmanager
async def _mounted(error: OutcomeUnknown, owners: Owners, mount_sequence: int, mark: int, timeout_s: float) -> AsyncGenerator[None, None]:
    address = await owners.owner(error.partition, timeout_s)
    stream, _ = await mount_for_appends(owners, address, error.partition, error.client_id, mount_sequence, mark, timeout_s, appends_nothing=True)
    try:
        yield
    finally:
        await stream.cancel()


def _left(settings: ClientSettings, deadline: float) -> float:
    """For one call: a server slower than that is left."""
    return max(0.001, min(settings.request_timeout_s, deadline - asyncio.get_running_loop().time()))


def _search(error: OutcomeUnknown, owners: Owners) -> SequenceQuery:
    last = error.sequence + error.count - 1
    shown = (owners.parameters.key.bytes, owners.ticket_of(error.client_id))
    return SequenceQuery(error.partition, error.client_id, error.sequence, last, error.since, *shown)


async def _ask(error: OutcomeUnknown, search: SequenceQuery, owners: Owners, settings: ClientSettings, deadline: float) -> tuple[bool, Ranges]:
    """Whether the answer is final, and the sequences that are in the log. If all were found, the answer is final."""
    whole = False
    while not whole and _total(search) < error.count:
        left = deadline - asyncio.get_running_loop().time()
        if left <= 0:
            raise Unavailable(reason=f"not resolved before the deadline: partition={error.partition} sequence={error.sequence}")
        question = search.question(min(left, settings.request_timeout_s))
        whole = search.add_answer(await owners.ask(error.partition, RESOLVE, question, timeout_s=left))
        if not search.committed and search.contiguous:
            error.searched(search.since)
    found = sorted((first, count, transaction_id) for first, count, transaction_id in search.committed)
    return search.final or _total(search) >= error.count, found


def _total(search: SequenceQuery) -> int:
    return sum(count for _, count, _ in search.committed)


async def receipt_of(error: OutcomeUnknown, found: Ranges, owners: Owners, settings: ClientSettings, deadline: float) -> Receipt | None:
    """The receipt of the error's only sequence; None if it is not in the log."""
    if not found:
        return None
    first, _, transaction_id = found[0]
    transaction_id += error.sequence - first
    key = owners.parameters.key.bytes
    request = pb.TransactionRequest(
        partition=error.partition, first_transaction_id=transaction_id, count=1, cluster_key=key, principal=owners.principal
    )
    try:
        answer = await owners.ask(error.partition, TRANSACTIONS, request, timeout_s=_left(settings, deadline))
    except (NotAllowed, OutOfRange, Unavailable):
        # Without permission to read, after a trim, or with no time left, everything is known except the append time.
        return Receipt(error.partition, transaction_id, 0)
    return Receipt(error.partition, transaction_id, answer.blocks[0].append_time_ms if answer.blocks else 0)
