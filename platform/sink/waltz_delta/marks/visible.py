"""Waits until a Delta table holds a transaction, so that an application can read its own write there. Needs no JVM, no Spark and no request to a job.

The table's own marks decide (`marks`). A transaction that the pipeline filtered out counts as held as soon as a batch has covered it. If there is no
table, or the table holds nothing of the partition, waiting would be useless, so this is refused at once, unless a job is about to create them
(`expect_new`). A poll for the next commit costs one request. The poll interval is a tenth of the time already waited, at most `PAUSE_MAX_S`.
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
    """A `Receipt` of `append`, or any other object that names a transaction."""

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


class _Poller:
    """One wait: the state of the table at the last poll, and the time of the next one."""

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

    def poll(self) -> int | None:
        """The table's version if it holds the position. Raises `PositionNotReached` when the time is over; `InvalidRequest` if the table or a
        partition is missing and not expected to appear."""
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
            rounded_s = round(waited_s, 3)
            raise PositionNotReached(path=self._path, partition=partition, transaction_id=last, mark=marks.get(partition, -1), waited_s=rounded_s)
        return None

    @property
    def pause_s(self) -> float:
        waited_s = time.monotonic() - self._began_s
        wanted = min(PAUSE_MAX_S, max(PAUSE_MIN_S, waited_s * PAUSE_SHARE))
        return max(0.0, min(wanted, self._timeout_s - waited_s))


def _wait(poller: _Poller) -> int:
    while (version := poller.poll()) is None:
        time.sleep(poller.pause_s)
    return version


async def _wait_async(poller: _Poller) -> int:
    while (version := await asyncio.to_thread(poller.poll)) is None:
        await asyncio.sleep(poller.pause_s)
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
    """Returns when the table holds the log position, with a table version that does. Raises `PositionNotReached` after `timeout_s`; 0 polls once.

    Raises `InvalidRequest` at once if there is no table (`NotADeltaTable`) or it holds nothing of a partition that the position names. With
    `expect_new` it waits for both."""
    return _wait(_Poller(path, position, timeout_s, cluster_key, storage_options, new_table=expect_new, new_partition=expect_new))


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
    return await _wait_async(_Poller(path, position, timeout_s, cluster_key, storage_options, new_table=expect_new, new_partition=expect_new))


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

    Also accepts the receipt of an outbox's intent and waits for its outcome within the same time: raises `NotAppended` if it became a dead letter,
    and returns None if its handler appended nothing. Raises `PositionNotReached` after `timeout_s`, and `TimeoutError` if the outbox itself did not
    finish in time.

    Raises `NotADeltaTable`, an `InvalidRequest`, at once if there is no table; with `expect_new` it waits for one. If the table holds nothing of the
    partition, it waits in any case: the receipt shows that the log has the transaction."""
    began_s = time.monotonic()
    last = receipt.transaction_id if isinstance(receipt, Appended) else _settled(receipt.partition, receipt.outcome(timeout_s))
    if last is None:
        return None
    left_s = max(0.0, timeout_s - (time.monotonic() - began_s))
    position = {receipt.partition: last}
    return _wait(_Poller(path, position, left_s, cluster_key, storage_options, new_table=expect_new, new_partition=True))


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
    return await _wait_async(_Poller(path, position, left_s, cluster_key, storage_options, new_table=expect_new, new_partition=True))


def _settled(partition: int, outcome: _Outcome) -> int | None:
    if outcome.dead is not None:
        raise NotAppended(partition=partition, reason=f"the outbox gave it up: {outcome.dead}")
    return outcome.transaction_id
