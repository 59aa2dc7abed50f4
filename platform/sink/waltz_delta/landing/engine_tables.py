"""What sinks ask of the engine of their table: its columns, and an empty table."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyspark.sql import SparkSession

from waltz_delta.base.columns import Columns
from waltz_delta.base.table_transaction import TableTransaction
from waltz_delta.engine.allowed import TableShape
from waltz_delta.engine.arrow_columns import ArrowColumns
from waltz_delta.engine.arrow_table import ArrowTable
from waltz_delta.engine.arrow_transaction import ArrowTransaction
from waltz_delta.engine.choice import TableEngine
from waltz_delta.engine.stores import is_local
from waltz_delta.tables.evolution import SparkColumns

__all__ = ["create_by_engine", "engine_columns"]


def engine_columns(spark: SparkSession, path: str, engine: TableEngine, refuses: Callable[[TableShape], str | None] = lambda _: None) -> Columns:
    """`refuses`: why the Arrow engine would not write the table with such columns. Spark's engine adds what the Arrow engine cannot, where both may
    write: not on an object store, whose commits Spark's engine does not create safely."""
    table = engine.arrow(spark)
    if table is None:
        return SparkColumns(spark, path)
    sparks_too = engine.may_be_sparks and is_local(table.location)
    return ArrowColumns(table, SparkColumns(spark, path) if sparks_too else None, refuses)


def create_by_engine(transaction: TableTransaction, table: ArrowTable, shape: TableShape, versions: Mapping[str, int], *, metadata: str) -> None:
    """Creates the table without rows by the Arrow engine, in one commit with these identifiers, unless another driver creates it first."""
    table.reserve()
    if not isinstance(transaction, ArrowTransaction) or transaction.exists:
        return
    try:
        transaction.create(shape, versions, metadata=metadata)
    except Exception as error:
        if not transaction.lost_to_another(error):
            raise
