"""Waits until a Delta table holds a transaction: how an application reads its own write there. No JVM, no Spark, no question to any job.

The table's own marks decide (`marks`), so a transaction that the pipeline filtered out counts as held as soon as its place in the log was considered.
A path without a table, and a partition of which the table holds nothing, are refused at once: no time brings them, unless a job is about to begin
with them (`expect_new`). Looking costs one request for the next commit, often enough to notice a commit within a tenth of the time already waited, at
most `PAUSE_MAX_S` late.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import Protocol, overload, runtime_checkable

from waltz_delta.errors import NotADeltaTable, PositionNotReached
from waltz_delta.marks.marks import cluster_key_among, marks_among
from waltz_delta.marks.positions_given import Position, checked_position, expect_partitions
from waltz_delta.marks.positions_log import TableLog
from waltz_delta.marks.positions_restored import current_identifiers
from waltz_log.errors import NotAppended

__all__ = ["wait_reached", "wait_reached_async", "wait_visible", "wait_visible_async"]

PAUSE_MIN_S, PAUSE_MAX_S = 0.02, 1.0
PAUSE_SHARE = 0.1
TIMEOUT_S = 30.0
"""Several triggers of a job that keeps up."""


@runtime_checkable
class Appended(Protocol):
    """A `Receipt` of `append`, or anything else that says which transaction it is."""

    @property
    def partition(self) -> int: ...
    @property
    def transaction_id(self) -> int: ...


class _Outcome(Protocol):
    @property
    def transaction_id(self) -> int | None: ...
    @property
    def dead(self) -> object | None: ...


class Intended(Protocol):
    """An `IntentReceipt` of the outbox: the transaction is not appended yet."""

    partition: int

    def outcome(self) -> Awaitable[_Outcome]: ...


class IntendedBlocking(Protocol):
    """A `SyncIntentReceipt` of the outbox."""

    partition: int

    def outcome(self, timeout_s: float | None = None) -> _Outcome: ...


class _Looking:
    """One wait: the table as far as it was looked at, and when to look again."""

    def __init__(
        self,
        path: str,
        position: Position,
        timeout_s: float,
        cluster_key: str | None,
        storage_options: dict[str, str] | None,
        *,
        new_table: bool,
        new_partition: bool,
    ) -> None:
        self._path = path
        self._position = checked_position(position)
        self._new_table, self._new_partition = new_table, new_partition
        self._cluster_key = cluster_key
        self._storage_options = storage_options
        self._began_s = time.monotonic()
        self._timeout_s = timeout_s
        self._log: TableLog | None = None

    def look(self) -> int | None:
        """The table's version if it holds the position by now. `PositionNotReached` where it is time to give up; `InvalidRequest` where the table or
        a partition is not there and is not expected to begin."""
        try:
            if self._log is None:
                self._log = TableLog(self._path, self._storage_options)
            else:
                self._log.refresh()
        except NotADeltaTable:
            if not self._new_table:
                raise
            marks: dict[int, int] = {}
        else:
            found = current_identifiers(self._log)
            key = self._cluster_key or cluster_key_among(found, self._path)
            marks = {} if key is None else marks_among(found, key)
            if all(marks.get(partition, -1) >= last for partition, last in self._position.items()):
                return self._log.version
            if not self._new_partition:
                expect_partitions(self._path, self._position, marks)
        waited_s = time.monotonic() - self._began_s
        if waited_s >= self._timeout_s:
            partition, last = next((p, last) for p, last in sorted(self._position.items()) if marks.get(p, -1) < last)
            told = round(waited_s, 3)
            raise PositionNotReached(path=self._path, partition=partition, transaction_id=last, mark=marks.get(partition, -1), waited_s=told)
        return None

    @property
    def pause_s(self) -> float:
        waited_s = time.monotonic() - self._began_s
        wanted = min(PAUSE_MAX_S, max(PAUSE_MIN_S, waited_s * PAUSE_SHARE))
        return max(0.0, min(wanted, self._timeout_s - waited_s))


def _wait(looking: _Looking) -> int:
    while (version := looking.look()) is None:
        time.sleep(looking.pause_s)
    return version


async def _wait_async(looking: _Looking) -> int:
    while (version := await asyncio.to_thread(looking.look)) is None:
        await asyncio.sleep(looking.pause_s)
    return version


def wait_reached(
    path: str,
    position: Position,
    timeout_s: float = TIMEOUT_S,
    *,
    expect_new: bool = False,
    cluster_key: str | None = None,
    storage_options: dict[str, str] | None = None,
) -> int:
    """Returns when the table holds the log position, with a table version that does. `PositionNotReached` after `timeout_s`; 0 looks once.

    `InvalidRequest` at once where there is no table (`NotADeltaTable`), or it holds nothing of a partition that the position names. With `expect_new`
    both are waited for."""
    return _wait(_Looking(path, position, timeout_s, cluster_key, storage_options, new_table=expect_new, new_partition=expect_new))


async def wait_reached_async(
    path: str,
    position: Position,
    timeout_s: float = TIMEOUT_S,
    *,
    expect_new: bool = False,
    cluster_key: str | None = None,
    storage_options: dict[str, str] | None = None,
) -> int:
    """`wait_reached` without blocking the event loop: files are read in a thread."""
    return await _wait_async(_Looking(path, position, timeout_s, cluster_key, storage_options, new_table=expect_new, new_partition=expect_new))


@overload
def wait_visible(
    receipt: Appended,
    path: str,
    timeout_s: float = ...,
    *,
    expect_new: bool = ...,
    cluster_key: str | None = ...,
    storage_options: dict[str, str] | None = ...,
) -> int: ...


@overload
def wait_visible(
    receipt: IntendedBlocking,
    path: str,
    timeout_s: float = ...,
    *,
    expect_new: bool = ...,
    cluster_key: str | None = ...,
    storage_options: dict[str, str] | None = ...,
) -> int | None: ...


def wait_visible(
    receipt: Appended | IntendedBlocking,
    path: str,
    timeout_s: float = TIMEOUT_S,
    *,
    expect_new: bool = False,
    cluster_key: str | None = None,
    storage_options: dict[str, str] | None = None,
) -> int | None:
    """Returns when the table at `path` holds what was appended, with a table version that does: `deltalake.DeltaTable(path, version=...)` shows it.

    Also takes the receipt of an outbox's intent and waits for its outcome within the same time: `NotAppended` where it became a dead letter, None
    where its handler appended nothing. `PositionNotReached` after `timeout_s`, `TimeoutError` where the outbox itself did not get there.

    `NotADeltaTable`, an `InvalidRequest`, at once where there is no table; with `expect_new` it is waited for. A partition of which the table holds
    nothing is waited for in any case: the receipt shows that the log has it."""
    began_s = time.monotonic()
    last = receipt.transaction_id if isinstance(receipt, Appended) else _settled(receipt.partition, receipt.outcome(timeout_s))
    if last is None:
        return None
    left_s = max(0.0, timeout_s - (time.monotonic() - began_s))
    position = {receipt.partition: last}
    return _wait(_Looking(path, position, left_s, cluster_key, storage_options, new_table=expect_new, new_partition=True))


@overload
async def wait_visible_async(
    receipt: Appended,
    path: str,
    timeout_s: float = ...,
    *,
    expect_new: bool = ...,
    cluster_key: str | None = ...,
    storage_options: dict[str, str] | None = ...,
) -> int: ...


@overload
async def wait_visible_async(
    receipt: Intended,
    path: str,
    timeout_s: float = ...,
    *,
    expect_new: bool = ...,
    cluster_key: str | None = ...,
    storage_options: dict[str, str] | None = ...,
) -> int | None: ...


async def wait_visible_async(
    receipt: Appended | Intended,
    path: str,
    timeout_s: float = TIMEOUT_S,
    *,
    expect_new: bool = False,
    cluster_key: str | None = None,
    storage_options: dict[str, str] | None = None,
) -> int | None:
    """`wait_visible` for an event loop, with the receipts of `WaltzClient` and `Outbox`."""
    began_s = time.monotonic()
    async with asyncio.timeout(timeout_s):
        last = receipt.transaction_id if isinstance(receipt, Appended) else _settled(receipt.partition, await receipt.outcome())
    if last is None:
        return None
    left_s = max(0.0, timeout_s - (time.monotonic() - began_s))
    position = {receipt.partition: last}
    return await _wait_async(_Looking(path, position, left_s, cluster_key, storage_options, new_table=expect_new, new_partition=True))


def _settled(partition: int, outcome: _Outcome) -> int | None:
    if outcome.dead is not None:
        raise NotAppended(partition=partition, reason=f"the outbox gave it up: {outcome.dead}")
    return outcome.transaction_id
