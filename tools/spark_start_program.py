"""The job whose classes `tools/spark_start.py` archives: a stream that a Python data source feeds and the sink lands, twice, and a MERGE."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from pyspark_waltz.testing import StubCluster, StubSource
from waltz_delta import DeltaAppend, DeltaUpsert, shape, starting_transaction_ids


def main(folder: Path) -> None:
    spark = SparkSession.builder.appName("class archive").getOrCreate()
    spark.dataSource.register(StubSource)
    cluster = StubCluster(folder)
    key = str(cluster.key)
    append = DeltaAppend(str(folder / "appended"), key)
    upsert = DeltaUpsert(str(folder / "merged"), key, keys=["n"])

    def land(rows: object, batch: int) -> None:
        append(rows, batch)  # type: ignore[arg-type]
        upsert(rows, batch)  # type: ignore[arg-type]

    for _ in range(2):
        cluster.append(0, [json.dumps({"n": n, "name": f"row {n}"}).encode() for n in range(10)])
        start = starting_transaction_ids(spark, append.path, key)
        source = spark.readStream.format("waltz_stub").option("cluster", cluster.address).option("startingTransactionIds", start).load()
        rows = shape(source, schema="n BIGINT, name STRING")
        append.prepare(spark, rows.schema)
        upsert.prepare(spark, rows.schema)
        query = rows.writeStream.foreachBatch(land).option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
        query.awaitTermination()
    assert spark.read.format("delta").load(append.path).count() == 20
    assert spark.read.format("delta").load(upsert.path).count() == 10
    cluster.close()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
