"""What pages show of a Delta table: its version, its marks, its last commits, and rows. Reads files alone, without Spark; every function blocks."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any  # pyarrow has no types

from waltz_delta.base.dataset import open_dataset
from waltz_delta.errors import NotADeltaTable
from waltz_delta.marks.marks import marks_among
from waltz_delta.marks.positions_log import NOTHING_THERE, TableLog
from waltz_delta.marks.positions_restored import current_identifiers
from waltz_delta.settings import DeadLetterSettings
from waltz_log.console.payloads import preview, visible
from waltz_log.errors import WaltzError

__all__ = [
    "NO_TABLE",
    "Commit",
    "Letter",
    "LetterPage",
    "Rows",
    "TableState",
    "last_commits",
    "letters_of_transaction",
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
LETTERS_PAGED_MAX = 100_000
"""Pages show no more dead letters than this: their places are sorted in memory."""

NO_TABLE = "there is no table yet"
"""The problem of a table that its pipeline makes with its first batch."""

LETTER_COLUMNS = ("target", "reason", "failed_at", "data", "partition", "transaction_id")
PLACED = ("partition", "transaction_id", "target")

TECHNICAL = frozenset({"partition", "transaction_id", "row", "timestamp", "header", "client_id", "generation", "sequence", "checksum", "topic"})
"""Columns that the log gives, which come after those of the business."""

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
class Letter:
    """A transaction as a dead letter. `target`: the path of the table that it was meant for, empty if no route accepts it. `replayed_at`: when a
    replay landed it; None if none did."""

    target: str
    reason: str
    replayed_at: str | None


@dataclass(frozen=True, slots=True)
class LetterPage:
    """Some of the dead letters that were not replayed. `count`: all of them; `number`: of this page, from 0; `last`: of the last page."""

    count: int
    rows: Rows
    number: int
    last: int


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
    except NotADeltaTable as error:
        return TableState(path, None, {}, NO_TABLE if error.reason == NOTHING_THERE else str(error))
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


def rows_of_transaction(path: str, keys: Sequence[str], partition: int, transaction_id: int) -> Rows | None:
    """None if the rows of the table do not say which transaction they are of, as in a merged table."""
    import pyarrow.compute as pc

    dataset = open_dataset(path)
    if not {"partition", "transaction_id"} <= set(dataset.schema.names):
        return None
    return _rows(dataset, (pc.field("partition") == partition) & (pc.field("transaction_id") == transaction_id), keys)


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
    return _rows(dataset, wanted, keys)


def newest_rows(path: str, keys: Sequence[str], marks: Mapping[int, int]) -> Rows:
    """Some of the newest rows, or any if they do not say which transaction they are of."""
    import pyarrow.compute as pc

    dataset = open_dataset(path)
    if not {"partition", "transaction_id"} <= set(dataset.schema.names) or not marks:
        return _rows(dataset, None, keys)
    each_max = max(1, ROWS_MAX // len(marks))
    wanted: Any = pc.scalar(False)
    for partition, mark in sorted(marks.items()):
        wanted = wanted | ((pc.field("partition") == partition) & (pc.field("transaction_id") > mark - each_max))
    return _rows(dataset, wanted, keys)


def waiting_letters(letters: DeadLetterSettings, number: int = 0) -> LetterPage:
    """A page of the dead letters that were not replayed, by their place in the log. Without a table there is none."""
    import pyarrow.compute as pc
    from deltalake.exceptions import TableNotFoundError

    try:
        dataset = open_dataset(letters.table, storage_options=letters.storage)
    except TableNotFoundError:
        return LetterPage(0, Rows((), (), ()), 0, 0)
    wanted = pc.field("replayed_at").is_null()
    count = dataset.count_rows(filter=wanted)
    places = sorted(tuple(row.values()) for row in dataset.head(LETTERS_PAGED_MAX, filter=wanted, columns=list(PLACED)).to_pylist())
    last = max(0, (len(places) - 1) // ROWS_MAX)
    number = min(number, last)
    shown = places[number * ROWS_MAX : (number + 1) * ROWS_MAX]
    here: Any = pc.scalar(False)
    for partition, transaction_id, target in shown:
        here = here | ((pc.field("partition") == partition) & (pc.field("transaction_id") == transaction_id) & (pc.field("target") == target))
    columns = [name for name in LETTER_COLUMNS if name in dataset.schema.names]
    found = dataset.to_table(filter=wanted & here, columns=columns).to_pylist()[:ROWS_MAX] if shown else []
    found.sort(key=lambda row: tuple(row[name] for name in PLACED))
    return LetterPage(count, _as_rows(found, columns), number, last)


def letters_of_transaction(letters: DeadLetterSettings, cluster_key: str, partition: int, transaction_id: int) -> list[Letter]:
    """The transaction as a dead letter, once for each table that it was meant for."""
    import pyarrow.compute as pc
    from deltalake.exceptions import TableNotFoundError

    try:
        dataset = open_dataset(letters.table, storage_options=letters.storage)
    except TableNotFoundError:
        return []
    wanted = (pc.field("partition") == partition) & (pc.field("transaction_id") == transaction_id)
    if "cluster" in dataset.schema.names:
        wanted = wanted & (pc.field("cluster") == cluster_key)
    rows = dataset.head(ROWS_MAX, filter=wanted, columns=["target", "reason", "replayed_at"]).to_pylist()
    return [Letter(str(row["target"]), _cell(row["reason"]), None if row["replayed_at"] is None else _cell(row["replayed_at"])) for row in rows]


def withheld(rows: Rows, columns: Sequence[str], hides: Callable[[int], bool]) -> Rows:
    """The rows, without the values of the columns where the caller may not see payloads of the row's partition. A row without a place has none."""
    hidden = {at for at, name in enumerate(rows.columns) if name in columns}
    judged = {place[0]: hides(place[0]) for place in rows.places if place is not None}
    return replace(
        rows,
        values=tuple(
            tuple(WITHHELD if at in hidden else value for at, value in enumerate(row)) if place is None or judged[place[0]] else row
            for row, place in zip(rows.values, rows.places, strict=True)
        ),
    )


def _rows(dataset: Any, wanted: Any, keys: Sequence[str]) -> Rows:
    """Key columns first, then those of the business, then those that the log gives."""
    names = sorted(dataset.schema.names, key=lambda name: (name not in keys, name in TECHNICAL or name.startswith("_waltz")))
    return _as_rows(dataset.head(ROWS_MAX, filter=wanted, columns=names).to_pylist(), names)


def _as_rows(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Rows:
    placed = {"partition", "transaction_id"} <= set(names)
    return Rows(
        tuple(names),
        tuple(tuple(_cell(row[name]) for name in names) for row in rows),
        tuple((row["partition"], row["transaction_id"]) if placed and row["transaction_id"] is not None else None for row in rows),
    )


def _cell(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bytes):
        return preview(value, CELL_MAX)
    text = str(value)
    return visible(text if len(text) <= CELL_MAX else text[: CELL_MAX - 1] + "…")
