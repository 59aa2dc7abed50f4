"""The part of `json_tables` that runs inside a Spark driver: `spark-submit benchmarks/json_session.py --cluster …`.

- Append: `from_json` into Delta's own streaming sink, and a landing as pipelines run it (the source decodes, the Arrow engine writes, exactly once),
  twice each and in turn, in one session that was warmed up. The figure is the time of the triggers, as Spark reports it.
- Merge: two streams of the same batches merge in turn into two tables of the same keys: a landing, and a MERGE as a user writes it. The figure is the
  time of the functions that receive the batches: reading, decoding and merging.

The last line of output is the answer as JSON.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pyspark_waltz.range_rows import transactions_schema
from waltz_delta.landing.landing import Landing
from waltz_delta.settings import LandingSettings
from waltz_log.client.inspection.inspect import ClusterInspector

if TYPE_CHECKING:
    from benchmarks.delta_session import Turns, own_merge, timed
else:
    from delta_session import Turns, own_merge, timed  # spark-submit puts the script's folder on the path, and no other one

LOG_COLUMNS = ("partition", "transaction_id", "timestamp", "header")
WARM_UP_ROWS = 50_000
"""Of each partition."""


class Session:
    """`partitions`: of the log. `cluster`: its address. `columns`: of the documents."""

    def __init__(self, spark: SparkSession, cluster: str, key: str, partitions: int, columns: str) -> None:
        self.spark, self.cluster, self.key, self.partitions, self.columns = spark, cluster, key, partitions, columns

    def landing(self, table: Path, **target: Any) -> Landing:
        declared = {"decode": {"format": "json", "columns": self.columns}, "target": {"table": str(table), "engine": "arrow", **target}}
        return Landing(LandingSettings.model_validate({"outputs": [declared]}), self.key)

    def bounds(self, **at: int) -> dict[str, str]:
        """Options for a range of every partition: transaction ids of `starting` and `ending`."""
        return {f"{name}TransactionIds": json.dumps({str(p): place for p in range(self.partitions)}) for name, place in at.items()}

    def options(self, landing: Landing | None, **more: str) -> dict[str, str]:
        return {"cluster": self.cluster, **more, **({"mode": "ranges"} if landing is not None else {})}

    def parsed(self, rows: DataFrame) -> DataFrame:
        return rows.select(*LOG_COLUMNS, f.from_json(f.col("data").cast("string"), self.columns).alias("value")).select(*LOG_COLUMNS, "value.*")

    def differing(self, own: Path, ours: Path) -> int:
        columns = [*LOG_COLUMNS[:2], *self.spark.read.format("delta").load(str(own)).columns[len(LOG_COLUMNS) :]]
        held = [self.spark.read.format("delta").load(str(path)).select(*columns) for path in (own, ours)]
        return held[0].exceptAll(held[1]).count() + abs(held[0].count() - held[1].count())


def append_own(session: Session, folder: Path, options: Mapping[str, str]) -> tuple[int, float]:
    rows = session.spark.readStream.format("waltz").options(**session.options(None, **options)).load()
    return _run(session, session.parsed(rows).writeStream.format("delta").option("path", str(folder / "table")), folder)


def append_ours(session: Session, folder: Path, options: Mapping[str, str]) -> tuple[int, float]:
    landing = session.landing(folder / "table")
    rows = session.spark.readStream.format("waltz").options(**session.options(landing, **options)).load()
    landing.prepare(session.spark, transactions_schema(rows.schema), str(folder / "checkpoint"))
    return _run(session, rows.writeStream.foreachBatch(landing), folder)


def _run(session: Session, writer: DataStreamWriter, folder: Path) -> tuple[int, float]:
    """Rows of the table, and seconds of the triggers."""
    _, took_s = timed(writer.trigger(availableNow=True).option("checkpointLocation", str(folder / "checkpoint")).start())
    return session.spark.read.format("delta").load(str(folder / "table")).count(), took_s


def appends(session: Session, folder: Path, batch: int, warm_up: Mapping[str, str]) -> dict[str, Any]:
    ways: dict[str, Callable[[Session, Path, Mapping[str, str]], tuple[int, float]]] = {"own": append_own, "ours": append_ours}
    for name, way in ways.items():
        way(session, folder / f"warm-up-{name}", warm_up)
    took_s, rows = dict.fromkeys(ways, 0.0), dict.fromkeys(ways, 0)
    for number, name in enumerate(("own", "ours", "ours", "own")):
        count, seconds = ways[name](session, folder / f"{number}-{name}", {"maxTransactionsPerTrigger": str(batch)})
        took_s[name] += seconds
        rows[name] += count
    return {"took_s": took_s, "rows": rows, "differing": session.differing(folder / "0-own" / "table", folder / "1-ours" / "table")}


def merges(session: Session, folder: Path, keys: int, changes: int, count: int) -> dict[str, Any]:
    spark, each = session.spark, keys // session.partitions
    landing = session.landing(folder / "ours", mode="upsert", keys=["tail"])
    first = session.bounds(starting=0, ending=each)
    landing.write(spark.read.format("waltz").options(**session.options(landing, **first)).load())
    read = spark.read.format("waltz").options(**session.options(None, **first)).load()
    session.parsed(read).write.format("delta").save(str(folder / "own"))
    own = own_merge(folder / "own", "tail")
    ways: dict[str, Callable[[DataFrame, int], None]] = {"own": lambda rows, batch_id: own(session.parsed(rows)), "ours": landing}
    pairs = [("own", "ours") if number % 2 else ("ours", "own") for number in range(count + 1)]
    turns = Turns([name for pair in pairs for name in pair])
    span = session.bounds(starting=each, ending=each + (count + 1) * changes // session.partitions)
    queries = []
    for name, way in ways.items():
        options = session.options(landing if name == "ours" else None, maxTransactionsPerTrigger=str(changes), **span)
        rows = spark.readStream.format("waltz").options(**options).load()
        writer = rows.writeStream.trigger(availableNow=True).option("checkpointLocation", str(folder / f"checkpoint-{name}"))
        queries.append(writer.foreachBatch(turns.of(name, way)).start())
    for query in queries:
        query.awaitTermination()
    if any(len(times) != count + 1 for times in turns.times_s.values()):
        raise RuntimeError(f"a stream had another number of batches: {turns.times_s} wanted={count + 1}")
    took_s = {name: sum(times[1:]) for name, times in turns.times_s.items()}
    return {"took_s": took_s, "differing": session.differing(folder / "own", folder / "ours")}


def main() -> None:
    parser = argparse.ArgumentParser(prog="json_session.py")
    parser.add_argument("what", choices=("json",))
    parser.add_argument("--cluster", required=True)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--columns", required=True)
    for name in ("batch", "keys", "changes", "merges"):
        parser.add_argument(f"--{name}", type=int, required=True)
    given = parser.parse_args()
    with ClusterInspector(given.cluster) as inspector:
        key = str(inspector.parameters.key)
        marks = {partition: bound.high_water_mark for partition, bound in inspector.bounds().items()}
    latest = json.dumps({str(partition): max(0, mark + 1 - WARM_UP_ROWS) for partition, mark in marks.items()})
    spark = SparkSession.builder.appName("benchmark json").getOrCreate()
    session = Session(spark, given.cluster, key, len(marks), given.columns)
    found = {
        "append": appends(session, given.directory / "append", given.batch, {"startingTransactionIds": latest}),
        "merge": merges(session, given.directory / "merge", given.keys, given.changes, given.merges),
        "spark": spark.version,
    }
    spark.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
