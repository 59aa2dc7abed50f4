"""The rows of one version of a table as a DataFrame, without Delta in Spark: tasks read the files that the version names, with pyarrow.

The list of files is fixed when the DataFrame is made, so each run of its plan gives the same rows, whatever is committed meanwhile. A task holds one
row group of the columns that are read (`parquet_files.ROW_GROUP_BYTES` in files of this engine), and a batch of `BATCH_BYTES`.

For tables that `allowed` accepts: without column mapping and deletion vectors, a file holds the rows as the table shows them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final  # Any: pyarrow has no types

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType

from pyspark_waltz.worker_heap import task_begins
from waltz_delta.base.store_errors import store_errors
from waltz_delta.engine.arrow_schema import arrow_schema
from waltz_delta.engine.arrow_table import ArrowTable, OpenedTable
from waltz_delta.engine.stored_rows import StoredFile, row_groups
from waltz_delta.engine.stores import file_system

__all__ = ["read_rows"]

BATCH_BYTES: Final = 16 << 20
BATCH_ROWS_MAX: Final = 65_536

_FILES: Final = "path STRING, partition_values STRING"


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """What a task needs to know of the table. `columns`: by the names of the table, in the order of `schema`, which has the names that were
    asked for."""

    location: str
    storage: Mapping[str, str]
    columns: tuple[str, ...]
    schema: pa.Schema


def read_rows(spark: SparkSession, table: ArrowTable, opened: OpenedTable, columns: Sequence[str]) -> DataFrame:
    """These columns of all rows of the version that `opened` shows. Names are found without regard to case, and none
    may contain a dot."""
    held = {field.name.lower(): field for field in StructType.fromJson(dict(opened.shape.schema)).fields}
    found = [held[name.lower()] for name in columns]
    every = arrow_schema(opened.shape.schema)
    schema = pa.schema([pa.field(name, every.field(field.name).type) for name, field in zip(columns, found, strict=True)])
    plan = ReadPlan(table.location, table.storage, tuple(field.name for field in found), schema)
    partition_by = [name for name in opened.shape.partition_by if name in plan.columns]
    files = spark.createDataFrame(list(_files(opened, partition_by)), _FILES)
    result = StructType([StructField(name, field.dataType) for name, field in zip(columns, found, strict=True)])
    return files.mapInArrow(partial(_run_task, plan), result)


def _files(opened: OpenedTable, partition_by: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The path of each file, and the texts of its values of these partition columns as a JSON object."""
    actions = pa.table(opened.delta_table.get_add_actions(flatten=True))
    values = [actions[f"partition.{name}"].cast(pa.string()).to_pylist() for name in partition_by]
    for place, path in enumerate(actions["path"].to_pylist()):
        yield path, json.dumps({name: texts[place] for name, texts in zip(partition_by, values, strict=True)})


def _run_task(plan: ReadPlan, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    task_begins()
    files, root = file_system(plan.location, plan.storage)
    for batch in batches:
        for file in batch.to_pylist():
            yield from _rows_of_file(plan, files, root, file)


def _rows_of_file(plan: ReadPlan, files: Any, root: str, file: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
    held = pa.schema([pa.field(name, kind) for name, kind in zip(plan.columns, plan.schema.types, strict=True)])
    values = {name: pa.scalar(text, pa.string()) for name, text in json.loads(file["partition_values"]).items()}
    groups = row_groups(files, root, StoredFile(file["path"], 0, values), held)
    while True:
        with store_errors(plan.location):
            rows = next(groups, None)
        if rows is None:
            return
        row_bytes = max(1, rows.nbytes // max(1, rows.num_rows))
        named = rows.rename_columns(plan.schema.names)
        yield from named.to_batches(max_chunksize=max(1, min(BATCH_ROWS_MAX, BATCH_BYTES // row_bytes)))
