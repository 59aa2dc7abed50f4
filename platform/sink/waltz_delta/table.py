"""The table at a path, looked at before the first batch: what is not a Delta table, or holds other columns, is refused before anything is written."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from waltz_delta.errors import NotADeltaTable, SchemaMismatch

__all__ = ["check_target", "create_empty"]


def check_target(spark: SparkSession, path: str, schema: StructType) -> bool:
    """Whether the table exists. `NotADeltaTable` where the path holds anything else; `SchemaMismatch` where rows of `schema` do not fit it.

    A table may have columns that the rows lack (a user added them); every column of the rows must be in the table with its type."""
    from delta.tables import DeltaTable

    if not DeltaTable.isDeltaTable(spark, path):
        _refuse_other_content(spark, path)
        return False
    held = {field.name.lower(): field for field in DeltaTable.forPath(spark, path).toDF().schema.fields}
    for field in schema.fields:
        there = held.get(field.name.lower())
        if there is None:
            raise SchemaMismatch(path=path, column=field.name, reason=f"the table has no such column, only {', '.join(held)}")
        if _shape(there.dataType) != _shape(field.dataType):
            reason = f"is {there.dataType.simpleString()} in the table, {field.dataType.simpleString()} in the rows"
            raise SchemaMismatch(path=path, column=field.name, reason=reason)
    given = {field.name.lower() for field in schema.fields}
    for name, field in held.items():
        if name not in given and not field.nullable:
            raise SchemaMismatch(path=path, column=field.name, reason="must not be null in the table, and the rows do not have it")
    return True


def _shape(kind: Any) -> str:
    """The type without what may differ between a table and its rows: whether nulls are allowed within."""
    return str(kind.simpleString()).lower()


def _refuse_other_content(spark: SparkSession, path: str) -> None:
    jvm: Any = spark._jvm
    place = jvm.org.apache.hadoop.fs.Path(path)
    files = place.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    if not files.exists(place):
        return
    if not files.getFileStatus(place).isDirectory():
        raise NotADeltaTable(path=path, reason="a file is there")
    inside = files.listStatus(place)
    if len(inside):
        raise NotADeltaTable(path=path, reason=f"the directory holds {inside[0].getPath().getName()} and no _delta_log")


def create_empty(spark: SparkSession, path: str, schema: StructType, properties: dict[str, str]) -> None:
    """The table with these columns and no rows, unless there is one."""
    from delta.tables import DeltaTable

    builder = DeltaTable.createIfNotExists(spark).location(path).addColumns(schema)
    for name, value in sorted(properties.items()):
        builder = builder.property(name, value)
    builder.execute()
