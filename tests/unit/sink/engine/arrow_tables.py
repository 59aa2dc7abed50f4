"""Tables of the Arrow engine without Spark: files written as a task writes them, committed as the driver commits them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.transaction import AddAction

from waltz_delta.engine.allowed import TableShape
from waltz_delta.engine.arrow_table import ArrowTable
from waltz_delta.engine.arrow_transaction import ArrowTransaction
from waltz_delta.engine.file_statistics import indexed_leaves
from waltz_delta.engine.parquet_files import FilePlan, write_files
from waltz_delta.engine.written_files import WrittenFiles

MARK = "waltz:key:0"
SHAPE = TableShape(
    {"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]},
    (),
    {"delta.checkpointInterval": "100", "waltz.mode": "append"},
)
METADATA = json.dumps({"waltz": {"cluster": "key"}})


def opened(path: Path | str, storage: Mapping[str, str] | None = None) -> ArrowTable:
    """As the engine opens it, without a lock of the operating system."""
    table = ArrowTable(str(path), str(path), storage or {}, nullcontext)
    table.reserve()
    return table


def begin(table: ArrowTable) -> ArrowTransaction:
    """A transaction that has read the mark, as each append does."""
    transaction = ArrowTransaction(table, sleep=lambda seconds: None)
    transaction.version(MARK)
    return transaction


_writes = iter(range(1 << 30))


def files(table: ArrowTable, first: int, end: int) -> WrittenFiles:
    """One file with the rows of these ids."""
    schema = pa.schema([("id", pa.int64())])
    plan = FilePlan(table.location, table.storage, schema, frozenset(), (), tuple(indexed_leaves(schema, {})), "snappy", f"{next(_writes):032x}")
    rows = pa.table({"id": pa.array(range(first, end), pa.int64())})
    found = [row for batch in write_files(plan, iter(rows.to_batches()), task=0, attempt=0) for row in batch.to_pylist()]
    return WrittenFiles(tuple(AddAction(row["path"], row["size"], {}, row["modified_ms"], True, row["statistics"]) for row in found), SHAPE)


def commit(transaction: ArrowTransaction, written: WrittenFiles | None, mark: int) -> int:
    return transaction.commit(written, {MARK: mark}, query="waltz", batch=-1, metadata=METADATA)


def append(table: ArrowTable, first: int, end: int) -> int:
    return commit(begin(table), files(table, first, end), end - 1)


def held(path: Path | str, storage: Mapping[str, str] | None = None) -> list[int]:
    """The ids in the table, as another reader finds them."""
    rows = DeltaTable(str(path), storage_options=dict(storage or {})).to_pyarrow_table()
    return sorted(rows["id"].to_pylist())


@contextmanager
def handle_call(monkeypatch: Any, name: str, replaced: Any) -> Iterator[None]:
    """Replaces a method of `DeltaTable` for a while: `replaced(original, table, *arguments, **named)`."""
    original = getattr(DeltaTable, name)
    with monkeypatch.context() as patched:
        patched.setattr(DeltaTable, name, lambda table, *given, **named: replaced(original, table, *given, **named))
        yield
