"""One append from the call to its outcome: the future that the caller has, and what a frame needs of the transaction."""

from __future__ import annotations

import asyncio

from waltz_log.client.transactions.transaction import Receipt

__all__ = ["FRAME_OVERHEAD_BYTES", "NO_LOCKS", "PendingAppend"]

FRAME_OVERHEAD_BYTES = 64
"""Bytes of a transaction in a frame besides data and locks: record overhead, length, mark, lock counts, some framing."""

NO_LOCKS = b"\0\0\0"
"""The lock counts of a transaction without locks."""


class PendingAppend:
    """Made by `packing`, which assigns every field: a constructor of its own would cost a quarter more (docs/decisions/0040)."""

    __slots__ = ("data", "deadline", "future", "header", "lock_counts", "locks", "mark", "own_writes_known", "size")

    future: asyncio.Future[Receipt]
    data: bytes
    header: int
    mark: int | None
    """The high-water mark that its locks are checked against. None: the one that the client knows when it first sends the transaction."""
    own_writes_known: bool
    """The caller gave no mark, so the transaction was computed from nothing that was read: beside the mark, what this client wrote before counts as
    known."""
    lock_counts: bytes
    """Three bytes: write, read and append locks."""
    locks: bytes
    """Eight bytes for each lock."""
    size: int
    """Bytes in a frame."""
    deadline: float
    """On the loop's clock, in seconds."""
