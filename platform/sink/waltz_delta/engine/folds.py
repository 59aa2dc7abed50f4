"""What all folds of a keyed table have in common: a batch and the table's rows of its keys become the rows that stay and those that are added.

A fold knows nothing of files. `rewrite` asks it which rows of a file must go, and writes what it adds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol  # Any: pyarrow has no types

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as _pc

from waltz_delta.engine.key_index import ABSENT, Codes, ranks
from waltz_delta.errors import KeyMoved
from waltz_delta.marks.batch import PARTITION, ROW, TRANSACTION_ID

__all__ = [
    "AT",
    "DELETES",
    "PLACE",
    "Both",
    "Flags",
    "Fold",
    "Folded",
    "Keyed",
    "last_of_each",
    "newest_of",
    "order",
    "order_names",
    "overtaken",
    "place_in",
    "refuse_moved",
    "together",
]

pc: Any = _pc
Flags = npt.NDArray[np.bool_]

DELETES: Final = "_waltz_deletes"
"""Whether a row of the batch deletes its key."""
AT: Final = "_waltz_at"
"""When the transaction of a row of the batch was appended."""

PLACE: Final = (TRANSACTION_ID, PARTITION, ROW)
"""The columns with a row's place in the log, in the order in which they decide."""


@dataclass(frozen=True, slots=True)
class Keyed:
    """Rows with the codes of their keys, of which none is absent."""

    rows: Any
    codes: Codes


@dataclass(frozen=True, slots=True)
class Folded:
    """`keep`: for each row that the table holds, whether it stays as it is. `added`: rows with all columns of the table."""

    keep: Flags
    added: Any


class Fold(Protocol):
    """A rule by which the rows of a key follow from those that the table holds and those of a batch."""

    @property
    def keys(self) -> Sequence[str]: ...

    def reads(self, schema: pa.Schema) -> Sequence[str]:
        """The columns of the table's rows that `fold` needs."""
        ...

    def fold(self, held: Keyed, batch: Keyed, schema: pa.Schema) -> Folded:
        """`schema`: of the table. Raises `KeyMoved`."""
        ...


@dataclass(frozen=True, slots=True)
class Both:
    """The held rows, then those of the batch."""

    held: Any
    batch: Any

    @property
    def known(self) -> int:
        return int(self.held.num_rows)

    def values(self, name: str, at: Codes, kind: pa.DataType) -> Any:
        """The values of a column at these rows; null at `ABSENT`."""
        if name not in self.held.schema.names and name not in self.batch.schema.names:
            return pa.nulls(len(at), kind)
        return together(self.held, self.batch, name).take(pa.array(at, mask=at == ABSENT))


def place_in(rows: Any) -> list[str]:
    """The columns of `PLACE` that the rows have."""
    return [name for name in PLACE if name in rows.schema.names]


def together(held: Any, batch: Any, name: str) -> Any:
    """A column of both, first that of the held rows; null where one of them does not have it."""
    kind = (batch if name in batch.schema.names else held).schema.field(name).type
    parts = [rows.column(name).cast(kind) if name in rows.schema.names else pa.nulls(rows.num_rows, kind) for rows in (held, batch)]
    return pa.chunked_array([chunk for part in parts for chunk in (part.chunks if isinstance(part, pa.ChunkedArray) else [part])], type=kind)


def order(columns: Sequence[Any]) -> list[Codes]:
    """Each column as numbers in the same order."""
    return [ranks(column)[0] for column in columns]


def last_of_each(sorted_codes: Codes) -> Flags:
    """Where a group of equal codes ends."""
    found = np.ones(len(sorted_codes), dtype=bool)
    found[:-1] = sorted_codes[1:] != sorted_codes[:-1]
    return found


def refuse_moved(path: str, held: Keyed, batch: Keyed) -> None:
    """Raises `KeyMoved` if rows of a key are in two log partitions, so that their ids say nothing about their order. Held rows without a place are a
    user's, and those with an id below 0 of a former cluster, which may have had the key in another partition."""
    codes = np.concatenate([held.codes, batch.codes])
    places, ids = (together(held.rows, batch.rows, name) for name in (PARTITION, TRANSACTION_ID))
    numbers, order_in_log = np.asarray(pc.fill_null(places, -1)), np.asarray(pc.fill_null(ids, -1))
    in_batch = np.arange(len(codes)) >= held.rows.num_rows
    for among in (in_batch, (order_in_log >= 0) & np.asarray(pc.is_valid(places))):
        rows = np.flatnonzero(among)
        sort = rows[np.lexsort((numbers[rows], order_in_log[rows], in_batch[rows], codes[rows]))]
        apart = np.flatnonzero((codes[sort[1:]] == codes[sort[:-1]]) & (numbers[sort[1:]] != numbers[sort[:-1]]))
        if len(apart):
            one, other = sort[apart[0]], sort[apart[0] + 1]
            raise KeyMoved(path=path, reason=f"partitions {numbers[one]} and {numbers[other]} {TRANSACTION_ID} {order_in_log[other]}")


def newest_of(rows: Keyed, sequence: str) -> Codes:
    """The numbers of the rows that are the newest of their keys."""
    sort = np.lexsort((*reversed(order([rows.rows.column(name) for name in order_names(rows.rows, sequence)])), rows.codes))
    return sort[last_of_each(rows.codes[sort])]


def overtaken(later: Keyed, rows: Keyed, sequence: str) -> Flags:
    """Which rows are older than one of `later` with their key. Of equal ones none is older."""
    number = rows.rows.num_rows
    names = order_names(rows.rows, sequence)
    columns = order([together(rows.rows, later.rows, name) for name in names])
    codes = np.concatenate([rows.codes, later.codes])
    is_row = np.arange(len(codes)) < number
    sort = np.lexsort((is_row, *reversed(columns), codes))
    place = np.empty(len(codes), dtype=np.int64)
    place[sort] = np.arange(len(codes))
    last = np.full(1 + int(codes.max(initial=-1)), -1)
    np.maximum.at(last, later.codes, place[number:])
    return np.asarray(last[rows.codes] > place[:number])


def order_names(rows: Any, sequence: str) -> list[str]:
    """The columns that decide which of two rows of a key is newer, the most important one first."""
    return list(dict.fromkeys([sequence, *place_in(rows)]))
