"""Rewrites small files of a table as larger ones, in the driver, without Spark. No row changes, and no reader is disturbed.

A commit of a compaction removes files and adds the ones that have their rows, with `dataChange` false. It is a compare-and-set like every commit, so
it is safe beside any writer, without a lock: each removed file must still be there, and appends in between change nothing. Each such commit raises
the identifier `COMPACTION` by one. So of two compactions that were planned from one version one commits, and the other plans again.

Files are read in parts of a row group, so memory does not follow the size of the table. What another writer wrote in a form that this engine would
not write, such as other types or another calendar, is left as it is.

Never compact such a table by `deltalake` at the same time: its compaction does not see this one, and doubles rows.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final  # Any: pyarrow has no types
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as parquet

from waltz_delta.base.store_errors import sentence, store_errors
from waltz_delta.engine.allowed import COMPRESSION, COMPRESSIONS, TableShape
from waltz_delta.engine.arrow_schema import arrow_schema
from waltz_delta.engine.arrow_table import ArrowTable, engine_kept
from waltz_delta.engine.arrow_transaction import ArrowTransaction, Overtaken
from waltz_delta.engine.compaction_plan import Bin, bins, target_bytes
from waltz_delta.engine.log_actions import AddFile, Change, RemoveFile, is_removable
from waltz_delta.engine.parquet_files import write_files
from waltz_delta.engine.row_checks import RowRefused, fitted
from waltz_delta.engine.stored_rows import JULIAN
from waltz_delta.engine.stores import file_system
from waltz_delta.engine.written_files import file_plan
from waltz_delta.errors import StoreUnavailable
from waltz_log.loggers import get_logger

__all__ = ["COMPACTION", "Compacted", "compact"]

log = get_logger(__name__)

COMPACTION: Final = "waltz:compaction"
"""The identifier that counts compactions of a table. It is no mark: those end with a partition."""
ATTEMPTS: Final = 8
"""How often a plan may be lost to another commit."""
COMMIT_BYTES: Final = 1 << 30
"""The size of the files that one commit removes. A conflict costs no more than their rewrite."""
BATCH_BYTES: Final = 16 << 20
"""The size of the rows that are read at once, as the file has them without compression."""
BATCH_ROWS_MAX: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Compacted:
    """`removed`, `added`: files. `left`: small files that were left as they are, because this engine would not write them so."""

    removed: int = 0
    added: int = 0
    left: int = 0


def compact(table: ArrowTable, small_bytes: int) -> Compacted:
    """Rewrites the files below `small_bytes`. Raises `StoreUnavailable`, also if other commits come first each time, `UnsafeTable`, and what a commit
    raises."""
    with engine_kept(table.path):
        return _compact(table, small_bytes)


def _compact(table: ArrowTable, small_bytes: int) -> Compacted:
    done = Compacted()
    planned: list[Bin] | None = None
    lost = 0
    while planned is None or planned:
        transaction = ArrowTransaction(table)
        if planned is None:
            planned = _planned(table, small_bytes)
            continue
        group, planned = _first(planned)
        try:
            with store_errors(table.path):
                done = _rewrite(table, transaction, group, done)
        except Overtaken:
            lost += 1
            if lost == ATTEMPTS:
                reason = f"other commits came before each of {ATTEMPTS} compactions, such as those of another job that compacts it"
                raise StoreUnavailable(path=table.path, reason=reason) from None
            log.info("compaction planned again", table=table.path, reason="another commit came first")
            planned = None
    return done


def _planned(table: ArrowTable, small_bytes: int) -> list[Bin]:
    opened = table.open()
    return [] if opened is None else bins(opened.living_files(), small_bytes, target_bytes(opened.shape.properties))


def _first(planned: Sequence[Bin]) -> tuple[list[Bin], list[Bin]]:
    """The bins of the next commit, and the rest."""
    count, size = 0, 0
    for each in planned:
        if count and size + each.bytes > COMMIT_BYTES:
            break
        count, size = count + 1, size + each.bytes
    return list(planned[:count]), list(planned[count:])


def _rewrite(table: ArrowTable, transaction: ArrowTransaction, group: Sequence[Bin], done: Compacted) -> Compacted:
    """Raises `Overtaken`."""
    shape, found = transaction.shape, transaction.version(COMPACTION)
    if shape is None or transaction.refusal is not None:
        raise Overtaken
    opened = table.open()
    if opened is None or not {file.path for each in group for file in each.files} <= set(opened.living_files()["path"].to_pylist()):
        raise Overtaken  # before it is rewritten for nothing
    added, removed, left = list[AddFile](), list[RemoveFile](), 0
    for each in group:
        usable = _usable(table, shape, each)
        left += len(each.files) - len(usable.files)
        if len(usable.files) > 1:
            added += _written(table, shape, usable)
            removed += usable.files
    if removed:
        change = Change(added, removed, data_change=False)
        transaction.rewrite(change, {COMPACTION: (found or 0) + 1}, query="waltz maintain", batch=-1, metadata="{}")
        log.info("files compacted", table=table.path, removed=len(removed), added=len(added))
    return Compacted(done.removed + len(removed), done.added + len(added), done.left + left)


def _usable(table: ArrowTable, shape: TableShape, given: Bin) -> Bin:
    """The bin without files that this engine would not write so. Raises `Overtaken` if a file is gone."""
    held = []
    for file, rows in zip(given.files, given.rows, strict=True):
        if is_removable(file.path):
            with _opened(table, file.path) as source:
                reason = _refusal(source, shape, rows)
        else:
            reason = "deltalake escapes its path otherwise than the table's log"
        if reason is None:
            held.append((file, rows))
        else:
            log.warning("file not compacted", table=table.path, file=file.path, reason=reason)
    return replace(given, files=tuple(file for file, _ in held), rows=tuple(rows for _, rows in held))


def _refusal(source: parquet.ParquetFile, shape: TableShape, rows: int | None) -> str | None:
    footer, schema = source.metadata, _file_schema(shape)
    if rows is not None and rows != footer.num_rows:
        return f"it has {footer.num_rows} rows, and the table's log says {rows}"
    if JULIAN & set(footer.metadata or {}):
        return "its days and times are by an old calendar"
    try:
        fitted(_as_schema(source.schema_arrow.empty_table(), schema, shape.partition_by), schema, ())
    except RowRefused as error:
        return sentence(error)
    return None


def _written(table: ArrowTable, shape: TableShape, given: Bin) -> list[AddFile]:
    """One file with the rows of the bin; none if it has no rows."""
    schema = _file_schema(shape)
    properties = {name.lower(): value for name, value in shape.properties.items()}
    compression = COMPRESSIONS.get(properties.get(COMPRESSION, "").lower(), "snappy")
    plan = replace(file_plan(table, shape, schema.names, compression), partition_by=())
    counted = [0]
    found = [row for batch in write_files(plan, _rows(table, shape, given, counted), task=0, attempt=0) for row in batch.to_pylist()]
    added = [AddFile(row["path"], row["size"], given.partition_values, row["modified_ms"], row["statistics"]) for row in found]
    written = sum(json.loads(each.statistics)["numRecords"] for each in added)
    if written != counted[0]:
        raise AssertionError(f"a compaction would change the number of rows: table={table.path} read={counted[0]} written={written}")
    return added


def _rows(table: ArrowTable, shape: TableShape, given: Bin, counted: list[int]) -> Iterator[pa.RecordBatch]:
    """`counted`: gets the number of rows that the files have, as their footers say."""
    schema = _file_schema(shape)
    for file in given.files:
        with _opened(table, file.path) as source:
            footer = source.metadata
            counted[0] += footer.num_rows
            for number in range(footer.num_row_groups):
                group = footer.row_group(number)
                rows = max(1, min(BATCH_ROWS_MAX, BATCH_BYTES * group.num_rows // max(1, group.total_byte_size)))
                for batch in source.iter_batches(batch_size=rows, row_groups=[number], use_threads=False):
                    yield from _as_schema(pa.Table.from_batches([batch]), schema, shape.partition_by).combine_chunks().to_batches()


def _as_schema(rows: pa.Table, schema: pa.Schema, partition_by: Collection[str]) -> pa.Table:
    """The rows with the columns of the table: a column that was added later is null, and times without a zone of an INT96 column have one. Columns of
    partitions are left out, which some writers put into files too: their values are in the log."""
    columns = []
    for field in schema:
        place = rows.schema.get_field_index(field.name)
        if place < 0:
            columns.append(pa.nulls(rows.num_rows, field.type))
            continue
        column = rows.column(place)
        if column.type == pa.timestamp("us") and field.type == pa.timestamp("us", "UTC"):
            column = column.cast(field.type)
        columns.append(column)
    others = [name for name in rows.schema.names if name not in schema.names and name not in partition_by]
    named = pa.Table.from_arrays(columns, names=schema.names)
    for name in others:  # `fitted` refuses it
        named = named.append_column(name, rows.column(rows.schema.get_field_index(name)))
    return named


def _opened(table: ArrowTable, path: str) -> parquet.ParquetFile:
    """A data file, by its path in the log. Raises `Overtaken` if it is gone."""
    files, root = file_system(table.location, table.storage)
    try:
        return parquet.ParquetFile(f"{root}/{unquote(path)}", filesystem=files, coerce_int96_timestamp_unit="us", pre_buffer=False)
    except FileNotFoundError:
        raise Overtaken from None


def _file_schema(shape: TableShape) -> pa.Schema:
    """The columns of the data files: all but those of partitions."""
    return pa.schema([field for field in arrow_schema(shape.schema) if field.name not in shape.partition_by])
