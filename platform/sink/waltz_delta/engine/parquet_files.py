"""Writes the data files of a table in the tasks of a Spark job, and returns one row per file for the table's log.

No reader sees a file before a commit names it. A file has a name of its own for each attempt of a task, and Spark returns the rows of one attempt of
each task, so a task that runs again leaves a file that no commit names, which VACUUM removes.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final  # Any: pyarrow has no types

import pyarrow as pa
import pyarrow.parquet as parquet
import pyspark

from waltz_delta.base.store_errors import store_errors
from waltz_delta.engine.arrow_schema import Leaf, parquet_paths
from waltz_delta.engine.file_statistics import FileStatistics
from waltz_delta.engine.partition_values import runs
from waltz_delta.engine.row_checks import fitted
from waltz_delta.engine.stores import file_size, file_system, is_local, sync, sync_directory

__all__ = ["FILE_COLUMNS", "FilePlan", "FileWriter", "file_name", "is_own_file", "remove_local", "write_files"]

ROW_GROUP_BYTES: Final = 64 << 20
"""In memory. A task holds so much of a file, and compresses it to a quarter or less."""

FILE_COLUMNS: Final = "task INT, path STRING, size BIGINT, modified_ms BIGINT, partition_values STRING, statistics STRING"
"""The rows that `write_files` returns. `task`: number of the task within the job. `partition_values`: a JSON object."""

_OWN_NAME: Final = re.compile(r"part-\d{5,}-[0-9a-f]{32}-\d+-\d{5,}\.parquet")

RESULT: Final = pa.schema(
    [
        ("task", pa.int32()),
        ("path", pa.string()),
        ("size", pa.int64()),
        ("modified_ms", pa.int64()),
        ("partition_values", pa.string()),
        ("statistics", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class FilePlan:
    """What a task needs to know of the table. It is sent to the tasks, so it holds values only."""

    location: str
    storage: Mapping[str, str]
    schema: pa.Schema
    """The columns of the rows, partition columns included."""
    required: frozenset[str]
    partition_by: tuple[str, ...]
    indexed: tuple[Leaf, ...]
    """The columns that have statistics."""
    compression: str
    write_id: str
    """In the name of each file; a new one for each job."""


def file_name(task: int, write_id: str, attempt: int, number: int) -> str:
    """The name of a data file in the table's directory. `number`: of the file within the attempt."""
    return f"part-{task:05d}-{write_id}-{attempt}-{number:05d}.parquet"


def is_own_file(name: str) -> bool:
    """Whether `file_name` gives such names."""
    return _OWN_NAME.fullmatch(name) is not None


def write_files(plan: FilePlan, batches: Iterator[pa.RecordBatch], *, task: int, attempt: int) -> Iterator[pa.RecordBatch]:
    """Writes the rows of one task. If the table is partitioned, they come sorted by its partition columns. Raises `RowRefused`,
    `StoreUnavailable`."""
    files = FileWriter(plan, task, attempt)
    try:
        for batch in batches:
            rows = fitted(pa.Table.from_batches([batch]), plan.schema, plan.required)
            with store_errors(plan.location):
                files.add(rows)
        with store_errors(plan.location):
            written = files.close()
    except BaseException:
        files.abandon()
        raise
    if written:
        yield pa.RecordBatch.from_pylist(written, schema=RESULT)


class FileWriter:
    """The files of one attempt of a task, one open at a time: each partition value has its own. `add`: rows with the columns of the plan (`fitted`).
    `close` returns the rows of `FILE_COLUMNS`."""

    def __init__(self, plan: FilePlan, task: int, attempt: int) -> None:
        self._plan, self._task, self._attempt = plan, task, attempt
        self._files, self._root = file_system(plan.location, plan.storage)
        self._schema = pa.schema([field for field in plan.schema if field.name not in plan.partition_by])
        self._values: tuple[str | None, ...] = ()
        self._open: _OpenFile | None = None
        self._written: list[dict[str, Any]] = []
        self._begun: list[str] = []
        """The names of all files, also of one that could not be opened."""

    def add(self, rows: pa.Table) -> None:
        names = self._plan.partition_by
        for values, part in runs(rows, names) if names else [((), rows)] if rows.num_rows else []:
            if self._open is not None and values != self._values:
                self._finish(self._open)
            if self._open is None:
                name = file_name(self._task, self._plan.write_id, self._attempt, len(self._written))
                self._begun.append(name)
                self._values, self._open = values, _OpenFile(self._plan, self._schema, self._files, f"{self._root}/{name}")
            self._open.add(part.select(self._schema.names))

    def close(self) -> list[dict[str, Any]]:
        if self._open is not None:
            self._finish(self._open)
        if self._written and is_local(self._plan.location):
            sync_directory(self._root)
        return self._written

    def abandon(self) -> None:
        """Ends an attempt that failed. No commit names its files. They are removed from a disk of this machine, which may be full; in an object store
        they are left to VACUUM."""
        if self._open is not None:
            self._open.abandon()
        remove_local(self._plan, self._begun)

    def _finish(self, file: _OpenFile) -> None:
        size, statistics = file.close()
        self._open = None
        values = json.dumps(dict(zip(self._plan.partition_by, self._values, strict=True)), ensure_ascii=False)
        now_ms, name = int(time.time() * 1000), file.path.rpartition("/")[2]
        described = {"path": name, "size": size, "modified_ms": now_ms, "partition_values": values, "statistics": statistics}
        self._written.append({"task": self._task, **described})


def remove_local(plan: FilePlan, names: Iterable[str]) -> None:
    """Removes data files that no commit names, if they are on a disk of this machine."""
    if is_local(plan.location):
        for name in names:
            (Path(plan.location) / name).unlink(missing_ok=True)


CALENDAR: Final = {"org.apache.spark.version": pyspark.__version__}
"""By it Spark knows, when it reads, that days before 1582 are those of the calendar that is in use today. Without it, Spark 3 refuses them, and
other settings shift them."""


class _OpenFile:
    def __init__(self, plan: FilePlan, schema: pa.Schema, files: Any, path: str) -> None:
        self.path, self._files, self._local = path, files, is_local(plan.location)
        self._statistics = FileStatistics([leaf for leaf in plan.indexed if leaf[0] in schema.names])
        self._waiting: list[pa.Table] = []
        self._waiting_bytes = 0
        self._stream = files.open_output_stream(path)
        # A bound of floats omits NaN, which Spark sorts above every number: a filter would skip rows.
        bounded: Any = [place for place, kind in parquet_paths(schema) if not pa.types.is_floating(kind)]
        self._writer = parquet.ParquetWriter(
            self._stream, schema, compression=plan.compression, write_statistics=bounded or False, store_schema=False
        )
        self._writer.add_key_value_metadata(CALENDAR)

    def add(self, rows: pa.Table) -> None:
        self._statistics.add(rows)
        self._waiting.append(rows)
        self._waiting_bytes += rows.nbytes
        if self._waiting_bytes >= ROW_GROUP_BYTES:
            self._write_row_group()

    def close(self) -> tuple[int, str]:
        """The size of the file, and its statistics. Raises `OSError` also if the store does not have what was written: one that
        accepts the end of an upload twice leaves an empty file."""
        if self._waiting:
            self._write_row_group()
        self._writer.close()
        written = self._stream.tell()
        self._stream.close()
        if self._local:
            sync(self.path)
        size = file_size(self._files, self.path)
        if size != written:
            raise OSError(f"the store has {size} of the {written} bytes that were written to {self.path}")
        return size, self._statistics.text()

    def abandon(self) -> None:
        """Without the end of a Parquet file. What ended the attempt says more than a file that cannot be closed, such as on a full disk."""
        self._writer.is_open = False  # it would write the end when it is collected
        with suppress(OSError):
            self._stream.close()

    def _write_row_group(self) -> None:
        rows = pa.concat_tables(self._waiting)
        self._waiting, self._waiting_bytes = [], 0
        self._writer.write_table(rows, row_group_size=max(1, rows.num_rows))
