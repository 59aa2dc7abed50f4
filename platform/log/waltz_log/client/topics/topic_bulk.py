"""Appending much to a topic in one call: each entry to its partition, in the order of the source within each, one result for all of it.

Each partition has its own `BulkAppend`, so its rules apply here; positions are those of the call. Nothing more is read for any partition once it
ends for one. Nothing is kept per entry but its position.
"""

from __future__ import annotations

import asyncio
from array import array
from bisect import bisect_left
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from typing import Any, TypeAlias  # Any: entries of any source; Arrow is not imported here

from waltz_log.client.append.bulk import BulkAppend, call_hook
from waltz_log.client.append.bulk_columns import HEADERS, BulkColumns
from waltz_log.client.append.bulk_receipt import BulkReceipt, NotInLog
from waltz_log.client.append.bulk_source import ENTRIES_TOGETHER, Source, batches_of, checked, entries_of
from waltz_log.client.append.rows import ListedBodies, Rows
from waltz_log.client.base import arrow
from waltz_log.client.base.settings import ClientSettings
from waltz_log.client.transactions.transaction import Draft
from waltz_log.errors import InvalidBatch, InvalidRequest, NotAppended, OutcomeUnknown, WaltzError

__all__ = ["Addressing", "TopicBulk", "TopicBulkReceipt"]

ROWS_DEALT = 4096
"""Rows of a batch that are dealt to the partitions of a topic together."""

Begin: TypeAlias = Callable[[int, Callable[[NotInLog], None]], BulkAppend]


@dataclass(frozen=True, slots=True)
class Addressing:
    """How a topic says where an entry goes."""

    keyed: bool
    partitions: int
    place: int | None
    """The only partition that entries without a key go to. None: they alternate between all partitions."""
    draft_of: Callable[[Any], tuple[int, Draft]]
    """From an entry to its partition and what is appended there. Raises `WaltzError` for what the topic does not accept."""
    keyed_data: Callable[[bytes, bytes | None], tuple[int, bytes]]
    """From key and value to the partition and the data. Raises `InvalidRequest`."""
    next_turns: Callable[[int], int]
    """Returns the partition of the first of `count` entries that alternate between all partitions."""


@dataclass(slots=True)
class TopicBulkReceipt:
    """The outcome of a bulk append to a topic. `submitted`: the number of entries that were read from the source. `partitions`: by partition of the
    topic, the outcome of its entries; positions in it count these entries only."""

    submitted: int = 0
    partitions: dict[int, BulkReceipt] = field(default_factory=dict)
    failed: list[NotInLog] = field(default_factory=list)
    """By position in the call."""
    _positions: dict[int, array[int]] = field(default_factory=dict, repr=False)

    @property
    def committed(self) -> int:
        """The number of entries that are in the log."""
        return sum(receipt.committed for receipt in self.partitions.values())

    def place(self, position: int) -> tuple[int, int] | None:
        """The partition of the topic and the transaction id of the entry at this position; None if it failed or was not read."""
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

    def __init__(self, topic: Addressing, begin: Begin, settings: ClientSettings, *, on_error: Callable[[NotInLog], None] | None) -> None:
        self.receipt = TopicBulkReceipt()
        self._topic = topic
        self._begin = begin
        self._settings = settings
        self._on_error = on_error
        self._bulks: dict[int, BulkAppend] = {}

    @property
    def ended(self) -> bool:
        """Stops reading the source."""
        return any(bulk.ended for bulk in self._bulks.values())

    async def enqueue(self, source: Source) -> None:
        """Enqueues from the source until it or the call is at its end. Raises what the source raises, and `InvalidBatch` if a batch is refused."""
        if isinstance(source, AsyncIterable):
            async for entry in source:
                await (self._enqueue_batches([entry]) if _is_batch(entry) else self._enqueue_entries([entry]))
                if self.ended:
                    return
            return
        to_batches = getattr(source, "to_batches", None)  # an Arrow table's: pyarrow may not be installed
        if _is_batch(source):
            await self._enqueue_batches([source])
        elif to_batches is not None:
            await self._enqueue_batches(to_batches())
        elif not self._topic.keyed and (batches := batches_of(source)) is not None:
            await self._enqueue_batches(batches)
        else:
            await self._enqueue_each(entries_of(source))

    async def _enqueue_each(self, entries: Iterator[Any]) -> None:
        while not self.ended:
            listed: list[Any] = []
            raised: Exception | None = None
            try:
                for entry in islice(entries, ENTRIES_TOGETHER):
                    listed.append(entry)
            except Exception as error:
                raised = error
            for batched, group in groupby(listed, _is_batch):
                entries_alike = list(group)
                await (self._enqueue_batches(entries_alike) if batched else self._enqueue_entries(entries_alike))
            if raised is not None:
                raise raised
            if len(listed) < ENTRIES_TOGETHER:
                return

    # ---- entries, one after the other --------------------------------------------------------------------------------------------------------------

    async def _enqueue_entries(self, entries: Iterable[Any]) -> None:
        """Enqueues the entries of each partition together, and all partitions in parallel, so that a full one does not delay the others."""
        dealt: dict[int, list[Draft]] = {}
        for entry in entries:
            position = self._next_positions(1)
            try:
                partition, draft = self._topic.draft_of(entry)
            except WaltzError as error:
                self._fail(NotInLog(position, error))
                continue
            self._positions_of(partition).append(position)
            dealt.setdefault(partition, []).append(draft)
        await self._enqueue_dealt({partition: self._as_rows(drafts) for partition, drafts in dealt.items()})

    def _as_rows(self, drafts: list[Draft]) -> Rows | list[Draft]:
        """As columns if possible."""
        most = self._settings.record_bytes_max
        for data, header, write, read, append, mark in drafts:
            if write or read or append or mark is not None or type(header) is not int or header not in HEADERS or len(data) > most:
                return drafts
        return Rows(ListedBodies([draft.data for draft in drafts]), array("i", [draft.header for draft in drafts]))

    async def _enqueue_dealt(self, dealt: dict[int, Rows | list[Draft]]) -> None:
        enqueued = [
            self._bulk(partition).enqueue_rows(what) if isinstance(what, Rows) else self._bulk(partition).enqueue(what)
            for partition, what in dealt.items()
        ]
        if len(enqueued) == 1:
            await enqueued[0]
        elif enqueued:
            await asyncio.gather(*enqueued)

    # ---- batches -----------------------------------------------------------------------------------------------------------------------------------

    async def _enqueue_batches(self, batches: Sequence[Any]) -> None:
        """All of them are checked before the first row is enqueued."""
        if self._topic.keyed:
            for count, dealt in [self._deal_keyed(batch) for batch in batches]:
                if not self.ended:
                    await self._enqueue_rows(count, dealt)
            return
        found: list[Rows] = []
        columns = [batch if isinstance(batch, BulkColumns) else BulkColumns.of_batch(batch) for batch in batches]
        for rows in checked(columns, self._settings.record_bytes_max, self._settings.locks_max):
            if rows.locks is not None and self._topic.place is None:
                raise InvalidRequest(reason="a lock applies to one partition: name the partition of the topic too")
            found.append(rows)
            await asyncio.sleep(0)
        for rows in found:
            for start in range(0, rows.count, ROWS_DEALT):
                if self.ended:
                    return
                await self._deal(rows, start, min(rows.count, start + ROWS_DEALT))

    async def _deal(self, rows: Rows, start: int, stop: int) -> None:
        """To one partition, or to each partition in turn."""
        if self._topic.place is not None:
            await self._enqueue_rows(stop - start, {self._topic.place: (rows.part(start, stop), range(stop - start))})
            return
        bodies, headers, of = rows.bodies(start, stop), rows.headers(start, stop), self._topic.partitions
        first = self._topic.next_turns(stop - start)
        dealt = {}
        for at in range(min(of, stop - start)):
            each = Rows(ListedBodies(bodies[at::of]), headers if isinstance(headers, int) else headers[at::of], None, rows.mark)
            dealt[(first + at) % of] = each, range(at, stop - start, of)
        await self._enqueue_rows(stop - start, dealt)

    def _deal_keyed(self, batch: Any) -> tuple[int, dict[int, tuple[Rows, Sequence[int]]]]:
        """Rows, and those of each partition with their places in the batch. Raises `InvalidBatch`."""
        if isinstance(batch, BulkColumns):
            raise InvalidRequest(reason="bulk data for a keyed topic must be a record batch with a column key")
        most, row = self._settings.record_bytes_max, -1
        bodies: dict[int, list[bytes]] = {}
        headers: dict[int, array[int]] = {}
        places: dict[int, array[int]] = {}
        for row, (key, value, header) in enumerate(arrow.keyed_rows(batch)):
            try:
                partition, data = self._topic.keyed_data(key, value)
            except InvalidRequest as error:
                raise InvalidBatch(row=row, column="key" if key == b"" else "data", reason=str(error)) from None
            if len(data) > most:
                raise InvalidBatch(row=row, column="data", reason=f"data above a limit: size={len(data)} limit={most}")
            bodies.setdefault(partition, []).append(data)
            headers.setdefault(partition, array("i")).append(header)
            places.setdefault(partition, array("Q")).append(row)
        return row + 1, {partition: (Rows(ListedBodies(bodies[partition]), headers[partition]), places[partition]) for partition in bodies}

    async def _enqueue_rows(self, count: int, dealt: Mapping[int, tuple[Rows, Sequence[int]]]) -> None:
        """`count` rows; those of each partition with their places among them."""
        first = self._next_positions(count)
        for partition, (_, places) in dealt.items():
            self._positions_of(partition).extend(array("Q", [first + place for place in places]))
        await self._enqueue_dealt({partition: rows for partition, (rows, _) in dealt.items()})

    # ---- outcomes ----------------------------------------------------------------------------------------------------------------------------------

    def _next_positions(self, count: int) -> int:
        first = self.receipt.submitted
        self.receipt.submitted += count
        return first

    def _positions_of(self, partition: int) -> array[int]:
        return self.receipt._positions.setdefault(partition, array("Q"))

    def _bulk(self, partition: int) -> BulkAppend:
        found = self._bulks.get(partition)
        if found is None:
            found = self._begin(partition, lambda failure: self._fail_part(partition, failure))
            self._bulks[partition] = found
        return found

    def _fail_part(self, partition: int, failure: NotInLog) -> None:
        """What failed in one partition, by the positions of the call: in ranges where those follow each other."""
        positions = self._positions_of(partition)[failure.position : failure.position + failure.length]
        start = 0
        for at in range(1, len(positions) + 1):
            if at == len(positions) or positions[at] != positions[at - 1] + 1:
                error = failure.error
                if isinstance(error, OutcomeUnknown) and error.count > 1:
                    error = error.part(start, at - start)
                self._fail(NotInLog(positions[start], error, at - start))
                start = at

    def _fail(self, failure: NotInLog) -> None:
        self.receipt.failed.append(failure)
        if self._on_error is not None:
            call_hook(self._on_error, failure)

    async def finish(self) -> TopicBulkReceipt:
        """Returns when every submitted entry is decided. If it is cancelled, it does what `cancel` does."""
        try:
            found = await asyncio.gather(*(bulk.finish() for bulk in self._bulks.values()))
        except asyncio.CancelledError:
            self.cancel()
            raise
        self.receipt.partitions = dict(zip(self._bulks, found, strict=True))
        for partition, receipt in self.receipt.partitions.items():
            left = len(self._positions_of(partition)) - receipt.submitted
            if left:
                error = NotAppended(partition=receipt.partition, reason="an earlier transaction ended the call")
                self._fail_part(partition, NotInLog(receipt.submitted, error, left))
        self.receipt.failed.sort(key=lambda failure: failure.position)
        return self.receipt

    def cancel(self) -> None:
        """What was not sent yet never will be; of the rest no outcome is reported."""
        for bulk in self._bulks.values():
            bulk.cancel()


def _is_batch(entry: object) -> bool:
    return isinstance(entry, BulkColumns) or arrow.is_batch(entry)
