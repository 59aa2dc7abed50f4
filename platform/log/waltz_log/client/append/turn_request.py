"""Asks the owner for a turn at contended locks before a transaction is executed, instead of being rejected after it.

On the wire it is an append without data whose mark is below every transaction (`TURN_MARK`). It is never in the log, and is answered like a
rejection, in the order of the owner's queue for the lock. So deadlines, lost connections and resending work as for appends. A turn is only a hint:
the locks of the transaction that follows are checked as usual."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from waltz_log.client.append.pending_append import FRAME_OVERHEAD_BYTES, PendingAppend
from waltz_log.client.append.producer import Producer
from waltz_log.client.transactions.transaction import Receipt
from waltz_log.core.locks.lock_columns import TURN_MARK
from waltz_log.errors import LockConflict, ProtocolViolation

__all__ = ["await_turn"]


async def await_turn(producer: Producer, checks: Collection[bytes], deadline: float) -> int | None:
    """Returns when it is the caller's turn, with the last transaction that wrote one of the locks. `checks`: lock hashes. Returns None immediately if
    there are none, or more than an append may have. Raises `NotAppended` if there was no turn before the deadline."""
    if not 0 < len(checks) <= producer.locks_max:
        return None
    append = PendingAppend()
    future: asyncio.Future[Receipt] = asyncio.Future(loop=producer.loop)
    append.future = future
    append.data, append.header = b"", 0
    append.mark, append.own_writes_known = TURN_MARK, False
    append.lock_counts, append.locks = bytes((0, len(checks), 0)), b"".join(checks)
    append.size = len(append.locks) + FRAME_OVERHEAD_BYTES
    append.deadline = deadline
    if not producer.try_enqueue(append):
        await producer.enqueue(append)
    try:
        receipt = await future
    except LockConflict as last:
        return last.winner
    raise ProtocolViolation(reason=f"a turn request was appended: partition={producer.partition} transaction_id={receipt.transaction_id}")
