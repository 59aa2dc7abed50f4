"""The arguments of an append, written down once for all clients: `WaltzClient` and `SyncWaltzClient` have this function as their `append_nowait`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from waltz_log.client.transactions.transaction import Draft, Lock

__all__ = ["append_nowait"]

Enqueued = TypeVar("Enqueued", covariant=True)

_new = tuple.__new__
"""Creates a `Draft` in half the time of its constructor."""


class Enqueuing(Protocol[Enqueued]):
    def enqueue(self, partition: int, draft: Draft, timeout_s: float | None = None) -> Enqueued: ...


def append_nowait(
    self: Enqueuing[Enqueued],
    partition: int,
    data: bytes,
    header: int = 0,
    write_locks: Sequence[Lock] = (),
    read_locks: Sequence[Lock] = (),
    append_locks: Sequence[Lock] = (),
    high_water_mark: int | None = None,
    timeout_s: float | None = None,
) -> Enqueued:
    """Enqueues the transaction and returns a future of its outcome. Waits only for room in the partition's window. Transactions are sent in the
    order of these calls. Arguments and errors as in `append`; a partition that belongs to a topic is refused with `BelongsToTopic`. In an
    asynchronous client the call itself is awaited, too."""
    # Not `async`: that would cost one more coroutine for each transaction.
    return self.enqueue(partition, _new(Draft, (data, header, write_locks, read_locks, append_locks, high_water_mark)), timeout_s)
