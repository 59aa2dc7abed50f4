"""A table as an audit reads it: by the Arrow engine, in tasks of Spark, where that engine writes a table on an object store or must write it;
otherwise by Spark's Delta. So an audit needs jars of Delta and of the store only for tables that Spark writes.

In a directory of this machine with the engine `auto`, Spark reads. It skips files by their bounds; and an audit writes nothing, so it cannot probe
the file system.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext

from pyspark.sql import DataFrame, SparkSession

from waltz_delta.base import internal
from waltz_delta.base.log_store import LOCAL, located
from waltz_delta.base.session import session_zone
from waltz_delta.base.table_transaction import TableTransaction
from waltz_delta.engine.allowed import refusal
from waltz_delta.engine.arrow_table import ArrowTable, NotOpened
from waltz_delta.engine.arrow_transaction import ArrowTransaction
from waltz_delta.engine.choice import EngineChoice, TableEngine
from waltz_delta.engine.table_rows import read_rows
from waltz_delta.marks.positions_log import TableLog
from waltz_delta.tables.table import is_table

__all__ = ["AuditedTable"]


class AuditedTable:
    """`engine`, `storage`: as in `TargetSettings`. Raises `UnsupportedDelta` if Spark must read the table and cannot, `StoreUnavailable`, and
    `InvalidSetting` if the engine `arrow` does not write to such a path."""

    def __init__(self, spark: SparkSession, path: str, engine: EngineChoice, storage: Mapping[str, str]) -> None:
        self._spark, self._path = spark, path
        self._table = _by_engine(spark, path, engine, storage)
        if self._table is None:
            internal.check_versions(spark)

    def log(self) -> TableLog:
        """Raises `NotADeltaTable` if there is no table."""
        return TableLog(self._path) if self._table is None else TableLog(self._table.location, dict(self._table.storage) or None)

    def transaction(self) -> TableTransaction:
        """What the newest version says of itself; nothing is committed."""
        if self._table is None:
            return internal.TableTransaction(self._spark, self._path)
        return ArrowTransaction(self._table, zone=session_zone(self._spark))

    def version(self) -> int:
        """The newest one; -1 if there is no table."""
        if self._table is not None:
            opened = self._table.open()
            return -1 if opened is None else opened.version
        return internal.table_version(self._spark, self._path) if is_table(self._spark, self._path) else -1

    def rows(self, version: int, columns: Sequence[str] = ()) -> DataFrame:
        """These columns of a version, by default all."""
        if self._table is None:
            found = self._spark.read.format("delta").option("versionAsOf", version).load(self._path)
            return found.select(*columns) if columns else found
        opened = self._table.open_at(version)
        return read_rows(self._spark, self._table, opened, columns or [field["name"] for field in opened.shape.schema["fields"]])


def _by_engine(spark: SparkSession, path: str, engine: EngineChoice, storage: Mapping[str, str]) -> ArrowTable | None:
    """The table, if the Arrow engine reads it."""
    scheme, location = located(spark, path)
    if scheme != LOCAL:
        table = TableEngine(path, engine, storage).arrow(spark)
    else:
        table = ArrowTable(path, location, {}, nullcontext) if engine == "arrow" else None
    if table is None:
        return None
    try:
        opened = table.open()
    except NotOpened:
        return None
    if opened is not None and (refusal(opened.protocol, opened.shape) or any("." in field["name"] for field in opened.shape.schema["fields"])):
        return None
    return table
