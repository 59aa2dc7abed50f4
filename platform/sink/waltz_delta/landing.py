"""One query over the log into one or several tables: what goes where, in which order it is committed, and what of it each table holds already.

Every table is judged by its own marks, so a batch that was cut off between two tables' commits is finished by the next driver: the tables that hold
it drop it. Dead letters are committed before the first table that would move past them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from pyspark_waltz.options import Positions
from waltz_delta import internal
from waltz_delta.append import DeltaAppend
from waltz_delta.decode import shape
from waltz_delta.marks import marks_among
from waltz_delta.settings import LandingSettings, OutputSettings
from waltz_delta.start import FROM_THE_EARLIEST
from waltz_delta.upsert import DeltaUpsert

__all__ = ["Landing", "LandingStatistics", "resulting_schemas"]


@dataclass(frozen=True, slots=True)
class LandingStatistics:
    """Since this `Landing` was made."""

    batches: int = 0
    """Batches that are in every table."""
    dead_letters: int = 0
    """Transactions written to the table of dead letters."""


class Landing:
    """For `foreachBatch`; `write(rows)` lands a batch DataFrame by the same rules. Not for two queries at once: each has its own."""

    def __init__(self, settings: LandingSettings, cluster_key: str) -> None:
        self.settings = settings
        self.cluster_key = cluster_key
        self._statistics = LandingStatistics()
        self._sinks = [_sink(output, cluster_key) for output in settings.outputs]

    def prepare(self, spark: SparkSession, schema: StructType) -> None:
        """Refuses what can never work, before the first batch. `schema` is that of the source's rows."""
        for output, sink in zip(self.settings.outputs, self._sinks, strict=True):
            sink.prepare(spark, _shaped(spark.createDataFrame([], schema), output).schema)

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        for output, sink in zip(self.settings.outputs, self._sinks, strict=True):
            sink(_shaped(batch, output), batch_id)

    def write(self, rows: DataFrame) -> None:
        for output, sink in zip(self.settings.outputs, self._sinks, strict=True):
            sink.write(_shaped(rows, output))

    def starting_transaction_ids(self, spark: SparkSession, partitions: Iterable[int], *, otherwise: Positions = FROM_THE_EARLIEST) -> str:
        """The source's `startingTransactionIds`: after the mark of the table that is furthest behind; `otherwise` for partitions that some table
        holds nothing of."""
        found: dict[int, int] = {}
        marks = [marks_among(internal.transaction_versions(spark, output.target.table), self.cluster_key) for output in self.settings.outputs]
        for partition in sorted(partitions):
            known = [each.get(partition) for each in marks]
            lowest = min((mark for mark in known if mark is not None), default=None)
            found[partition] = otherwise.of(partition) if lowest is None or None in known else lowest + 1
        return json.dumps({str(partition): at for partition, at in found.items()})

    def statistics(self) -> LandingStatistics:
        return self._statistics


def resulting_schemas(spark: SparkSession, settings: LandingSettings, schema: StructType | None = None) -> dict[str, StructType]:
    """The columns of each table by its path, without any data: what Spark makes of decoding, filter and projection. `schema`: of the source's rows,
    where it is asked for more than its usual columns."""
    from pyspark_waltz.source import SCHEMA

    empty = spark.createDataFrame([], schema if schema is not None else SCHEMA)
    return {output.target.table: _shaped(empty, output).schema for output in settings.outputs}


def _shaped(rows: DataFrame, output: OutputSettings) -> DataFrame:
    return shape(rows, schema=output.decode.columns, where=output.projection.where, select=output.projection.select)


def _sink(output: OutputSettings, cluster_key: str) -> DeltaAppend | DeltaUpsert:
    target = output.target
    if target.mode == "append":
        return DeltaAppend(target.table, cluster_key, partition_by=target.layout.partition_by, properties=target.properties)
    return DeltaUpsert(target.table, cluster_key, target.keys, sequence=target.sequence, properties=target.properties)
