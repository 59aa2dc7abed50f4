"""Merges a batch into the files of a table: rows of the batch's keys are folded, and files that hold rows which go are written again without them.

1. Choose the files that may hold a key of the batch, by the bounds in the table's log. A file without bounds may hold any.
2. Read of these what the fold needs, a row group at a time, and hold the rows with a key of the batch.
3. Fold them with the batch (`folds`): some stay, the others go, and some are added.
4. Write each file that loses rows again without them, and the added rows behind them.

Memory: the batch, the table's rows of its keys, and two row groups. Files of the table are not changed, so nothing has happened before a commit names
what this returns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final  # Any: `deltalake` and pyarrow have no types

import numpy as np
import pyarrow as pa
import pyarrow.compute as _pc

from waltz_delta.engine.folds import Fold, Folded, Keyed
from waltz_delta.engine.key_index import ABSENT, Codes, KeyIndex
from waltz_delta.engine.log_actions import RemoveFile
from waltz_delta.engine.parquet_files import FilePlan, FileWriter, remove_local
from waltz_delta.engine.row_checks import fitted
from waltz_delta.engine.stored_rows import StoredFile, row_groups
from waltz_delta.engine.stores import file_system

__all__ = ["Rewritten", "candidates", "held_rows", "rewrite"]

pc: Any = _pc

FILE_BYTES: Final = 512 << 20
"""In memory, of one written file; on disk it has a quarter or less."""

MARGIN_US: Final = 1000
"""Bounds of times in a log are whole milliseconds, rounded down."""

_NONE: Final = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Rewritten:
    """`removed`: the files that the table no longer has; `written`: rows of `parquet_files.FILE_COLUMNS`, the files that it has instead."""

    removed: Sequence[RemoveFile]
    written: Sequence[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class _Found:
    """The table's rows of the batch's keys: which file each is in, and its number there."""

    keyed: Keyed
    file: Codes
    row: Codes


def candidates(found: Any, index: KeyIndex) -> list[StoredFile]:
    """The files that may hold a key of the batch. `found`: as `living_files` describes them."""
    chosen = np.ones(found.num_rows, dtype=bool)
    for name in index.keys:
        chosen &= _may_hold(found, name, *index.bounds(name))
    paths, sizes = found.column("path").to_pylist(), found.column("size_bytes").to_pylist()
    partitions = found.column("partition") if "partition" in found.schema.names else None
    return [StoredFile(paths[at], sizes[at], {} if partitions is None else dict(partitions[at].items())) for at in np.flatnonzero(chosen)]


def _may_hold(actions: Any, key: str, least: Any, greatest: Any, has_null: bool) -> Any:
    low, high, nulls = (_bound(actions, kind, key) for kind in ("min", "max", "null_count"))
    holds_null = np.asarray(pc.fill_null(pc.not_equal(nulls, 0), True)) if nulls is not None else np.ones(actions.num_rows, dtype=bool)
    if low is None or high is None:
        in_range = np.ones(actions.num_rows, dtype=bool)
    elif not least.is_valid:
        in_range = np.zeros(actions.num_rows, dtype=bool)
    else:
        low, high, margin = low.cast(least.type), high.cast(least.type), 0
        if pa.types.is_timestamp(least.type):
            low, high, least, greatest = (value.cast(pa.int64()) for value in (low, high, least, greatest))
            margin = MARGIN_US
        reaches = pc.and_(pc.less_equal(low, greatest), pc.greater_equal(pc.add(high, margin) if margin else high, least))
        in_range = np.asarray(pc.fill_null(reaches, True))
    return in_range | (holds_null if has_null else False)


def _bound(actions: Any, kind: str, key: str) -> Any:
    """A statistic of a column; None if no file has it."""
    column = actions.column(kind).combine_chunks() if kind in actions.schema.names else None
    at = -1 if column is None else column.type.get_field_index(key)
    return None if column is None or at < 0 else pc.struct_field(column, [at])


def rewrite(plan: FilePlan, chosen: Sequence[StoredFile], fold: Fold, index: KeyIndex, batch: Any) -> Rewritten:
    """`plan`: for files with all columns of the table. `chosen`: those of `candidates`. `index`: of the keys of `batch`, which has the columns that
    the fold needs. Raises `KeyMoved`, `NotRead`, `RowRefused` and the errors of pyarrow."""
    files, root = file_system(plan.location, plan.storage)
    found = _held(files, root, chosen, index, pa.schema([plan.schema.field(name) for name in fold.reads(plan.schema)]))
    folded = fold.fold(found.keyed, Keyed(batch, index.of_batch), plan.schema)
    gone = ~folded.keep
    touched = np.unique(found.file[gone])
    removed = [chosen[at].removed() for at in touched]
    written = _Writing(plan)
    try:
        for at in touched:
            written.add_all(_remaining(files, root, chosen[at], plan.schema, found.row[gone & (found.file == at)]))
        written.add_all(_added(folded, plan))
        return Rewritten(removed, written.close())
    except BaseException:
        written.abandon()
        raise


def held_rows(plan: FilePlan, chosen: Sequence[StoredFile], index: KeyIndex) -> Keyed:
    """The table's rows with the keys of `index`. Raises `NotRead` and the errors of pyarrow."""
    files, root = file_system(plan.location, plan.storage)
    return _held(files, root, chosen, index, plan.schema).keyed


def _held(files: Any, root: str, chosen: Sequence[StoredFile], index: KeyIndex, schema: pa.Schema) -> _Found:
    parts, codes, places, rows = [schema.empty_table()], [_NONE], [_NONE], [_NONE]
    for at, stored in enumerate(chosen):
        before = 0
        for group in row_groups(files, root, stored, schema):
            of_group = index.codes(group)
            touched = np.flatnonzero(of_group != ABSENT)
            if len(touched):
                parts.append(group.take(pa.array(touched)))
                codes.append(of_group[touched])
                places.append(np.full(len(touched), at))
                rows.append(touched + before)
            before += group.num_rows
    return _Found(Keyed(pa.concat_tables(parts), np.concatenate(codes)), np.concatenate(places), np.concatenate(rows))


def _remaining(files: Any, root: str, stored: StoredFile, schema: pa.Schema, gone: Codes) -> Iterator[Any]:
    """The rows of a file without those of these numbers."""
    before = 0
    for group in row_groups(files, root, stored, schema):
        stays = np.ones(group.num_rows, dtype=bool)
        stays[gone[(gone >= before) & (gone < before + group.num_rows)] - before] = False
        before += group.num_rows
        if stays.any():
            yield group.filter(pa.array(stays))


def _added(folded: Folded, plan: FilePlan) -> Iterator[Any]:
    rows = fitted(folded.added, plan.schema, plan.required)
    if rows.num_rows:
        yield rows.sort_by([(name, "ascending") for name in plan.partition_by]) if plan.partition_by else rows


class _Writing:
    """Files of a size that the next merge can bear to write again."""

    def __init__(self, plan: FilePlan) -> None:
        self._plan = plan
        self._number = 0
        self._bytes = 0
        self._file = FileWriter(plan, 0, 0)
        self._written: list[dict[str, Any]] = []

    def add_all(self, tables: Iterator[Any]) -> None:
        for rows in tables:
            if self._bytes and self._bytes + rows.nbytes > FILE_BYTES:
                self._end_file()
            self._file.add(rows)
            self._bytes += rows.nbytes

    def close(self) -> list[dict[str, Any]]:
        self._end_file()
        return self._written

    def abandon(self) -> None:
        self._file.abandon()
        remove_local(self._plan, [row["path"] for row in self._written])

    def _end_file(self) -> None:
        self._written += self._file.close()
        self._number += 1
        self._file, self._bytes = FileWriter(self._plan, self._number, 0), 0
