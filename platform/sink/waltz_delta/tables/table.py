"""Inspects the path of a table before the first batch and refuses anything but a Delta table before writing; and creates a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any  # py4j's objects have no types

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from waltz_delta.base import internal
from waltz_delta.base.checkpoint_pace import with_interval
from waltz_delta.base.file_systems import require_file_system
from waltz_delta.base.log_store import one_committer, refuse_catalog, require_one_winner, require_own_commits
from waltz_delta.base.quoting import table_at
from waltz_delta.base.table_directory import LOG, refuse_other_content
from waltz_delta.errors import NotADeltaTable
from waltz_log.errors import InvalidSetting

__all__ = ["check_layout", "create_empty", "is_table", "reserve"]


def is_table(spark: SparkSession, path: str) -> bool:
    """Whether there is a table to write to. Raises `InvalidSetting` if Spark lacks the file system; `UnsafeTable` if writing could lose rows;
    `NotADeltaTable` if the path holds anything but a table, except the remains of `reserve` and of a first batch that died."""
    from delta.tables import DeltaTable

    require_file_system(spark, path, "table")
    require_one_winner(spark, path)
    try:
        if DeltaTable.isDeltaTable(spark, path):
            internal.TableTransaction(spark, path)  # refuses a table whose log does not show all of its commits
            return True
    except Exception as error:
        refuse_catalog(path, error)
        internal.refuse_damaged_log(path, error)
        raise
    jvm: Any = spark._jvm
    place = jvm.org.apache.hadoop.fs.Path(path)
    files = place.getFileSystem(internal.hadoop_configuration(spark))
    if not files.exists(place):
        return False
    if not files.getFileStatus(place).isDirectory():
        raise NotADeltaTable(path=path, reason="a file is there")
    inside = [str(each.getPath().getName()) for each in files.listStatus(place)]
    log = jvm.org.apache.hadoop.fs.Path(place, LOG)
    refuse_other_content(path, inside, [str(each.getPath().getName()) for each in files.listStatus(log)] if LOG in inside else [])
    return False


def reserve(spark: SparkSession, path: str) -> None:
    """Marks the path as ours before there is a table. A driver that dies in the first batch leaves files that no commit names, and the next driver
    would otherwise have to treat them as another application's."""
    jvm: Any = spark._jvm
    place = jvm.org.apache.hadoop.fs.Path(path, LOG)
    place.getFileSystem(internal.hadoop_configuration(spark)).mkdirs(place)


def check_layout(schema: StructType, partition_by: Sequence[str], cluster_by: Sequence[str]) -> None:
    """Raises `InvalidSetting` if the layout names a column that the rows do not have."""
    for setting, names in (("partition_by", partition_by), ("cluster_by", cluster_by)):
        for name in names:
            if name.lower() not in {each.lower() for each in schema.fieldNames()}:
                raise InvalidSetting.unknown(name, schema.fieldNames(), what=f"column for {setting}")


def create_empty(
    spark: SparkSession,
    path: str,
    schema: StructType,
    properties: Mapping[str, str],
    *,
    partition_by: Sequence[str] = (),
    cluster_by: Sequence[str] = (),
) -> None:
    """Creates the table with these columns and no rows, unless it exists."""
    from delta.tables import DeltaTable

    require_own_commits(path, (), properties)
    # Delta writes the log of a table at a relative path, and then fails, because the catalog reads the path as a name. From a location alone it makes
    # the name itself, without quotes.
    place = internal.absolute_path(spark, path)
    builder = DeltaTable.createIfNotExists(spark).tableName(table_at(place)).location(place).addColumns(schema)
    if partition_by:
        builder = builder.partitionedBy(*partition_by)
    if cluster_by:
        builder = builder.clusterBy(*cluster_by)
    for name, value in sorted(with_interval(properties).items()):
        builder = builder.property(name, value)
    with one_committer(spark, path):
        builder.execute()
