"""The tables that `maintain` is given, each with the engine that maintains it, and what is read of a table by either engine."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from waltz_delta.base import internal
from waltz_delta.base.quoting import table_at
from waltz_delta.engine.arrow_table import ArrowTable, OpenedTable, engine_kept
from waltz_delta.engine.choice import EngineChoice, TableEngine
from waltz_delta.errors import NotADeltaTable
from waltz_delta.marks.positions_log import TableLog
from waltz_delta.tables.table import is_table
from waltz_log.errors import InvalidSetting

__all__ = ["Tables", "chosen"]


@dataclass(frozen=True, slots=True)
class Tables:
    """`arrow`: the tables that the Arrow engine maintains, by path. Spark's engine maintains the others. `reasons`: why, by path."""

    spark: SparkSession
    arrow: Mapping[str, ArrowTable] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)

    def place(self, path: str) -> tuple[str, dict[str, str] | None]:
        """Where `deltalake` finds the table, and with which options."""
        table = self.arrow.get(path)
        return (path, None) if table is None else (table.location, dict(table.storage) or None)

    def is_there(self, path: str) -> bool:
        """Raises what `is_table` raises."""
        table = self.arrow.get(path)
        return is_table(self.spark, path) if table is None else table.is_table()

    def table_id(self, path: str) -> str:
        if path in self.arrow:
            return self._opened(path).table_id
        return str(self.spark.sql(f"DESCRIBE DETAIL {table_at(path)}").collect()[0]["id"])

    def properties(self, path: str) -> dict[str, str]:
        if path in self.arrow:
            return dict(self._opened(path).shape.properties)
        return dict(self.spark.sql(f"DESCRIBE DETAIL {table_at(path)}").collect()[0]["properties"])

    def log(self, path: str) -> TableLog:
        return TableLog(*self.place(path))

    def age_hours(self, path: str, version: int) -> float:
        """Raises `InvalidSetting` for a version that the table's log no longer has."""
        made_ms = self._made_ms(path, version)
        if made_ms is None:
            raise InvalidSetting(name="--keep-version", reason=f"the log of {path} no longer has version {version}", nearest=None)
        return max(0.0, (time.time() - made_ms / 1000) / 3600)

    def _made_ms(self, path: str, version: int) -> int | None:
        if path in self.arrow:
            made = next((info.get("timestamp") for _, info in self.arrow[path].commits(version, 1)), None)
            return None if made is None else int(made)
        from delta.tables import DeltaTable

        history = DeltaTable.forPath(self.spark, path).history()
        rows = history.where(f"version = {version}").selectExpr("unix_millis(timestamp)").collect()
        return int(rows[0][0]) if rows else None

    def _opened(self, path: str) -> OpenedTable:
        with engine_kept(path):
            opened = self.arrow[path].open()
        if opened is None:
            raise NotADeltaTable(path=path, reason="no table there")
        return opened


def chosen(
    spark: SparkSession, paths: Sequence[str], wanted: EngineChoice, storage: Mapping[str, Mapping[str, str]], sparks: Collection[str] = ()
) -> Tables:
    """`storage`: of the tables that have options of their store. `sparks`: tables whose pipeline names Spark's engine. Raises `InvalidSetting` if
    the engine arrow must maintain a table that it does not write."""
    arrow, reasons = {}, {}
    for path in dict.fromkeys(paths):
        engine = TableEngine(path, "spark" if path in sparks and wanted == "auto" else wanted, storage.get(path, {}))
        engine.choose(spark, None)
        table = engine.arrow(spark)
        reasons[path] = engine.reason
        if table is not None:
            arrow[path] = table
    if len(arrow) < len(reasons):  # Spark's engine is needed
        internal.check_versions(spark)
    return Tables(spark, arrow, reasons)
