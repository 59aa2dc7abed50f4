"""The start of a query comes from the table. A deleted checkpoint neither loses nor repeats a row, and a new one needs no configuration."""

from __future__ import annotations

import json
from collections.abc import Iterable

from pyspark.sql import SparkSession

from pyspark_waltz.options import EARLIEST, Positions
from waltz_delta.base import internal
from waltz_delta.marks.marks import marks_among
from waltz_delta.marks.restored import follow_restore

__all__ = ["starting_transaction_ids"]

FROM_THE_EARLIEST = Positions(EARLIEST)


def starting_transaction_ids(
    spark: SparkSession, path: str, cluster_key: str, *, partitions: Iterable[int] | None = None, otherwise: Positions = FROM_THE_EARLIEST
) -> str:
    """The source's `startingTransactionIds` for the table at `path`: after its marks; `otherwise` for those of `partitions` that have no mark
    (without `partitions`: the earliest). A path without a table has no marks.

    Spark reads it only when the checkpoint is new; an older checkpoint replays batches, which the sink drops. After a RESTORE the marks are restored
    first."""
    follow_restore(spark, path, cluster_key)
    marks = marks_among(internal.transaction_versions(spark, path), cluster_key)
    if partitions is not None:
        starts = {partition: marks[partition] + 1 if partition in marks else otherwise.of(partition) for partition in sorted(partitions)}
    else:
        starts = {partition: mark + 1 for partition, mark in sorted(marks.items())}
    return json.dumps({str(partition): at for partition, at in starts.items()}) if starts else "earliest"
