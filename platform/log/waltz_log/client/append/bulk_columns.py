"""Columns of a bulk append, checked as a whole: a list of bytes, an Arrow record batch, or `BulkColumns`.

Rows that the log could never hold are refused here, before any row of the batch is sent. The error names the row and the column. No object for each
row is kept, except those in Python lists of the caller.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate, chain, islice
from operator import index, sub
from typing import Any, Never, TypeAlias  # Any: Arrow is not imported here

from waltz_log.client.append.packing import integer_mark
from waltz_log.client.append.rows import Bodies, ListedBodies, RowLocks, Rows
from waltz_log.client.base import arrow
from waltz_log.client.transactions.transaction import lock_prefix
from waltz_log.errors import InvalidBatch, InvalidRequest

__all__ = ["BulkColumns", "checked_rows"]

DATA, HEADER = "data", "header"
LOCK_COLUMNS = ("write_locks", "read_locks", "append_locks")
"""In the order in which a frame counts and carries them."""

HEADERS = range(-0x8000_0000, 0x8000_0000)

LockColumn: TypeAlias = "Sequence[Sequence[str | bytes]] | Any"
"""For each row the keys of its locks; or an Arrow array of lists of text or bytes."""


@dataclass(frozen=True, slots=True)
class BulkColumns:
    """Rows to append in bulk, as columns: Python sequences or Arrow arrays of one length. `data`: bytes, or an array of bytes or text. `header`: one
    for all, or one for each.

    Text `key` in a lock column is the lock `Lock(lock_name, key)`; bytes are that text in UTF-8. `high_water_mark` is the mark of all rows; None:
    the one that the client knows (`Draft`)."""

    data: Sequence[bytes] | Any
    header: int | Sequence[int] | Any = 0
    write_locks: LockColumn | None = None
    read_locks: LockColumn | None = None
    append_locks: LockColumn | None = None
    lock_name: str = ""
    high_water_mark: int | None = None

    def __len__(self) -> int:
        """The number of rows; 0 if `data` is not a column."""
        return len(self.data) if hasattr(self.data, "__len__") else 0

    def part(self, start: int, stop: int) -> BulkColumns:
        """Rows `start` to `stop`. Raises `InvalidBatch` for a column of another length."""
        columns: dict[str, Any] = {DATA: self.data[start:stop]}
        for name in (HEADER, *LOCK_COLUMNS):
            column = getattr(self, name)
            if hasattr(column, "__len__"):
                _refuse_length(len(column), len(self), name)
                columns[name] = column[start:stop]
        return replace(self, **columns)

    @classmethod
    def of_batch(cls, batch: Any) -> BulkColumns:
        """The columns of a record batch: `data`, and optionally `header` (int32) and lock columns. Raises `InvalidBatch` if there are other columns,
        because they would be ignored."""
        names = list(batch.schema.names)
        known = {DATA, HEADER, *LOCK_COLUMNS}
        wrong = next((name for at, name in enumerate(names) if name not in known or name in names[:at]), None if DATA in names else DATA)
        if wrong is not None:
            reason = "a record batch to append has a column data, and may have header, write_locks, read_locks and append_locks"
            raise InvalidBatch(row=None, column=wrong, reason=f"{reason}: columns={','.join(names)}")
        return cls(**{name: batch.column(at) for at, name in enumerate(names)})


def checked_rows(source: BulkColumns | Sequence[bytes], record_bytes_max: int, locks_max: int) -> Rows:
    """Raises `InvalidBatch`, and `InvalidRequest` for a mark or a lock name that is not valid."""
    columns = source if isinstance(source, BulkColumns) else BulkColumns(source)
    bodies = _bodies(columns.data, DATA)
    count = len(bodies.offsets) - 1
    sizes = map(sub, islice(bodies.offsets, 1, None), bodies.offsets)
    if max(sizes, default=0) > record_bytes_max:
        _refuse_first(bodies, record_bytes_max)
    headers = _headers(columns.header, count)
    locks = [(kind, keys) for kind, name in enumerate(LOCK_COLUMNS) if (keys := _locks(getattr(columns, name), name, count)) is not None]
    mark = None if columns.high_water_mark is None else integer_mark(columns.high_water_mark)
    return Rows(bodies, headers, _row_locks(locks, count, columns.lock_name, locks_max) if locks else None, mark)


def _refuse_first(bodies: Bodies, record_bytes_max: int) -> Never:
    sizes = map(sub, islice(bodies.offsets, 1, None), bodies.offsets)
    row, size = next((row, size) for row, size in enumerate(sizes) if size > record_bytes_max)
    raise InvalidBatch(row=row, column=DATA, reason=f"data above a limit: size={size} limit={record_bytes_max}")


def _bodies(column: Any, name: str) -> Bodies:
    if arrow.is_array(column):
        values = arrow.one_array(column)
        found = arrow.binary_column(values)
        if found is None:
            raise InvalidBatch(row=None, column=name, reason=f"must be bytes or text, not {values.type}")
        _refuse_null(values, name)
        return found
    if not isinstance(column, list | tuple):
        raise InvalidBatch(row=None, column=name, reason=f"must be a list or an Arrow array, not {type(column).__name__}")
    listed = column if isinstance(column, tuple) else tuple(column)  # the caller may change its list before the rows are sent
    if not set(map(type, listed)) <= {bytes}:
        for row, data in enumerate(listed):
            if not isinstance(data, bytes):
                raise InvalidBatch(row=row, column=name, reason=f"data must be bytes, not {type(data).__name__}")
    return ListedBodies(listed)


def _refuse_null(values: Any, name: str) -> None:
    row = arrow.first_null(values)
    if row is not None:
        raise InvalidBatch(row=row, column=name, reason="null")


def _refuse_length(found: int, count: int, name: str) -> None:
    if found != count:
        raise InvalidBatch(row=min(found, count), column=name, reason=f"the column has {found} rows, and data has {count}")


def _headers(column: Any, count: int) -> int | Sequence[int]:
    if arrow.is_array(column):
        values = arrow.one_array(column)
        found = arrow.int32_column(values)
        if found is None:
            raise InvalidBatch(row=None, column=HEADER, reason=f"must be int32, not {values.type}")
        _refuse_null(values, HEADER)
        _refuse_length(len(found), count, HEADER)
        return array("i", found.tobytes())
    if isinstance(column, list | tuple | array):
        _refuse_length(len(column), count, HEADER)
        try:
            return array("i", column)
        except (TypeError, OverflowError):
            return array("i", [_header(header, row) for row, header in enumerate(column)])
    return _header(column, None)


def _header(header: object, row: int | None) -> int:
    try:
        found = index(header)  # type: ignore[arg-type]
    except TypeError:
        raise InvalidBatch(row=row, column=HEADER, reason=f"a header must be a whole number of 32 bits: {header!r}") from None
    if found not in HEADERS:
        raise InvalidBatch(row=row, column=HEADER, reason=f"a header must be a whole number of 32 bits: {found}")
    return found


# ---- locks ---------------------------------------------------------------------------------------------------------------------------------------


class _Locks:
    """One column of locks: the number of each row, and the keys of all rows."""

    __slots__ = ("counts", "keys")

    def __init__(self, counts: list[int], keys: Bodies) -> None:
        self.counts = counts
        self.keys = keys


def _locks(column: Any, name: str, count: int) -> _Locks | None:
    if column is None:
        return None
    if not arrow.is_array(column):
        return _listed_locks(column, name, count)
    values = arrow.one_array(column)
    lists = arrow.list_column(values)
    keys = None if lists is None else arrow.binary_column(lists.values)
    if lists is None or keys is None:
        raise InvalidBatch(row=None, column=name, reason=f"must be lists of text or bytes, not {values.type}")
    _refuse_null(values, name)
    _refuse_length(len(lists.counts), count, name)
    null = arrow.first_null(lists.values)
    if null is not None:
        raise InvalidBatch(row=_row_of(null, lists.counts), column=name, reason="a lock is null")
    return _Locks(lists.counts, keys)


def _listed_locks(column: Any, name: str, count: int) -> _Locks:
    if not isinstance(column, list | tuple):
        raise InvalidBatch(row=None, column=name, reason=f"must be a list for each row, or an Arrow array, not {type(column).__name__}")
    _refuse_length(len(column), count, name)
    if not set(map(type, column)) <= {list, tuple}:
        for row, each in enumerate(column):
            if not isinstance(each, list | tuple):
                raise InvalidBatch(row=row, column=name, reason=f"must be a list of text or bytes, not {type(each).__name__}")
    counts, keys = list(map(len, column)), tuple(chain.from_iterable(column))
    try:
        return _Locks(counts, ListedBodies(keys if set(map(type, keys)) <= {bytes} else tuple(map(_key_bytes, keys))))
    except (TypeError, UnicodeEncodeError):
        at = next(at for at, key in enumerate(keys) if not _is_key(key))
        raise InvalidBatch(row=_row_of(at, counts), column=name, reason=f"a lock must be text or bytes: {keys[at]!r}") from None


def _key_bytes(key: Any) -> bytes:
    return key if isinstance(key, bytes) else str.encode(key)


def _is_key(key: object) -> bool:
    with suppress(TypeError, UnicodeEncodeError):
        _key_bytes(key)
        return True
    return False


def _row_of(at: int, counts: Iterable[int]) -> int:
    """The row of a lock, given its index among all locks of the column."""
    return next(row for row, end in enumerate(accumulate(counts)) if at < end)


def _row_locks(columns: Sequence[tuple[int, _Locks]], count: int, lock_name: str, locks_max: int) -> RowLocks:
    """All lock columns as one. `columns`: by kind, in the order of `LOCK_COLUMNS`."""
    try:
        lock_prefix(lock_name)
    except (AttributeError, UnicodeEncodeError):
        raise InvalidRequest(reason=f"the name of a lock must be text: {lock_name!r}") from None
    totals = columns[0][1].counts if len(columns) == 1 else [sum(each) for each in zip(*(locks.counts for _, locks in columns), strict=True)]
    if max(totals, default=0) > locks_max:
        row, total = next((row, total) for row, total in enumerate(totals) if total > locks_max)
        raise InvalidBatch(row=row, column=LOCK_COLUMNS[columns[0][0]], reason=f"locks above a limit: size={total} limit={locks_max}")
    counts = bytearray(3 * count)
    for kind, locks in columns:
        counts[kind::3] = bytes(locks.counts)
    offsets = array("q", accumulate(totals, initial=0))
    return RowLocks(bytes(counts), columns[0][1].keys if len(columns) == 1 else _interleaved(columns, count), offsets, lock_name)


def _interleaved(columns: Sequence[tuple[int, _Locks]], count: int) -> Bodies:
    """The keys of all columns, row by row."""
    keys_of: list[Callable[[int], Iterable[bytes]]] = [_keys_by_row(locks) for _, locks in columns]
    return ListedBodies(tuple(key for row in range(count) for keys in keys_of for key in keys(row)))


def _keys_by_row(locks: _Locks) -> Callable[[int], Iterable[bytes]]:
    starts = list(accumulate(locks.counts, initial=0))
    return lambda row: map(bytes, locks.keys.cut(starts[row], starts[row + 1]))
