"""Columns of Arrow record batches as appends need them: bytes, headers and lists of locks, read from the batch's own buffers.

Knows Arrow's types by name and its layout by the specification (columnar format), so it imports nothing: who has a record batch has Arrow.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from itertools import pairwise, repeat
from typing import Any, Literal, NamedTuple  # Any: Arrow is not imported here

from waltz_log.errors import InvalidRequest

__all__ = ["BinaryColumn", "ListColumn", "binary_column", "first_null", "int32_column", "is_array", "is_batch", "keyed_rows", "list_column", "rows"]

DATA, HEADER, KEY = "data", "header", "key"

_OFFSETS: dict[str, Literal["i", "q"]] = {"binary": "i", "string": "i", "large_binary": "q", "large_string": "q"}
"""Type codes of the offsets by the type of the data."""


def is_batch(source: object) -> bool:
    """Whether it is a record batch: not a table, which is several, nor a list of them."""
    return hasattr(source, "num_rows") and hasattr(source, "schema") and hasattr(source, "column") and not hasattr(source, "to_batches")


def is_array(source: object) -> bool:
    """Whether it is a column: an array, or several in one."""
    return hasattr(source, "null_count") and hasattr(source, "type") and hasattr(source, "__len__")


class BinaryColumn:
    """Bytes or text: a view of the array's own buffers, which live as long as it does."""

    __slots__ = ("_values", "offsets")

    def __init__(self, values: memoryview, offsets: memoryview) -> None:
        self._values = values
        self.offsets = offsets
        """One more than there are rows; the first need not be 0."""

    def cut(self, start: int, stop: int) -> list[memoryview]:
        values = self._values
        return [values[begin:end] for begin, end in pairwise(self.offsets[start : stop + 1])]


class ListColumn(NamedTuple):
    """`values`: the array of what all lists hold; `counts`: how many of them each row has."""

    values: object
    counts: list[int]


def one_array(column: Any) -> Any:
    """A column of a table is several arrays."""
    if not hasattr(column, "chunks"):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def first_null(array: Any) -> int | None:
    """The first row that is null."""
    return next(row for row, null in enumerate(array.is_null().to_pylist()) if null) if array.null_count else None


def binary_column(array: Any) -> BinaryColumn | None:
    """The column of an array of bytes or text. Values under nulls are arbitrary; None: it is of another type."""
    code = _OFFSETS.get(str(array.type))
    if code is None:
        return None
    count, start = len(array), array.offset
    _, offsets, values = array.buffers()
    if not count:
        return BinaryColumn(memoryview(b""), memoryview(bytes(8)).cast(code)[:1])
    data = memoryview(b"") if values is None else memoryview(values).cast("B")
    return BinaryColumn(data, memoryview(offsets).cast("B").cast(code)[start : start + count + 1])


def list_column(array: Any) -> ListColumn | None:
    """The column of an array of lists. Values under nulls are arbitrary; None: it is of another type."""
    name = str(array.type)
    if not name.startswith(("list<", "large_list<")):
        return None
    counts = array.value_lengths().to_pylist()
    return ListColumn(array.flatten(), [count or 0 for count in counts])


def int32_column(array: Any) -> memoryview | None:
    """The column of an array of 32-bit integers; None: it is of another type."""
    if str(array.type) != "int32":
        return None
    if not len(array):
        return memoryview(b"").cast("i")
    return memoryview(array.buffers()[1]).cast("B").cast("i")[array.offset : array.offset + len(array)]


def rows(batch: Any) -> Iterator[tuple[bytes, int]]:
    """Data and header of each row. The batch has a column `data`, bytes or text, and may have `header`, 32-bit integers; no other, and no nulls: what
    would be left out is refused with `InvalidRequest`."""
    names = list(batch.schema.names)
    if DATA not in names or not set(names) <= {DATA, HEADER} or len(set(names)) != len(names):
        raise InvalidRequest(reason=f"a record batch must have a column data, and may have a column header: columns={','.join(names)}")
    return zip(_values(batch.column(names.index(DATA))), _headers(batch, names), strict=True)


def keyed_rows(batch: Any) -> Iterator[tuple[bytes, bytes | None, int]]:
    """Key, data and header of each row of a batch for a keyed topic: it has a column `key` too, bytes or text without nulls. Data that are null stay
    so: the end of the key."""
    names = list(batch.schema.names)
    if not {KEY, DATA} <= set(names) <= {KEY, DATA, HEADER} or len(set(names)) != len(names):
        reason = "a record batch for a keyed topic has the columns key and data and may have a column header"
        raise InvalidRequest(reason=f"{reason}: columns={','.join(names)}")
    data = batch.column(names.index(DATA))
    values: Iterator[bytes | None] = _values(data, nulls=True)
    if data.null_count:
        values = (None if null else value for value, null in zip(values, data.is_null().to_pylist(), strict=True))
    return zip(_values(batch.column(names.index(KEY))), values, _headers(batch, names), strict=True)


def _headers(batch: Any, names: list[str]) -> Iterable[int]:
    return repeat(0, batch.num_rows) if HEADER not in names else _numbers(batch.column(names.index(HEADER)))


def _values(column: Any, *, nulls: bool = False) -> Iterator[bytes]:
    """The values of each row; whatever stands under a null where `nulls` may be."""
    code = _OFFSETS.get(str(column.type))
    if code is None or (column.null_count and not nulls):
        raise InvalidRequest(reason=f"data of a record batch must be bytes or text without nulls: type={column.type} nulls={column.null_count}")
    count, start = len(column), column.offset
    _, offsets_buffer, values_buffer = column.buffers()
    if not count:
        return iter(())
    offsets: array[int] = array(code)
    width = offsets.itemsize
    offsets.frombytes(memoryview(offsets_buffer)[start * width : (start + count + 1) * width])
    values = memoryview(b"" if values_buffer is None else values_buffer)
    return (bytes(values[begin:end]) for begin, end in pairwise(offsets))


def _numbers(column: Any) -> array[int]:
    if str(column.type) != "int32" or column.null_count:
        raise InvalidRequest(reason=f"headers of a record batch must be int32 without nulls: type={column.type} nulls={column.null_count}")
    numbers: array[int] = array("i")
    numbers.frombytes(memoryview(column.buffers()[1])[4 * column.offset : 4 * (column.offset + len(column))])
    return numbers
