"""A table of the Arrow engine without Spark: the row of id n belongs to transaction n. Files are written as a task writes them, and committed as the
driver commits them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as parquet
from deltalake import DeltaTable

from waltz_delta.engine.allowed import TableShape
from waltz_delta.engine.arrow_table import ArrowTable
from waltz_delta.engine.arrow_transaction import ArrowTransaction
from waltz_delta.engine.file_statistics import indexed_leaves
from waltz_delta.engine.log_actions import AddFile
from waltz_delta.engine.parquet_files import FilePlan, write_files
from waltz_delta.engine.stores import file_system
from waltz_delta.engine.written_files import WrittenFiles

__all__ = ["MARK", "METADATA", "SHAPE", "append", "begin", "commit", "files", "held_rows", "opened"]

MARK = "waltz:key:0"
METADATA = json.dumps({"waltz": {"cluster": "key"}})
SHAPE = TableShape(
    {"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]},
    (),
    {"delta.checkpointInterval": "100"},
)


def opened(location: str, storage: Mapping[str, str] | None = None) -> ArrowTable:
    """As the engine opens it, without a lock of the operating system."""
    table = ArrowTable(location, location, storage or {}, nullcontext)
    table.reserve()
    return table


def begin(table: ArrowTable, sleep: Callable[[float], object] = lambda seconds: None) -> ArrowTransaction:
    """A transaction that has read the mark, as each append does."""
    transaction = ArrowTransaction(table, sleep=sleep)
    transaction.version(MARK)
    return transaction


def files(table: ArrowTable, first: int, end: int) -> WrittenFiles:
    """One file with the rows from `first` to before `end`."""
    schema = pa.schema([("id", pa.int64())])
    plan = FilePlan(table.location, table.storage, schema, frozenset(), (), tuple(indexed_leaves(schema, {})), "snappy", uuid4().hex)
    rows = pa.table({"id": pa.array(range(first, end), pa.int64())})
    found = [row for batch in write_files(plan, iter(rows.to_batches()), task=0, attempt=0) for row in batch.to_pylist()]
    return WrittenFiles(tuple(AddFile(row["path"], row["size"], {}, row["modified_ms"], row["statistics"]) for row in found), SHAPE)


def held_rows(location: str, storage: Mapping[str, str]) -> pa.Table:
    """All rows of a table that this engine writes. The reader of `deltalake` leaves threads that may end the process with SIGABRT when it exits."""
    files, root = file_system(location, storage)
    names = [uri.rpartition("/")[2] for uri in DeltaTable(location, storage_options=dict(storage) or None).file_uris()]
    found = []
    for name in names:
        with files.open_input_file(f"{root}/{name}") as file:
            found.append(parquet.ParquetFile(file).read())
    return pa.concat_tables(found)


def commit(transaction: ArrowTransaction, written: WrittenFiles | None, mark: int) -> int:
    return transaction.commit(written, {MARK: mark}, query="waltz", batch=-1, metadata=METADATA)


def append(table: ArrowTable, first: int, end: int) -> int:
    return commit(begin(table), files(table, first, end), end - 1)
