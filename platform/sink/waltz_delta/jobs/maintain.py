"""Maintains a pipeline's tables: compacts small files, clusters, and removes old files without breaking a reader. Each table is maintained by the
engine that writes it: by the Arrow engine where that writes it, otherwise by Spark's OPTIMIZE and VACUUM.

Compaction and VACUUM never change a row or the log that holds a table's marks; a landing that conflicts with a compaction tries again. Only VACUUM
can do harm, because it removes the data files of old versions. So it keeps what a declared need requires: a version, a log position (`positions`), or
a stream that reads the table (its checkpoint holds its position). A need makes the retention longer, never shorter. A retention below the table's own
(a week, unless a property changes it) is used only if it is requested explicitly.

Reports properties that would make the table lose marks or old versions before they are needed. The user must change those.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import get_args

from waltz_delta.base import internal
from waltz_delta.base.checkpoints import CHECKPOINTS
from waltz_delta.base.job_outcome import run_job
from waltz_delta.base.log_store import one_committer
from waltz_delta.base.quoting import table_at
from waltz_delta.base.session import open_session
from waltz_delta.engine.arrow_table import ArrowTable
from waltz_delta.engine.choice import EngineChoice
from waltz_delta.engine.compaction import Compacted, compact
from waltz_delta.engine.vacuum import Vacuumed
from waltz_delta.engine.vacuum import vacuum as vacuum_arrow
from waltz_delta.errors import NotADeltaTable
from waltz_delta.jobs.job_arguments import JobParser
from waltz_delta.jobs.job_progress import progress
from waltz_delta.jobs.maintain_files import FileReport, file_report
from waltz_delta.jobs.maintained_tables import Tables, chosen
from waltz_delta.landing.landing import sink_for
from waltz_delta.landing.upsert import DeltaUpsert
from waltz_delta.marks.marks import cluster_key_among
from waltz_delta.marks.positions import version_at
from waltz_delta.marks.positions_given import checked_position
from waltz_delta.pipelines.pipeline import PipelineSettings
from waltz_delta.pipelines.pipeline_file import load_job_pipeline
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

CHECKPOINT_WITHIN_S = 600.0
"""How long a checkpoint may need that a commit of the compaction has begun."""


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
    engine: str = "spark"
    why: str = ""
    after: FileReport | None = None
    compacted: Compacted | None = None
    """By the Arrow engine."""
    vacuumed: int | None = None
    others: int = 0
    """Files that would be removed by name and age, and are left because the Arrow engine does not know them."""
    warnings: list[str] = field(default_factory=list)


def maintain(arguments: Sequence[str]) -> int:
    """Returns the exit code: 1 if a table needs attention."""
    return run_job("maintain", arguments, _run)


def _run(arguments: Sequence[str]) -> int | None:
    parser = JobParser(prog="maintain", description="Compacts, clusters and cleans tables, and reports their small files.", allow_abbrev=False)
    parser.add_argument("--pipeline", metavar="FILE", help="all tables of a pipeline")
    parser.add_argument("--table", action="append", default=[], metavar="PATH", help="a table; may be repeated")
    parser.add_argument(
        "--engine",
        choices=get_args(EngineChoice),
        default="auto",
        help="which engine maintains the tables; auto: arrow where it writes the table, otherwise spark (auto)",
    )
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
    for name, given in (("--cluster-by", found.cluster_by), ("--full", found.full)):
        if given and found.engine == "arrow":
            raise InvalidSetting(name=name, reason="is done by Spark's engine, and --engine is arrow", nearest=None)
    engine: EngineChoice = "spark" if found.cluster_by or found.full else found.engine
    spark = open_session("waltz maintain", delta=False)
    try:
        declared = _declared(settings) if settings is not None else []
        lettered = [each.path for each in declared if not each.holds_marks]
        storage = {each.path: each.storage for each in declared}
        tables = chosen(spark, [*found.table, *storage], engine, storage, [each.path for each in declared if each.engine == "spark"])
        holding = [*found.table, *(_existing(tables, settings.tables) if settings is not None else ())]
        without_marks = _existing(tables, lettered)
        plain = Needs(found.retain_hours, tuple(found.keep_version))
        needs = needs_of(tables, plain, holding, without_marks, positions, found.reader)
        for table, need in needs.items():  # report what cannot be kept before anything is changed
            retention(tables, table, need)
        done = []
        with progress("maintain", STEPS * len(needs)) as bar:
            for table, need in needs.items():
                if found.cluster_by and not found.dry_run:
                    with one_committer(spark, table):
                        spark.sql(f"ALTER TABLE {table_at(table)} CLUSTER BY ({found.cluster_by})")
                done.append(
                    maintain_table(
                        tables,
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


@dataclass(frozen=True, slots=True)
class _Declared:
    """A table of a pipeline. `holds_marks`: dead letters and remembered deletes hold no log position."""

    path: str
    engine: EngineChoice
    storage: Mapping[str, str]
    holds_marks: bool = True


def _declared(settings: PipelineSettings) -> list[_Declared]:
    letters, found = settings.dead_letters, []
    for output in settings.outputs:
        sink, target = sink_for(output, "", dead_letters=letters is not None), output.target
        found.append(_Declared(target.table, target.engine, target.storage))
        if isinstance(sink, DeltaUpsert) and sink.tombstones is not None:
            found.append(_Declared(sink.tombstones, target.engine, target.storage, holds_marks=False))
    return [*found, *([] if letters is None else [_Declared(letters.table, letters.engine, letters.storage, holds_marks=False)])]


def _existing(tables: Tables, paths: Sequence[str]) -> list[str]:
    """Those of a pipeline's tables that exist."""
    found = [path for path in paths if tables.is_there(path)]
    for path in paths:
        if path not in found:
            print(f"{path}: no table yet", flush=True)
    return found


def needs_of(
    tables: Tables,
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
        versions = _reader_versions(tables, reader)
        read = [path for path in found if tables.table_id(path) in versions]
        if not read:
            raise InvalidSetting(name="--reader", reason=f"{reader} is not of a stream that reads {' or '.join(found)}", nearest=None)
        for path in read:
            found[path] = replace(found[path], readers=(*found[path].readers, reader))
    return found


def maintain_table(
    tables: Tables,
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
    if not tables.is_there(path):
        raise NotADeltaTable(path=path, reason="no table there")
    place, options = tables.place(path)
    arrow = tables.arrow.get(path)
    hours, because = retention(tables, path, needs)
    engine = "spark" if arrow is None else "arrow"
    result = Maintained(path, file_report(place, small_bytes, options), hours, because, engine, tables.reasons.get(path, ""))
    result.warnings += _warnings(tables, path, hours)
    if optimize and not dry_run:
        if arrow is None:
            _optimize(tables, path, full=full)
        else:
            result.compacted = _compact(arrow, small_bytes)
        result.after = file_report(place, small_bytes, options)
    if vacuum and arrow is None:
        result.vacuumed = _vacuum(tables, path, hours, dry_run=dry_run)
    elif vacuum and arrow is not None:
        kept = [version for version, _ in _wanted(tables, path, needs)]
        removed: Vacuumed = vacuum_arrow(arrow, hours, kept, dry_run=dry_run)
        result.vacuumed, result.others = removed.removed, removed.others
    return result


def _compact(table: ArrowTable, small_bytes: int) -> Compacted:
    """Also writes a checkpoint, which cleans up the table's log as its properties say."""
    done = compact(table, small_bytes)
    CHECKPOINTS.settle(CHECKPOINT_WITHIN_S)
    opened = table.open()
    if done.removed and opened is not None:
        table.write_checkpoint(opened.table_id)
    return done


def retention(tables: Tables, path: str, needs: Needs) -> tuple[float, str]:
    """Hours to keep removed files, and the reason."""
    properties = tables.properties(path)
    own = _hours(properties.get("delta.deletedFileRetentionDuration"), HOURS_DEFAULT)
    hours, because = (needs.hours, "asked for") if needs.hours is not None else (own, "the table's own")
    for version, what in _wanted(tables, path, needs):
        age = tables.age_hours(path, version) + MARGIN_HOURS
        if age > hours:
            hours, because = age, what
    return hours, because


def _wanted(tables: Tables, path: str, needs: Needs) -> list[tuple[int, str]]:
    """The versions that must stay readable, each with the reason."""
    place, options = tables.place(path)
    wanted = [(version, f"version {version}") for version in needs.versions]
    for position in needs.positions:
        wanted.append((version_at(place, position, storage_options=options), f"log position {json.dumps(position)}"))
    for reader in needs.readers:
        version = reader_version(tables, reader, path)
        wanted.append((version, f"the reader {reader} at version {version}"))
    return wanted


def reader_version(tables: Tables, checkpoint: str, path: str) -> int:
    """The version of the table that a Spark stream has reached."""
    found = _reader_versions(tables, checkpoint).get(tables.table_id(path))
    if found is None:
        raise InvalidSetting(name="--reader", reason=f"{checkpoint} is not of a stream that reads {path}", nearest=None)
    return found


def _reader_versions(tables: Tables, checkpoint: str) -> dict[str, int]:
    """For each Delta table that a Spark stream reads, by table id, the version that the stream has reached. From the last offsets in its
    checkpoint."""
    place = checkpoint.rstrip("/")
    try:
        lines = tables.spark.read.text(f"{place}/offsets").selectExpr("value", "_metadata.file_name AS name").collect()
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


def _optimize(tables: Tables, path: str, *, full: bool) -> None:
    spark = tables.spark
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with one_committer(spark, path):
                spark.sql(f"OPTIMIZE {table_at(path)}{' FULL' if full else ''}")
        except Exception as error:
            if not internal.is_conflict(error) or attempt == ATTEMPTS:
                raise
        else:
            return


def _vacuum(tables: Tables, path: str, hours: float, *, dry_run: bool) -> int:
    """The number of files that would be removed."""
    spark = tables.spark
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


def _warnings(tables: Tables, path: str, hours: float) -> list[str]:
    properties = tables.properties(path)
    warnings = []
    if "delta.setTransactionRetentionDuration" in properties:
        kept = properties["delta.setTransactionRetentionDuration"]
        if cluster_key_among(tables.log(path).identifiers, path) is not None:
            warnings.append(f"delta.setTransactionRetentionDuration={kept} lets the table forget its marks: ALTER TABLE … UNSET it")
    log_hours = _hours(properties.get("delta.logRetentionDuration"), 30 * 24.0)
    if log_hours < hours:
        warnings.append(f"delta.logRetentionDuration keeps versions {log_hours:g} h, files are kept {hours:g} h: old versions end with their log")
    return warnings


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
    print(printable(f"{done.table}: engine {done.engine}: {done.why}"), flush=True)
    for when, report in (("before", done.before), ("after", done.after)):
        if report is not None:
            print(f"{done.table}: {when}: {report}", flush=True)
            for values, small in report.worst:
                print(f"  {small:,} small files in {values}", flush=True)
    if done.compacted is not None and done.compacted.left:
        print(f"{done.table}: {done.compacted.left:,} small files were left as another writer wrote them; Spark's engine compacts them", flush=True)
    if done.vacuumed is not None:
        what = f"{done.vacuumed:,} files would be removed" if dry_run else "old files removed"
        print(f"{done.table}: {what}, kept for {done.retained_hours:.1f} h ({done.because})", flush=True)
    if done.others:
        print(f"{done.table}: {done.others:,} old files of other names are left, which no version names", flush=True)
    for warning in done.warnings:
        print(printable(f"{done.table}: warning: {warning}"), flush=True)
