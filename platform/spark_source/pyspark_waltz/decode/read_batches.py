"""One record batch of the source, decoded: runs in the worker that reads it."""

from __future__ import annotations

from typing import Any  # pyarrow has no types

import numpy as np
import pyarrow as pa
import pyarrow.compute as _pc
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructType

from pyspark_waltz.decode.json_columns import JsonColumns
from pyspark_waltz.decode.problems import DATA, PROBLEM, Problems
from pyspark_waltz.decode.required import find_missing, nullable
from pyspark_waltz.decode.settings import DecodeSettings
from pyspark_waltz.decode.times import time_zone
from pyspark_waltz.errors import DoesNotDecode

__all__ = ["ReadDecoder", "data_of_problems"]

pc: Any = _pc


class ReadDecoder:
    """`columns`: the declared ones. `keep`: whether rows say what does not decode."""

    def __init__(self, columns: StructType, settings: DecodeSettings, zone: str, *, keep: bool = True) -> None:
        arrow = [to_arrow_type(nullable(field.dataType), timezone="UTC") for field in columns.fields]
        self._columns, self._keep = columns, keep
        self._json = JsonColumns(columns, arrow, settings, time_zone(zone))

    def decode(self, batch: Any) -> Any:
        """The columns of the log without `data`, the declared ones, and, if they are kept, the data of what does not decode and the problem.
        Otherwise raises `DoesNotDecode`."""
        problems, data = Problems(), batch.column(DATA)
        arrays = self._json.decode(data, problems)
        find_missing(self._columns, arrays, problems)
        log = [name for name in batch.schema.names if name != DATA]
        found = dict(zip([*log, *self._columns.names], [*map(batch.column, log), *arrays], strict=True))
        if self._keep:
            found |= {DATA: data_of_problems(data, set(problems.reasons)), PROBLEM: pa.array(problems.column(batch.num_rows), pa.string())}
        elif problems.reasons:
            first = min(problems.reasons)
            partition, transaction_id = (batch.column(name)[first].as_py() for name in ("partition", "transaction_id"))
            raise DoesNotDecode(partition=partition, transaction_id=transaction_id, reason=problems.reasons[first])
        return pa.RecordBatch.from_arrays(list(found.values()), names=list(found))


def data_of_problems(data: Any, rows: set[int]) -> Any:
    """The data of these transactions; null for the others."""
    wrong = np.zeros(len(data), dtype=bool)
    wrong[list(rows)] = True
    return pc.if_else(pa.array(wrong), data, None) if rows else pa.nulls(len(data), pa.binary())
