"""What a micro-batch covers, and the part of it that a table does not hold yet."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from pyspark_waltz.offsets import Offset, batch_starts
from pyspark_waltz.range_rows import is_of_ranges
from waltz_delta.base import internal
from waltz_delta.base.direct_rows import DirectRows
from waltz_delta.base.table_transaction import TableTransaction
from waltz_delta.errors import WriteContended
from waltz_delta.marks.marks import BatchRange
from waltz_log.errors import InvalidRequest, InvalidSetting

__all__ = [
    "DATA",
    "PARTITION",
    "PROBLEM",
    "ROW",
    "TRANSACTION_ID",
    "UNDECODABLE",
    "GivenRows",
    "LostRace",
    "Rows",
    "Sink",
    "Staged",
    "above",
    "batch_range",
    "land",
    "require_columns",
    "undecodable_in",
]

PARTITION = "partition"
TRANSACTION_ID = "transaction_id"
ROW = "row"
"""Index of a row within its transaction, if a transaction holds several."""
DATA = "_waltz_data"
"""The undecoded data, next to the decoded columns."""
PROBLEM = "_waltz_problem"
"""Why the transaction did not decode, next to the decoded columns; null if it did."""

_PREFIX = "waltz_delta: does not decode: "
UNDECODABLE = f"{_PREFIX}transaction %d of partition %d: %s"
"""The error of a query over undecodable data, if nothing else was declared: transaction id, partition, reason."""

_UNDECODABLE = re.compile(rf"{re.escape(_PREFIX)}(transaction \d+ of partition \d+: .*)")
"""The message with its values: Spark also prints the expression that would raise it, in the plan of an error of another kind."""


def undecodable_in(text: str) -> str | None:
    """Which transaction does not decode and why, from the text of Spark's error; None if that is another one. To be asked first: the reason quotes
    data."""
    found = _UNDECODABLE.search(text)
    return None if found is None else found[1]


class Rows(Protocol):
    """A batch's rows as a table gets them, without those at or below the given marks. The transaction sees the table's columns and rules."""

    def frame(self, marks: Mapping[int, int], table: TableTransaction) -> DataFrame: ...

    def direct(self, marks: Mapping[int, int], table: TableTransaction) -> DirectRows | None:
        """The same rows, if tasks can make them from ranges by themselves; otherwise None."""
        ...


class LostRace(Exception):
    """Another writer committed to the table first, or the staged rows were lost with an executor. Nothing of this attempt is in the table. Read the
    marks and stage the batch again. Internal to this package."""


class Staged(Protocol):
    """A batch that is ready to be committed to one table."""

    def commit(self) -> None:
        """Raises `LostRace` if another commit came first."""

    def release(self) -> None:
        """Frees what it held. Called once, whether it was committed or not."""


class Sink(Protocol):
    """One table, which decides by its own marks."""

    path: str

    def stage(self, spark: SparkSession, covered: BatchRange, rows: Rows, batch_id: int | None) -> Staged | None:
        """The part of the batch that the table lacks, ready to be committed. None if the table holds all of it. May raise `LostRace`."""


@dataclass(frozen=True, slots=True)
class GivenRows:
    """`Rows` of a DataFrame."""

    batch: DataFrame

    def frame(self, marks: Mapping[int, int], table: TableTransaction) -> DataFrame:
        return above(self.batch, marks)

    def direct(self, marks: Mapping[int, int], table: TableTransaction) -> DirectRows | None:
        return None


def land(sink: Sink, batch: DataFrame, batch_id: int | None, attempts: int) -> None:
    """Writes the batch to one table. Raises `WriteContended` if other commits came first at each attempt."""
    covered = batch_range(batch, batch_id)
    for _ in range(attempts):
        try:
            staged = sink.stage(batch.sparkSession, covered, GivenRows(batch), batch_id)
            if staged is not None:
                try:
                    staged.commit()
                finally:
                    staged.release()
        except LostRace:
            continue
        return
    raise WriteContended(path=sink.path, attempts=attempts)


def require_columns(columns: list[str]) -> None:
    """Raises if a transformation dropped one of the two columns that hold a row's position in the log."""
    for name in (PARTITION, TRANSACTION_ID):
        if name not in columns:
            raise InvalidRequest(reason=f"the rows must keep the column {name}, they have {', '.join(columns)}")


def batch_range(batch: DataFrame, batch_id: int | None) -> BatchRange:
    """From the query's offset log if a query over the source runs the batch; otherwise from the rows, which costs a pass over them."""
    offsets = internal.batch_offsets(batch, batch_id) if batch_id is not None else None
    if offsets is not None:
        start, end = offsets
        try:
            until = Offset.from_json(json.loads(end))
            starts = batch_starts(Offset.from_json(json.loads(start)) if start is not None else Offset({}), until)
            checkpoint = internal.checkpoint_of(batch)
            return BatchRange(ends=until.next, starts=starts, exact=True, origins=until.origin, checkpoint=checkpoint)
        except InvalidSetting:
            pass  # another source's offsets: use the ids in the rows
    first, last = ("first_transaction_id", "last_transaction_id") if is_of_ranges(batch.schema) else (TRANSACTION_ID, TRANSACTION_ID)
    rows = batch.groupBy(PARTITION).agg(f.min(first), f.max(last)).collect()
    return BatchRange(ends={row[0]: row[2] + 1 for row in rows}, starts={row[0]: row[1] for row in rows}, exact=False)


def above(batch: DataFrame, marks: Mapping[int, int]) -> DataFrame:
    """The rows above the given marks. A partition without a mark keeps all of its rows."""
    # As one text: every operation on a column calls the JVM at least once, and there may be hundreds of partitions.
    known = [f"NOT (`{PARTITION}` = {partition} AND `{TRANSACTION_ID}` <= {mark})" for partition, mark in sorted(marks.items())]
    return batch.where(" AND ".join(known)) if known else batch
