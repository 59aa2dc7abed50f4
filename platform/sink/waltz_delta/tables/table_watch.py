"""Detects changes to a table that its marks do not show: another table at the path, or rows that a RESTORE removed.

Delta keeps a table's id for its life, and a RESTORE leaves every transaction identifier as it is (delta-io/delta issue 1813). So a query compares the
id with the one that its checkpoint filled, and inspects each commit since its last check. A RESTORE while a query runs ends the query: continuing
from its marks would skip the removed transactions. A RESTORE can still come between the check and our commit (Delta sees no conflict between it and
an append). Then the commit succeeds, is found to have overtaken the RESTORE, and the query fails with `RestoreOvertaken`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final  # Any: JSON values

from pyspark.sql import SparkSession

from waltz_delta.base import internal
from waltz_delta.base.table_transaction import TableTransaction
from waltz_delta.errors import RestoreOvertaken, TableReplaced, TableRestored
from waltz_delta.marks.restores import restored_by

__all__ = ["TableWatch", "known_tables", "remember_tables"]

_TABLES: Final = "waltz/tables.json"
"""Below a checkpoint: the id of each table that the query fills, by path."""


def known_tables(spark: SparkSession, checkpoint: str) -> dict[str, str]:
    """The id of each table that the query of this checkpoint fills, by path; empty for a new checkpoint."""
    text = internal.read_text(spark, f"{checkpoint.rstrip('/')}/{_TABLES}")
    return {} if text is None else {str(path): str(found) for path, found in json.loads(text).items()}


def remember_tables(spark: SparkSession, checkpoint: str, tables: Mapping[str, str]) -> None:
    """Adds these tables to those that `known_tables` returns."""
    merged = known_tables(spark, checkpoint) | dict(tables)
    internal.write_text(spark, f"{checkpoint.rstrip('/')}/{_TABLES}", json.dumps(merged, sort_keys=True))


class TableWatch:
    """Watches one table during one run of a query. `judged` is the newest version whose commits were all inspected."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._judged: int | None = None
        self._id = ""
        """Id of the table that this run fills; empty until there is one."""
        self._checkpoint: str | None = None
        self._recorded = ""
        """The table id that the checkpoint records."""

    def begin(self, judged: int) -> None:
        """The marks were corrected to match the table as of this version."""
        self._judged = judged

    def check(self, spark: SparkSession, transaction: TableTransaction, checkpoint: str | None) -> None:
        """Checks the table as `transaction` sees it, before anything is written. `checkpoint`: that of the query, None outside of one. Raises
        `TableReplaced`, `TableRestored`."""
        self._compare_id(spark, transaction, checkpoint)
        if self._judged is not None:
            for _, info in transaction.commits(transaction.read_version - self._judged):
                if restored_by(info) is not None:
                    raise TableRestored(path=self.path, restored_version=_target(info))
        self._judged = transaction.read_version

    def check_overtaken(self, transaction: TableTransaction, seen: int, committed: int) -> None:
        """Checks after a commit as version `committed` that was decided from version `seen`; `transaction` must see it. Raises `RestoreOvertaken`."""
        for version, info in transaction.commits(transaction.read_version - seen):
            if version < committed and restored_by(info) is not None:
                raise RestoreOvertaken(path=self.path, version=version)

    def _compare_id(self, spark: SparkSession, transaction: TableTransaction, checkpoint: str | None) -> None:
        if checkpoint is not None and checkpoint != self._checkpoint:
            self._checkpoint, self._recorded = checkpoint, known_tables(spark, checkpoint).get(self.path, "")
        found, expected = transaction.table_id, self._recorded or self._id
        if expected and found != expected:
            raise TableReplaced(path=self.path, expected=expected, found=found)
        self.record(spark, found)

    def record(self, spark: SparkSession, table_id: str) -> None:
        """Records in the checkpoint that it fills the table of this id. Does nothing if there is no table, or it is recorded already."""
        self._id = table_id
        if self._checkpoint is not None and table_id and table_id != self._recorded:
            remember_tables(spark, self._checkpoint, {self.path: table_id})
            self._recorded = table_id


def _target(info: Mapping[str, Any]) -> int:
    """The version that a RESTORE names; -1 if it names a time."""
    version = (restored_by(info) or {}).get("version")
    return -1 if version is None else int(version)
