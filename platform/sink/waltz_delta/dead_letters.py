"""The table of dead letters: what did not decode, with its place in the log, the reason, and its data as it was.

Exactly once in the same way as any table: one transaction identifier per log partition in the commit that adds the rows. The identifiers are those of
one target (`waltz:<cluster key>:<partition>@<target>`), since several landings may share the table and each considers the log at its own pace.
A batch without dead letters commits nothing, so these marks may lag; what lies between is known to hold none.

Order: the dead letters of a batch are committed before the table that moves past them. A driver that dies between the two has told of letters whose
batch comes again, and the marks drop them then. The other way round a lost checkpoint would lose them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType, TimestampType

from waltz_delta import internal
from waltz_delta.append import ATTEMPTS
from waltz_delta.batch import PARTITION, TRANSACTION_ID
from waltz_delta.decode import DATA, PROBLEM
from waltz_delta.errors import WriteContended
from waltz_delta.evolution import fitting_columns
from waltz_delta.table import create_empty, is_table

__all__ = ["NOWHERE", "SCHEMA", "DeadLetters", "Letters"]

SCHEMA = StructType(
    [
        StructField("cluster", StringType()),
        StructField("target", StringType()),
        StructField(PARTITION, IntegerType()),
        StructField(TRANSACTION_ID, LongType()),
        StructField("timestamp", TimestampType()),
        StructField("header", IntegerType()),
        StructField("data", BinaryType()),
        StructField("reason", StringType()),
        StructField("failed_at", TimestampType()),
        StructField("replayed_at", TimestampType()),
    ]
)
"""`target`: path of the table they were meant for, empty for what no route takes. `replayed_at`: when it was put through after all."""

NOWHERE = ""
"""The target of what no route takes."""

Letters = Callable[[Mapping[int, int]], DataFrame]
"""What did not decode of a batch on the way to one target, above the given marks."""


class DeadLetters:
    def __init__(self, path: str, cluster_key: str) -> None:
        self.path = path
        self.cluster_key = cluster_key

    def prepare(self, spark: SparkSession) -> None:
        if not is_table(spark, self.path):
            create_empty(spark, self.path, SCHEMA, {})
        held = spark.read.format("delta").load(self.path).schema
        fitting_columns(self.path, held, SCHEMA, "fail")

    def app_id(self, target: str, partition: int) -> str:
        return f"waltz:{self.cluster_key}:{partition}@{hashlib.sha256(target.encode()).hexdigest()[:16]}"

    def write(self, spark: SparkSession, ends: Mapping[int, int], letters: Mapping[str, Letters], batch_id: int | None) -> set[str]:
        """The letters of each target, those below its marks left out, in one commit with the marks at `ends`. Gives the targets that had not got
        so far."""
        for _ in range(ATTEMPTS):
            transaction = internal.TableTransaction(spark, self.path)
            versions: dict[str, int] = {}
            frames: dict[str, DataFrame] = {}
            for target, rows in sorted(letters.items()):
                names = {partition: self.app_id(target, partition) for partition in sorted(ends)}
                marks = {p: mark for p, name in names.items() if (mark := transaction.version(name)) is not None}
                ahead = {names[p]: end for p, end in ends.items() if end > marks.get(p, -1)}
                if ahead:
                    versions |= ahead
                    frames[target] = self._rows(rows(marks), target)
            if not versions:
                return set()
            try:
                written = transaction.write(reduce(DataFrame.unionByName, frames.values()), partition_by=(), properties={})
                transaction.commit(written, versions, query="waltz dead letters", batch=-1 if batch_id is None else batch_id, metadata="")
            except Exception as error:
                if not transaction.lost_to_another(error):
                    raise
            else:
                return set(frames)
        raise WriteContended(path=self.path, attempts=ATTEMPTS)

    def _rows(self, bad: DataFrame, target: str) -> DataFrame:
        never = f.lit(None).cast("timestamp")
        told = {"cluster": f.lit(self.cluster_key), "target": f.lit(target), "failed_at": f.current_timestamp(), "replayed_at": never}
        return bad.withColumnsRenamed({DATA: "data", PROBLEM: "reason"}).withColumns(told).select(*SCHEMA.fieldNames())
