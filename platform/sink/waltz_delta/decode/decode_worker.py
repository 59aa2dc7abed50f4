"""Data is decoded in Python workers, one record batch of transactions at a time. A batch costs Spark one node of the plan, however many
columns are declared.

The worker also finds what depends on decoded values: missing columns, and keys that a table cannot store. It returns the data of a transaction only
where something is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import BinaryType, DataType, IntegerType, StringType, StructField, StructType, VariantType

from pyspark_waltz.decode.declarations import holds_variant
from pyspark_waltz.decode.required import nullable
from pyspark_waltz.decode.settings import DecodeSettings
from pyspark_waltz.decode.times import time_zone
from pyspark_waltz.worker_heap import task_begins
from waltz_delta.base.quoting import quoted
from waltz_delta.base.session import session_zone
from waltz_delta.decode.decode_nested import converted, replaced
from waltz_delta.decode.decoding_plan import DecodingPlan
from waltz_delta.decode.row_checks import MISSING, MISSING_KEY, Checks
from waltz_delta.decode.transactions import Transactions
from waltz_delta.marks.batch import DATA, PROBLEM, ROW

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["decode_in_workers", "decoding_plan"]


def decode_in_workers(rows: Transactions, plan: DecodingPlan) -> DataFrame:
    """The kept columns, `row` for Arrow, the declared columns, `MISSING` and `MISSING_KEY` with `Checks.keys`, the data of what is wrong, and
    `PROBLEM`."""
    found = rows.made([*plan.kept, "data"], _in_worker(plan), plan.result)
    variants = [field for field in plan.declared.fields if holds_variant(field.dataType)]
    made = {field.name: converted(f.col(quoted(field.name)), field.dataType, _is_variant, f.parse_json) for field in variants}
    return found.withColumns(made) if made else found


def decoding_plan(
    rows: Transactions, kept: Sequence[str], columns: StructType, settings: DecodeSettings, checks: Checks, schema: bytes | None
) -> DecodingPlan:
    """What workers do. `schema`: of the data, where it has one. A VARIANT is a STRING in the result."""
    zone = session_zone(rows.frame.sparkSession)
    time_zone(zone)  # refuses one that workers do not know
    texts = replaced(columns, _is_variant, StringType())  # of which Spark makes a VARIANT
    assert isinstance(texts, StructType)
    result = StructType(
        [
            *[rows.schema[name] for name in kept],
            *([StructField(ROW, IntegerType())] if settings.format == "arrow" else []),
            *[StructField(field.name, nullable(field.dataType), metadata=field.metadata) for field in texts.fields],
            *([StructField(MISSING, StringType()), StructField(MISSING_KEY, StringType())] if checks.keys is not None else []),
            StructField(DATA, BinaryType()),
            StructField(PROBLEM, StringType()),
        ]
    )
    return DecodingPlan(tuple(kept), columns, result, settings, zone, checks, schema)


def _in_worker(plan: DecodingPlan) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from waltz_delta.decode.decode_batch import BatchDecoder

        task_begins()
        return map(BatchDecoder(plan).decode, batches)

    return run


def _is_variant(kind: DataType) -> bool:
    return isinstance(kind, VariantType)
