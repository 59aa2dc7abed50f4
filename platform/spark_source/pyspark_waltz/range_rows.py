"""`mode=ranges`: a row for each task of a read, which stands for the transactions that the task would read. A sink that decodes and writes by itself
(`waltz_delta`) reads them in its own task, so that no transaction crosses to the JVM.

`read_ranges` in `mapInArrow` turns ranges into the transactions that the same read gives with `mode=data`.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import BinaryType, IntegerType, LongType, StructField, StructType

from pyspark_waltz.tasks import LogRange, ViewRange
from pyspark_waltz.worker_heap import task_begins

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["is_of_ranges", "range_row", "ranges_schema", "read_ranges", "transactions", "transactions_schema"]

TASK: Final = "task"

_OF_TRANSACTIONS: Final = "waltz.transactions"
"""In the metadata of the column `task`: the columns of the transactions."""


def ranges_schema(transactions: StructType) -> StructType:
    """With `mode=ranges`: the log partition, the first and the last id, and what `read_ranges` needs to read them. For a compacted view
    the last id is that of the log which this batch reads. `transactions`: the columns with `mode=data`."""
    return StructType(
        [
            StructField("partition", IntegerType()),
            StructField("first_transaction_id", LongType()),
            StructField("last_transaction_id", LongType()),
            StructField(TASK, BinaryType(), metadata={_OF_TRANSACTIONS: transactions.json()}),
        ]
    )


def is_of_ranges(schema: StructType) -> bool:
    """Whether rows of this schema are ranges."""
    return TASK in schema.names and _OF_TRANSACTIONS in schema[TASK].metadata


def transactions_schema(schema: StructType) -> StructType:
    """The columns of the transactions of rows of this schema: ranges, or transactions themselves."""
    return StructType.fromJson(json.loads(schema[TASK].metadata[_OF_TRANSACTIONS])) if is_of_ranges(schema) else schema


def range_row(task: LogRange | ViewRange) -> pa.RecordBatch:
    """The row of one task, with the columns of `ranges_schema`."""
    import pyarrow as pa

    first, last = (task.first, task.last) if isinstance(task, LogRange) else (0, task.log_end - 1)
    columns = [
        pa.array([task.partition], pa.int32()),
        pa.array([first], pa.int64()),
        pa.array([last], pa.int64()),
        pa.array([pickle.dumps(task)], pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, names=["partition", "first_transaction_id", "last_transaction_id", TASK])


def read_ranges(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The transactions of the ranges, with the source's columns. Runs in a task of Spark, which gives it the rows."""
    task_begins()
    for batch in rows:
        for task in batch.column(batch.schema.get_field_index(TASK)).to_pylist():
            yield from transactions(pickle.loads(task))


def transactions(task: InputPartition) -> Iterator[pa.RecordBatch]:
    """What a task reads, with the source's columns."""
    if isinstance(task, ViewRange):
        from pyspark_waltz.view_reads import read_view

        return read_view(task)
    from pyspark_waltz.ranges import read_range

    return read_range(task) if isinstance(task, LogRange) else iter(())
