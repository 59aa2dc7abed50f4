"""The driver with whose start `visible` compares ours: Spark's own source of rows and Delta's own sink, without Python in the stream and without
marks. `spark-submit benchmarks/own_stream_session.py TABLE CHECKPOINT TRIGGER`.

Stands alone: spark-submit does not put the project's root on the path.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession


def main(table: str, checkpoint: str, trigger: str) -> None:
    spark = SparkSession.builder.appName("own stream").getOrCreate()
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    writer = rows.writeStream.format("delta").option("path", table).option("checkpointLocation", checkpoint)
    writer.trigger(processingTime=trigger).start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
