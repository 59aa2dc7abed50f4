"""One record batch of transactions, decoded: runs in a Python worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any  # pyarrow has no types

import numpy as np
import pyarrow as pa
import pyarrow.compute as _pc
from pyspark.sql.pandas.types import to_arrow_schema

from pyspark_waltz.decode.arrow_streams import ArrowColumns
from pyspark_waltz.decode.formats import make_decoder
from pyspark_waltz.decode.problems import Problems
from pyspark_waltz.decode.read_batches import data_of_problems
from pyspark_waltz.decode.required import find_missing
from waltz_delta.decode.decoding_plan import DecodingPlan
from waltz_delta.decode.row_checks import UNSTORED

__all__ = ["BatchDecoder"]

pc: Any = _pc


class BatchDecoder:
    def __init__(self, plan: DecodingPlan) -> None:
        self._kept, self._declared, self._checks = plan.kept, plan.declared, plan.checks
        self._schema = to_arrow_schema(plan.result, timezone="UTC", prefers_large_types=False)
        arrow = [self._schema.field(name).type for name in plan.declared.names]
        self._decoder = make_decoder(plan.declared, arrow, plan.settings, plan.zone, plan.schema)

    def decode(self, batch: Any) -> Any:
        """A record batch of the result, from one with the kept columns and `data`. The values of a transaction with a problem mean nothing."""
        data, count = batch.column("data"), batch.num_rows
        problems, rows = Problems(), None
        missing: list[Problems] = []
        if isinstance(self._decoder, ArrowColumns):
            arrays, rows = self._decoder.decode(data, problems)
        else:
            arrays = self._decoder.decode(data, problems)
            missing = self._missing(arrays, problems)
        self._find_unstored(arrays, problems, rows)
        columns = [batch.column(name) for name in self._kept]
        found = [pa.array(each.column(count), pa.string()) for each in (*missing, problems)]
        own = data_of_problems(data, {row for each in (problems, *missing) for row in each.reasons})
        if rows is not None:  # a transaction is any number of rows
            first = np.searchsorted(rows, rows)
            owners = pa.array(rows)
            columns = [*(column.take(owners) for column in columns), pa.array(np.arange(len(rows)) - first, pa.int32())]
            found, own = [each.take(owners) for each in found], own.take(owners)
        *others, problem = found
        return pa.RecordBatch.from_arrays([*columns, *arrays, *others, own, problem], schema=self._schema)

    def _missing(self, arrays: Sequence[Any], problems: Problems) -> list[Problems]:
        """What required columns lack: problems, unless Spark separates deletes later."""
        if self._checks.keys is None:
            find_missing(self._declared, arrays, problems)
            return []
        whole, key = Problems(), Problems()
        find_missing(self._declared, arrays, whole)
        find_missing(self._declared, arrays, key, only=self._checks.keys)
        return [whole, key]

    def _find_unstored(self, arrays: Sequence[Any], problems: Problems, rows: Any) -> None:
        for name in self._checks.unstorable:
            values = arrays[self._declared.names.index(name)]
            for at in pc.indices_nonzero(pc.is_in(values, pa.array(UNSTORED))).to_pylist():
                shown = values[at].as_py() or "an empty string"
                reason = f"{name} is {shown}, which a key column that is a partition column cannot hold"
                problems.add(at if rows is None else int(rows[at]), reason)
