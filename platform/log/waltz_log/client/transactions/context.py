"""The application's side of the original's programming model: contexts that are submitted, an application that is fed.

Values and hooks for subclasses; who calls them and in what order is decided in `submitting` and `follow`. Each hook may be a plain function or a
coroutine function. They run in the client's event loop, so they must not block it.
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
    """One logical transaction. `client.submit(context)` executes it until it is in the log, or has nothing to append, or fails for good."""

    def partition(self, count: int) -> int:
        """Where it belongs, of `count` partitions. Asked once."""
        raise NotImplementedError

    def locks(self) -> Sequence[Lock] | None:
        """What it will lock, where that is known before it is executed: saves an execution where others of this client want the same locks."""
        return None

    def execute(self, tx: TransactionContext) -> Awaitable[None] | None:
        """Looks at the application's state and calls `tx.append` once, or not at all: nothing to do. Executed again after a conflict, so it has no
        other effect. An error that it raises ends the transaction."""
        raise NotImplementedError

    def on_lock_failure(self, conflict: LockConflict) -> Awaitable[None] | None:
        """It was rejected for `conflict.winner`. It is executed again once the application has applied that one, unless time or attempts are up."""
        return None

    def on_completion(self, receipt: Receipt | None) -> Awaitable[None] | None:
        """It is in the log and not applied yet; None: there was nothing to append. Once at most, and never together with `on_exception`. `apply` of
        its transaction waits for it, so it must not wait for anything to be applied."""
        return None

    def on_application(self) -> Awaitable[None] | None:
        """It is in the log and the application has applied it. After `on_completion`; not where the application's feed ended before."""
        return None

    def on_exception(self, error: BaseException) -> Awaitable[None] | None:
        """It ended without being known to be in the log: `execute` raised, or `LockConflict`, `NotAppended`, `OutcomeUnknown` (ask `resolve`)."""
        return None


class Application:
    """Whose state the log is applied to. `client.mount(application)` feeds it; one for a client."""

    def begin(self, cluster: ClusterParameters) -> Awaitable[None] | None:
        """Called once, before anything is mounted: the place to check that the state belongs to this cluster."""
        return None

    def client_high_water_mark(self, partition: int) -> Awaitable[int] | int:
        """The last transaction that the state holds, -1: none. Asked at each mount: the feed begins above it."""
        raise NotImplementedError

    def apply(self, partition: int, transactions: list[Transaction]) -> Awaitable[None] | None:
        """Every transaction in order, in lists as they arrive. When it has returned they count as applied. After an error the feed begins again from
        `client_high_water_mark`, or ends: see `on_error`."""
        raise NotImplementedError

    def on_error(self, partition: int, error: BaseException) -> Awaitable[bool] | bool:
        """`apply` or the feed failed. True: mount again, after a pause; False: the partition is not fed any more, and its contexts fail with the
        error."""
        return False

    async def execute(self, context: Context, partition: int, applied: int, attempt: int) -> TransactionContext:
        """One execution on the present state. `applied`: what `apply` has returned from; an application that knows better says so in the mark."""
        tx = TransactionContext(partition, applied, attempt)
        result = context.execute(tx)
        if inspect.isawaitable(result):
            await result
        return tx


def checked_mark(mark: object) -> int:
    """What an application said its mark is. Raises `InvalidRequest`."""
    if not isinstance(mark, int) or mark < -1:
        raise InvalidRequest(reason=f"an application's high-water mark is a transaction id, or -1: {mark!r}")
    return mark
