"""What a micro-batch covers, and the part of it that a table does not hold yet."""

from __future__ import annotations

import json
from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from pyspark_waltz.offsets import Offset, batch_starts
from waltz_delta import internal
from waltz_delta.marks import BatchRange
from waltz_log.errors import InvalidRequest, InvalidSetting

__all__ = ["PARTITION", "TRANSACTION_ID", "above", "batch_range", "require_columns"]

PARTITION = "partition"
TRANSACTION_ID = "transaction_id"


def require_columns(columns: list[str]) -> None:
    """The two columns that tell a row's place in the log must come through every transformation."""
    for name in (PARTITION, TRANSACTION_ID):
        if name not in columns:
            raise InvalidRequest(reason=f"the rows must keep the column {name}, they have {', '.join(columns)}")


def batch_range(batch: DataFrame, batch_id: int | None) -> BatchRange:
    """From the query's offset log, where a query over the source runs the batch; otherwise from the rows, which costs a pass over them."""
    offsets = internal.batch_offsets(batch, batch_id) if batch_id is not None else None
    if offsets is not None:
        start, end = offsets
        try:
            until = Offset.from_json(json.loads(end))
            starts = batch_starts(Offset.from_json(json.loads(start)) if start is not None else Offset({}), until)
            return BatchRange(ends=until.next, starts=starts, exact=True)
        except InvalidSetting:
            pass  # another source's offsets: the rows tell
    rows = batch.groupBy(PARTITION).agg(f.min(TRANSACTION_ID), f.max(TRANSACTION_ID)).collect()
    return BatchRange(ends={row[0]: row[2] + 1 for row in rows}, starts={row[0]: row[1] for row in rows}, exact=False)


def above(batch: DataFrame, marks: Mapping[int, int]) -> DataFrame:
    """The rows above the given marks; partitions not named pass whole."""
    old: Column | None = None
    for partition, mark in sorted(marks.items()):
        known = (f.col(PARTITION) == partition) & (f.col(TRANSACTION_ID) <= mark)
        old = known if old is None else old | known
    return batch if old is None else batch.where(~old)
