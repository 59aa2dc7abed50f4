"""An entry of a window's queue: a single append, or rows of a bulk append."""

from __future__ import annotations

from typing import TypeAlias

from waltz_log.client.append.pending_append import PendingAppend
from waltz_log.client.append.pending_rows import UnsentRows
from waltz_log.core.locks.lock_columns import TURN_MARK
from waltz_log.errors import WaltzError

__all__ = ["Unsent", "count_of", "counted", "fail", "is_done"]

Unsent: TypeAlias = PendingAppend | UnsentRows


def is_done(unsent: Unsent) -> bool:
    """Whether it must not be sent: it has an outcome, or was given up."""
    return unsent.future.done() if isinstance(unsent, PendingAppend) else unsent.done


def count_of(unsent: Unsent) -> int:
    return 1 if isinstance(unsent, PendingAppend) else unsent.count


def counted(unsent: Unsent) -> int:
    """How many appends it is in the statistics of outcomes. A turn request does not count."""
    return 0 if isinstance(unsent, PendingAppend) and unsent.mark == TURN_MARK else count_of(unsent)


def fail(unsent: Unsent, error: WaltzError) -> None:
    if isinstance(unsent, UnsentRows):
        unsent.fail(error)
    elif not unsent.future.done():
        unsent.future.set_exception(error)
