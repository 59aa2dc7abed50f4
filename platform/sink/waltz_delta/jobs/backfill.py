"""Fills a pipeline's tables from the whole log with every core, in commits of bounded size; the streaming job continues from the marks.

A stream reads a log in the order of its offsets, in sequential batches that are as small as its limits; a batch job can read large pieces at once.
Every piece is landed like a micro-batch, with the range of the log that it covers, so the same guarantees hold: after a kill and a restart it
continues at the tables' marks, and a stream that runs already, or starts meanwhile, neither repeats nor loses a row.

Pieces follow each other without gaps in every partition. The end is fixed at the start: the stream lands what is appended meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from pyspark.sql import SparkSession

from pyspark_waltz.log_view import inspect_cluster
from waltz_delta.base.job_outcome import run_job
from waltz_delta.base.session import open_session
from waltz_delta.base.stopping import StopRequest
from waltz_delta.jobs.job_arguments import JobParser
from waltz_delta.jobs.job_progress import Progress, progress
from waltz_delta.landing.landing import Landing, needs_delta
from waltz_delta.marks.marks import BatchRange
from waltz_delta.pipelines.pipeline import PipelineSettings, batch_options
from waltz_delta.pipelines.pipeline_file import load_job_pipeline
from waltz_log.errors import InvalidSetting

__all__ = ["Piece", "backfill", "fill", "pieces"]

TRANSACTIONS_PER_COMMIT = 5_000_000
"""One or two gigabytes of rows: large enough that the time of a commit does not matter, small enough to sort in memory and to repeat after a kill."""

TASKS_PER_CORE = 3
"""Keeps all cores busy to the end of a commit although tasks differ in length."""


class Piece(NamedTuple):
    """From partition to the first id, and to one after the last id."""

    starts: dict[int, int]
    ends: dict[int, int]

    @property
    def transactions(self) -> int:
        return sum(end - self.starts[partition] for partition, end in self.ends.items())


def pieces(starts: Mapping[int, int], ends: Mapping[int, int], most: int) -> Iterator[Piece]:
    """The ranges between `starts` and `ends` in pieces of `most` transactions, at least one of each partition. Partitions advance in proportion to
    their remaining transactions, so that all of them end together."""
    at = {partition: start for partition, start in sorted(starts.items()) if ends.get(partition, start) > start}
    while at:
        left = {partition: ends[partition] - start for partition, start in at.items()}
        total = sum(left.values())
        share = {partition: count if total <= most else max(1, count * most // total) for partition, count in left.items()}
        yield Piece(dict(at), {partition: at[partition] + count for partition, count in share.items()})
        at = {partition: at[partition] + count for partition, count in share.items() if at[partition] + count < ends[partition]}


def fill(
    spark: SparkSession,
    settings: PipelineSettings,
    landing: Landing,
    todo: Sequence[Piece],
    *,
    source: str = "waltz",
    done: Callable[[Piece], bool] = lambda piece: True,
) -> None:
    """Lands the pieces in order, until `done` returns False after one."""
    options = batch_options(settings.source)
    origins = todo[0].starts if todo else {}
    tasks = str(spark.sparkContext.defaultParallelism * TASKS_PER_CORE)
    for piece in todo:
        bounds = {
            "partitions": ",".join(str(partition) for partition in piece.starts),
            "startingTransactionIds": json.dumps({str(partition): at for partition, at in piece.starts.items()}),
            "endingTransactionIds": json.dumps({str(partition): at for partition, at in piece.ends.items()}),
        }
        rows = spark.read.format(source).options(**({"minPartitions": tasks} | options | bounds), mode="ranges").load()
        landing.write(rows, BatchRange(ends=piece.ends, starts=piece.starts, exact=True, origins=origins))
        if not done(piece):
            return


def backfill(arguments: Sequence[str]) -> int:
    """Returns the exit code."""
    return run_job("backfill", arguments, _run)


def _run(arguments: Sequence[str]) -> int | None:
    parser = JobParser(
        prog="backfill", description="Fills a pipeline's tables from the whole log; the streaming job then goes on from there.", allow_abbrev=False
    )
    parser.add_argument("--pipeline", metavar="FILE", help="the pipeline file of the streaming job")
    parser.add_argument(
        "--transactions-per-commit",
        type=int,
        default=TRANSACTIONS_PER_COMMIT,
        metavar="N",
        help=f"largest number of transactions in one commit ({TRANSACTIONS_PER_COMMIT:,})",
    )
    parser.add_argument("--dry-run", action="store_true", help="show what would be read, and write nothing")
    found = parser.parse(arguments)
    settings = load_job_pipeline(found.pipeline)
    if found.transactions_per_commit < 1:
        raise InvalidSetting(name="--transactions-per-commit", reason="must be at least 1", nearest=None)
    with inspect_cluster(settings.options) as inspector:
        key = str(inspector.parameters.key)
        bounds = inspector.bounds(settings.options.wanted_partitions(inspector.catalogue))
    spark = open_session(f"waltz backfill {settings.name}", delta=needs_delta(settings))
    try:
        stop = StopRequest(spark)
        landing = Landing(settings, key)
        earliest = {p: bound.first_transaction_id for p, bound in bounds.items()}
        starts = where_to_begin(spark, landing, earliest, dry_run=found.dry_run)
        todo = list(pieces(starts, {p: bound.high_water_mark + 1 for p, bound in bounds.items()}, found.transactions_per_commit))
        total = sum(piece.transactions for piece in todo)
        print(f"{total:,} transactions of {len(starts)} partitions in {len(todo)} commits into {', '.join(settings.tables)}", flush=True)
        if found.dry_run:
            return None
        with progress(f"backfill {settings.name}", total) as bar:
            fill(spark, settings, landing, todo, done=lambda piece: _landed(piece, bar, stop))
        if stop.asked:
            print("stopped; the next start continues here", flush=True)
        return None
    finally:
        spark.stop()


def where_to_begin(spark: SparkSession, landing: Landing, earliest: Mapping[int, int], *, dry_run: bool = False) -> dict[int, int]:
    """After what the tables hold, else at the beginning of the log. The start that a pipeline declares applies only to its stream."""
    found = json.loads(landing.starting_transaction_ids(spark, earliest, dry_run=dry_run))
    return {int(partition): at if at >= 0 else earliest[int(partition)] for partition, at in found.items()}


def _landed(piece: Piece, bar: Progress, stop: StopRequest) -> bool:
    bar.advance(piece.transactions)
    return not stop.asked
