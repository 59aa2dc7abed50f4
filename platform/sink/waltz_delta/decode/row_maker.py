"""What a task does to make rows of a table from ranges of the log: it reads them, decodes, filters, and keeps or renames columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any  # pyarrow has no types

from waltz_delta.base.direct_rows import Undecoded
from waltz_delta.decode.decoding_plan import DecodingPlan
from waltz_delta.decode.simple_projection import Condition
from waltz_delta.decode.transactions import Selection
from waltz_delta.marks.batch import PARTITION, PROBLEM, TRANSACTION_ID, UNDECODABLE

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["RowMaker"]


@dataclass(frozen=True, slots=True)
class RowMaker:
    """A `MakeRows`. `plan`: None if the data stays as bytes. `fails`: at the first transaction that does not decode; otherwise it is counted and left
    out. `columns`: of decoded rows, each with its name in the table's rows."""

    selection: Selection
    plan: DecodingPlan | None
    fails: bool
    where: tuple[Condition, ...]
    columns: tuple[tuple[str, str], ...]

    def __call__(self, batches: Iterator[pa.RecordBatch], undecoded: Undecoded) -> Iterator[pa.RecordBatch]:
        """Raises `ValueError` for a transaction that does not decode, if it is to fail."""
        import pyarrow as pa

        names = [name for _, name in self.columns]
        for rows in self._decoded(batches, undecoded):
            for condition in self.where:
                rows = rows.filter(condition.passes(rows))
            yield pa.RecordBatch.from_arrays([rows.column(column) for column, _ in self.columns], names=names)

    def _decoded(self, batches: Iterator[pa.RecordBatch], undecoded: Undecoded) -> Iterator[Any]:
        transactions = self.selection.read(batches)
        if self.plan is None:
            yield from transactions
            return
        from waltz_delta.decode.decode_batch import BatchDecoder

        decoder = BatchDecoder(self.plan)
        for batch in transactions:
            found = decoder.decode(batch)
            problems = found.column(PROBLEM)
            wrong = len(problems) - problems.null_count
            if wrong and self.fails:
                raise ValueError(_first_of(found))
            undecoded.count += wrong
            yield found.filter(problems.is_null()) if wrong else found


def _first_of(decoded: Any) -> str:
    """As `decode.raised` says it."""
    first = next(row for row in decoded.select([PARTITION, TRANSACTION_ID, PROBLEM]).to_pylist() if row[PROBLEM] is not None)
    return UNDECODABLE % (first[TRANSACTION_ID], first[PARTITION], first[PROBLEM])
