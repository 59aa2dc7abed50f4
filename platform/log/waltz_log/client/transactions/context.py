"""The application's side of the original's programming model: contexts that are submitted, and an application that applies the feed.

Values and hooks for subclasses. `submitting` and `follow` decide when the hooks are called. Each hook can be a plain or a coroutine function.
They run in the client's event loop and must not block it.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Sequence

from waltz_log.client.transactions.transaction import Lock, Receipt, Transaction
from waltz_log.client.transactions.transactional import TransactionContext
from waltz_log.core.metadata import ClusterParameters
from waltz_log.errors import InvalidRequest, LockConflict

__all__ = ["Application", "Context"]


class Context:
    """One application transaction. `client.submit(context)` executes it until it is in the log, has nothing to append, or fails permanently.
    Subclass it with `partition` and `execute`."""

    def partition(self, count: int) -> int:
        """The partition that the transaction belongs to, out of `count`. Called once."""
        raise NotImplementedError

    def locks(self) -> Sequence[Lock] | None:
        """The locks that `execute` will use, if they are known before. Contexts of this client that share a lock then wait for each other without
        an extra execution."""
        return None

    def execute(self, tx: TransactionContext) -> Awaitable[None] | None:
        """Reads the application's state and calls `tx.append` once, or not at all if there is nothing to do. It runs again after a conflict, so it
        must have no other effect. An error that it raises ends the transaction."""
        raise NotImplementedError

    def on_lock_failure(self, conflict: LockConflict) -> Awaitable[None] | None:
        """Called when the transaction was rejected for `conflict.winner`. It executes again once the application has applied the winner, unless
        the time or the attempts are used up."""
        return None

    def on_completion(self, receipt: Receipt | None) -> Awaitable[None] | None:
        """Called when the transaction is in the log and not applied yet; with None if there was nothing to append. At most once, and never
        together with `on_exception`. `apply` waits for it, so it must not wait until something is applied."""
        return None

    def on_application(self) -> Awaitable[None] | None:
        """Called when the application has applied the transaction, after `on_completion`. Not called if the application's feed ended before."""
        return None

    def on_exception(self, error: BaseException) -> Awaitable[None] | None:
        """Called when the transaction ends without being known to be in the log: `execute` raised an error, or the outcome is `LockConflict`,
        `NotAppended` or `OutcomeUnknown`, which `resolve` settles."""
        return None


class Application:
    """An application whose state follows the log. `client.mount(application)` feeds it; a client has at most one. Subclass it with
    `client_high_water_mark` and `apply`."""

    def begin(self, cluster: ClusterParameters) -> Awaitable[None] | None:
        """Called once, before anything is mounted: the place to check that the state belongs to this cluster."""
        return None

    def client_high_water_mark(self, partition: int) -> Awaitable[int] | int:
        """The last transaction that the state holds, -1 if there is none. Called at each mount: the feed starts at the next id."""
        raise NotImplementedError

    def apply(self, partition: int, transactions: list[Transaction]) -> Awaitable[None] | None:
        """Applies transactions, in order, in lists as they arrive. They count as applied when it returns. After an error the feed starts again
        from `client_high_water_mark`, or ends: see `on_error`."""
        raise NotImplementedError

    def on_error(self, partition: int, error: BaseException) -> Awaitable[bool] | bool:
        """Called when `apply` or the feed failed. True: mount again after a pause. False: the partition is not fed any more, and its contexts fail
        with the error."""
        return False

    async def execute(self, context: Context, partition: int, applied: int, attempt: int) -> TransactionContext:
        """Runs one execution of a context on the current state. `applied`: the last transaction that `apply` has returned from. An application
        with a newer state returns its own mark in the `TransactionContext`."""
        tx = TransactionContext(partition, applied, attempt)
        result = context.execute(tx)
        if inspect.isawaitable(result):
            await result
        return tx


def checked_mark(mark: object) -> int:
    """What an application said its mark is. Raises `InvalidRequest`."""
    if not isinstance(mark, int) or mark < -1:
        raise InvalidRequest(reason=f"an application's high-water mark must be a transaction id or -1: {mark!r}")
    return mark
