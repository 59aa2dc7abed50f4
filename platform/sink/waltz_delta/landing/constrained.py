"""Rows that violate a constraint of their table count as ones that do not decode: a dead letter names the constraint.

Delta ends the whole batch for one such row, and does not name its transaction. So the rows are judged before they are written, whichever engine
writes them, as the table would hold them: in its types, and with the columns that it generates. Left to Delta are constraints on other columns that
the rows lack, and rows that delete: what the table then holds depends on what it held before.

A transaction with several rows is judged as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, Observation, SparkSession, Window
from pyspark.sql import functions as f
from pyspark.sql.types import DataType, StructType

from waltz_delta.base import internal
from waltz_delta.base.table_transaction import TableTransaction
from waltz_delta.decode.decode import refuse
from waltz_delta.landing.merge_source import DELETED, hold
from waltz_delta.landing.output_decoder import BAD, OutputDecoder
from waltz_delta.marks.batch import DATA, PARTITION, PROBLEM, ROW, TRANSACTION_ID
from waltz_delta.tables.constraints import VIOLATES, Constraint, constraints_of
from waltz_delta.tables.evolution import GENERATED, fits, held_schema, stored_columns

__all__ = ["ConstrainedOutput", "Judged"]

PLACE = [PARTITION, TRANSACTION_ID]


@dataclass(frozen=True, slots=True)
class _Rules:
    """What rows of the schema `given` are judged by. `generated`: the columns that the table computes, by name."""

    text: str
    demanded: tuple[Constraint, ...]
    given: StructType
    held: StructType
    generated: dict[str, str]
    applied: tuple[Constraint, ...]


class ConstrainedOutput:
    """One output of a landing together with the constraints of its table. It keeps them until the table's rules change."""

    def __init__(self, decoder: OutputDecoder) -> None:
        self._decoder = decoder
        self._rules: _Rules | None = None
        self._known: tuple[str, Mapping[str, str], tuple[Constraint, ...]] = ("", {}, ())

    def rules(self, table: TableTransaction) -> tuple[Constraint, ...]:
        """All constraints of the table as the transaction sees it, or of the table that the first batch creates."""
        text, properties = table.schema_text(), table.properties() if table.exists else self._decoder.output.target.properties
        if self._known[:2] != (text, properties):
            self._known = (text, properties, constraints_of(text, properties))
        return self._known[2]

    def judged(self, rows: DataFrame, table: TableTransaction) -> Judged | None:
        """The decoded rows judged by the constraints of the table that this transaction sees; None if no constraint applies to them. Runs a job if
        the rows can differ from one run to the next."""
        text, demanded = table.schema_text(), self.rules(table)
        if not demanded:
            return None
        schema = rows.schema
        if self._rules is None or (self._rules.text, self._rules.demanded, self._rules.given) != (text, demanded, schema):
            self._rules = _rules(rows.sparkSession, text, demanded, schema)
        if not self._rules.applied:
            return None
        found = _judged(rows, self._rules)
        # A second run for the letters could judge otherwise, for example at another time, and lose the row.
        varies = self._decoder.undecodable != "fail" and internal.varies(found)
        return Judged(hold(found) if varies else found, self._decoder.undecodable, varies)


@dataclass(frozen=True, slots=True)
class Judged:
    """Decoded rows with `PROBLEM`, the constraint that their transaction violates. `held`: in memory or on disk."""

    rows: DataFrame
    undecodable: str
    held: bool

    def good(self, violations: Observation | None = None) -> DataFrame:
        """The rows that violate nothing. `violations` counts the transactions that do."""
        rows = refuse(self.rows) if self.undecodable == "fail" else self.rows
        if violations is not None:
            problem = f.col(PROBLEM)
            counted = f.when(f.col(ROW) == f.col(_FIRST), problem) if ROW in rows.columns else problem
            rows = rows.observe(violations, f.count(counted).alias(BAD))
        return rows.where(f.col(PROBLEM).isNull()).drop(PROBLEM, _FIRST)

    def bad(self, raw: DataFrame) -> DataFrame:
        """The transactions that violate a constraint, in the form of `OutputDecoder.bad`. `raw`: the same rows of the log, with their data."""
        found = self.rows.where(f.col(PROBLEM).isNotNull()).groupBy(*PLACE).agg(f.first(PROBLEM).alias(PROBLEM))
        return raw.select(*PLACE, "timestamp", "header", f.col("data").alias(DATA)).join(found, PLACE)

    def release(self) -> None:
        if self.held:
            internal.release_held_rows(self.rows)


_FIRST = "_waltz_first_row"
"""The lowest index among the rows of a transaction, which need not be 0 after a filter."""
_GIVEN = "_waltz_given"
"""The row as it came: the table may get a column or a field of it only when the row is written."""


_ALONE = "array(true), _waltz_alone -> "
"""The start of a function that evaluates an expression once, as a lambda function: see `internal.attempted`."""


def _rules(spark: SparkSession, text: str, demanded: Sequence[Constraint], given: StructType) -> _Rules:
    held = held_schema(text) if text else given
    names = {field.name.lower() for field in given.fields}
    generated = {each.name: each.metadata[GENERATED] for each in held.fields if GENERATED in each.metadata and each.name.lower() not in names}
    empty = spark.createDataFrame([], given)
    usable = {name: expression for name, expression in generated.items() if _resolves(_stored(empty, held), _generated(spark, expression))}
    whole = _completed(empty, held, usable)
    applied = tuple(each for each in demanded if _resolves(whole, _holds(spark, each)))
    return _Rules(text, tuple(demanded), given, held, usable, applied)


def _resolves(rows: DataFrame, expression: Column) -> bool:
    try:
        rows.select(expression)
    except AnalysisException:
        return False  # of a column that the rows do not have
    return True


def _stored(rows: DataFrame, held: StructType) -> DataFrame:
    """The rows with their values in the types of the table. Those that do not fit it are refused when they are written."""
    kinds = {field.name.lower(): field.dataType for field in held.fields}
    given = rows.schema
    other = [each.name for each in given.fields if _differs(kinds.get(each.name.lower(), each.dataType), each.dataType)]
    return rows.withColumns(dict(zip(other, stored_columns(held, given, other), strict=True))) if other else rows


def _differs(held: DataType, given: DataType) -> bool:
    return bool(held.simpleString() != given.simpleString()) and fits(held, given)


def _completed(rows: DataFrame, held: StructType, generated: dict[str, str]) -> DataFrame:
    kinds = {field.name: field.dataType for field in held.fields}
    stored = _stored(rows, held)
    made = {name: _generated(rows.sparkSession, text).cast(kinds[name]) for name, text in generated.items()}
    return stored.withColumns(made) if made else stored


def _generated(spark: SparkSession, text: str) -> Column:
    """The value of a generated column; NULL where its expression fails. Delta cannot write such a row."""
    return internal.attempted(spark, f.expr(f"transform({_ALONE}({text}))")).getItem(0)


def _judged(rows: DataFrame, rules: _Rules) -> DataFrame:
    problem = f.coalesce(*(_violated(rows.sparkSession, each) for each in rules.applied))
    if DELETED in rows.columns:
        problem = f.when(~f.col(DELETED), problem)
    found = _completed(rows.withColumn(_GIVEN, f.struct("*")), rules.held, rules.generated).select(f"{_GIVEN}.*", problem.alias(PROBLEM))
    if ROW not in rows.columns:
        return found
    of_transaction = Window.partitionBy(*PLACE)
    whole: dict[str, Column] = {PROBLEM: f.first(PROBLEM, ignorenulls=True).over(of_transaction), _FIRST: f.min(ROW).over(of_transaction)}
    return found.withColumns(whole)


def _violated(spark: SparkSession, constraint: Constraint) -> Column:
    return f.when(~f.coalesce(_holds(spark, constraint), f.lit(False)), VIOLATES + constraint.name)


def _holds(spark: SparkSession, constraint: Constraint) -> Column:
    """NULL where the evaluation fails: Delta cannot write such a row either."""
    if not constraint.raises:
        return f.expr(f"({constraint.condition})")
    return internal.attempted(spark, f.expr(f"exists({_ALONE}({constraint.condition}))"))
