"""What is done to a table and its checkpoint behind the sink's back: one action after another on one table, with every row compared after each. And
bugs that are planted in the sink, each of which the same checks must notice.

The job is the real one in the session of these tests; the log is made of storage stubs. `make chaos-spark` does the same to processes that die."""

from __future__ import annotations

import json
import random
import shutil
import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake

from pyspark_waltz.options import SourceOptions
from pyspark_waltz.testing import StubCluster
from tests.e2e.chaos_actions import ACTIONS, START, Action, actions_of, follow, judge, reported_in
from tests.e2e.chaos_checker import Held, Row, differences_below_marks, held
from tests.e2e.chaos_keyed import HEADER, Entry, KeyedTable, data_of, entry_of
from tests.e2e.chaos_tables import Edits, TableUser, known_id, table_id
from tests.e2e.committing import replace_commits
from waltz_delta.base import internal
from waltz_delta.jobs.audit import audit_pipeline
from waltz_delta.landing.landing import Landing
from waltz_delta.marks import marks
from waltz_delta.marks.marks import BatchRange
from waltz_delta.pipelines import pipeline_run
from waltz_delta.pipelines.listener import StatusBoard
from waltz_delta.pipelines.pipeline import PipelineSettings, RestartSettings
from waltz_delta.pipelines.pipeline_run import PipelineRun
from waltz_delta.settings import OutputSettings, ProjectionSettings, TargetSettings
from waltz_delta.tables import evolution
from waltz_delta.tables.table_watch import TableWatch

pytestmark = pytest.mark.timeout(900)

Stub = Callable[..., StubCluster]
PARTITIONS = 2
SHORT = 3
"""Actions with every `make test-long`; all of them in the tests marked slow and in `make chaos-spark`."""
DECLARED = ["empty-key", "time-zone-changed", "column-renamed", "column-renamed-running", "constrained", "mode-changed", "other-cluster"]
"""What concerns the declaration of a table."""
ORDER = random.Random(19).sample(sorted(ACTIONS), len(ACTIONS))


class Run(PipelineRun):
    source = "waltz_stub"

    @staticmethod
    def contact(options: SourceOptions) -> tuple[str, tuple[int, ...]]:
        return str(json.loads(Path(options.cluster).read_text())["key"]), tuple(range(PARTITIONS))


class NeverStopped:
    asked = False

    def wait(self, seconds: float) -> bool:
        return False


class Job:
    """One log, one table, and a job between them that runs to the end of the log, or to an error."""

    def __init__(self, spark: Any, cluster: StubCluster, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.spark, self.cluster, self._patch = spark, cluster, monkeypatch
        self.table, self.checkpoint, self._directory = directory / "table", directory / "checkpoint", directory
        self.rng = random.Random(3)
        self.user = TableUser(self.table, str(cluster.key), self.rng)
        self.log: list[Row] = []

    def append(self, count: int = 20) -> None:
        for partition in range(PARTITIONS):
            first = self.cluster.marks().get(partition, -1) + 1
            data = [self.rng.randbytes(self.rng.randrange(40)) for _ in range(count)]
            self.cluster.append(partition, data, headers=lambda at: at % 9)
            self.log += [Row(partition, first + n, zlib.crc32(each, (first + n) % 9)) for n, each in enumerate(data)]

    def run(self, action: Action = START, table: Path | None = None, checkpoint: Path | None = None) -> tuple[str, str] | None:
        """The error that ended it."""
        if action.when == "stopped":
            self.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # a new driver has seen no table yet
        settings = PipelineSettings(
            name="ingest",
            source={"cluster": self.cluster.address, "maxTransactionsPerTrigger": "1000" if action.when == "stopped" else "40"},
            outputs=(OutputSettings(target=TargetSettings(table=str(table or self.table)), projection=ProjectionSettings(where="header >= 0")),),
            checkpoint=str(checkpoint or self.checkpoint),
            trigger="available-now",
            restart=RestartSettings(attempts_max=0),
        )
        with self._patch.context() as patched:
            self._plan(action, patched)
            run = Run(self.spark, settings, StatusBoard(), NeverStopped(), lambda name, line: None)
            run.run()
        if run.error is None:
            return None
        found = reported_in(f"{type(run.error).__module__}.{type(run.error).__qualname__}: {run.error}")
        if found is None:
            raise run.error
        return found

    def _plan(self, action: Action, patched: pytest.MonkeyPatch) -> None:
        """The action between the first and the second batch, or between the files of the first and their commit."""
        act, pending = action.act, [action]
        if act is None or action.when == "stopped":
            return

        def once() -> None:
            if pending:
                pending.clear()
                act(self.user)

        class Between(Landing):
            def __call__(self, rows: Any, batch_id: int) -> None:
                super().__call__(rows, batch_id)
                once()

        def acting(original: Callable[..., int]) -> Callable[..., int]:
            def commit(*arguments: Any, **named: Any) -> int:
                once()
                return original(*arguments, **named)

            return commit

        if action.when == "running":
            patched.setattr(pipeline_run, "Landing", Between)
        else:
            replace_commits(patched, acting)

    def act(self, name: str) -> list[str]:
        """What is wrong with the table or with what the job said."""
        action = ACTIONS[name]
        if action.when == "keyed":
            return self.keyed()
        if not self.table.exists() or name.startswith("restored"):
            self.append()
            assert self.run() is None
        assert known_id(self.checkpoint, self.table) == table_id(self.table)
        if action.when != "stopped":
            self.append()
        elif action.act is not None:
            action.act(self.user)
        if action.checkpoint:
            self._remove_checkpoint(action.checkpoint)
        self.append()
        reported, wrong = list[str](), list[str]()
        found = self.run(action)
        while found is not None and len(reported) < 3:
            reported.append(found[0])
            wrong += follow(*found, self.user, self.checkpoint)
            found = self.run()
        return wrong + judge(action, reported, restarted=False) + self.differences()

    def keyed(self) -> list[str]:
        """A table by key, whose driver dies between its letters and its rows once a constraint was added; with an audit at the end."""
        keyed = KeyedTable(self._directory / "keyed", self.cluster.address, str(self.cluster.key))
        settings = PipelineSettings.model_validate({"name": "keyed", **keyed.settings, "restart": {"attempts_max": 0}})
        entries: list[Entry] = []
        for number in range(2):
            for partition in range(PARTITIONS):
                first = self.cluster.marks().get(partition, -1) + 1
                data = [data_of(partition, number * 100 * (at % 3 > 0) + at, self.rng) for at in range(40)]
                self.cluster.append(partition, data, headers=lambda _: HEADER)
                self.log += [Row(partition, first + at, zlib.crc32(each, HEADER)) for at, each in enumerate(data)]
                entries += [entry_of(partition, first + at, each) for at, each in enumerate(data)]
            with self._patch.context() as patched:
                if number:
                    keyed.constrain()
                    self._die_after_letters(patched, settings)
            run = Run(self.spark, settings, StatusBoard(), NeverStopped(), lambda name, line: None)
            run.run()
            if run.error is not None:
                raise run.error
        extents = {partition: (0, mark) for partition, mark in self.cluster.marks().items()}
        (audited,) = audit_pipeline(self.spark, settings, str(self.cluster.key), lambda: extents, source="waltz_stub")
        return keyed.differences(entries) + [f"audit: {each}" for each in audited.differences]

    def _die_after_letters(self, patched: pytest.MonkeyPatch, settings: PipelineSettings) -> None:
        class Died(Exception):
            pass

        def die(*_: Any, **__: Any) -> None:
            raise Died

        patched.setattr("waltz_delta.landing.merge_sink.MergedTable.merge", die)
        run = Run(self.spark, settings, StatusBoard(), NeverStopped(), lambda name, line: None)
        run.run()
        assert isinstance(run.error, Died)

    def differences(self) -> list[str]:
        found = held(self.table, str(self.cluster.key), PARTITIONS)
        deleted, foreign = self.user.edits.at(found.version)
        reached = [
            f"not reached: partition={p} table={found.marks.get(p)} log={mark}"
            for p, mark in self.cluster.marks().items()
            if found.marks.get(p) != mark
        ]
        return reached + differences_below_marks(self.log, found, deleted=deleted, foreign=foreign)

    def _remove_checkpoint(self, place: str) -> None:
        """Of a query that fills another table from the same log."""
        other = self._directory / f"other-{len(list(self._directory.glob('other-*')))}"
        if place == "ahead":
            self.append()
        assert self.run(table=other / "table", checkpoint=other / "checkpoint") is None
        if place == "behind":
            for kind in ("offsets", "commits"):
                for path in (other / "checkpoint" / kind).iterdir():
                    if path.name.strip(".").removesuffix(".crc") not in ("0", "metadata"):
                        path.unlink()
        shutil.rmtree(self.checkpoint)
        shutil.copytree(other / "checkpoint", self.checkpoint)


@pytest.fixture
def job(spark: Any, stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    return Job(spark, stub(), tmp_path, monkeypatch)


@pytest.mark.parametrize(
    "order",
    [
        pytest.param(ORDER[:SHORT], marks=pytest.mark.long, id="short"),
        pytest.param(DECLARED, marks=pytest.mark.slow, id="declared"),
        pytest.param(ORDER, marks=pytest.mark.slow, id="all"),
    ],
)
def test_after_each_action_the_table_equals_the_log_or_the_job_says_what_to_do(job: Job, order: list[str]) -> None:
    """All on one table: what an action leaves behind is what the next one finds."""
    for name in order:
        assert (name, job.act(name)) == (name, [])


def test_a_planted_bug_that_skips_partitions_without_a_mark_is_noticed(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse = marks.refuse_gaps

    def skip(path: str, batch: BatchRange, held: Mapping[int, int]) -> None:
        refuse(path, replace(batch, starts={partition: first for partition, first in batch.starts.items() if partition in held}), held)

    monkeypatch.setattr("waltz_delta.landing.append.refuse_gaps", skip)
    wrong = job.act("checkpoint-elsewhere")
    assert wrong[:2] == ["the query went on, where GapInTable was expected", "missing: partition=0 transaction_id=0"]


@pytest.mark.slow
def test_a_planted_bug_that_compares_no_table_ids_is_noticed(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    def record(watch: TableWatch, spark: Any, transaction: internal.TableTransaction, checkpoint: str | None) -> None:
        watch._checkpoint = checkpoint or watch._checkpoint
        watch.record(spark, transaction.table_id)

    monkeypatch.setattr(TableWatch, "_compare_id", record)
    assert job.act("replaced-level") == ["the query went on, where TableReplaced was expected"]


def test_a_planted_bug_that_stores_empty_keys_is_noticed(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waltz_delta.landing.output_decoder.partitioned_keys", lambda *_: frozenset())
    monkeypatch.setattr("waltz_delta.landing.merge_sink.refuse_unstored", lambda rows, *_: rows)
    wrong = job.act("empty-key")
    assert any(line.startswith("row (") and "None" in line for line in wrong)
    assert any(line.startswith("letter (") for line in wrong)


def test_a_planted_bug_that_compares_no_time_zones_is_noticed(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waltz_delta.landing.landing.refuse_other_zone", lambda *_: None)
    assert job.act("time-zone-changed") == ["the query went on, where InvalidSetting was expected"]


@pytest.mark.slow
def test_a_planted_bug_that_leaves_out_a_renamed_column_is_noticed(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    fitting = evolution.fitting_columns
    monkeypatch.setattr(evolution, "fitting_columns", lambda path, held, given, _: fitting(path, held, given, "off"))
    with pytest.raises(pa.ArrowInvalid, match=r"No match for FieldRef.Name\(data\)"):
        job.act("column-renamed")


@pytest.mark.slow
def test_a_planted_bug_that_writes_int96_is_noticed(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    write = internal.TableTransaction.write

    def write_int96(transaction: internal.TableTransaction, *arguments: Any, **named: Any) -> Any:
        transaction._session.conf().set("spark.sql.parquet.outputTimestampType", "INT96")
        return write(transaction, *arguments, **named)

    monkeypatch.setattr(internal.TableTransaction, "write", write_int96)
    assert job.act("delete") == ["INT96 timestamps: column=timestamp"]


def test_thirty_lives_see_each_action() -> None:
    drawn = actions_of(30, random.Random(1))
    assert set(drawn) == set(ACTIONS)
    assert drawn == actions_of(30, random.Random(1)) != actions_of(30, random.Random(2))


def test_checksum_files_that_a_replaced_table_left_are_removed(tmp_path: Path) -> None:
    table = tmp_path / "t"
    write_deltalake(table, pa.table({"n": [1]}))
    log = table / "_delta_log"
    left = log / f"{29:020d}.crc"
    for path in (log / f"{0:020d}.crc", left):
        path.write_text("{}")
    TableUser(table, "key", random.Random(0)).remove_left_checksums()
    assert [path.name for path in log.glob("*.crc")] == [f"{0:020d}.crc"]


def test_edits_go_back_with_a_restore() -> None:
    rows = [Row(1000, at, 0) for at in range(3)]
    edits = Edits(missing=[(0, 1)])
    edits.add(2, rows[:1])
    edits.delete(4, [(0, 7)])
    edits.add(5, rows[1:2])
    edits.restore(7, 3)
    edits.add(8, rows[2:])
    edits.restore(9, 6)
    edits.restore(10, 8)
    assert edits.at(5) == (frozenset({(0, 1), (0, 7)}), rows[:2])
    assert edits.at(7) == (frozenset({(0, 1)}), rows[:1])
    assert edits.at(8) == (frozenset({(0, 1)}), [rows[0], rows[2]])
    assert edits.at(9) == edits.at(5)
    assert edits.at(10) == edits.at(8)


def test_the_judge_expects_the_errors_of_an_action_and_no_others() -> None:
    assert judge(ACTIONS["delete"], [], restarted=False) == []
    assert judge(ACTIONS["delete"], ["GapInTable"], restarted=False) == ["ended with GapInTable, where nothing was expected"]
    assert judge(ACTIONS["removed"], ["GapInTable"], restarted=False) == []
    assert judge(ACTIONS["removed"], ["GapInTable", "GapInTable"], restarted=False) == ["ended 2 times: GapInTable, GapInTable"]
    assert judge(ACTIONS["restored-running"], [], restarted=True) == []
    assert judge(ACTIONS["restored-running"], [], restarted=False)[0].startswith("the query went on, where TableRestored")


def test_the_checker_compares_the_part_that_the_marks_name_and_what_users_changed() -> None:
    log = [Row(0, at, at) for at in range(5)]
    stranger = Row(1000, 0, 1)
    table = Held(3, [*log[1:3], stranger], {0: 2}, [])
    assert differences_below_marks(log, table, deleted=[(0, 0)], foreign=[stranger]) == []
    assert differences_below_marks(log, table, deleted=[(0, 0)]) == ["not in the log: partition=1000 transaction_id=0"]
    assert differences_below_marks(log, table, foreign=[stranger]) == ["missing: partition=0 transaction_id=0"]
    assert differences_below_marks(log, table._replace(rows=log[1:3]), deleted=[(0, 0)], foreign=[stranger]) == [
        "missing: partition=1000 transaction_id=0"
    ]


def test_rows_that_a_user_deleted_above_the_marks_of_a_replacement_come_again(tmp_path: Path) -> None:
    """The query fills the replacement from its marks on, so the log's rows above them are there."""
    columns = pa.schema([("partition", pa.int32()), ("transaction_id", pa.int64()), ("header", pa.int32()), ("data", pa.binary())])
    seen = set()
    for seed in range(8):
        path = tmp_path / str(seed) / "table"
        rows = [{"partition": 0, "transaction_id": at, "header": 0, "data": b""} for at in range(10)]
        mark = CommitProperties(app_transactions=[Transaction(marks.app_id("key", 0), 9)])
        write_deltalake(str(path), pa.Table.from_pylist(rows, columns), commit_properties=mark)
        user = TableUser(path, "key", random.Random(seed))
        user.edits.delete(0, [(0, 4)])
        user.replace("behind")
        reached = marks.high_water_marks(str(path), "key")[0]
        deleted, _ = user.edits.at(0)
        assert ((0, 4) in deleted) == (reached >= 4)
        seen.add(reached >= 4)
    assert seen == {False, True}
