"""Sources of a bulk append: complete batches, which are checked as a whole, or entries that arrive one after another."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable, Iterator
from typing import Any, TypeAlias  # Any: Arrow is not imported here

from waltz_log.client.append.bulk_columns import BulkColumns, checked_rows
from waltz_log.client.append.rows import Rows
from waltz_log.client.base import arrow
from waltz_log.client.transactions.transaction import Draft
from waltz_log.errors import InvalidBatch, InvalidRequest

__all__ = ["ENTRIES_TOGETHER", "Entry", "Source", "batches_of", "checked", "entries_of", "source_parts"]

Entry: TypeAlias = "bytes | Draft | BulkColumns | Any"
"""Data, a draft, columns, or an Arrow record batch (`Any`: Arrow is not imported here)."""

Source: TypeAlias = "BulkColumns | Iterable[Entry] | AsyncIterable[Entry] | Any"
"""Columns, one Arrow record batch or table, or entries, one after the other."""

ENTRIES_TOGETHER = 512
"""Entries read from an iterator before other tasks of the event loop run: about a millisecond."""

ROWS_TOGETHER = 32_768
"""Rows checked before other tasks run: some milliseconds."""


def batches_of(source: Source) -> list[BulkColumns] | None:
    """The source as batches, which are checked as a whole before anything is sent. None if its entries arrive one after another or are drafts, which
    are checked one by one. Raises `InvalidBatch` for a record batch with other columns."""
    if isinstance(source, BulkColumns):
        return [source]
    if arrow.is_batch(source):
        return [BulkColumns.of_batch(source)]
    to_batches = getattr(source, "to_batches", None)  # an Arrow table's: pyarrow may not be installed
    if to_batches is not None:
        return [BulkColumns.of_batch(batch) for batch in to_batches()]
    if isinstance(source, list | tuple) and not any(map(_is_checked_alone, set(map(type, source)))):
        return [BulkColumns(source)]
    return None


def _is_checked_alone(kind: type) -> bool:
    return issubclass(kind, Draft | BulkColumns) or arrow.is_batch(kind)


def checked(batches: Iterable[BulkColumns], record_bytes_max: int, locks_max: int) -> Iterator[Rows]:
    """The rows of all batches, in parts. Nothing may be sent before the last part was checked. Raises `InvalidBatch`; `row` counts over all
    batches."""
    before = 0
    for batch in batches:
        count = len(batch)
        for start in range(0, max(count, 1), ROWS_TOGETHER):
            part = batch if count <= ROWS_TOGETHER else batch.part(start, min(count, start + ROWS_TOGETHER))
            try:
                yield checked_rows(part, record_bytes_max, locks_max)
            except InvalidBatch as error:
                row = None if error.row is None else before + start + error.row
                raise InvalidBatch(row=row, column=error.column, reason=error.reason) from None
        before += count


def entries_of(source: Source) -> Iterator[Entry]:
    """The entries of a source that has no batches."""
    if isinstance(source, bytes | str) or not hasattr(source, "__iter__"):
        raise InvalidRequest(reason=f"the source of a bulk append must be a list, an iterator or a record batch, not {type(source).__name__}")
    entries: Iterator[Entry] = iter(source)  # type: ignore[arg-type]  # it has `__iter__`
    return entries


def source_parts(source: Source) -> Iterator[Source]:
    """The source in parts, to pass it to another thread: the whole source if it has batches, otherwise iterators over a few hundred entries. Entries
    that the source gave before it raised an error are a part too."""
    if batches_of(source) is not None:
        yield source
        return
    part: list[Entry] = []
    try:
        for entry in entries_of(source):
            part.append(entry)
            if len(part) >= ENTRIES_TOGETHER or arrow.is_batch(entry) or isinstance(entry, BulkColumns):
                full, part = part, []
                yield iter(full)
    except Exception:
        if part:
            yield iter(part)
        raise
    if part:
        yield iter(part)
