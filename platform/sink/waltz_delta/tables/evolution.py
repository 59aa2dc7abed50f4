"""Decides whether rows fit a table, and what happens with columns that it lacks, as `evolution` declares: `fail`, `add_columns` or `off`.

Columns are added in their own commit before the rows that need them. A column of another type is always refused: nothing is cast, widened or dropped
here. A table may have columns that the rows lack (a user added them); they are null in new rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from waltz_delta.base import internal
from waltz_delta.base.log_store import one_committer
from waltz_delta.base.quoting import quoted, table_at
from waltz_delta.errors import SchemaMismatch

__all__ = ["Columns", "Evolution", "SparkColumns", "fit", "fitting_columns"]

Evolution = Literal["off", "add_columns", "fail"]
ATTEMPTS = 4


def fitting_columns(path: str, held: StructType, given: StructType, evolution: Evolution) -> tuple[list[str], list[StructField]]:
    """The columns of the rows that are written, and those that must be added to the table first. Raises `SchemaMismatch`."""
    there = {field.name.lower(): field for field in held.fields}
    kept, missing = [], []
    for field in given.fields:
        known = there.get(field.name.lower())
        if known is None:
            if evolution == "fail":
                reason = f"the table has no such column, only {', '.join(held.fieldNames())}; evolution: add_columns adds it, off leaves it out"
                raise SchemaMismatch(path=path, column=field.name, reason=reason)
            if evolution == "off":
                continue
            missing.append(field)
        elif _shape(known.dataType) != _shape(field.dataType):
            reason = f"is {known.dataType.simpleString()} in the table, {field.dataType.simpleString()} in the rows; no evolution changes a type"
            raise SchemaMismatch(path=path, column=field.name, reason=reason)
        kept.append(field.name)
    names = {field.name.lower() for field in given.fields}
    for name, field in there.items():
        if name not in names and not field.nullable:
            raise SchemaMismatch(path=path, column=field.name, reason="must not be null in the table, and the rows do not have it")
    return kept, missing


class Columns(Protocol):
    """The columns of a table, by one engine."""

    def schema(self) -> StructType:
        """As they are now."""
        ...

    def add(self, fields: Sequence[StructField]) -> None:
        """Adds columns in a commit of their own."""

    def is_conflict(self, error: BaseException) -> bool:
        """Whether `add` failed because another commit came first."""
        ...


class SparkColumns:
    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark, self._path = spark, path

    def schema(self) -> StructType:
        from delta.tables import DeltaTable

        return DeltaTable.forPath(self._spark, self._path).toDF().schema

    def add(self, fields: Sequence[StructField]) -> None:
        listed = ", ".join(f"{quoted(field.name)} {_sql(field.dataType)}" for field in fields)
        with one_committer(self._spark, self._path):
            self._spark.sql(f"ALTER TABLE {table_at(self._path)} ADD COLUMNS ({listed})")

    def is_conflict(self, error: BaseException) -> bool:
        return internal.is_conflict(error)


def fit(columns: Columns, path: str, given: StructType, evolution: Evolution, *, needed: Sequence[str] = ()) -> list[str]:
    """The columns to write into the table at `path`, after adding those that it lacks if `evolution` allows it. `needed` are columns that cannot be
    omitted, such as keys."""
    missing: list[StructField] = []
    for _ in range(ATTEMPTS):
        kept, missing = fitting_columns(path, columns.schema(), given, evolution)
        for name in needed:
            if name.lower() not in {each.lower() for each in kept}:
                raise SchemaMismatch(path=path, column=name, reason="the table has no such column, and it cannot be left out")
        if not missing:
            return kept
        try:
            columns.add(missing)
        except Exception as error:  # another driver may be adding them as well
            _, still = fitting_columns(path, columns.schema(), given, evolution)
            if still == missing and not columns.is_conflict(error):
                raise
    raise SchemaMismatch(path=path, column=missing[0].name, reason="could not be added, since others changed the table each time")


def _sql(kind: DataType) -> str:
    """The type in SQL. `simpleString` is not SQL if the name of an inner field needs quotes."""
    if isinstance(kind, StructType):
        return f"STRUCT<{', '.join(f'{quoted(field.name)}: {_sql(field.dataType)}' for field in kind.fields)}>"
    if isinstance(kind, ArrayType):
        return f"ARRAY<{_sql(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"MAP<{_sql(kind.keyType)}, {_sql(kind.valueType)}>"
    return str(kind.simpleString())


def _shape(kind: DataType) -> str:
    """The type without differences that are allowed between a table and its rows: whether inner values may be null."""
    return str(kind.simpleString()).lower()
