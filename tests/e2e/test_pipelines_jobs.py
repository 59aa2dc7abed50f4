"""Pipelines, backfill, audit and maintenance on a real local Spark, over a log of storage stubs: each fault is planted, and found by name."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from pyspark_waltz.log_view import LogView
from pyspark_waltz.options import SourceOptions
from pyspark_waltz.testing import StubCluster, StubSource
from tests.e2e.committing import replace_commits
from waltz_delta import DeltaAppend, dataframe_at, dataset_at, high_water_marks, wait_reached
from waltz_delta.errors import NotADeltaTable, PositionNotReached
from waltz_delta.jobs.audit import audit_pipeline
from waltz_delta.jobs.audit_compare import PieceOfLog, density
from waltz_delta.jobs.audit_report import Audited, print_report
from waltz_delta.jobs.backfill import fill, pieces, where_to_begin
from waltz_delta.jobs.job_arguments import parse_arguments
from waltz_delta.jobs.maintain import Needs, maintain_table, needs_of, reader_version
from waltz_delta.jobs.maintained_tables import Tables
from waltz_delta.landing import merge_sink
from waltz_delta.landing.landing import Landing, resulting_schemas
from waltz_delta.pipelines.listener import PipelineListener, StatusBoard
from waltz_delta.pipelines.log_watch import LogWatch
from waltz_delta.pipelines.pipeline import PipelineSettings, RestartSettings
from waltz_delta.pipelines.pipeline_check import declared_columns
from waltz_delta.pipelines.pipeline_run import PipelineRun
from waltz_delta.settings import DeadLetterSettings, DecodeSettings, OutputSettings, ProjectionSettings, TargetSettings
from waltz_log.errors import ClusterUnavailable, InvalidSetting
from waltz_log.exit_codes import USAGE

pytestmark = pytest.mark.timeout(600)

Stub = Callable[..., StubCluster]
PATIENCE_S = 240
JSON = DecodeSettings(format="json", columns="tail STRING, n BIGINT")


def fill_log(cluster: StubCluster, partition: int, count: int) -> None:
    """Ten keys for each partition; their rows count up."""
    first = cluster.marks().get(partition, -1) + 1
    rows = [json.dumps({"tail": f"{partition}-{at % 10}", "n": at}).encode() for at in range(first, first + count)]
    cluster.append(partition, rows, headers=lambda at: at % 3)


def pipeline(cluster: StubCluster, directory: Path, name: str = "legs", **more: Any) -> PipelineSettings:
    outputs = (
        OutputSettings(target=TargetSettings(table=str(directory / name)), decode=JSON, projection=ProjectionSettings(where="n % 7 != 0")),
        OutputSettings(
            target=TargetSettings(table=str(directory / f"{name}-newest"), mode="upsert", keys=("tail",)),
            decode=JSON,
            projection=ProjectionSettings(select="tail, n, map(tail, n) AS held"),
        ),
    )
    given = {"name": name, "source": {"cluster": cluster.address}, "outputs": outputs, "checkpoint": str(directory / f"{name}-checkpoint")}
    return PipelineSettings(**{**given, "trigger": "available-now", **more})


def extents(cluster: StubCluster) -> dict[int, tuple[int, int]]:
    return {partition: (cluster.first.get(partition, 0), mark) for partition, mark in cluster.marks().items()}


def backfill(spark: Any, cluster: StubCluster, settings: PipelineSettings, most: int, done: Callable[[Any], bool] = lambda _: True) -> int:
    landing = Landing(settings, str(cluster.key))
    starts = where_to_begin(spark, landing, {partition: first for partition, (first, _) in extents(cluster).items()})
    todo = list(pieces(starts, {partition: mark + 1 for partition, mark in cluster.marks().items()}, most))
    fill(spark, settings, landing, todo, source="waltz_stub", done=done)
    return len(todo)


def held(path: str) -> list[tuple[int, int]]:
    found = DeltaTable(path).to_pyarrow_table(columns=["partition", "transaction_id"])
    return sorted(zip(found["partition"].to_pylist(), found["transaction_id"].to_pylist(), strict=True))


def check(cluster: StubCluster, settings: PipelineSettings) -> None:
    """Exactly the rows that the declaration asks for, and the marks of the whole log."""
    kept, newest = settings.tables
    assert held(kept) == [(p, at) for p, mark in sorted(cluster.marks().items()) for at in range(mark + 1) if at % 7]
    rows = DeltaTable(newest).to_pyarrow_table(columns=["tail", "n"])
    want = {f"{p}-{at % 10}": at for p, mark in cluster.marks().items() for at in range(mark + 1)}
    assert dict(zip(rows["tail"].to_pylist(), rows["n"].to_pylist(), strict=True)) == want
    assert rows.num_rows == len(want)
    assert high_water_marks(kept) == high_water_marks(newest) == cluster.marks()


class Run(PipelineRun):
    source = "waltz_stub"

    @staticmethod
    def contact(options: SourceOptions) -> tuple[str, tuple[int, ...]]:
        if not Path(options.cluster).exists():
            raise ClusterUnavailable(address=options.cluster, reason="no such file")
        return str(json.loads(Path(options.cluster).read_text())["key"]), (0, 1)


class Stop:
    def __init__(self) -> None:
        self._event = threading.Event()
        self.waits: list[float] = []

    @property
    def asked(self) -> bool:
        return self._event.is_set()

    def ask(self) -> None:
        self._event.set()

    def wait(self, seconds: float) -> bool:
        self.waits.append(seconds)
        return self._event.wait(min(seconds, 0.1))


@pytest.fixture
def board(spark: Any) -> Iterator[StatusBoard]:
    board = StatusBoard()
    listener = PipelineListener(board)
    spark.streams.addListener(listener)
    yield board
    spark.streams.removeListener(listener)


def run_to_end(*runs: Run) -> None:
    for run in runs:
        run.start()
    for run in runs:
        run.join(PATIENCE_S)
        assert not run.is_alive()


@pytest.mark.slow
def test_a_backfill_that_dies_and_a_stream_after_it_leave_each_row_once(
    spark: Any, stub: Stub, board: StatusBoard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = stub()
    fill_log(cluster, 0, 150)
    fill_log(cluster, 1, 50)
    settings = pipeline(cluster, tmp_path)
    commits: list[str] = []

    def dying(original: Callable[..., int]) -> Callable[..., int]:
        def commit(*arguments: Any, **named: Any) -> int:
            commits.append("tried")
            if len(commits) == 4:
                raise KeyboardInterrupt("before a commit")
            version = original(*arguments, **named)
            if len(commits) == 7:
                raise KeyboardInterrupt("after a commit")
            return version

        return commit

    replace_commits(monkeypatch, dying)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            backfill(spark, cluster, settings, 40)
    monkeypatch.undo()
    backfill(spark, cluster, settings, 40, done=lambda piece: False)
    assert high_water_marks(settings.tables[0]) != cluster.marks(), "a stop that is asked for is one between two commits"
    backfill(spark, cluster, settings, 40)
    assert backfill(spark, cluster, settings, 40) == 0
    check(cluster, settings)
    per_version = [
        sum(json.loads(json.loads(line)["add"]["stats"])["numRecords"] for line in path.read_text().splitlines() if line.startswith('{"add"'))
        for path in (tmp_path / "legs" / "_delta_log").glob("*.json")
    ]
    assert max(per_version) <= 41, "at most so many of one commit, but one of each partition"
    versions = DeltaTable(settings.tables[0]).version()
    fill_log(cluster, 0, 25)
    for node in cluster.nodes:
        node.reads.clear()
    done: list[str] = []
    run = Run(spark, settings, board, Stop(), lambda name, line: None, done=done.append)
    run_to_end(run)
    assert (run.failure, run.error) == (None, None)
    check(cluster, settings)
    assert DeltaTable(settings.tables[0]).version() == versions + 1
    marks = json.dumps({str(partition): mark for partition, mark in cluster.marks().items()})
    for table, line in zip(settings.tables, done, strict=True):
        held = DeltaTable(table)
        rows = held.to_pyarrow_table().num_rows
        reported = f"version={held.version()} rows={rows} transactions=25 dead_letters=0 marks={marks}"
        assert line == f"done {settings.name} table={table} {reported}"
    assert min(first for node in cluster.nodes for partition, first, _ in node.reads if partition == 0) == 150, "the stream began at the marks"


def test_a_pipeline_that_fails_is_started_again_and_stops_none_of_the_others(spark: Any, stub: Stub, board: StatusBoard, tmp_path: Path) -> None:
    cluster = stub()
    fill_log(cluster, 0, 40)
    (tmp_path / "blocked").write_text("a file")
    reported: list[str] = []
    stop = Stop()
    missing = tmp_path / "not yet"
    later = pipeline(cluster, tmp_path, "later", source={"cluster": str(missing)}, restart=RestartSettings(pause_s=1, attempts_max=3))
    never = pipeline(cluster, tmp_path, "never", source={"cluster": "nowhere"}, restart=RestartSettings(pause_s=2, attempts_max=2))
    runs = {
        settings.name: Run(spark, settings, board, stop, lambda name, line: reported.append(f"{name}: {line}"))
        for settings in (pipeline(cluster, tmp_path), pipeline(cluster, tmp_path, "blocked"), later, never)
    }

    def appear() -> None:
        while not any(line.startswith("later: ") for line in reported):
            time.sleep(0.01)
        missing.write_text(cluster.path.read_text())

    appearing = threading.Thread(target=appear)
    appearing.start()
    run_to_end(*runs.values())
    appearing.join()
    check(cluster, pipeline(cluster, tmp_path))
    check(cluster, later)
    blocked, given_up = runs["blocked"].failure, runs["never"].failure
    assert runs["legs"].failure is None
    assert runs["later"].failure is None
    assert blocked is not None
    assert given_up is not None
    assert (blocked.code, blocked.final) == (USAGE, True)
    assert isinstance(runs["blocked"].error, NotADeltaTable)
    assert [line for line in reported if line.startswith("never")] == [
        "never: cluster unavailable: no such file: address=nowhere (starting again in 2 s)",
        "never: cluster unavailable: no such file: address=nowhere (starting again in 4 s)",
    ]
    assert not any(line.startswith("blocked") for line in reported), "what cannot pass is not tried again"
    deadline = time.monotonic() + PATIENCE_S
    while (status := board.statuses()["legs"]).landed != {0: 40, 1: 0}:
        assert time.monotonic() < deadline, status
        time.sleep(0.05)
    assert (status.lag_transactions, status.lag_s, status.running, status.failures) == (0, 0, False, 0)
    assert status.rows == 40, "once, although two tables read each of them"
    assert status.batch_s > 0
    assert "addBatch" in status.phases_s


def test_a_batch_that_hangs_has_a_lag_that_grows_and_its_rows_count_once(
    spark: Any, stub: Stub, board: StatusBoard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = stub()
    fill_log(cluster, 0, 40)
    settings = pipeline(cluster, tmp_path, trigger="100 milliseconds")
    original, second = merge_sink._StagedArrowMerge.commit, threading.Event()
    hanging, stop = threading.Event(), Stop()

    def commit(self: Any) -> None:
        hanging.set()
        second.wait(PATIENCE_S)
        original(self)

    run = Run(spark, settings, board, stop, lambda name, line: None)
    monkeypatch.setattr(merge_sink._StagedArrowMerge, "commit", commit)
    with LogWatch(board, [settings], connect=lambda options: LogView(options, StubSource.connect), pause_s=0.1):
        run.start()
        assert hanging.wait(PATIENCE_S)
        fill_log(cluster, 1, 10)
        until(lambda: board.statuses()["legs"].lag_transactions == 50)
        hung = board.statuses()["legs"]
        until(lambda: board.statuses()["legs"].lag_s > hung.lag_s + 1)
        assert hung.rows == 0, "one of two tables holds them"
        second.set()
        until(lambda: board.statuses()["legs"].lag_transactions == 0)
        stop.ask()
        run.join(PATIENCE_S)
    assert not run.is_alive()
    assert run.error is None
    status = board.statuses()["legs"]
    assert (status.rows, status.lag_s) == (50, 0)
    assert 0 < status.rows_per_s * status.batch_s <= 50


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("job", ["ingest", pytest.param("upsert", marks=pytest.mark.slow)])
def test_a_job_from_arguments_lands_restarts_and_reports_what_does_not_decode_as_a_pipeline(
    spark: Any, stub: Stub, board: StatusBoard, tmp_path: Path, job: str
) -> None:
    cluster = stub()
    moment, end = 1_700_000_000_000, 253_402_300_799_000
    rows = [{"tail": "a", "at": moment}, {"tail": "b", "at": moment * 1000}, {"tail": "c", "at": end}, {"tail": "d", "at": moment}]
    cluster.append(0, [json.dumps(row).encode() for row in rows], headers=lambda at: 2 if at == 3 else 1)
    late = tmp_path / "late"  # the address of a cluster that appears after the first attempt

    def settings(name: str, *more: str) -> PipelineSettings:
        arguments = [f"--cluster={late}", f"--table={tmp_path / name}", f"--checkpoint={tmp_path / f'{name}-checkpoint'}", "--trigger=available-now"]
        arguments += ["--schema=tail STRING, at TIMESTAMP", "--timestamp-unit=ms", "--headers=1", *more]
        return parse_arguments(job, [*arguments, *(["--keys=tail"] if job == "upsert" else [])], upsert=job == "upsert").pipelines[0]

    reported: list[str] = []

    def announce(name: str, line: str) -> None:
        reported.append(line)
        late.write_text(cluster.path.read_text())

    kept = Run(spark, settings("kept", f"--dead-letters={tmp_path / 'dead'}"), board, Stop(), announce)
    run_to_end(kept)
    assert kept.error is None
    assert reported == [f"cluster unavailable: no such file: address={late} (starting again in 1 s)"]
    utc = {"a": datetime.fromtimestamp(moment / 1000, UTC), "c": datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)}
    for found in (DeltaTable(str(tmp_path / "kept")).to_pyarrow_table(), dataset_at(str(tmp_path / "kept"), {0: 3}).to_table()):
        assert dict(zip(found["tail"].to_pylist(), found["at"].to_pylist(), strict=True)) == utc
    letters = DeltaTable(str(tmp_path / "dead")).to_pyarrow_table()
    assert letters["transaction_id"].to_pylist() == [1]
    assert str(letters["reason"][0]).startswith("at is the number 1700000000000000: out of bounds for timestamp_unit=ms; check the unit")
    strict = Run(spark, settings("strict"), board, Stop(), announce)
    run_to_end(strict)
    assert len(reported) == 1, "what cannot pass is not tried again"
    assert strict.failure is not None
    assert strict.failure.final
    for part in ("transaction 1 of partition 0: at is the number 1700000000000000", "--dead-letters PATH", "--undecodable", f"path={tmp_path}"):
        assert part in strict.failure.line
    forgotten = Run(spark, settings("forgotten", "--undecodable=skip"), board, Stop(), announce)
    run_to_end(forgotten)
    assert (forgotten.error, held(str(tmp_path / "forgotten"))) == (None, [(0, 0), (0, 2)])


def test_a_running_pipeline_stops_when_asked(spark: Any, stub: Stub, board: StatusBoard, tmp_path: Path) -> None:
    cluster = stub()
    fill_log(cluster, 0, 20)
    stop = Stop()
    settings = pipeline(cluster, tmp_path, trigger="100 milliseconds")
    run = Run(spark, settings, board, stop, lambda name, line: None)
    run.start()
    wait_reached(settings.tables[1], {0: 19}, PATIENCE_S, expect_new=True)
    stop.ask()
    run.join(PATIENCE_S)
    assert not run.is_alive()
    assert (run.failure, run.error) == (None, None)
    check(cluster, settings)


@pytest.fixture(scope="module")
def filled(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[StubCluster, Path]]:
    """A log that is landed once for all: a read of it starts processes, which is most of the time of these tests."""
    directory = tmp_path_factory.mktemp("filled")
    cluster = StubCluster(directory)
    fill_log(cluster, 0, 60)
    fill_log(cluster, 1, 20)
    backfill(spark, cluster, pipeline(cluster, directory), 50)
    yield cluster, directory
    cluster.close()


@pytest.fixture
def landed(filled: tuple[StubCluster, Path], tmp_path: Path) -> tuple[StubCluster, PipelineSettings]:
    """Tables of each test. All tests share the log."""
    cluster, directory = filled
    for name in ("legs", "legs-newest"):
        shutil.copytree(directory / name, tmp_path / name)
    return cluster, pipeline(cluster, tmp_path)


def audited(spark: Any, cluster: StubCluster, settings: PipelineSettings, **more: Any) -> list[Audited]:
    return list(audit_pipeline(spark, settings, str(cluster.key), lambda: extents(cluster), source="waltz_stub", **more))


@pytest.mark.slow
def test_an_audit_names_what_was_planted(spark: Any, landed: tuple[StubCluster, PipelineSettings], capsys: pytest.CaptureFixture[str]) -> None:
    cluster, settings = landed
    kept, newest = settings.tables
    clean = audited(spark, cluster, settings)
    assert [each.differences for each in clean] == [[], []]
    assert {p: (found.transactions, found.expected, found.found) for p, found in clean[0].partitions.items()} == {0: (60, 51, 51), 1: (20, 17, 17)}
    for statement in (
        f"DELETE FROM delta.`{kept}` WHERE partition = 0 AND transaction_id BETWEEN 10 AND 12",
        f"INSERT INTO delta.`{kept}` SELECT * FROM delta.`{kept}` WHERE partition = 1 AND transaction_id = 5",
        f"UPDATE delta.`{kept}` SET n = 0 WHERE partition = 1 AND transaction_id = 8",
        f"INSERT INTO delta.`{kept}` SELECT 0, 14L, timestamp, header, tail, n FROM delta.`{kept}` WHERE partition = 0 AND transaction_id = 15",
        f"UPDATE delta.`{newest}` SET held = map('x', 1L) WHERE tail = '0-1'",
        f"DELETE FROM delta.`{newest}` WHERE tail = '0-2'",
        f"UPDATE delta.`{newest}` SET tail = 'stranger' WHERE tail = '1-3'",
    ):
        spark.sql(statement)
    found = audited(spark, cluster, settings)
    assert sorted(map(str, found[0].differences)) == [
        "changed: partition=1 transaction_id=8",
        "extra: partition=0 transaction_id=14",
        "missing: partition=0 transaction_id=10-12",
        "repeated: partition=1 transaction_id=5",
    ]
    assert sorted(map(str, found[1].differences)) == [
        'changed: key={"tail":"0-1"}',
        'extra: key={"tail":"stranger"}',
        'missing: key={"tail":"0-2"}',
        'missing: key={"tail":"1-3"}',
    ]
    keyed = settings.model_copy(update={"outputs": settings.outputs[1:]})
    (whole,) = audited(spark, cluster, keyed, last={0: 13})
    assert sorted(map(str, whole.differences)) == sorted(map(str, found[1].differences)), "not what came after the id"
    assert whole.notes[0].startswith("--to counts for tables that keep every transaction")
    alone = settings.model_copy(update={"outputs": settings.outputs[:1]})
    within = audited(spark, cluster, alone, first={0: 13, 1: 9}, last={0: 13}, per_piece=5)
    assert within[0].differences == [], "only the range that was asked for"
    print_report(found, "table", 3)
    out = capsys.readouterr().out
    assert "missing: partition=0 transaction_id=10-12" in out
    assert "and 1 more" in out
    print_report(found, "json", 3)
    reported = json.loads(capsys.readouterr().out)
    assert [len(table["differences"]) for table in reported] == [4, 4]
    assert reported[0]["partitions"]["1"] | {"checksum": 0} == {
        "first": 0,
        "last": 19,
        "transactions": 20,
        "dense": True,
        "expected": 17,
        "found": 18,
        "checksum": 0,
        "agrees": False,
    }


def test_an_audit_names_a_log_with_holes_a_mark_ahead_of_it_and_a_table_that_is_not_there(
    spark: Any, landed: tuple[StubCluster, PipelineSettings], tmp_path: Path
) -> None:
    cluster, settings = landed
    alone = settings.model_copy(update={"outputs": settings.outputs[:1]})
    ahead = list(audit_pipeline(spark, alone, str(cluster.key), lambda: {0: (30, 40), 1: (0, 19)}, source="waltz_stub"))
    assert [str(difference) for difference in ahead[0].differences] == [
        "mark: partition=0 the table's mark 59 is above the log's 40: another log, or one that was reset"
    ]
    assert ahead[0].notes == ["partition 0: ids below 30 were trimmed from the log and cannot be audited"]
    assert ahead[0].partitions[0].found == len([at for at in range(30, 41) if at % 7])
    holes = spark.range(10, 20).where("id NOT IN (13, 14)").selectExpr("0 AS partition", "id AS transaction_id")
    twice = holes.unionAll(spark.sql("SELECT 0, 15L")).unionAll(spark.sql("SELECT 0, 16L"))
    for rows, reported in ((holes, "8 of 10, ids 10 to 19"), (twice, "10 of 10, ids 10 to 19"), (holes.where("false"), "0 of 10, ids None to None")):
        (found,) = density(rows, PieceOfLog({0: 10}, {0: 20}))
        assert [str(difference) for difference in found.differences] == [f"log: partition=0 transaction_id=10-19 is not dense: {reported}"]
    nothing = pipeline(cluster, tmp_path, "nothing")
    assert [str(each.differences[0]) for each in audited(spark, cluster, nothing)] == ["table: there is no table"] * 2


@pytest.mark.long
def test_maintenance_compacts_keeps_marks_and_what_a_reader_needs(spark: Any, landed: tuple[StubCluster, PipelineSettings], tmp_path: Path) -> None:
    cluster, settings = landed
    kept, newest = settings.tables
    before_rows = held(kept)
    first_version = DeltaTable(kept).version()
    position = high_water_marks(kept)
    copy = spark.readStream.format("delta").load(kept).writeStream.format("noop").option("checkpointLocation", str(tmp_path / "reader"))
    query = copy.trigger(availableNow=True).start()
    assert query.awaitTermination(PATIENCE_S)
    more = ["0 AS partition", "id AS transaction_id", "now() AS timestamp", "0 AS header", "'x' AS tail", "id AS n"]
    for first in (60, 70):
        DeltaAppend(kept, str(cluster.key)).write(spark.range(first, first + 10).selectExpr(*more))
    want = sorted([*before_rows, *((0, at) for at in range(60, 80))])
    assert reader_version(Tables(spark), str(tmp_path / "reader"), kept) <= first_version + 1
    reader = str(tmp_path / "reader")
    wanted = needs_of(Tables(spark), Needs(), [kept, newest], [], [], [reader])
    assert wanted == {kept: Needs(readers=(reader,)), newest: Needs()}
    before = maintain_table(Tables(spark), kept, Needs(hours=0.0), small_bytes=1 << 20, dry_run=True)
    assert before.after is None
    assert before.before.files == before.before.small_files >= 4
    assert DeltaTable(kept).version() == first_version + 2, "a dry run changes nothing"
    for needs, why in (
        (Needs(hours=0.0, readers=(str(tmp_path / "reader"),)), "the reader"),
        (Needs(hours=0.0, positions=(position,)), "log position"),
        (Needs(hours=0.0, versions=(0,)), "version 0"),
        (Needs(), "the table's own"),
    ):
        done = maintain_table(Tables(spark), kept, needs, small_bytes=1 << 20)
        assert done.because.startswith(why)
        assert done.after is not None
        assert done.after.files < before.before.files
        assert dataframe_at(spark, kept, position).count() == 68, "the old version's files are there"
    assert (held(kept), high_water_marks(kept)) == (want, {0: 79, 1: 19})
    done = maintain_table(Tables(spark), kept, Needs(hours=0.0), small_bytes=1 << 20)
    assert (done.retained_hours, done.because, done.warnings) == (0.0, "asked for", [])
    assert (held(kept), high_water_marks(kept)) == (want, {0: 79, 1: 19})
    with pytest.raises(Exception, match=r"does not exist|FILE_NOT_EXIST|FAILED_READ_FILE|FileNotFound"):
        dataframe_at(spark, kept, position).collect()
    spark.sql(f"ALTER TABLE delta.`{kept}` SET TBLPROPERTIES ('delta.setTransactionRetentionDuration' = 'interval 2 days')")
    warned = maintain_table(Tables(spark), kept, Needs(), small_bytes=1 << 20, optimize=False, vacuum=False)
    assert len(warned.warnings) == 1
    assert "forget its marks" in warned.warnings[0]
    with pytest.raises(PositionNotReached):
        maintain_table(Tables(spark), kept, Needs(positions=({0: 10_000},)), small_bytes=1)
    with pytest.raises(InvalidSetting, match="holds no offsets"):
        reader_version(Tables(spark), str(tmp_path / "no-table"), kept)


def test_columns_that_are_reported_without_spark_are_those_that_spark_makes(spark: Any) -> None:
    outputs = tuple(
        OutputSettings(target=TargetSettings(table=f"t{number}"), decode=decode)
        for number, decode in enumerate(
            (DecodeSettings(), JSON, DecodeSettings(format="json", columns="a DECIMAL(5, 2) NOT NULL, `b` ARRAY<STRING>, c STRUCT<x: INT>"))
        )
    )
    settings = PipelineSettings(source={"cluster": "c"}, checkpoint="c", outputs=outputs, dead_letters=DeadLetterSettings(table="dead"))
    schemas = resulting_schemas(spark, settings)
    for output in outputs:
        declared = declared_columns(output)
        assert declared is not None
        plain = [(name, "".join(kind.lower().split())) for name, kind in declared]
        assert plain == [(field.name, field.dataType.simpleString()) for field in schemas[output.target.table]]
