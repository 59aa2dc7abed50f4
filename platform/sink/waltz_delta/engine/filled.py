"""The fold that fills a column of rows that are named by their keys, where it is null. Rows are neither added nor deleted. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any  # Any: pyarrow has no types

import numpy as np
import pyarrow as pa
import pyarrow.compute as _pc

from waltz_delta.engine.folds import Folded, Keyed

__all__ = ["Filled"]

pc: Any = _pc


@dataclass(frozen=True, slots=True)
class Filled:
    """The batch has one row for each key, with the value for `column`."""

    keys: Sequence[str]
    column: str

    def reads(self, schema: pa.Schema) -> Sequence[str]:
        return list(schema.names)

    def fold(self, held: Keyed, batch: Keyed, schema: pa.Schema) -> Folded:
        empty = np.asarray(pc.is_null(held.rows.column(self.column)))
        changed = held.rows.filter(pa.array(empty))
        row_of = np.zeros(1 + int(batch.codes.max(initial=-1)), dtype=np.int64)
        row_of[batch.codes] = np.arange(len(batch.codes))
        values = batch.rows.column(self.column).take(pa.array(row_of[held.codes[empty]]))
        place = schema.get_field_index(self.column)
        return Folded(~empty, changed.set_column(place, schema.field(place), values))
