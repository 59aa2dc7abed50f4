"""The fold of an upsert: of each key the newest row stays. Pure.

Of two rows of a key the one with the higher sequence is newer, then the one with the higher id, partition and place in its transaction; null is
below every value. Of equal ones the row of the table stays. A delete removes its key, or with soft deletes marks it: then the row has the values of
the last row before the delete, and the delete's place in the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any  # Any: pyarrow has no types

import numpy as np
import pyarrow as pa

from waltz_delta.engine.folds import (
    AT,
    DELETES,
    PLACE,
    Both,
    Flags,
    Folded,
    Keyed,
    last_of_each,
    order,
    order_names,
    place_in,
    refuse_moved,
    together,
)
from waltz_delta.engine.key_index import ABSENT, Codes
from waltz_delta.marks.batch import TRANSACTION_ID

__all__ = ["Newest", "SoftDeletes"]


@dataclass(frozen=True, slots=True)
class SoftDeletes:
    """Names of the table's columns that say whether a key is deleted, and since when."""

    deleted: str
    deleted_at: str


@dataclass(frozen=True, slots=True)
class Newest:
    """`columns`: of the table, which the rows of the batch set; others keep what the table holds. `path`: of the table, for errors. `moves`: the rows
    of a key may be in several log partitions, although only their ids order them."""

    path: str
    keys: Sequence[str]
    sequence: str
    columns: Sequence[str]
    soft: SoftDeletes | None = None
    moves: bool = False

    def reads(self, schema: pa.Schema) -> Sequence[str]:
        if self.soft is not None or any(name not in self.columns for name in schema.names):
            return list(schema.names)
        needed = {*self.keys, self.sequence, *place_in(schema.empty_table())}
        return [name for name in schema.names if name in needed]

    def fold(self, held: Keyed, batch: Keyed, schema: pa.Schema) -> Folded:
        if self.sequence == TRANSACTION_ID and not self.moves:
            refuse_moved(self.path, held, batch)
        known = held.rows.num_rows
        codes = np.concatenate([held.codes, batch.codes])
        sort = np.lexsort((*reversed(order(self._order(held.rows, batch.rows))), codes))
        newest = sort[last_of_each(codes[sort])]
        replaced = newest[newest >= known]
        deletes = np.concatenate([np.zeros(known, dtype=bool), np.asarray(batch.rows.column(DELETES))])
        keep = ~np.isin(held.codes, codes[replaced])
        if self.soft is None:
            replaced = replaced[~deletes[replaced]]
        combined = Keyed(Both(held.rows, batch.rows), codes)
        return Folded(keep, self._added(combined, schema, sort, replaced, deletes))

    def _order(self, held: Any, batch: Any) -> list[Any]:
        is_held = np.concatenate([np.ones(held.num_rows, dtype=np.int8), np.zeros(batch.num_rows, dtype=np.int8)])
        return [*(together(held, batch, name) for name in order_names(batch, self.sequence)), pa.array(is_held)]

    def _added(self, both: Keyed, schema: pa.Schema, sort: Codes, replaced: Codes, deletes: Flags) -> Any:
        """`sort`: all rows by key and age. `replaced`: of each key that changes, the row of the batch that is the newest."""
        is_held = np.arange(len(both.codes)) < both.rows.known
        before = _last_before(both.codes, sort, is_held, replaced)
        valued = np.where(deletes[replaced], _last_before(both.codes, sort, is_held | ~deletes, replaced), replaced)
        valued = np.where(valued < 0, replaced, valued)
        own = {*self.keys, self.sequence, *PLACE}
        columns = []
        for field in schema:
            if self.soft is not None and field.name == self.soft.deleted:
                column = pa.array(deletes[replaced])
            elif self.soft is not None and field.name == self.soft.deleted_at:
                column = both.rows.values(AT, np.where(deletes[replaced], replaced, ABSENT), field.type)
            elif field.name not in self.columns:
                column = both.rows.values(field.name, before, field.type)
            else:
                column = both.rows.values(field.name, replaced if field.name in own else valued, field.type)
            columns.append(column)
        return pa.Table.from_arrays(columns, schema=schema)


def _last_before(codes: Codes, sort: Codes, among: Flags, wanted: Codes) -> Codes:
    """For the key of each of the `wanted` rows the newest row `among` some; `ABSENT` if there is none."""
    some = sort[among[sort]]
    newest = some[last_of_each(codes[some])]
    if not len(newest):
        return np.full(len(wanted), ABSENT)
    at = np.minimum(np.searchsorted(codes[newest], codes[wanted]), len(newest) - 1)
    return np.where(codes[newest[at]] == codes[wanted], newest[at], ABSENT)
