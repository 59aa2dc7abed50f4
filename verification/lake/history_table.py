"""A history that the Arrow engine writes, without Spark: transaction n begins or ends a version of one key, as in `merge_table`."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
from deltalake import write_deltalake

from verification.lake.log_table import MARK, METADATA
from verification.lake.merge_table import SCHEMA, changes
from waltz_delta.engine.arrow_merge import ArrowMerge
from waltz_delta.engine.arrow_transaction import ArrowTransaction
from waltz_delta.engine.folds import DELETES
from waltz_delta.engine.versions import Ranges, Versions

__all__ = ["create", "merge", "rows_of", "versions_at"]

RANGES = Ranges("since", "until", "now")
HISTORY = pa.schema([*SCHEMA, ("since", pa.int64()), ("until", pa.int64()), ("now", pa.bool_())])

Version = tuple[str, int, int, bool]
"""Key, begin, end (-1 for none), and whether it is the current one."""


def create(location: str, storage: Mapping[str, str]) -> None:
    write_deltalake(location, HISTORY.empty_table(), storage_options=dict(storage) or None)


def merge(transaction: ArrowTransaction, first: int, end: int) -> int:
    """Merges the transactions from `first` to before `end`."""
    merge = ArrowMerge(changes(first, end), Versions("history", ["key"], "transaction_id", SCHEMA.names, RANGES))
    return transaction.merge(merge, {MARK: end - 1}, query="waltz", batch=-1, metadata=METADATA)


def rows_of(table: pa.Table) -> list[Version]:
    found = table.select(["key", "since", "until", "now"]).to_pylist()
    return sorted((row["key"], row["since"], -1 if row["until"] is None else row["until"], row["now"]) for row in found)


def versions_at(mark: int) -> list[Version]:
    """The rows that the table must hold when this is its mark, in order."""
    open_since, found = dict[str, int](), list[Version]()
    for event in changes(0, mark + 1).to_pylist():
        key, at = event["key"], event["transaction_id"]
        since = open_since.pop(key, None)
        if since is not None:
            found.append((key, since, at, False))
        if not event[DELETES]:
            open_since[key] = at
        elif since is None:
            found.append((key, at, at, False))  # keeps an older row that arrives later from becoming the current one
    return sorted([*found, *((key, since, -1, True) for key, since in open_since.items())])
