"""Where a query starts: the table knows. A deleted checkpoint neither loses nor repeats a row, and a new one needs no configuration."""

from __future__ import annotations

from pyspark.sql import SparkSession

from waltz_delta import internal
from waltz_delta.marks import marks_among, starting_json

__all__ = ["starting_transaction_ids"]


def starting_transaction_ids(spark: SparkSession, path: str, cluster_key: str, *, otherwise: str = "earliest") -> str:
    """The source's `startingTransactionIds` for the table at `path`: after its marks; `otherwise` where it has none (no table, or none of this cluster).

    Spark looks at it only when the checkpoint is new; an older checkpoint replays batches, which the sink drops."""
    marks = marks_among(internal.transaction_versions(spark, path), cluster_key)
    return starting_json(marks) if marks else otherwise
