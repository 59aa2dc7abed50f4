"""Notices what others do to a table that its marks do not show: that it is another table now, or that a RESTORE took rows away.

Delta keeps a table's id for its life, and a RESTORE leaves every transaction identifier as it is (delta-io/delta issue 1813). So a query compares the
id with the one that its checkpoint filled, and inspects each commit that was made since it last judged the table. A RESTORE while a query runs ends
the query: going on by its marks would leave out what was taken away. Between the look and our commit there is a moment in which a RESTORE can slip in
(Delta sees no conflict between it and an append); then the commit is made, is found to have overtaken the RESTORE, and says so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql import SparkSession

from waltz_delta.base import internal
from waltz_delta.errors import RestoreOvertaken, TableReplaced, TableRestored
from waltz_delta.marks.restores import restored_by

__all__ = ["TableWatch", "known_tables", "remember_tables"]

_TABLES: Final = "waltz/tables.json"
"""Below a checkpoint: the id of each table that the query fills, by path."""


def known_tables(spark: SparkSession, checkpoint: str) -> dict[str, str]:
    """The table id that the query of this checkpoint fills, by path; empty for a new checkpoint."""
    text = internal.read_text(spark, f"{checkpoint.rstrip('/')}/{_TABLES}")
    return {} if text is None else {str(path): str(found) for path, found in json.loads(text).items()}


def remember_tables(spark: SparkSession, checkpoint: str, tables: Mapping[str, str]) -> None:
    """Adds these to what `known_tables` gives."""
    merged = known_tables(spark, checkpoint) | dict(tables)
    internal.write_text(spark, f"{checkpoint.rstrip('/')}/{_TABLES}", json.dumps(merged, sort_keys=True))


class TableWatch:
    """Of one table, for one run of a query. `judged` is the newest version of which nothing is left to find out."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._judged: int | None = None
        self._id = ""
        """Of the table that this run fills; empty until there is one."""
        self._checkpoint: str | None = None
        self._recorded = ""
        """What the checkpoint says of the table."""

    def begin(self, judged: int) -> None:
        """The marks were brought in line with the table as of this version."""
        self._judged = judged

    def check(self, spark: SparkSession, transaction: internal.TableTransaction, checkpoint: str | None) -> None:
        """Before anything is written by what `transaction` sees. `checkpoint`: of the query, None outside of one. Raises `TableReplaced`,
        `TableRestored`."""
        self._compare_id(spark, transaction, checkpoint)
        if self._judged is not None:
            for _, told in transaction.commits(transaction.read_version - self._judged):
                if restored_by(told) is not None:
                    raise TableRestored(path=self.path, restored_version=_target(told))
        self._judged = transaction.read_version

    def check_overtaken(self, transaction: internal.TableTransaction, seen: int, committed: int) -> None:
        """After a commit as version `committed` that was decided by what version `seen` held; `transaction` sees it. Raises `RestoreOvertaken`."""
        for version, told in transaction.commits(transaction.read_version - seen):
            if version < committed and restored_by(told) is not None:
                raise RestoreOvertaken(path=self.path, version=version)

    def _compare_id(self, spark: SparkSession, transaction: internal.TableTransaction, checkpoint: str | None) -> None:
        if checkpoint is not None and checkpoint != self._checkpoint:
            self._checkpoint, self._recorded = checkpoint, known_tables(spark, checkpoint).get(self.path, "")
        found, expected = transaction.table_id, self._recorded or self._id
        if expected and found != expected:
            raise TableReplaced(path=self.path, expected=expected, found=found)
        self.record(spark, found)

    def record(self, spark: SparkSession, table_id: str) -> None:
        """The checkpoint fills the table of this id from now on. Nothing happens where there is no table, or it says so already."""
        self._id = table_id
        if self._checkpoint is not None and table_id and table_id != self._recorded:
            remember_tables(spark, self._checkpoint, {self.path: table_id})
            self._recorded = table_id


def _target(told: Mapping[str, Any]) -> int:
    """The version that a RESTORE names; -1 where it names a time."""
    version = (restored_by(told) or {}).get("version")
    return -1 if version is None else int(version)
