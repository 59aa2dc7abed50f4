"""Maintains a pipeline's tables: compacts small files, clusters, and runs VACUUM without breaking a reader.

Compaction and VACUUM never change a row or the log that holds a table's marks; a landing that conflicts with a compaction tries again. Only VACUUM
can do harm, because it removes the data files of old versions. So it keeps what a declared need requires: a version, a log position (`positions`), or
a stream that reads the table (its checkpoint holds its position). A need makes the retention longer, never shorter. A retention below the table's own
(a week, unless a property changes it) is used only if it is requested explicitly.

Reports properties that would make the table lose marks or old versions before they are needed. The user must change those.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from pyspark.sql import SparkSession

from waltz_delta.base import internal
from waltz_delta.base.job_outcome import run_job
from waltz_delta.base.log_store import one_committer
from waltz_delta.base.quoting import table_at
from waltz_delta.base.session import open_session
from waltz_delta.errors import NotADeltaTable
from waltz_delta.jobs.job_arguments import JobParser
from waltz_delta.jobs.job_progress import progress
from waltz_delta.jobs.maintain_files import FileReport, file_report
from waltz_delta.landing.landing import sink_for
from waltz_delta.landing.upsert import DeltaUpsert
from waltz_delta.marks.marks import cluster_key_among
from waltz_delta.marks.positions import version_at
from waltz_delta.marks.positions_given import checked_position
from waltz_delta.marks.positions_log import TableLog
from waltz_delta.pipelines.pipeline import PipelineSettings
from waltz_delta.pipelines.pipeline_file import load_job_pipeline
from waltz_delta.tables.table import is_table
from waltz_log.errors import InvalidRequest, InvalidSetting
from waltz_log.exit_codes import FAILED
from waltz_log.outside_text import printable

__all__ = ["Maintained", "Needs", "maintain", "maintain_table", "needs_of"]

HOURS_DEFAULT = 168.0
"""Delta's own `delta.deletedFileRetentionDuration` if the table has no such property."""

MARGIN_HOURS = 1.0
"""Largest difference between the clocks of writers and of this machine."""

ATTEMPTS = 5
"""For OPTIMIZE, while a stream merges."""

STEPS = 2


@dataclass(frozen=True, slots=True)
class Needs:
    """What must stay readable. `hours`: requested explicitly, and may be below the table's own retention."""

    hours: float | None = None
    versions: tuple[int, ...] = ()
    positions: tuple[dict[int, int], ...] = ()
    readers: tuple[str, ...] = ()


@dataclass(slots=True)
class Maintained:
    table: str
    before: FileReport
    retained_hours: float
    because: str
    after: FileReport | None = None
    vacuumed: int | None = None
    warnings: list[str] = field(default_factory=list)


def maintain(arguments: Sequence[str]) -> int:
    """Returns the exit code: 1 if a table needs attention."""
    return run_job("maintain", arguments, _run)


def _run(arguments: Sequence[str]) -> int | None:
    parser = JobParser(prog="maintain", description="Compacts, clusters and cleans tables, and reports their small files.", allow_abbrev=False)
    parser.add_argument("--pipeline", metavar="FILE", help="all tables of a pipeline")
    parser.add_argument("--table", action="append", default=[], metavar="PATH", help="a table; may be repeated")
    parser.add_argument("--small-mib", type=float, default=32.0, metavar="N", help="smaller files count as small (32)")
    parser.add_argument("--cluster-by", metavar="…", help="columns by which the single --table is clustered from now on, separated by commas")
    parser.add_argument("--full", action="store_true", help="also cluster files that are clustered already: after --cluster-by")
    parser.add_argument("--no-optimize", action="store_true", help="leave the files as they are")
    parser.add_argument("--no-vacuum", action="store_true", help="remove nothing")
    parser.add_argument(
        "--retain-hours", type=float, metavar="H", help="how many hours removed files are kept, even if the table keeps them longer (a week)"
    )
    parser.add_argument(
        "--keep-version", action="append", type=int, default=[], metavar="V", help="a version of the single --table that must stay readable"
    )
    parser.add_argument("--keep-position", action="append", default=[], metavar="JSON", help='a log position that must stay readable, {"0": 42}')
    parser.add_argument(
        "--reader",
        action="append",
        default=[],
        metavar="CHECKPOINT",
        help="checkpoint of a Spark stream that reads some of the tables; may be repeated",
    )
    parser.add_argument("--dry-run", action="store_true", help="show the current state and what would be done, and change nothing")
    found = parser.parse(arguments)
    if not found.pipeline and not found.table:
        raise InvalidSetting(name="--table", reason="is required, or --pipeline", nearest=None)
    if found.retain_hours is not None and found.retain_hours < MARGIN_HOURS:
        raise InvalidSetting(name="--retain-hours", reason=f"below {MARGIN_HOURS:g} hours removes files of a running batch", nearest=None)
    settings = load_job_pipeline(found.pipeline) if found.pipeline else None
    for name, given in (("--keep-version", found.keep_version), ("--cluster-by", found.cluster_by)):
        if given and (settings is not None or len(found.table) > 1):
            raise InvalidSetting(name=name, reason="is of one table: give that with --table", nearest=None)
    try:
        positions = tuple(checked_position(json.loads(text)) for text in found.keep_position)
    except (ValueError, InvalidRequest):
        raise InvalidSetting(name="--keep-position", reason='must be JSON of ids such as {"0": 42}', nearest=None) from None
    spark = open_session("waltz maintain")
    try:
        internal.check_versions(spark)
        holding = [*found.table, *(_existing(spark, settings.tables) if settings is not None else ())]
        without_marks = _existing(spark, _tables_without_marks(settings)) if settings is not None else []
        plain = Needs(found.retain_hours, tuple(found.keep_version))
        needs = needs_of(spark, plain, holding, without_marks, positions, found.reader)
        for table, need in needs.items():  # report what cannot be kept before anything is changed
            retention(spark, table, need)
        done = []
        with progress("maintain", STEPS * len(needs)) as bar:
            for table, need in needs.items():
                if found.cluster_by and not found.dry_run:
                    with one_committer(spark, table):
                        spark.sql(f"ALTER TABLE {table_at(table)} CLUSTER BY ({found.cluster_by})")
                done.append(
                    maintain_table(
                        spark,
                        table,
                        need,
                        small_bytes=int(found.small_mib * 2**20),
                        optimize=not found.no_optimize,
                        full=found.full,
                        vacuum=not found.no_vacuum,
                        dry_run=found.dry_run,
                    )
                )
                bar.advance(STEPS)
    finally:
        spark.stop()
    for each in done:
        _print_report(each, dry_run=found.dry_run)
    return FAILED if any(each.warnings for each in done) else None


def _tables_without_marks(settings: PipelineSettings) -> list[str]:
    """What a pipeline writes besides its tables: dead letters and remembered deletes. They hold no log position."""
    letters = [settings.dead_letters.table] if settings.dead_letters is not None else []
    sinks = [sink_for(output, "", dead_letters=settings.dead_letters is not None) for output in settings.outputs]
    return [*letters, *(path for sink in sinks if isinstance(sink, DeltaUpsert) and (path := sink.tombstones) is not None)]


def _existing(spark: SparkSession, paths: Sequence[str]) -> list[str]:
    """Those of a pipeline's tables that exist."""
    found = [path for path in paths if is_table(spark, path)]
    for path in paths:
        if path not in found:
            print(f"{path}: no table yet", flush=True)
    return found


def needs_of(
    spark: SparkSession,
    plain: Needs,
    holding: Sequence[str],
    without_marks: Sequence[str],
    positions: Sequence[dict[int, int]],
    readers: Sequence[str],
) -> dict[str, Needs]:
    """What each table must keep. The need of a reader applies to the tables that it reads, and that of a position to the tables that are `holding`
    the log."""
    found = {path: replace(plain, positions=tuple(positions)) for path in holding} | dict.fromkeys(without_marks, plain)
    for reader in readers:
        versions = _reader_versions(spark, reader)
        read = [path for path in found if _table_id(spark, path) in versions]
        if not read:
            raise InvalidSetting(name="--reader", reason=f"{reader} is not of a stream that reads {' or '.join(found)}", nearest=None)
        for path in read:
            found[path] = replace(found[path], readers=(*found[path].readers, reader))
    return found


def maintain_table(
    spark: SparkSession,
    path: str,
    needs: Needs,
    *,
    small_bytes: int,
    optimize: bool = True,
    full: bool = False,
    vacuum: bool = True,
    dry_run: bool = False,
) -> Maintained:
    """Raises `NotADeltaTable`, `UnsafeTable`; `PositionForgotten` and `PositionNotReached` for a position that is no longer kept, or not reached
    yet."""
    if not is_table(spark, path):
        raise NotADeltaTable(path=path, reason="no table there")
    hours, because = retention(spark, path, needs)
    result = Maintained(path, file_report(path, small_bytes), hours, because)
    result.warnings += _warnings(spark, path, hours)
    if optimize and not dry_run:
        _optimize(spark, path, full=full)
        result.after = file_report(path, small_bytes)
    if vacuum:
        result.vacuumed = _vacuum(spark, path, hours, dry_run=dry_run)
    return result


def retention(spark: SparkSession, path: str, needs: Needs) -> tuple[float, str]:
    """Hours to keep removed files, and the reason."""
    properties = _properties(spark, path)
    own = _hours(properties.get("delta.deletedFileRetentionDuration"), HOURS_DEFAULT)
    hours, because = (needs.hours, "asked for") if needs.hours is not None else (own, "the table's own")
    wanted: list[tuple[int, str]] = [(version, f"version {version}") for version in needs.versions]
    for position in needs.positions:
        wanted.append((version_at(path, position), f"log position {json.dumps(position)}"))
    for reader in needs.readers:
        version = reader_version(spark, reader, path)
        wanted.append((version, f"the reader {reader} at version {version}"))
    for version, what in wanted:
        age = _age_hours(spark, path, version) + MARGIN_HOURS
        if age > hours:
            hours, because = age, what
    return hours, because


def reader_version(spark: SparkSession, checkpoint: str, path: str) -> int:
    """The version of the table that a Spark stream has reached."""
    found = _reader_versions(spark, checkpoint).get(_table_id(spark, path))
    if found is None:
        raise InvalidSetting(name="--reader", reason=f"{checkpoint} is not of a stream that reads {path}", nearest=None)
    return found


def _table_id(spark: SparkSession, path: str) -> str:
    return str(spark.sql(f"DESCRIBE DETAIL {table_at(path)}").collect()[0]["id"])


def _reader_versions(spark: SparkSession, checkpoint: str) -> dict[str, int]:
    """For each Delta table that a Spark stream reads, by table id, the version that the stream has reached. From the last offsets in its
    checkpoint."""
    place = checkpoint.rstrip("/")
    try:
        lines = spark.read.text(f"{place}/offsets").selectExpr("value", "_metadata.file_name AS name").collect()
    except Exception as error:
        raise InvalidSetting(name="--reader", reason=f"{checkpoint} holds no offsets: {str(error).splitlines()[0]}", nearest=None) from None
    batches: dict[int, list[str]] = {}
    for row in lines:
        if row["name"].isdecimal():
            batches.setdefault(int(row["name"]), []).append(row["value"])
    found: dict[str, int] = {}
    for batch in sorted(batches)[-2:]:  # the last batch may be unfinished: the one before it shows what is read again
        for text in batches[batch]:
            try:
                offset = json.loads(text)
            except ValueError:
                continue  # the line of the log's own version
            if isinstance(offset, dict) and "reservoirId" in offset:
                table, version = str(offset["reservoirId"]), int(offset["reservoirVersion"])
                found[table] = min(version, found.get(table, version))
    return found


def _optimize(spark: SparkSession, path: str, *, full: bool) -> None:
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with one_committer(spark, path):
                spark.sql(f"OPTIMIZE {table_at(path)}{' FULL' if full else ''}")
        except Exception as error:
            if not internal.is_conflict(error) or attempt == ATTEMPTS:
                raise
        else:
            return


def _vacuum(spark: SparkSession, path: str, hours: float, *, dry_run: bool) -> int:
    """The number of files that were, or would be, removed."""
    check = "spark.databricks.delta.retentionDurationCheck.enabled"
    before = spark.conf.get(check, None)
    spark.conf.set(check, "false")  # the retention was decided above
    try:
        vacuum = f"VACUUM {table_at(path)} RETAIN {hours:.4f} HOURS"
        if dry_run:
            return spark.sql(f"{vacuum} DRY RUN").count()
        with one_committer(spark, path):  # VACUUM commits its begin and its end
            spark.sql(vacuum)
        return 0
    finally:
        if before is None:
            spark.conf.unset(check)
        else:
            spark.conf.set(check, before)


def _warnings(spark: SparkSession, path: str, hours: float) -> list[str]:
    properties = _properties(spark, path)
    warnings = []
    if "delta.setTransactionRetentionDuration" in properties:
        kept = properties["delta.setTransactionRetentionDuration"]
        if cluster_key_among(TableLog(path).identifiers, path) is not None:
            warnings.append(f"delta.setTransactionRetentionDuration={kept} lets the table forget its marks: ALTER TABLE … UNSET it")
    log_hours = _hours(properties.get("delta.logRetentionDuration"), 30 * 24.0)
    if log_hours < hours:
        warnings.append(f"delta.logRetentionDuration keeps versions {log_hours:g} h, files are kept {hours:g} h: old versions end with their log")
    return warnings


def _properties(spark: SparkSession, path: str) -> dict[str, str]:
    return dict(spark.sql(f"DESCRIBE DETAIL {table_at(path)}").collect()[0]["properties"])


def _age_hours(spark: SparkSession, path: str, version: int) -> float:
    from delta.tables import DeltaTable

    rows = DeltaTable.forPath(spark, path).history().where(f"version = {version}").selectExpr("unix_millis(timestamp)").collect()
    if not rows:
        raise InvalidSetting(name="--keep-version", reason=f"the log of {path} no longer has version {version}", nearest=None)
    return max(0.0, (time.time() - int(rows[0][0]) / 1000) / 3600)


def _hours(text: str | None, otherwise: float) -> float:
    """Parses `interval 7 days` and similar texts."""
    if text is None:
        return otherwise
    units = {"second": 1 / 3600, "minute": 1 / 60, "hour": 1.0, "day": 24.0, "week": 168.0}
    words = text.lower().removeprefix("interval").split()
    total = 0.0
    for number, unit in zip(words[::2], words[1::2], strict=False):
        total += float(number) * units.get(unit.rstrip("s"), math.inf)
    return total


def _print_report(done: Maintained, *, dry_run: bool) -> None:
    for when, report in (("before", done.before), ("after", done.after)):
        if report is not None:
            print(f"{done.table}: {when}: {report}", flush=True)
            for values, small in report.worst:
                print(f"  {small:,} small files in {values}", flush=True)
    if done.vacuumed is not None:
        what = f"{done.vacuumed:,} files would be removed" if dry_run else "old files removed"
        print(f"{done.table}: {what}, kept for {done.retained_hours:.1f} h ({done.because})", flush=True)
    for warning in done.warnings:
        print(printable(f"{done.table}: warning: {warning}"), flush=True)
