"""One append from the call to its outcome: the caller's future, and the transaction as a frame needs it."""

from __future__ import annotations

import asyncio

from waltz_log.client.transactions.transaction import Receipt

__all__ = ["FRAME_OVERHEAD_BYTES", "NO_LOCKS", "PendingAppend"]

FRAME_OVERHEAD_BYTES = 64
"""Bytes of a transaction in a frame besides data and locks: record overhead, length, mark, lock counts, some framing."""

NO_LOCKS = b"\0\0\0"
"""The lock counts of a transaction without locks."""


class PendingAppend:
    """Created by `packing`, which assigns every field: a constructor would cost a quarter more (docs/decisions/0040)."""

    __slots__ = ("data", "deadline", "future", "header", "lock_counts", "locks", "mark", "own_writes_known", "size")

    future: asyncio.Future[Receipt]
    data: bytes
    header: int
    mark: int | None
    """The high-water mark that its locks are checked against. None: the one that the client knows when it first sends the transaction."""
    own_writes_known: bool
    """Whether this client's earlier writes count as known, besides the mark. True if the caller gave no mark: then the transaction was not computed
    from a state that was read."""
    lock_counts: bytes
    """Three bytes: the numbers of write, read and append locks."""
    locks: bytes
    """Hashes, eight bytes for each lock."""
    size: int
    """Bytes in a frame."""
    deadline: float
    """On the loop's clock, in seconds."""
