"""Lands dead letters again after a correction: those that decode now are written to their table and marked as replayed.

It may run at any time, also while streams run. It may be killed and run again. A dead letter is landed only when its table's mark is at or above
its position in the log, because from then on no stream brings it. An appended table receives only those rows of a transaction that it lacks (found
by their position in the log). In a merged table a replayed row never replaces a newer one, and deletes are remembered for that. Then the dead
letters are marked in their own table. A run that dies before has marked none, and the next run finds the rows already there. What still does not
decode stays unchanged. A dead letter that no route accepted goes to every output whose route accepts it now.

A letter of a former cluster lands among the rows of that cluster, below all rows of the one that inherited the table (`takeover`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial, reduce
from typing import Any, Final  # Any: pyarrow has no types

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from waltz_delta.base import internal
from waltz_delta.base.job_outcome import run_job
from waltz_delta.base.log_store import one_committer
from waltz_delta.base.quoting import quoted
from waltz_delta.base.session import open_session, session_properties
from waltz_delta.base.table_transaction import TableTransaction
from waltz_delta.decode.decode import PROBLEM
from waltz_delta.decode.problem_kinds import kind_of_problem
from waltz_delta.engine.arrow_merge import ArrowMerge, refusal_of_merge
from waltz_delta.engine.arrow_transaction import ArrowTransaction, Overtaken
from waltz_delta.engine.filled import Filled
from waltz_delta.engine.written_files import compression_of
from waltz_delta.errors import WriteContended
from waltz_delta.jobs.job_arguments import JobParser
from waltz_delta.jobs.job_progress import progress
from waltz_delta.landing.append import ATTEMPTS, DeltaAppend
from waltz_delta.landing.constrained import ConstrainedOutput
from waltz_delta.landing.dead_letters import NO_TARGET, SCHEMA, DeadLetters
from waltz_delta.landing.landing import Landing, needs_delta, sink_for
from waltz_delta.landing.merge_sink import MergeSink
from waltz_delta.landing.output_decoder import OutputDecoder
from waltz_delta.landing.routing import routed
from waltz_delta.marks.batch import PARTITION, TRANSACTION_ID, LostRace
from waltz_delta.marks.marks import EPOCH_IDS, epochs_among
from waltz_delta.marks.restored import follow_restore, marks_as_restored
from waltz_delta.settings import LandingSettings
from waltz_delta.tables.table import is_table
from waltz_log.errors import InvalidSetting
from waltz_log.outside_text import printable

__all__ = ["Replayed", "replay", "replay_dead_letters"]

PLACE = [PARTITION, TRANSACTION_ID]
_KEYS = ["target", *PLACE]
REASONS_SHOWN = 5
REPLAYED_AT: Final = "replayed_at"
MARKED_AT_ONCE: Final = 100_000
"""Letters that one commit of the Arrow engine marks. The MERGE runs in the driver, and reads the files that hold these positions."""
_RAW = ("partition", "transaction_id", "timestamp", "header", "data")


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result for the dead letters of one table, or with `dry_run` the result that a replay would have."""

    table: str
    landed: int
    """Decode now: they are in the table, or filtered out as they would have been before."""
    still: int
    waiting: int
    """The table has not reached their position in the log; a later replay lands them."""
    reasons: dict[str, int] = field(default_factory=dict)
    """The most frequent reasons of those that still do not decode, without the values that they quote."""


def replay(spark: SparkSession, settings: LandingSettings, *, dry_run: bool = False) -> list[Replayed]:
    """Replays by the current settings. Returns one report for each output and cluster that has dead letters."""
    if settings.dead_letters is None:
        raise InvalidSetting(name="dead_letters", reason="are not declared", nearest=None)
    dead_letters = DeadLetters.declared(settings.dead_letters, "")
    if not dead_letters.exists(spark):
        return []
    dead_letters.prepare(spark)
    # At one version: otherwise the plan would see letters that arrive while it runs.
    pending = dead_letters.begin(spark).rows(spark, SCHEMA.fieldNames()).where("replayed_at IS NULL").persist()  # many plans read it
    try:
        return _replayed(spark, settings, dead_letters, pending, dry_run=dry_run)
    finally:
        pending.unpersist()


def _replayed(spark: SparkSession, settings: LandingSettings, dead_letters: DeadLetters, pending: DataFrame, *, dry_run: bool) -> list[Replayed]:
    clusters = [row[0] for row in pending.select("cluster").distinct().orderBy("cluster").collect()]
    reports = []
    for cluster in clusters:
        landing = Landing(settings, cluster)
        for _, sink in landing.outputs:
            _require_written(spark, sink)
        own = pending.where(f.col("cluster") == cluster)
        tries = []
        with ExitStack() as held, progress(f"replay of cluster {cluster}", len(landing.outputs)) as bar:
            for decoder, sink in landing.outputs:
                if not dry_run:  # the stream reads again what a RESTORE removed, so it is not replayed here
                    follow_restore(spark, sink.path, cluster, partial(sink.begin, spark))
                attempt = _Try(spark, decoder, sink, cluster, own.where(f.col("target").isin(sink.path, NO_TARGET)))
                held.callback(attempt.release)
                report = attempt.report(sink.path)
                if report is not None:
                    tries.append((sink.path, attempt))
                    reports.append(report)
                    if report.landed and not dry_run:
                        attempt.land(spark, sink)
                bar.advance(1)
            if tries and not dry_run:
                _mark(spark, dead_letters, cluster, _done(own, tries))
    return reports


def _require_written(spark: SparkSession, sink: DeltaAppend | MergeSink) -> None:
    """Raises an error that names the table, where Spark's engine writes it and cannot, before anything lands."""
    sink.engine.choose(spark, sink.engine_refusal(None, session_properties(spark)))
    if sink.engine.arrow(spark) is None:
        internal.check_versions(spark)
        is_table(spark, sink.path)


def _since(table: TableTransaction, cluster: str) -> tuple[str, int]:
    """The cluster that fills the table now, and how many takeovers after this one it came."""
    epochs = epochs_among(table.versions())
    filler = max(epochs, key=epochs.__getitem__) if cluster in epochs else cluster
    return filler, epochs.get(filler, 0) - epochs.get(cluster, 0)


def _passed(spark: SparkSession, sink: DeltaAppend | MergeSink, cluster: str) -> Column:
    """Whether the table has passed a position in the log."""
    passed = f.lit(False)
    for partition, mark in sorted(marks_as_restored(spark, sink.path, cluster, partial(sink.begin, spark)).items()):
        passed = passed | ((f.col(PARTITION) == partition) & (f.col(TRANSACTION_ID) <= mark))
    return passed


class _Try:
    """The dead letters of one output, decoded again. Its plans read one version of the dead-letter table, so they give the same rows whenever they
    run."""

    def __init__(self, spark: SparkSession, decoder: OutputDecoder, sink: DeltaAppend | MergeSink, cluster: str, letters: DataFrame) -> None:
        table = sink.begin(spark)
        self.letters = routed(letters, decoder.output.route).select(*_RAW).dropDuplicates(PLACE)
        self._decoder = decoder
        self._filler, self._takeovers = _since(table, cluster)
        self.ready = self.letters if self._takeovers else self.letters.where(_passed(spark, sink, cluster))
        self._held = decoder.settled(self.ready)
        self._settled = self.ready if self._held is None else self._held
        self._judged = ConstrainedOutput(decoder).judged(decoder.good(self._settled), table)
        self.bad = reduce(DataFrame.unionByName, [frame.select(*PLACE, PROBLEM) for frame in self._bad()])
        self.decoded = self.ready.select(*PLACE).join(self.bad, PLACE, "left_anti")

    def _bad(self) -> Iterator[DataFrame]:
        yield self._decoder.bad(self._settled)
        if self._judged is not None:
            yield self._judged.bad(self.ready)

    def release(self) -> None:
        if self._judged is not None:
            self._judged.release()
        if self._held is not None:
            internal.release_held_rows(self._held)

    def land(self, spark: SparkSession, sink: DeltaAppend | MergeSink) -> None:
        """Lands those that decode, by the sink of the cluster that fills the table now, among the rows of their own cluster."""
        rows = self._decoder.good(self._settled) if self._judged is None else self._judged.good()
        if self._takeovers:
            sink = sink_for(self._decoder.output, self._filler, dead_letters=True)
            rows = rows.withColumn(TRANSACTION_ID, f.col(TRANSACTION_ID) - self._takeovers * EPOCH_IDS)
        _land(spark, sink, rows)

    def report(self, table: str) -> Replayed | None:
        total, ready = self.letters.count(), self.ready.count()
        reasons = {row[0]: row[1] for row in self.bad.groupBy(kind_of_problem(f.col(PROBLEM))).count().collect()}
        still = sum(reasons.values())
        commonest = sorted(reasons.items(), key=lambda each: (-each[1], each[0]))[:REASONS_SHOWN]
        return Replayed(table, ready - still, still, total - ready, dict(commonest)) if total else None


def _done(own: DataFrame, tries: Sequence[tuple[str, _Try]]) -> DataFrame:
    """Target and position of every settled dead letter. One without a route is settled when every output that accepts it now decodes it."""
    unrouted = own.where(f.col("target") == NO_TARGET).select(*PLACE)
    routed_now = reduce(DataFrame.union, [unrouted.join(each.letters.select(*PLACE), PLACE, "left_semi") for _, each in tries])
    failed = reduce(DataFrame.union, [each.letters.select(*PLACE).join(each.decoded, PLACE, "left_anti") for _, each in tries])
    found = routed_now.distinct().join(failed, PLACE, "left_anti").withColumn("target", f.lit(NO_TARGET))
    return reduce(DataFrame.unionByName, [each.decoded.withColumn("target", f.lit(table)) for table, each in tries], found)


def _land(spark: SparkSession, sink: DeltaAppend | MergeSink, rows: DataFrame) -> None:
    sink.prepare(spark, rows.schema)
    for _ in range(ATTEMPTS):
        try:
            staged = sink.stage_late(spark, rows)
            if staged is not None:
                try:
                    staged.commit()
                finally:
                    staged.release()
        except LostRace:
            continue
        return
    raise WriteContended(path=sink.path, attempts=ATTEMPTS)


def _mark(spark: SparkSession, letters: DeadLetters, cluster: str, done: DataFrame) -> None:
    """Sets `replayed_at` of these letters, if it is not set: of two replays at the same time, the first one's stays."""
    for _ in range(ATTEMPTS):
        transaction = letters.begin(spark)
        shape = transaction.shape if isinstance(transaction, ArrowTransaction) else None
        refused = refusal_of_merge(shape, _KEYS, TRANSACTION_ID) if shape is not None else None
        if refused is not None:
            letters.engine.leave_to_spark(refused)
        try:
            if isinstance(transaction, ArrowTransaction) and refused is None:
                _mark_by_arrow(spark, letters, cluster, done.toArrow())
            else:
                _mark_by_spark(spark, letters.path, cluster, done)
        except Exception as error:
            if not transaction.lost_to_another(error):
                raise
        else:
            return
    raise WriteContended(path=letters.path, attempts=ATTEMPTS)


def _mark_by_arrow(spark: SparkSession, letters: DeadLetters, cluster: str, done: Any) -> None:
    """`done`: an Arrow table with the position of each letter. In its order, each commit reads few of the table's files. What a commit has marked
    stays marked if a later one fails. A commit is not signed as one of this cluster: it changes no mark, and follows no RESTORE."""
    ordered = done.sort_by([(name, "ascending") for name in PLACE])
    now = pa.scalar(datetime.now(UTC), pa.timestamp("us", "UTC"))
    for first in range(0, ordered.num_rows, MARKED_AT_ONCE):
        transaction = letters.begin(spark)
        if not isinstance(transaction, ArrowTransaction):
            raise Overtaken  # the table has changed
        source = ordered.slice(first, MARKED_AT_ONCE)
        for name, value in (("cluster", pa.scalar(cluster)), (REPLAYED_AT, now)):
            source = source.append_column(name, pa.repeat(value, source.num_rows))
        update = ArrowMerge(source, Filled(["cluster", *_KEYS], REPLAYED_AT), compression_of(spark, transaction.properties()))
        transaction.merge(update, {}, query="waltz replay", batch=-1, metadata="")


def _mark_by_spark(spark: SparkSession, path: str, cluster: str, done: DataFrame) -> None:
    from delta.tables import DeltaTable

    is_table(spark, path)
    same = " AND ".join(f"t.{quoted(name)} = s.{quoted(name)}" for name in _KEYS)
    pending = (f.col("t.cluster") == cluster) & f.col("t.replayed_at").isNull()
    merge = DeltaTable.forPath(spark, path).alias("t").merge(done.alias("s"), same)
    with one_committer(spark, path):
        merge.whenMatchedUpdate(pending, {"replayed_at": f.current_timestamp()}).execute()


def replay_dead_letters(arguments: Sequence[str]) -> int:
    """Runs the job. Returns the exit code."""
    return run_job("replay_dead_letters", arguments, _run)


def _run(arguments: Sequence[str]) -> int | None:
    from waltz_delta.pipelines.pipeline_file import load_job_pipeline

    parser = JobParser(
        prog="replay_dead_letters", description="Puts dead letters of a pipeline through again, by the pipeline as it is now.", allow_abbrev=False
    )
    parser.add_argument("--pipeline", metavar="FILE", help="the corrected pipeline file")
    parser.add_argument("--dry-run", action="store_true", help="show what would happen to each dead letter, and change nothing")
    found = parser.parse(arguments)
    if not found.pipeline:
        raise InvalidSetting(name="--pipeline", reason="is required", nearest=None)
    settings = load_job_pipeline(found.pipeline)
    spark = open_session("waltz replay of dead letters", delta=needs_delta(settings))
    try:
        reports = replay(spark, settings, dry_run=found.dry_run)
    finally:
        spark.stop()
    for each in reports:
        print(f"{'would land' if found.dry_run else 'landed'} table={each.table} landed={each.landed} still={each.still} waiting={each.waiting}")
        for reason, count in each.reasons.items():
            print(printable(f"  {count} {reason}"))
    if not reports:
        print("no dead letters")
    return None
