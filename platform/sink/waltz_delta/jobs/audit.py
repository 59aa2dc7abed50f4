"""Compares the log with a pipeline's tables, transaction by transaction, and names the differences.

Two properties are checked. The log itself is dense: each partition has every id from the first to the last once (count, sum, least, greatest). And
each table holds exactly the rows that its declaration derives from the log: for each range of ids the same number of rows, the same sum of ids and
the same sum of their columns' hashes; for a table with keys, the newest row of each key. Ranges that differ are then compared row by row.

Expected rows come from the log by the decoding, filter and projection of the pipeline (`output_decoder`), and by a plain fold over keys. The audit
uses only the marks of the sink, to bound the range. So the audit finds faults of the landing, changes by users, and rows that a RESTORE removed. It
cannot find what the declaration itself leaves out. Rows of an older declaration differ and are reported.

Only reads. Needs the log of the range: trimmed transactions cannot be audited, and the report says so.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from pyspark_waltz.log_view import inspect_cluster
from waltz_delta.base.job_outcome import run_job
from waltz_delta.base.session import TIME_ZONE, open_session
from waltz_delta.errors import NotADeltaTable
from waltz_delta.jobs.audit_compare import Density, Difference, PieceOfLog, compare_appended, compare_keyed, density
from waltz_delta.jobs.audit_report import Audited, print_report
from waltz_delta.jobs.audited_tables import AuditedTable
from waltz_delta.jobs.backfill import Piece, pieces
from waltz_delta.jobs.job_arguments import JobParser
from waltz_delta.jobs.job_progress import Progress, progress
from waltz_delta.landing.constrained import ConstrainedOutput
from waltz_delta.landing.output_decoder import OutputDecoder
from waltz_delta.marks.batch import PARTITION, TRANSACTION_ID
from waltz_delta.marks.marks import clusters_now, epochs_among, marks_among, merge_app_id, merged_app_id, position
from waltz_delta.marks.positions_log import TableLog
from waltz_delta.pipelines.pipeline import PipelineSettings, batch_options
from waltz_delta.pipelines.pipeline_file import load_job_pipeline
from waltz_delta.settings import LandingSettings, OutputSettings
from waltz_delta.tables.constraints import VIOLATES
from waltz_delta.tables.time_zone import depends_on_zone, other_zone
from waltz_log.errors import InvalidSetting
from waltz_log.exit_codes import FAILED

__all__ = ["audit", "audit_pipeline"]

PLACE = [PARTITION, TRANSACTION_ID]
LETTER = ["cluster", "target", *PLACE, "reason", "replayed_at"]

TRANSACTIONS_PER_PIECE = 5_000_000
"""One step of the progress bar; bounds what is aggregated at once."""

SHOWN = 20


def audit(arguments: Sequence[str]) -> int:
    """Returns the exit code: 1 if something differs."""
    return run_job("audit", arguments, _run)


def _run(arguments: Sequence[str]) -> int | None:
    parser = JobParser(
        prog="audit", description="Compares the log with a pipeline's tables and names what differs; exit code 1 then.", allow_abbrev=False
    )
    parser.add_argument("--pipeline", metavar="FILE", help="the pipeline file of the streaming job")
    parser.add_argument("--from", dest="first", metavar="JSON", help='first id of each partition, {"0": 17} (the first in the log)')
    parser.add_argument("--to", dest="last", metavar="JSON", help='last id of each partition, {"0": 42} (what the table holds)')
    parser.add_argument("--output", default="table", metavar="table|json", help="format of the result (table)")
    found = parser.parse(arguments)
    settings = load_job_pipeline(found.pipeline)
    if found.output not in ("table", "json"):
        raise InvalidSetting.unknown(found.output, ("table", "json"), what="output")
    first, last = _position("--from", found.first), _position("--to", found.last)
    with inspect_cluster(settings.options) as inspector:
        key = str(inspector.parameters.key)
    spark = open_session(f"waltz audit {settings.name}", delta=False)
    try:
        audited = list(audit_pipeline(spark, settings, key, lambda: _extents(settings), first=first, last=last))
    finally:
        spark.stop()
    print_report(audited, found.output, SHOWN)
    return FAILED if any(each.differences for each in audited) else None


def _extents(settings: PipelineSettings) -> dict[int, tuple[int, int]]:
    with inspect_cluster(settings.options) as inspector:
        bounds = inspector.bounds(settings.options.wanted_partitions(inspector.catalogue))
    return {p: (bound.first_transaction_id, bound.high_water_mark) for p, bound in bounds.items()}


def _position(name: str, text: str | None) -> dict[int, int]:
    try:
        return {int(partition): int(at) for partition, at in json.loads(text or "{}").items()}
    except (ValueError, TypeError, AttributeError):
        raise InvalidSetting(name=name, reason=f'must be JSON of ids such as {{"0": 42}}, got {text!r}', nearest=None) from None


def audit_pipeline(
    spark: SparkSession,
    settings: PipelineSettings,
    cluster_key: str,
    extents: Callable[[], Mapping[int, tuple[int, int]]],
    *,
    first: Mapping[int, int] | None = None,
    last: Mapping[int, int] | None = None,
    source: str = "waltz",
    per_piece: int = TRANSACTIONS_PER_PIECE,
) -> Iterator[Audited]:
    """`extents`: returns the first and last id of each partition in the log. It is called after a table's marks were read, because streams may run
    meanwhile."""
    log_reads = _LogReads(spark, settings, source)
    for output in settings.outputs:
        audited = Audited(output.target.table, output.target.mode)
        letters = _Letters(spark, settings)  # before the table's version
        target = AuditedTable(spark, output.target.table, output.target.engine, output.target.storage)
        try:
            log = target.log()
        except NotADeltaTable:
            audited.differences.append(Difference("table", None, None, None, "there is no table"))
            yield audited
            continue
        strange = _filled_from_another(log.identifiers, cluster_key, audited)
        if strange is not None:
            audited.differences.append(Difference("table", None, None, None, strange))
            yield audited
            continue
        version, marks = _settled(log, cluster_key)
        starts, ends = {}, {}
        until = (last or {}) if output.target.mode == "append" else {}
        if last and not until:
            audited.notes.append("--to counts for tables that keep every transaction: this one holds the newest row of each key as of its marks")
        for partition, (lowest, highest) in extents().items():
            starts[partition] = max(lowest, (first or {}).get(partition, lowest))
            ends[partition] = min(marks.get(partition, -1), highest, until.get(partition, highest)) + 1
            if marks.get(partition, -1) > highest:
                reason = f"the table's mark {marks[partition]} is above the log's {highest}: another log, or one that was reset"
                audited.differences.append(Difference("mark", partition, None, None, reason))
            if lowest > 0:
                audited.notes.append(f"partition {partition}: ids below {lowest} were trimmed from the log and cannot be audited")
        table = target.rows(version)
        other = other_zone(target.transaction(), spark) if depends_on_zone(output) else None
        if other is not None:
            audited.notes.append(f"{TIME_ZONE} {other}; audit with the zone of the table")
        todo = list(pieces(starts, ends, per_piece))
        with progress(f"audit {output.target.table}", sum(piece.transactions for piece in todo)) as bar:
            expected = _Expected(settings, output, cluster_key, target, table, letters)
            _audit_output(log_reads, expected, output, table, todo, audited, bar, whole=not any(starts.values()))
        yield audited


def _filled_from_another(identifiers: Mapping[str, int], cluster_key: str, audited: Audited) -> str | None:
    """Why nothing of the table can be compared with this log."""
    if any(key != cluster_key for key in epochs_among(identifiers)):
        audited.notes.append("rows of former clusters (transaction_id below 0) are not in this log and cannot be audited")
    fillers = clusters_now(identifiers)
    if fillers in ([], [cluster_key]):
        return None
    return f"is filled from the cluster {' and '.join(fillers)}, not from this one"


def _settled(log: TableLog, cluster_key: str) -> tuple[int, dict[int, int]]:
    """The newest version whose rows and marks agree: between a MERGE and the commit of its marks they do not."""
    for version, identifiers in log.newest_first():
        marks = marks_among(identifiers, cluster_key)
        settled = identifiers.get(merged_app_id(cluster_key), position(marks))  # early tables counted by position
        if identifiers.get(merge_app_id(cluster_key), 0) <= settled:
            return version, marks
    return log.version, marks_among(log.identifiers, cluster_key)


def _audit_output(
    log_reads: _LogReads,
    expected: _Expected,
    output: OutputSettings,
    table: DataFrame,
    todo: Sequence[Piece],
    audited: Audited,
    bar: Progress,
    *,
    whole: bool,
) -> None:
    keyed: DataFrame | None = None
    for piece in todo:
        rows = expected.rows(log_reads.rows(piece))
        audited.add_density(log_reads.density(piece))
        if output.target.mode == "append":
            counted, differences = compare_appended(rows, table, PieceOfLog(piece.starts, piece.ends), SHOWN)
            audited.add_rows(counted)
            audited.differences += differences
        else:
            keyed = rows if keyed is None else keyed.unionByName(rows)
        bar.advance(piece.transactions)
    if keyed is not None:
        audited.differences += compare_keyed(keyed, table, output.target, SHOWN, whole=whole)
    elif output.target.mode != "append":
        audited.notes.append("nothing of the log is in this table yet")


class _Letters:
    """The dead letters as of one version of a table that is read later. A replay lands rows, then marks their letters: those that were marked before
    the table's version was chosen have their rows in it, those that are marked later may have not. A landing commits letters before the table passes
    them, so all that the table has passed exist afterwards."""

    def __init__(self, spark: SparkSession, settings: LandingSettings) -> None:
        declared = settings.dead_letters
        self._table = None if declared is None else AuditedTable(spark, declared.table, declared.engine, declared.storage)
        self._before = self._version()

    def _version(self) -> int:
        return -1 if self._table is None else self._table.version()

    def pending(self, cluster_key: str, target: str) -> DataFrame | None:
        """The place of each letter of this table that names a constraint and was not replayed; None without a table of letters. To be called after
        the version of the table was chosen."""
        now = self._version()
        if now < 0 or self._table is None:
            return None
        own = (f.col("cluster") == cluster_key) & (f.col("target") == target) & f.col("reason").startswith(VIOLATES)
        pending = self._table.rows(now, LETTER).where(own).select(*PLACE)
        if self._before < 0:
            return pending
        replayed = self._table.rows(self._before, LETTER).where(own & f.col("replayed_at").isNotNull())
        return pending.join(replayed.select(*PLACE), PLACE, "left_anti")


class _Expected:
    """The rows that one output derives from the log, without transactions that violate a constraint of its table: those have a dead letter that was
    not replayed, or are skipped as declared. A letter of a row that the table has is no excuse: it came before the constraint was dropped."""

    def __init__(
        self, settings: LandingSettings, output: OutputSettings, cluster_key: str, target: AuditedTable, table: DataFrame, letters: _Letters
    ) -> None:
        self._decoder = OutputDecoder(output, dead_letters=settings.dead_letters is not None)
        self._skips = ConstrainedOutput(self._decoder) if self._decoder.undecodable == "skip" else None
        self._target = target
        excused = letters.pending(cluster_key, output.target.table)
        if excused is not None:
            excused = excused.join(table.select(*PLACE), PLACE, "left_anti")
        self._excused = None if excused is None or excused.isEmpty() else excused

    def rows(self, raw: DataFrame) -> DataFrame:
        rows = self._decoder.good(raw)
        judged = None if self._skips is None else self._skips.judged(rows, self._target.transaction())
        rows = rows if judged is None else judged.good()
        return rows if self._excused is None else rows.join(self._excused, PLACE, "left_anti")


class _LogReads:
    """Pieces of the log as DataFrames, and their density: computed once for all tables with the same range."""

    def __init__(self, spark: SparkSession, settings: PipelineSettings, source: str) -> None:
        self._spark, self._source, self._options = spark, source, batch_options(settings.source)
        self._rows: dict[str, DataFrame] = {}
        self._density: dict[str, list[Density]] = {}

    def rows(self, piece: Piece) -> DataFrame:
        bounds = {
            "partitions": ",".join(str(partition) for partition in piece.starts),
            "startingTransactionIds": json.dumps({str(partition): at for partition, at in piece.starts.items()}),
            "endingTransactionIds": json.dumps({str(partition): at for partition, at in piece.ends.items()}),
        }
        if str(piece) not in self._rows:
            self._rows[str(piece)] = self._spark.read.format(self._source).options(**{**self._options, **bounds}).load()
        return self._rows[str(piece)]

    def density(self, piece: Piece) -> list[Density]:
        if str(piece) not in self._density:
            self._density[str(piece)] = density(self.rows(piece), PieceOfLog(piece.starts, piece.ends))
        return self._density[str(piece)]
