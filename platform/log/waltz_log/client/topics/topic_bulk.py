"""Appending much to a topic in one call: each entry to its partition, in the order of the source within each, one result for all of it.

Each partition has a `BulkAppend` of its own, so what is told there holds here; positions are those of the call. Taking ends in all partitions where
it ends in one. Nothing is kept per entry but its position.
"""

from __future__ import annotations

import asyncio
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from waltz_log.client.append.bulk import BulkAppend, BulkReceipt, NotInLog, Source, call_hook, parts
from waltz_log.client.base import arrow
from waltz_log.client.topics.topic_records import KeyedDraft
from waltz_log.client.transactions.transaction import Draft
from waltz_log.errors import NotAppended, WaltzError

__all__ = ["TopicBulk", "TopicBulkReceipt"]

Route: TypeAlias = Callable[[Any], "tuple[int, Draft]"]
"""From an entry to its partition and what is appended there. Raises `WaltzError` for what the topic does not take."""

Begin: TypeAlias = Callable[[int, Callable[[NotInLog], None]], BulkAppend]


@dataclass(slots=True)
class TopicBulkReceipt:
    """What became of a call. `taken`: entries taken from the source. `partitions`: what became of each partition's, by their place among those."""

    taken: int = 0
    partitions: dict[int, BulkReceipt] = field(default_factory=dict)
    failed: list[NotInLog] = field(default_factory=list)
    """By position in the call."""
    _positions: dict[int, array[int]] = field(default_factory=dict, repr=False)

    @property
    def committed(self) -> int:
        """How many are in the log."""
        return sum(receipt.committed for receipt in self.partitions.values())

    def place(self, position: int) -> tuple[int, int] | None:
        """Partition of the topic and transaction id of an entry; None: it failed or was not taken."""
        for partition, positions in self._positions.items():
            at = bisect_left(positions, position)
            if at < len(positions) and positions[at] == position:
                found = self.partitions[partition].transaction_id(at)
                return None if found is None else (partition, found)
        return None

    def raise_failed(self) -> None:
        """Raises the first failure, if there is one."""
        if self.failed:
            raise self.failed[0].error


class TopicBulk:
    """One call: `enqueue` what there is, any number of times, then `finish`."""

    def __init__(self, route: Route, begin: Begin, *, keyed: bool, on_error: Callable[[NotInLog], None] | None) -> None:
        self.receipt = TopicBulkReceipt()
        self._route = route
        self._begin = begin
        self._keyed = keyed
        self._on_error = on_error
        self._bulks: dict[int, BulkAppend] = {}

    @property
    def ended(self) -> bool:
        """Nothing more is taken."""
        return any(bulk.ended for bulk in self._bulks.values())

    async def enqueue(self, source: Source) -> None:
        """Enqueues from the source until it or the call is at its end. Raises what the source raises, and nothing else."""
        if hasattr(source, "__aiter__"):
            async for entry in source:
                await self._enqueue_part(entry if arrow.is_batch(entry) else [entry])
                if self.ended:
                    return
            return
        for part in parts(source):
            await self._enqueue_part(part)
            if self.ended:
                return

    async def _enqueue_part(self, part: Any) -> None:
        """Some hundred entries: those of each partition together, and the partitions at once, so that a full one holds up none of them."""
        dealt: dict[int, list[Draft]] = {}
        for entry in self._entries(part):
            position = self.receipt.taken
            self.receipt.taken += 1
            try:
                partition, draft = self._route(entry)
            except WaltzError as error:
                self._fail(NotInLog(position, error))
                continue
            self.receipt._positions.setdefault(partition, array("Q")).append(position)
            dealt.setdefault(partition, []).append(draft)
        if len(dealt) == 1:
            ((partition, drafts),) = dealt.items()
            await self._bulk(partition).enqueue(drafts)
        elif dealt:
            await asyncio.gather(*(self._bulk(partition).enqueue(drafts) for partition, drafts in dealt.items()))

    def _entries(self, part: Any) -> Iterator[Any]:
        for entry in (part,) if arrow.is_batch(part) else part:
            if not arrow.is_batch(entry):
                yield entry
            elif self._keyed:
                yield from (KeyedDraft(*row) for row in arrow.keyed_rows(entry))
            else:
                yield from (Draft(*row) for row in arrow.rows(entry))

    def _bulk(self, partition: int) -> BulkAppend:
        found = self._bulks.get(partition)
        if found is None:
            positions = self.receipt._positions[partition]
            found = self._begin(partition, lambda failure: self._fail(NotInLog(positions[failure.position], failure.error)))
            self._bulks[partition] = found
        return found

    def _fail(self, failure: NotInLog) -> None:
        self.receipt.failed.append(failure)
        if self._on_error is not None:
            call_hook(self._on_error, failure)

    async def finish(self) -> TopicBulkReceipt:
        """Returns when all that was taken is decided. Cancelled, as `cancel`."""
        try:
            found = await asyncio.gather(*(bulk.finish() for bulk in self._bulks.values()))
        except asyncio.CancelledError:
            self.cancel()
            raise
        self.receipt.partitions = dict(zip(self._bulks, found, strict=True))
        for partition, receipt in self.receipt.partitions.items():
            for position in self.receipt._positions[partition][receipt.taken :]:
                reason = "what ended the call stands before it"
                self._fail(NotInLog(position, NotAppended(partition=receipt.partition, reason=reason)))
        self.receipt.failed.sort(key=lambda failure: failure.position)
        return self.receipt

    def cancel(self) -> None:
        """What was not sent yet never will be; of the rest no outcome is reported."""
        for bulk in self._bulks.values():
            bulk.cancel()
