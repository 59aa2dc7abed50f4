"""`python -m benchmarks.json_decoding [--rows N] [--turns N]`: JSON into columns, beside Spark's `from_json`. `make bench ONLY=decode` runs it.

- `decode.json`: documents of the demo's 14 columns, in one Python process: rows/s of one core.
- `decode.json_spark` and `decode.json_100`: 14 and 100 columns from a log (of stubs, so that only reading and decoding count) to no sink, in turns.
  A pipeline's tasks keep the columns in Python, and `from_json` over the source's `data` keeps them in the JVM. The ratio counts. `from_json`
  refuses less than this decoder does. `source`: the source with `columns` and `undecodable=fail`, for queries, which converts the columns for the
  JVM. `filtered`: with `undecodable=keep`, and a filter. `in_workers`: rows that were read before.
- `batch.plan_ms_100_columns`: what the driver needs to plan a batch of 100 columns, 10 of them required.

The last line of output is the answer as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructType

from benchmarks.documents import FLIGHT, REQUIRED_WIDE, WIDE, flight, wide
from pyspark_waltz.decode.json_columns import JsonColumns
from pyspark_waltz.decode.problems import Problems
from pyspark_waltz.decode.required import nullable
from pyspark_waltz.decode.settings import DecodeSettings
from pyspark_waltz.decode.times import time_zone
from pyspark_waltz.testing import StubCluster, StubSource
from waltz_delta.base.direct_rows import MakeRows, Undecoded
from waltz_delta.decode.transactions import Transactions
from waltz_delta.landing.output_decoder import OutputDecoder
from waltz_delta.settings import OutputSettings, TargetSettings

__all__ = ["main"]

TURNS = 5
ROWS = 200_000


def alone(spark: SparkSession, columns: str, documents: list[bytes]) -> float:
    """Rows per second of processor time in one process."""
    struct = StructType.fromDDL(columns)
    assert isinstance(struct, StructType)
    arrow = [to_arrow_type(nullable(field.dataType), timezone="UTC") for field in struct.fields]
    decoder = JsonColumns(struct, arrow, DecodeSettings(format="json", columns=columns), time_zone("UTC"))
    batches = [pa.array(documents[at : at + 10_000], pa.binary()) for at in range(0, len(documents), 10_000)]
    spent = []
    for _ in range(TURNS):
        began = time.process_time()
        for batch in batches:
            problems = Problems()
            decoder.decode(batch, problems)
            if problems.reasons:
                raise RuntimeError(f"a document of the benchmark did not decode: {problems.reasons}")
        spent.append(time.process_time() - began)
    return len(documents) / min(spent)


def in_log(directory: Path, documents: list[bytes]) -> StubCluster:
    """A log of 4 partitions with blocks of 1,000 transactions."""
    cluster = StubCluster(directory, partitions=4)
    for number, at in enumerate(range(0, len(documents), 1_000)):
        cluster.append(number % 4, documents[at : at + 1_000])
    return cluster


def ours(rows: DataFrame, columns: str) -> DataFrame:
    output = OutputSettings(target=TargetSettings(table="unused"), decode=DecodeSettings(format="json", columns=columns))
    return OutputDecoder(output, dead_letters=True).good(rows)


def spark_alone(rows: DataFrame, columns: str) -> DataFrame:
    return rows.select("partition", "transaction_id", f.from_json(f.col("data").cast("string"), columns).alias("value")).select(
        "partition", "transaction_id", "value.*"
    )


def in_tasks(spark: SparkSession, cluster: str, columns: str) -> DataFrame:
    """The number of rows that each task of a pipeline makes."""
    output = OutputSettings(target=TargetSettings(table="unused"), decode=DecodeSettings(format="json", columns=columns))
    ranges = spark.read.format("waltz_stub").options(cluster=cluster, mode="ranges").load()
    rows = OutputDecoder(output, dead_letters=True).direct(Transactions.of(ranges))
    assert rows is not None, "the tasks make such rows"
    return ranges.mapInArrow(partial(_count, rows.make), "rows BIGINT")


def _count(make: MakeRows, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    count = sum(batch.num_rows for batch in make(batches, Undecoded()))
    yield pa.RecordBatch.from_pydict({"rows": pa.array([count], pa.int64())})


def decoded_by_source(spark: SparkSession, cluster: str, columns: str, undecodable: str) -> DataFrame:
    rows = spark.read.format("waltz_stub").options(cluster=cluster, columns=columns, undecodable=undecodable).load()
    return rows.where("problem IS NULL").drop("data", "problem") if undecodable == "keep" else rows


def in_turns(spark: SparkSession, cluster: str, columns: str, turns: int) -> dict[str, float]:
    """The median of the turns for each way, in seconds; the first turn warms up. As in a stream, each way plans its read once."""
    rows = spark.read.format("waltz_stub").option("cluster", cluster).load()
    ways = {
        "from_json": spark_alone(rows, columns),
        "tasks": in_tasks(spark, cluster, columns),
        "source": decoded_by_source(spark, cluster, columns, "fail"),
        "filtered": decoded_by_source(spark, cluster, columns, "keep"),
        "in_workers": ours(rows, columns),
    }
    spent: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(turns + 1):
        for name, way in ways.items():
            began = time.perf_counter()
            way.write.format("noop").mode("overwrite").save()
            if turn:
                spent[name].append(time.perf_counter() - began)
    return {name: statistics.median(values) for name, values in spent.items()}


def planning_ms(rows: DataFrame, columns: str) -> float:
    spent = []
    for _ in range(TURNS):
        began = time.perf_counter()
        ours(rows, columns).schema  # noqa: B018  # Spark analyzes the plan
        spent.append((time.perf_counter() - began) * 1000)
    return statistics.median(spent)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.json_decoding", description="JSON into columns, beside from_json.")
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--turns", type=int, default=TURNS)
    found = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", False).config("spark.driver.host", "127.0.0.1")
    spark = builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    answer: dict[str, dict[str, float]] = {"decode.json": {"alone": alone(spark, FLIGHT, [flight(n) for n in range(min(found.rows, 100_000))])}}
    print(f"decode.json {answer['decode.json']['alone']:,.0f} rows/s and core")
    spark.dataSource.register(StubSource)
    with tempfile.TemporaryDirectory() as made:
        for name, columns, document, count in (("decode.json_spark", FLIGHT, flight, found.rows), ("decode.json_100", WIDE, wide, found.rows // 5)):
            cluster = in_log(Path(made), [document(n) for n in range(count)])
            spent = in_turns(spark, cluster.address, columns, found.turns)
            answer[name] = {way: count / seconds for way, seconds in spent.items()}
            shown = ", ".join(f"{way} {rate:,.0f} rows/s" for way, rate in answer[name].items())
            print(f"{name} ratio {spent['from_json'] / spent['tasks']:.2f} ({shown})")
        rows = spark.read.format("waltz_stub").option("cluster", cluster.address).load()
        print(f"batch.plan_ms_100_columns {planning_ms(rows, REQUIRED_WIDE):.0f}")
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
