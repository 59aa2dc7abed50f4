"""The last line of a finished pipeline: for each table its version, its rows and its marks, and how many transactions this run added."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from pyspark.sql import SparkSession

from waltz_delta.base.table_transaction import TableTransaction
from waltz_delta.marks.marks import position
from waltz_delta.marks.restored import marks_as_restored

__all__ = ["TableOutcome", "table_outcome"]


@dataclass(frozen=True, slots=True)
class TableOutcome:
    """`version` and `rows` are None if there is no table. `transactions`: how far this run advanced the table's marks, including filtered
    transactions."""

    table: str
    version: int | None
    rows: int | None
    transactions: int
    marks: Mapping[int, int]

    def line(self, name: str, dead_letters: int) -> str:
        marks = json.dumps({str(partition): mark for partition, mark in sorted(self.marks.items())})
        there = "version=none rows=0" if self.version is None else f"version={self.version} rows={self.rows}"
        return f"done {name} table={self.table} {there} transactions={self.transactions} dead_letters={dead_letters} marks={marks}"


class Landed(Protocol):
    """One table that a query fills, by its engine."""

    path: str
    cluster_key: str

    def begin(self, spark: SparkSession) -> TableTransaction: ...

    def count(self, spark: SparkSession) -> int:
        """The rows of the table, from its log's statistics."""
        ...


def table_outcome(spark: SparkSession, table: Landed, before: Mapping[int, int]) -> TableOutcome:
    """`before`: the marks when the run started."""
    transaction = table.begin(spark)
    if not transaction.exists:
        return TableOutcome(table.path, None, None, 0, {})
    marks = marks_as_restored(spark, table.path, table.cluster_key, lambda: transaction)
    return TableOutcome(table.path, transaction.read_version, table.count(spark), position(marks) - position(before), marks)
