"""Machines that need a repair: disks that failed or are full, processes that do not stay up."""

from __future__ import annotations

from typing import ClassVar

from waltz_log.errors.base import Outcome, WaltzError
from waltz_log.exit_codes import MACHINE

__all__ = ["JournalFailed", "JournalFull", "StorageFailed", "StorageFull", "WorkerFailed"]


class StorageFailed(WaltzError):
    """This replica cannot write, because its disk failed. It acknowledged nothing.

    To do: repair the node."""

    text = "storage failed"
    outcome: ClassVar[Outcome] = "unknown"
    exit_code = MACHINE
    partition: int
    reason: str


class StorageFull(StorageFailed):
    """This replica is read-only until its disk has room again. Nothing is broken: it serves reads, and accepts appends again without a restart.

    To do: make room; retry later."""

    text = "storage full"
    outcome: ClassVar[Outcome] = "none"
    retriable = True
    free_bytes: int


class WorkerFailed(WaltzError):
    """A worker process of a node ended soon after each of its starts, and the node ended with it. `ended` says how the worker ended the last time.
    The cause is still there at the next start.

    To do: read what the worker logged before it ended, and repair that."""

    text = "a worker does not stay up; what it logged before it ended says why"
    prose = "ended"
    exit_code = MACHINE
    worker: int
    lives: int
    ended: str


class JournalFull(WaltzError):
    """The journal has as many files as its settings allow, or its disk is full, and nothing can be reclaimed. Nothing of this call was written.

    To do: delete records that are done; deletes have reserved space. Then retry."""

    text = "journal full"
    retriable = True
    exit_code = MACHINE
    reason: str


class JournalFailed(WaltzError):
    """A write or sync of the journal failed. What was not acknowledged may be in the journal or not. The journal writes nothing more: the same data
    is never synced twice.

    To do: close the journal, repair its disk, and open it again; opening it shows what it holds."""

    text = "journal failed"
    outcome = "unknown"
    exit_code = MACHINE
    reason: str
