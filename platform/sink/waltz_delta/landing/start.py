"""The start of a query comes from the table. A deleted checkpoint neither loses nor repeats a row, and a new one needs no configuration."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import partial

from pyspark.sql import SparkSession

from pyspark_waltz.options import EARLIEST, Positions
from waltz_delta.engine.choice import TableEngine
from waltz_delta.marks.restored import follow_restore, marks_as_restored

__all__ = ["FROM_THE_EARLIEST", "starting_transaction_ids", "starts_after"]

FROM_THE_EARLIEST = Positions(EARLIEST)


def starting_transaction_ids(
    spark: SparkSession,
    path: str,
    cluster_key: str,
    *,
    partitions: Iterable[int] | None = None,
    otherwise: Positions = FROM_THE_EARLIEST,
    storage: Mapping[str, str] | None = None,
) -> str:
    """The source's `startingTransactionIds` for the table at `path`: after its marks; `otherwise` for those of `partitions` that have no mark
    (without `partitions`: the earliest). A path without a table has no marks. `storage`: as in `TargetSettings`.

    Spark reads it only when the checkpoint is new; an older checkpoint replays batches, which the sink drops. After a RESTORE the marks are restored
    first. Raises `UnsupportedDelta` if Spark's engine writes the table and the session has another Delta than the tested one, or none."""
    begin = partial(TableEngine(path, "auto", storage or {}).begin, spark)
    follow_restore(spark, path, cluster_key, begin)
    return starts_after(marks_as_restored(spark, path, cluster_key, begin), partitions, otherwise)


def starts_after(marks: Mapping[int, int], partitions: Iterable[int] | None = None, otherwise: Positions = FROM_THE_EARLIEST) -> str:
    """The source's `startingTransactionIds` after these marks."""
    if partitions is not None:
        starts = {partition: marks[partition] + 1 if partition in marks else otherwise.of(partition) for partition in sorted(partitions)}
    else:
        starts = {partition: mark + 1 for partition, mark in sorted(marks.items())}
    return json.dumps({str(partition): at for partition, at in starts.items()}) if starts else "earliest"
