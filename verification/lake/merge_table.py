"""A table that the Arrow engine merges into, without Spark: transaction n writes or deletes the row of one key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any  # `deltalake` and pyarrow have no types

import pyarrow as pa
from deltalake import write_deltalake

from verification.lake.log_table import MARK, METADATA
from waltz_delta.engine.arrow_merge import ArrowMerge
from waltz_delta.engine.arrow_transaction import ArrowTransaction
from waltz_delta.engine.folds import DELETES
from waltz_delta.engine.newest import Newest

__all__ = ["changes", "create", "merge", "rows_at"]

SCHEMA = pa.schema([("partition", pa.int32()), ("transaction_id", pa.int64()), ("key", pa.string())])
KEYS, DELETES_EVERY = 5, 4
"""Coprime, so that each key is deleted at times and comes back."""


def create(location: str, storage: Mapping[str, str]) -> None:
    write_deltalake(location, SCHEMA.empty_table(), storage_options=dict(storage) or None)


def changes(first: int, end: int) -> Any:
    """The rows of a batch."""
    made = [{"partition": 0, "transaction_id": n, "key": _key(n), DELETES: _deletes(n)} for n in range(first, end)]
    return pa.Table.from_pylist(made, schema=SCHEMA.append(pa.field(DELETES, pa.bool_())))


def merge(transaction: ArrowTransaction, source: Any, mark: int) -> int:
    merge = ArrowMerge(source, Newest("race", ["key"], "transaction_id", SCHEMA.names))
    return transaction.merge(merge, {MARK: mark}, query="waltz", batch=-1, metadata=METADATA)


def rows_at(mark: int) -> list[int]:
    """The transactions whose rows the table must hold when this is its mark, in order."""
    newest = {_key(n): n for n in range(mark + 1)}
    return sorted(n for n in newest.values() if not _deletes(n))


def _key(transaction_id: int) -> str:
    return f"key {transaction_id % KEYS}"


def _deletes(transaction_id: int) -> bool:
    return transaction_id % DELETES_EVERY == DELETES_EVERY - 1
