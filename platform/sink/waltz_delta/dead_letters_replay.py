"""Puts dead letters through again after a fix: those that decode now go into the table they were meant for, and are told as replayed.

May be run at any time, beside the streams, killed in the middle, and again. A letter is put through only when its table has passed its place in the
log: from then on no stream brings it. An appended table gets of a transaction only what it does not hold (looked up by its place in the log); a
merged one lets nothing newer give way, and remembers deletes for that. Then the letters are marked in their own table; whoever dies before has told
nothing, and the next run finds the rows there. What does not decode still stays as it is. Letters that no route took go to every output whose route
takes them now.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce

from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from waltz_delta.base import internal
from waltz_delta.base.job_outcome import run_job
from waltz_delta.decode.decode import PROBLEM
from waltz_delta.errors import WriteContended
from waltz_delta.jobs.arguments import JobParser
from waltz_delta.jobs.job_progress import progress
from waltz_delta.landing.append import ATTEMPTS, DeltaAppend
from waltz_delta.landing.dead_letters import NOWHERE, DeadLetters
from waltz_delta.landing.landing import Landing
from waltz_delta.landing.landing_way import Way
from waltz_delta.landing.merge_sink import MergeSink
from waltz_delta.landing.routing import routed
from waltz_delta.marks.batch import PARTITION, TRANSACTION_ID, LostRace
from waltz_delta.marks.restored import follow_restore, marks_as_restored
from waltz_delta.settings import LandingSettings
from waltz_delta.tables.table import is_table
from waltz_log.errors import InvalidSetting

__all__ = ["Replayed", "replay", "replay_dead_letters"]

PLACE = [PARTITION, TRANSACTION_ID]
REASONS_TOLD = 5
_RAW = ("partition", "transaction_id", "timestamp", "header", "data")


@dataclass(frozen=True, slots=True)
class Replayed:
    """What became, or would become, of the letters that one table waits for."""

    table: str
    landed: int
    """Decode now: they are in the table, or filtered out as they would have been at first."""
    still: int
    waiting: int
    """The table has not got so far in the log; they are put through later."""
    reasons: dict[str, int] = field(default_factory=dict)
    """The commonest of those that do not decode still."""


def replay(spark: SparkSession, settings: LandingSettings, *, dry_run: bool = False) -> list[Replayed]:
    """By the settings as they are now. One report for each output and cluster that has letters."""
    if settings.dead_letters is None:
        raise InvalidSetting(name="dead_letters", reason="are not declared", nearest=None)
    internal.check_versions(spark)
    path = settings.dead_letters.table
    if not is_table(spark, path):
        return []
    DeadLetters(path, "").prepare(spark)
    version = internal.table_version(spark, path)  # a plan without it would see letters that come while it is worked off
    pending = spark.read.format("delta").option("versionAsOf", version).load(path).where("replayed_at IS NULL")
    clusters = [row[0] for row in pending.select("cluster").distinct().orderBy("cluster").collect()]
    reports = []
    for cluster in clusters:
        landing = Landing(settings, cluster)
        own = pending.where(f.col("cluster") == cluster)
        tries = []
        with progress(f"replay of cluster {cluster}", len(landing.outputs)) as bar:
            for way, sink in landing.outputs:
                if not dry_run:  # what a RESTORE took away comes by the stream again, not from here as well
                    follow_restore(spark, sink.path, cluster)
                attempt = _Try(way, own.where(f.col("target").isin(sink.path, NOWHERE)), _passed(spark, sink.path, cluster))
                report = attempt.report(sink.path)
                if report is not None:
                    tries.append((sink.path, attempt))
                    reports.append(report)
                    if report.landed and not dry_run:
                        _land(spark, way, sink, attempt.ready)
                bar.advance(1)
        if tries and not dry_run:
            _mark(spark, path, cluster, _done(own, tries))
    return reports


def _passed(spark: SparkSession, table: str, cluster: str) -> Column:
    """Whether the table has got past a place in the log."""
    passed = f.lit(False)
    for partition, mark in sorted(marks_as_restored(spark, table, cluster).items()):
        passed = passed | ((f.col(PARTITION) == partition) & (f.col(TRANSACTION_ID) <= mark))
    return passed


class _Try:
    """The letters of one output, put through its decoder again. Plans over one version of the letters' table, so the same whenever they run."""

    def __init__(self, way: Way, letters: DataFrame, passed: Column) -> None:
        self.letters = routed(letters, way.output.route).select(*_RAW).dropDuplicates(PLACE)
        self.ready = self.letters.where(passed)
        self.bad = way.bad(self.ready).select(*PLACE, PROBLEM)
        self.decoded = self.ready.select(*PLACE).join(self.bad, PLACE, "left_anti")

    def report(self, table: str) -> Replayed | None:
        total, ready = self.letters.count(), self.ready.count()
        told = {row[0]: row[1] for row in self.bad.groupBy(PROBLEM).count().collect()}
        still = sum(told.values())
        commonest = sorted(told.items(), key=lambda each: (-each[1], each[0]))[:REASONS_TOLD]
        return Replayed(table, ready - still, still, total - ready, dict(commonest)) if total else None


def _done(own: DataFrame, tries: Sequence[tuple[str, _Try]]) -> DataFrame:
    """Target and place of every letter that is settled. One that no route took is, when every output that takes it now decodes it."""
    astray = own.where(f.col("target") == NOWHERE).select(*PLACE)
    taken = reduce(DataFrame.union, [astray.join(each.letters.select(*PLACE), PLACE, "left_semi") for _, each in tries])
    failed = reduce(DataFrame.union, [each.letters.select(*PLACE).join(each.decoded, PLACE, "left_anti") for _, each in tries])
    found = taken.distinct().join(failed, PLACE, "left_anti").withColumn("target", f.lit(NOWHERE))
    return reduce(DataFrame.unionByName, [each.decoded.withColumn("target", f.lit(table)) for table, each in tries], found)


def _land(spark: SparkSession, way: Way, sink: DeltaAppend | MergeSink, raw: DataFrame) -> None:
    rows = way.good(raw)
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


def _mark(spark: SparkSession, path: str, cluster: str, done: DataFrame) -> None:
    same = " AND ".join(f"t.`{name}` = s.`{name}`" for name in ("target", *PLACE))
    pending = (f.col("t.cluster") == cluster) & f.col("t.replayed_at").isNull()
    for _ in range(ATTEMPTS):
        merge = DeltaTable.forPath(spark, path).alias("t").merge(done.alias("s"), same)
        try:
            merge.whenMatchedUpdate(pending, {"replayed_at": f.current_timestamp()}).execute()
        except Exception as error:
            if not internal.is_conflict(error):
                raise
        else:
            return
    raise WriteContended(path=path, attempts=ATTEMPTS)


def replay_dead_letters(arguments: Sequence[str]) -> int:
    """The job. The exit code."""
    return run_job("replay_dead_letters", arguments, _run)


def _run(arguments: Sequence[str]) -> int | None:
    from waltz_delta.pipelines.pipeline_file import load_job_pipeline

    parser = JobParser(
        prog="replay_dead_letters", description="Puts dead letters of a pipeline through again, by the pipeline as it is now.", allow_abbrev=False
    )
    parser.add_argument("--pipeline", metavar="FILE", help="the pipeline, corrected")
    parser.add_argument("--dry-run", action="store_true", help="show what would happen to each dead letter, and change nothing")
    found = parser.parse(arguments)
    if not found.pipeline:
        raise InvalidSetting(name="--pipeline", reason="is required", nearest=None)
    settings = load_job_pipeline(found.pipeline)
    spark = SparkSession.builder.appName("waltz replay of dead letters").getOrCreate()
    try:
        reports = replay(spark, settings, dry_run=found.dry_run)
    finally:
        spark.stop()
    for each in reports:
        print(f"{'would land' if found.dry_run else 'landed'} table={each.table} landed={each.landed} still={each.still} waiting={each.waiting}")
        for reason, count in each.reasons.items():
            print(f"  {count} {reason}")
    if not reports:
        print("no dead letters")
    return None
