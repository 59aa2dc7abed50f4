"""A batch that is merged into a keyed table: which files of a version go, and which are added.

`deltalake` has a MERGE of its own, which this engine does not use: it rounds statistics of long decimals and of floats, so that readers miss
rows, and its statement can express neither a history nor a soft delete.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final  # pyarrow has no types

import pyarrow as pa

from waltz_delta.base.store_errors import sentence
from waltz_delta.engine.allowed import TableShape
from waltz_delta.engine.arrow_table import ArrowTable, OpenedTable
from waltz_delta.engine.folds import Fold, Keyed
from waltz_delta.engine.key_index import KeyIndex
from waltz_delta.engine.log_actions import Change
from waltz_delta.engine.rewrite import candidates, held_rows, rewrite
from waltz_delta.engine.row_checks import RowRefused
from waltz_delta.engine.written_files import added_file, file_plan
from waltz_delta.errors import NotADeltaTable, SchemaMismatch
from waltz_delta.marks.batch import PARTITION, ROW, TRANSACTION_ID

__all__ = ["TABLE_BYTES_MAX", "ArrowMerge", "refusal_of_merge", "rows_with_keys_of"]

TABLE_BYTES_MAX: Final = 4 << 30
"""A merge runs in the driver. Above this size of its files, a table is merged by Spark's executors."""

_KEYS: Final = frozenset({"binary", "boolean", "byte", "date", "integer", "long", "short", "string", "timestamp", "timestamp_ntz"})
"""Types whose equal values are equal for Spark and pyarrow. Floats are not: -0.0, NaN."""

_SEQUENCES: Final = _KEYS - {"boolean"}
_PLACE: Final = frozenset({PARTITION, TRANSACTION_ID, ROW})


def refusal_of_merge(shape: TableShape, keys: Sequence[str], sequence: str) -> str | None:
    """Why the Arrow engine does not merge into this table; None if it does. `allowed` has accepted it."""
    properties = {name.lower(): value.lower() for name, value in shape.properties.items()}
    if properties.get("delta.appendonly") == "true":
        return "the table is append-only"
    if properties.get("delta.enablechangedatafeed") == "true":
        return "the Arrow engine writes no change data feed"
    wanted = {key.lower() for key in keys}
    for field in shape.schema["fields"]:
        name, kind = field["name"], field["type"]
        if name not in _PLACE and name.lower() in _PLACE:
            return f"the Arrow engine merges by the column {name.lower()} of the log, which the table calls {name}"
        if name.lower() in wanted and not (isinstance(kind, str) and kind in _KEYS):
            return f"the Arrow engine does not merge by {name}, a key of another type than text, whole numbers, dates and times"
        if name.lower() == sequence.lower() and not _is_ordered(kind):
            return f"the Arrow engine does not order rows by {name}, which has the type {kind if isinstance(kind, str) else 'of nested values'}"
    return None


def _is_ordered(kind: Any) -> bool:
    return isinstance(kind, str) and (kind in _SEQUENCES or kind.startswith("decimal("))


def rows_with_keys_of(source: Any, keys: Sequence[str], table: ArrowTable, columns: Sequence[str]) -> tuple[Keyed, Keyed]:
    """The table's rows, with these columns, whose keys `source` has, and those of `source`. Raises `NotRead`, `NotADeltaTable`."""
    index, opened = KeyIndex(source, keys), table.open()
    if opened is None:
        raise NotADeltaTable(path=table.path, reason="no table there")
    chosen = candidates(opened.living_files(), index)
    with _readable(table):
        return held_rows(file_plan(table, opened.shape, columns, "none"), chosen, index), Keyed(source, index.of_batch)


@dataclass(frozen=True, slots=True)
class ArrowMerge:
    """`source`: rows with the columns that `fold` needs, in the types of the table. `compression`: of the files, by pyarrow's name."""

    source: Any
    fold: Fold
    compression: str = "snappy"

    def run(self, table: ArrowTable, opened: OpenedTable) -> Change:
        """Writes the files; a commit after `opened` names them. Raises `KeyMoved`, `SchemaMismatch`, `NotRead` and the errors of pyarrow."""
        names: Sequence[str] = [field["name"] for field in opened.shape.schema["fields"]]
        index = KeyIndex(self.source, self.fold.keys)
        chosen = candidates(opened.living_files(), index)
        try:
            with _readable(table):
                found = rewrite(file_plan(table, opened.shape, names, self.compression), chosen, self.fold, index, self.source)
        except RowRefused as error:
            raise SchemaMismatch(path=table.path, column=error.column, reason=error.reason) from None
        return Change([added_file(each) for each in found.written], found.removed)


@contextmanager
def _readable(table: ArrowTable) -> Iterator[None]:
    try:
        yield
    except pa.ArrowInvalid as error:
        raise NotADeltaTable(path=table.path, reason=f"a file of it cannot be read: {sentence(error)}") from error
