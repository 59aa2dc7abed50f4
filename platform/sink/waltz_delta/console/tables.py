"""What pages show of a Delta table: its version, its marks, its last commits, and rows. Reads files alone, without Spark; every function blocks."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any  # pyarrow has no types

from waltz_delta.base.dataset import open_dataset
from waltz_delta.errors import NotADeltaTable
from waltz_delta.marks.marks import marks_among
from waltz_delta.marks.positions_log import TableLog
from waltz_delta.marks.positions_restored import current_identifiers
from waltz_log.console.payloads import visible
from waltz_log.errors import WaltzError

__all__ = [
    "Commit",
    "Rows",
    "TableState",
    "last_commits",
    "newest_rows",
    "read_state",
    "rows_of_key",
    "rows_of_transaction",
    "waiting_letters",
    "withheld",
]

ROWS_MAX = 20
CELL_MAX = 300
"""Characters of one value."""
WITHHELD = "hidden, like the payloads of its topic"


@dataclass(frozen=True, slots=True)
class TableState:
    """`marks`: by log partition. `problem`: why the table cannot be read."""

    path: str
    version: int | None
    marks: Mapping[int, int]
    problem: str | None


@dataclass(frozen=True, slots=True)
class Commit:
    """`rows`: written by it; None if it does not say."""

    version: int
    time_ms: int | None
    operation: str
    rows: int | None


@dataclass(frozen=True, slots=True)
class Rows:
    """`places`: the partition and the transaction of each row, None if the table does not say."""

    columns: tuple[str, ...]
    values: tuple[tuple[str, ...], ...]
    places: tuple[tuple[int, int] | None, ...]


def read_state(path: str, cluster_key: str) -> TableState:
    try:
        log = TableLog(path)
        return TableState(path, log.version, marks_among(current_identifiers(log), cluster_key), None)
    except NotADeltaTable:
        return TableState(path, None, {}, "there is no table yet")
    except (WaltzError, OSError, ValueError) as error:
        return TableState(path, None, {}, str(error))


def last_commits(path: str, count: int) -> list[Commit]:
    """The newest first."""
    from deltalake import DeltaTable

    found = []
    for each in DeltaTable(path).history(count):
        metrics = each.get("operationMetrics") or {}
        rows = metrics.get("numOutputRows") or metrics.get("num_added_rows")
        time_ms = each.get("timestamp")
        found.append(Commit(int(each.get("version", -1)), time_ms, str(each.get("operation", "")), None if rows is None else int(rows)))
    return found


def rows_of_transaction(path: str, partition: int, transaction_id: int) -> Rows | None:
    """None if the rows of the table do not say which transaction they are of, as in a merged table."""
    import pyarrow.compute as pc

    dataset = open_dataset(path)
    if not {"partition", "transaction_id"} <= set(dataset.schema.names):
        return None
    return _rows(dataset, (pc.field("partition") == partition) & (pc.field("transaction_id") == transaction_id))


def rows_of_key(path: str, keys: Sequence[str], data: bytes) -> Rows | None:
    """The rows that have the key of a payload in JSON; None if the payload does not show it."""
    import pyarrow.compute as pc

    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not keys or not isinstance(value, dict) or not all(isinstance(value.get(key), str | int) for key in keys):
        return None
    dataset = open_dataset(path)
    if not set(keys) <= set(dataset.schema.names):
        return None
    wanted: Any = pc.scalar(True)
    for key in keys:
        wanted = wanted & (pc.field(key) == value[key])
    return _rows(dataset, wanted)


def newest_rows(path: str, marks: Mapping[int, int]) -> Rows:
    """Some of the newest rows, or any if they do not say which transaction they are of."""
    import pyarrow.compute as pc

    dataset = open_dataset(path)
    if not {"partition", "transaction_id"} <= set(dataset.schema.names) or not marks:
        return _rows(dataset, None)
    each_max = max(1, ROWS_MAX // len(marks))
    wanted: Any = pc.scalar(False)
    for partition, mark in sorted(marks.items()):
        wanted = wanted | ((pc.field("partition") == partition) & (pc.field("transaction_id") > mark - each_max))
    return _rows(dataset, wanted)


def waiting_letters(path: str) -> tuple[int, Rows]:
    """How many dead letters were not replayed, and some of them. Without their data, which the page of the transaction shows."""
    import pyarrow.compute as pc

    dataset = open_dataset(path)
    wanted = pc.field("replayed_at").is_null()
    columns = ["partition", "transaction_id", "target", "reason", "failed_at"]
    return dataset.count_rows(filter=wanted), _rows(dataset, wanted, columns)


def withheld(rows: Rows, column: str, hides: Callable[[int], bool]) -> Rows:
    """The rows, without the values of the column where the caller may not see payloads of the row's partition."""
    at = rows.columns.index(column)
    judged = {place[0]: hides(place[0]) for place in rows.places if place is not None}
    return replace(
        rows,
        values=tuple(
            (*row[:at], WITHHELD, *row[at + 1 :]) if place is None or judged[place[0]] else row
            for row, place in zip(rows.values, rows.places, strict=True)
        ),
    )


def _rows(dataset: Any, wanted: Any, columns: list[str] | None = None) -> Rows:
    table = dataset.head(ROWS_MAX, filter=wanted, columns=columns)
    names = tuple(table.schema.names)
    rows = table.to_pylist()
    placed = {"partition", "transaction_id"} <= set(names)
    return Rows(
        names,
        tuple(tuple(_cell(row[name]) for name in names) for row in rows),
        tuple((row["partition"], row["transaction_id"]) if placed and row["transaction_id"] is not None else None for row in rows),
    )


def _cell(value: Any) -> str:
    if value is None:
        return "null"
    text = value.hex(" ") if isinstance(value, bytes) else str(value)
    return visible(text if len(text) <= CELL_MAX else text[: CELL_MAX - 1] + "…")
