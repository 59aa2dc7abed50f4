"""Rows of a bulk call from the call to their outcomes, as ranges: like `PendingAppend`, but without an object for each row.

The rows of a call are admitted to the window in pieces, each with one deadline. A piece waits in the queue as `UnsentRows`, which a frame can split.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from waltz_log.client.append.rows import Rows
from waltz_log.errors import WaltzError

__all__ = ["PendingRows", "RowOutcomes", "UnsentRows"]


class RowOutcomes(Protocol):
    """The bulk call that the rows belong to. Positions count from the start of the call."""

    def rows_committed(self, position: int, count: int, transaction_id: int) -> None:
        """`count` rows from `position` are in the log under consecutive ids from `transaction_id`."""

    def rows_failed(self, position: int, count: int, error: WaltzError) -> None:
        """None of these rows is in the log; with `OutcomeUnknown`, they can be in it."""


class PendingRows:
    """Rows `start` to `stop` of a batch, admitted to the window together. Each is settled once."""

    __slots__ = ("_decided", "deadline", "given_up", "left", "mark", "outcomes", "own_writes_known", "position", "rows", "start", "stop")

    def __init__(
        self, rows: Rows, start: int, stop: int, position: int, outcomes: RowOutcomes, mark: int | None, own_writes_known: bool, deadline: float
    ) -> None:
        """`position`: of the batch's first row in the call. `mark`, `own_writes_known`, `deadline`: as in `PendingAppend`, the same for all."""
        self.rows = rows
        self.start = start
        self.stop = stop
        self.position = position
        self.outcomes = outcomes
        self.mark = mark
        self.own_writes_known = own_writes_known
        self.deadline = deadline
        self.left = stop - start
        self.given_up = False
        """The caller does not need the outcomes any more. Unsent rows are not sent."""
        self._decided: asyncio.Future[None] | None = None

    @property
    def count(self) -> int:
        return self.stop - self.start

    @property
    def size(self) -> int:
        """Bytes in a frame."""
        return self.rows.size(self.start, self.stop)

    def committed(self, row: int, count: int, transaction_id: int) -> None:
        if not self.given_up:
            self.outcomes.rows_committed(self.position + row, count, transaction_id)
            self._settle(count)

    def fail(self, row: int, count: int, error: WaltzError) -> None:
        if not self.given_up:
            self.outcomes.rows_failed(self.position + row, count, error)
            self._settle(count)

    def give_up(self) -> None:
        if not self.given_up:
            self.given_up = True
            self._settle(self.left)

    def decided(self) -> asyncio.Future[None]:
        """Done when every row has its outcome, or its outcome is not needed any more."""
        if self._decided is None:
            self._decided = asyncio.get_running_loop().create_future()
            if not self.left:
                self._decided.set_result(None)
        return self._decided

    def _settle(self, count: int) -> None:
        self.left -= count
        if not self.left and self._decided is not None and not self._decided.done():
            self._decided.set_result(None)


class UnsentRows:
    """Rows of a piece that wait to be sent, or to be sent again."""

    __slots__ = ("_failed", "mark", "pending", "start", "stop")

    def __init__(self, pending: PendingRows, start: int, stop: int, mark: int | None) -> None:
        """`mark`: the one with which they were sent before, or that of the piece."""
        self.pending = pending
        self.start = start
        self.stop = stop
        self.mark = mark
        self._failed = False

    @property
    def count(self) -> int:
        return self.stop - self.start

    @property
    def size(self) -> int:
        return self.pending.rows.size(self.start, self.stop)

    @property
    def done(self) -> bool:
        """Whether they must not be sent."""
        return self._failed or self.pending.given_up

    @property
    def deadline(self) -> float:
        return self.pending.deadline

    def fail(self, error: WaltzError) -> None:
        if not self.done:
            self._failed = True
            self.pending.fail(self.start, self.count, error)

    def cut(self, size: int, count: int) -> UnsentRows | None:
        """Splits off the first rows, at most `count` and `size` bytes; None if the first row is too large. The other rows stay here."""
        fitting = self.pending.rows.fitting(self.start, min(self.stop, self.start + count), size)
        return self.cut_rows(fitting) if fitting else None

    def cut_rows(self, count: int) -> UnsentRows:
        """Splits off the first `count` rows. The other rows stay here. If `count` is all rows, returns this object."""
        if count == self.count:
            return self
        first = UnsentRows(self.pending, self.start, self.start + count, self.mark)
        self.start += count
        return first
