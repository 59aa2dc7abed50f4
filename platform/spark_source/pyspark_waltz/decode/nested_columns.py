"""Arrays, maps and structs as Arrow arrays. Each is built from one flat column of its elements, so that a problem of an element is one of the
transaction that holds it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain, repeat
from typing import Any  # values of any format, and pyarrow has no types

import numpy as np
import pyarrow as pa

from pyspark_waltz.decode.kinds import Kind, Rows
from pyspark_waltz.decode.problems import Problems

__all__ = ["fields_of", "list_column", "map_column", "struct_column"]


def list_column(kind: Kind, element: Kind, values: Sequence[Any], rows: Rows, problems: Problems) -> Any:
    """`values`: lists or None."""
    offsets, owners = _offsets(values, rows)
    elements = element.column(list(chain.from_iterable(filter(None, values))), owners, problems)
    return pa.ListArray.from_arrays(offsets, elements, type=kind.arrow)


def map_column(kind: Kind, keys: Callable[[Sequence[Any]], Any], item: Kind, values: Sequence[Any], rows: Rows, problems: Problems) -> Any:
    """`values`: dictionaries or None. `keys`: makes the array of the keys, of which none can be a problem."""
    offsets, owners = _offsets(values, rows)
    given = list(filter(None, values))
    items = item.column(list(chain.from_iterable(each.values() for each in given)), owners, problems)
    return pa.MapArray.from_arrays(offsets, keys(list(chain.from_iterable(given))), items, type=kind.arrow)


def struct_column(
    kind: Kind, nothing: Any, columns: Callable[[Sequence[Any], Rows, Problems], list[Any]], values: Sequence[Any], rows: Rows, problems: Problems
) -> Any:
    """`columns`: makes the arrays of the fields from values of which none is None. `nothing`: a value with None in each field."""
    absent = np.fromiter((value is None for value in values), dtype=bool, count=len(values))
    if absent.any():
        values = [nothing if value is None else value for value in values]
    return pa.StructArray.from_arrays(columns(values, rows, problems), fields=list(kind.arrow), mask=pa.array(absent))


def fields_of(fields: Sequence[Kind], values: Iterable[Sequence[Any]], rows: Rows, problems: Problems) -> list[Any]:
    """One array for each field, from the values of all fields of each row."""
    columns: Iterable[Sequence[Any]] = zip(*values, strict=True) if rows else repeat((), len(fields))
    return [field.column(column, rows, problems) for field, column in zip(fields, columns, strict=True)]


def _offsets(values: Iterable[Any], rows: Rows) -> tuple[Any, Rows]:
    """The offsets of an Arrow list or map, with null for None; and the owner of each element."""
    sizes = np.fromiter((-1 if value is None else len(value) for value in values), dtype=np.int64, count=len(rows))
    counts = np.maximum(sizes, 0)
    offsets = np.zeros(len(sizes) + 1, dtype=np.int32)
    np.cumsum(counts, out=offsets[1:])
    absent = np.append(sizes < 0, False)
    return pa.array(offsets, pa.int32(), mask=absent), np.repeat(np.asarray(rows, dtype=np.int64), counts).tolist()
