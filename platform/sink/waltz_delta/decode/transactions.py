"""The transactions of a batch that an output selects: rows of the source, or ranges of the log (`mode=ranges`), which the task that decodes reads.

From ranges, transactions are read, selected and decoded in one Python worker. So neither their data nor those that are not selected cross to the JVM.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any  # pyarrow has no types

from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from pyspark_waltz.range_rows import is_of_ranges, read_ranges, transactions_schema
from waltz_delta.marks.batch import PARTITION, TRANSACTION_ID, above

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Selection", "Transactions"]


@dataclass(frozen=True, slots=True)
class Selection:
    """Which transactions of ranges: those above the mark of their partition, and with one of the headers, if there are any. Spark pickles it."""

    marks: tuple[tuple[int, int], ...] = ()
    headers: tuple[int, ...] | None = None

    def read(self, ranges: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The selected transactions of the ranges, in a task of Spark."""
        return map(self._selected, read_ranges(ranges)) if self.marks or self.headers is not None else read_ranges(ranges)

    def _selected(self, batch: Any) -> Any:
        import numpy as np
        import pyarrow as pa

        chosen = np.ones(batch.num_rows, dtype=bool)
        partitions, ids = (batch.column(name).to_numpy() for name in (PARTITION, TRANSACTION_ID))
        for partition, mark in self.marks:
            chosen &= (partitions != partition) | (ids > mark)
        if self.headers is not None:
            chosen &= np.isin(batch.column("header").to_numpy(), self.headers)
        return batch if chosen.all() else batch.filter(pa.array(chosen))


@dataclass(frozen=True, slots=True)
class Transactions:
    """`frame`: ranges, of which `selection` selects transactions, or selected transactions themselves. `schema`: of transactions."""

    frame: DataFrame
    schema: StructType
    selection: Selection | None
    """None: `frame` holds transactions."""

    @classmethod
    def of(cls, frame: DataFrame) -> Transactions:
        """All of a batch."""
        return cls(frame, transactions_schema(frame.schema), Selection() if is_of_ranges(frame.schema) else None)

    def above(self, marks: Mapping[int, int]) -> Transactions:
        """Those above the marks. A partition without a mark keeps all of them."""
        if self.selection is None:
            return replace(self, frame=above(self.frame, marks))
        return replace(self, selection=replace(self.selection, marks=(*self.selection.marks, *sorted(marks.items()))))

    def with_headers(self, headers: Sequence[int]) -> Transactions:
        """Those with one of the headers."""
        if self.selection is None:
            return replace(self, frame=self.frame.where(f.col("header").isin(list(headers))))
        assert self.selection.headers is None, "an output has one route"
        return replace(self, selection=replace(self.selection, headers=tuple(headers)))

    def rows(self) -> DataFrame:
        """The transactions themselves."""
        return self.frame if self.selection is None else self.frame.mapInArrow(self.selection.read, self.schema)

    def made(self, columns: Sequence[str], make: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], result: StructType) -> DataFrame:
        """The rows that `make` returns, in a task of Spark, for record batches with these columns of the transactions."""
        if self.selection is None:
            return self.frame.select(*columns).mapInArrow(make, result)
        return self.frame.mapInArrow(partial(_read_and_make, self.selection, tuple(columns), make), result)


def _read_and_make(
    selection: Selection,
    columns: Sequence[str],
    make: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    ranges: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    return make(batch.select(list(columns)) for batch in selection.read(ranges))
