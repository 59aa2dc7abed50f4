"""Writes rows as data files of a table, by a job of Spark, and returns them as entries for the table's log."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any  # `deltalake` and pyarrow have no types

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from pyspark_waltz.worker_heap import task_begins
from waltz_delta.base.direct_rows import DirectRows, MakeRows, Undecoded, direct_columns
from waltz_delta.base.quoting import quoted
from waltz_delta.base.store_errors import store_failure_in
from waltz_delta.engine.allowed import COMPRESSION, COMPRESSIONS, TableShape
from waltz_delta.engine.arrow_schema import arrow_schema
from waltz_delta.engine.arrow_table import ArrowTable
from waltz_delta.engine.file_statistics import indexed_leaves
from waltz_delta.engine.log_actions import AddFile
from waltz_delta.engine.parquet_files import FILE_COLUMNS, RESULT, FilePlan, write_files
from waltz_delta.engine.row_checks import REFUSED
from waltz_delta.errors import SchemaMismatch, StoreUnavailable
from waltz_delta.marks.batch import undecodable_in

__all__ = ["WrittenFiles", "added_file", "compression_of", "delta_schema", "file_plan", "listed", "table_columns", "write_direct", "write_rows"]

SESSION_COMPRESSION = "spark.sql.parquet.compression.codec"


@dataclass(frozen=True, slots=True)
class WrittenFiles:
    """`shape`: of the table that the files were written for."""

    added: tuple[AddFile, ...]
    shape: TableShape


def delta_schema(schema: StructType) -> Mapping[str, Any]:
    """The columns of a new table for rows of this schema. As Delta does it, none is NOT NULL."""
    found: Mapping[str, Any] = json.loads(schema.toNullable().json())
    return found


def write_rows(rows: DataFrame, table: ArrowTable, shape: TableShape) -> WrittenFiles:
    """Runs the job. Raises `SchemaMismatch` if a row does not fit the table, and `StoreUnavailable`."""
    held = StructType.fromJson(dict(shape.schema))
    typed = rows.select(*table_columns(rows.schema, held))
    plan = file_plan(table, shape, typed.columns, compression_of(rows.sparkSession, shape.properties))
    if plan.partition_by:
        typed = typed.sortWithinPartitions(*map(quoted, plan.partition_by))
    # Spark searches each column by its name, and does not find one with a backtick
    numbered = typed.toDF(*map(str, range(len(typed.columns))))
    return listed(_run(numbered, partial(_run_task, plan), table), shape)


def write_direct(rows: DirectRows, table: ArrowTable, shape: TableShape) -> WrittenFiles:
    """`write_rows` of rows that the tasks make; `direct_columns` has accepted them, and the table is not partitioned. Sets their `undecoded`."""
    placed = direct_columns(rows.schema, StructType.fromJson(dict(shape.schema)))
    assert placed is not None, "such rows are converted by Spark"
    assert not shape.partition_by, "such rows are sorted by Spark"
    plan = file_plan(table, shape, [name for name, _ in placed], compression_of(rows.frame.sparkSession, shape.properties))
    found = _run(rows.frame, partial(_run_direct_task, plan, rows.make, tuple(number for _, number in placed)), table)
    rows.undecoded = sum(row.size for row in found if row.path is None)
    return listed([row for row in found if row.path is not None], shape)


def _run(frame: DataFrame, task: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], table: ArrowTable) -> list[Any]:
    """The rows that the tasks return."""
    try:
        return frame.mapInArrow(task, FILE_COLUMNS).collect()
    except Exception as error:
        if undecodable_in(str(error)) is not None:
            raise
        if REFUSED in str(error):
            column, _, reason = str(error).split(REFUSED)[1].split("\n")[0].partition(": ")
            raise SchemaMismatch(path=table.path, column=column, reason=reason) from None
        if (failure := store_failure_in(str(error))) is not None:
            raise StoreUnavailable(path=table.path, reason=failure) from None
        raise


def file_plan(table: ArrowTable, shape: TableShape, columns: Sequence[str], compression: str) -> FilePlan:
    """For files of the table with these of its columns."""
    every = arrow_schema(shape.schema)
    return FilePlan(
        location=table.location,
        storage=table.storage,
        schema=pa.schema([every.field(name) for name in columns]),
        required=frozenset(field["name"] for field in shape.schema["fields"] if not field["nullable"]),
        partition_by=tuple(shape.partition_by),
        indexed=tuple(indexed_leaves(every, shape.properties)),
        compression=compression,
        write_id=uuid.uuid4().hex,
    )


def listed(files: Sequence[Any], shape: TableShape) -> WrittenFiles:
    """`files`: the rows of all tasks."""
    if len({row.path for row in files}) < len(files):  # readers would find its rows twice
        raise AssertionError(f"a file is listed twice, so its rows would be there twice: {sorted(row.path for row in files)}")
    return WrittenFiles(tuple(added_file(row.asDict()) for row in sorted(files)), shape)


def _run_task(plan: FilePlan, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    task_begins()
    named = (batch.rename_columns(plan.schema.names) for batch in batches)
    return write_files(plan, named, **_this_task())


def _run_direct_task(plan: FilePlan, make: MakeRows, places: Sequence[int], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """`places`: in the made rows, of the plan's columns. A last row without a path says as its size how many transactions did not decode."""
    task_begins()
    undecoded, this = Undecoded(), _this_task()
    rows = (pa.RecordBatch.from_arrays([batch.column(at) for at in places], names=plan.schema.names) for batch in make(batches, undecoded))
    yield from write_files(plan, rows, **this)
    if undecoded.count:
        yield pa.RecordBatch.from_pylist([{"task": this["task"], "size": undecoded.count}], schema=RESULT)


def _this_task() -> dict[str, int]:
    """The numbers of the task and of the attempt that runs here."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None, "runs in a task of Spark"
    return {"task": context.partitionId(), "attempt": context.taskAttemptId()}


def added_file(row: Mapping[str, Any]) -> AddFile:
    """`row`: as `parquet_files.FILE_COLUMNS`."""
    return AddFile(row["path"], row["size"], json.loads(row["partition_values"]), row["modified_ms"], row["statistics"])


def table_columns(given: StructType, held: StructType) -> Iterator[Column]:
    """The rows' columns in the table's order, by the table's names and, where the names of inner fields differ, types."""
    there = {field.name.lower(): field for field in given.fields}
    for field in held.fields:
        own = there.get(field.name.lower())
        if own is not None:
            column = f.col(quoted(own.name))
            if own.dataType.simpleString() != field.dataType.simpleString():
                column = column.cast(field.dataType)
            yield column.alias(field.name)


def compression_of(spark: SparkSession, properties: Mapping[str, str]) -> str:
    """The codec of a table's files, by pyarrow's name."""
    given = {name.lower(): value for name, value in properties.items()}
    wanted = given.get(COMPRESSION) or str(spark.conf.get(SESSION_COMPRESSION))
    return COMPRESSIONS.get(wanted.lower(), "snappy")
