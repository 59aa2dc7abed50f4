"""The keys of a batch as numbers, by which the rows of a table's files are compared with it. Pure.

A key has any number of columns, and null is a value like any other. Each distinct key of the batch has a code from 0 on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final  # Any: pyarrow has no types

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as _pc

__all__ = ["ABSENT", "Codes", "KeyIndex", "ranks"]

pc: Any = _pc
Codes = npt.NDArray[np.int64]

ABSENT: Final = -1
"""The code of a key that the batch does not have."""


class KeyIndex:
    """`batch`: a table with the key columns, in the types of the table's files."""

    def __init__(self, batch: Any, keys: Sequence[str]) -> None:
        self.keys = tuple(keys)
        self._values: list[Any] = []
        self._combined: list[Codes] = []
        """The combinations of the first columns that the batch has, as sorted numbers; the place of one is its code so far."""
        self.of_batch = np.zeros(batch.num_rows, dtype=np.int64)
        for name in self.keys:
            self._values.append(pc.unique(batch.column(name)))
            own = _places(batch.column(name), self._values[-1])
            known, self.of_batch = np.unique(self.of_batch * len(self._values[-1]) + own, return_inverse=True)
            self._combined.append(known)
        self.count = len(self._combined[-1]) if self._combined else 0

    def codes(self, rows: Any) -> Codes:
        """The code of each row's key; `ABSENT` where the batch does not have it."""
        found = np.zeros(rows.num_rows, dtype=np.int64)
        for name, values, known in zip(self.keys, self._values, self._combined, strict=True):
            own = _places(rows.column(name), values)
            wanted = found * len(values) + own
            at = np.minimum(np.searchsorted(known, wanted), max(0, len(known) - 1))
            there = (found >= 0) & (own >= 0) & (known[at] == wanted if len(known) else False)
            found = np.where(there, at, ABSENT)
        return found

    def bounds(self, name: str) -> tuple[Any, Any, bool]:
        """Least and greatest value of a key column in the batch as Arrow scalars, which are null if it has none, and whether null is one of its
        values."""
        values = self._values[self.keys.index(name)]
        found = pc.min_max(values)
        return found["min"], found["max"], bool(values.null_count)


def ranks(*columns: Any) -> list[Codes]:
    """The place of each value of the columns among the values of all of them, in ascending order. Equal values have equal places, and null is below
    every value."""
    together = pa.chunked_array([chunk for column in columns for chunk in _chunks(column)], type=columns[0].type)
    if pa.types.is_boolean(together.type):
        together = together.cast(pa.int8())
    found = np.array(pc.rank(together, sort_keys="ascending", tiebreaker="dense"), dtype=np.int64)
    found[np.asarray(pc.is_null(together))] = 0
    ends = np.cumsum([len(column) for column in columns])
    return np.split(found, ends[:-1])


def _places(column: Any, values: Any) -> Codes:
    found = pc.index_in(column, value_set=values, skip_nulls=False)
    return np.asarray(pc.fill_null(found, ABSENT), dtype=np.int64)


def _chunks(column: Any) -> Sequence[Any]:
    return column.chunks if isinstance(column, pa.ChunkedArray) else [column]
