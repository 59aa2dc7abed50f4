from __future__ import annotations

import io
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake
from rich.console import Console

from demo.checks import Result
from demo.directory import claimed, clear
from demo.dispatcher import Counts
from demo.display import Display, Snapshot, TableLag, show_answer, show_results, status_line
from demo.faults import Fault, FaultPlan
from demo.lag import LagClock, committed, table_marks
from demo.queries import ask
from demo.spark import AIRCRAFT, FLIGHT_LEGS, submit_command, submit_environment
from demo.watch import last_counts
from waltz_delta.pipelines.pipeline_file import load_pipeline, pipeline_files
from waltz_log.errors import InvalidSetting


def test_lag_in_seconds_is_the_age_of_the_oldest_transaction_missing_in_the_table() -> None:
    clock = LagClock()
    for now_s, count in [(0.0, 0), (1.0, 100), (2.0, 200), (3.0, 200), (4.0, 300)]:
        clock.log_at(now_s, count)
    assert clock.behind_s(5.0, 300) == 0.0
    assert clock.behind_s(5.0, 200) == 1.0
    assert clock.behind_s(5.0, 150) == 3.0
    assert clock.behind_s(5.0, 0) == 4.0


def test_marks_count_transactions_from_zero() -> None:
    assert committed({0: -1, 1: 9, 2: 0}) == 11


def test_a_table_that_is_not_there_yet_has_no_marks(tmp_path: Path) -> None:
    assert table_marks(tmp_path / "none", "key", 2) == {0: -1, 1: -1}


def test_marks_are_read_from_the_table_itself(tmp_path: Path) -> None:
    marks = [Transaction("waltz:key:0", 41), Transaction("waltz:other:1", 7)]
    write_deltalake(str(tmp_path / "table"), pa.table({"a": [1]}), commit_properties=CommitProperties(app_transactions=marks))
    assert table_marks(tmp_path / "table", "key", 2) == {0: 41, 1: -1}


def test_faults_strike_once_in_order_and_are_repaired_later() -> None:
    done: list[str] = []

    def fault(name: str, share: float) -> Fault:
        return Fault(name, share, lambda: done.append(f"-{name}"), lambda: done.append(f"+{name}"), 5.0)

    plan = FaultPlan([fault("b", 0.5), fault("a", 0.2)])
    assert plan.advance(0.1, 0.0) == []
    assert plan.advance(0.2, 1.0) == ["killed a (SIGKILL)"]
    assert plan.advance(0.3, 5.9) == []
    assert plan.advance(0.6, 6.0) == ["killed b (SIGKILL)", "started a again"]
    assert not plan.finished
    assert plan.advance(1.0, 12.0) == ["started b again"]
    assert plan.finished
    assert done == ["-a", "-b", "+a", "+b"]


def test_a_fault_waits_until_it_proves_something() -> None:
    done: list[str] = []
    worthwhile = False
    plan = FaultPlan([Fault("driver", 0.5, lambda: done.append("-"), lambda: done.append("+"), 0.0, lambda: worthwhile)])
    assert plan.advance(1.0, 0.0) == []
    assert not plan.finished
    worthwhile = True
    assert plan.advance(1.0, 1.0) == ["killed driver (SIGKILL)", "started driver again"]
    assert plan.finished


def test_the_status_line_reports_everything_in_one_line() -> None:
    line = status_line(
        Snapshot("dispatching", 12.0, 1000, appended=250, rate=4321.0, conflicts=17, memory_bytes=3 << 30, lags=(TableLag("aircraft", 200, 50, 1.5),))
    )
    assert line == "   12 s  dispatching: 250 of 1,000 (25%)  4,321 appends/s  17 conflicts  aircraft behind 50 / 1.5 s  3.0 GiB"


@pytest.mark.parametrize("terminal", [True, False])
def test_the_display_works_with_and_without_a_terminal(terminal: bool) -> None:
    output = io.StringIO()
    with Display(Console(file=output, force_terminal=terminal, color_system=None, width=150)) as display:
        display.event(1.0, "killed storage-1")
        display.show(Snapshot("dispatching", 2.0, 1000, appended=250, settled=3, by_airport={"EWR": 250}, lags=(TableLag("aircraft", 200, 50, 1.5),)))
        display.show(Snapshot("dispatching", 3.0, 1000, appended=251))
    assert "killed storage-1" in output.getvalue()
    assert "250 of 1,000" in output.getvalue()


def test_without_a_terminal_lines_come_seconds_apart() -> None:
    output = io.StringIO()
    with Display(Console(file=output, width=150)) as display:
        for second in range(12):
            display.show(Snapshot("dispatching", float(second), 1000, appended=second))
    assert [line.split()[0] for line in output.getvalue().splitlines()] == ["0", "5", "10"]


def test_results_name_the_first_offenders() -> None:
    output = io.StringIO()
    show_results(
        Console(file=output, width=150),
        [Result("aircraft", "rows", "1", "1", True), Result("flight_legs", "ids", "0 wrong", "1 wrong", False, "(0, 7) missing")],
    )
    assert "WRONG" in output.getvalue()
    assert "(0, 7) missing" in output.getvalue()


def test_the_queries_run_and_agree_on_right_tables(tmp_path: Path) -> None:
    legs = pa.table(
        {
            "partition": [0, 0, 1],
            "transaction_id": [0, 1, 0],
            "tail": ["N1", "N1", None],
            "leg": [1, 2, None],
            "origin": ["EWR", "JFK", "LGA"],
            "distance": [10, 20, 30],
        }
    )
    write_deltalake(str(tmp_path / FLIGHT_LEGS), legs)
    write_deltalake(str(tmp_path / AIRCRAFT), pa.table({"tail": ["N1"], "legs": [2], "distance": [30], "minutes": [5]}))
    answers = {query.question: rows for query, _, rows in ask({name: tmp_path / name for name in (FLIGHT_LEGS, AIRCRAFT)})}
    assert answers["Which aircraft of the two tables differ?"] == [[0]]
    assert answers["Which aircraft flew the most legs, and from how many airports?"] == [["N1", 2, 30, 5, 2]]
    assert answers["Is the log in the table exactly once?"] == [[0, 2, 2, 1], [1, 1, 1, 0]]
    output = io.StringIO()
    for query, columns, rows in ask({name: tmp_path / name for name in (FLIGHT_LEGS, AIRCRAFT)}):
        show_answer(Console(file=output, width=150), query, columns, rows)
    assert "N1" in output.getvalue()


def test_each_table_has_a_pipeline_with_a_checkpoint_of_its_own(tmp_path: Path) -> None:
    environment = submit_environment(cluster="127.0.0.1:1/x", directory=tmp_path)
    *_, job, argument = submit_command()
    assert job.endswith("jobs/ingest.py")
    files = pipeline_files([Path(argument.removeprefix("--pipeline="))])
    for file, (table, mode) in zip(files, ((AIRCRAFT, "upsert"), (FLIGHT_LEGS, "append")), strict=True):
        pipeline = load_pipeline(file, environment)
        assert (pipeline.name, pipeline.options.cluster, pipeline.checkpoint) == (table, "127.0.0.1:1/x", f"{tmp_path}/checkpoints/{table}")
        (output,) = pipeline.outputs
        assert (output.target.table, output.target.mode) == (f"{tmp_path}/tables/{table}", mode)


def test_the_newest_complete_line_of_a_dispatcher_counts(tmp_path: Path) -> None:
    path = tmp_path / "EWR.jsonl"
    assert last_counts(path) == Counts()
    path.write_text(
        '{"appended": 1, "conflicts": 0, "settled": 0, "done": false}\n{"appended": 2, "conflicts": 1, "settled": 0, "done": false}\n{"app'
    )
    assert last_counts(path) == Counts(2, 1, 0, False)


def test_a_directory_that_is_not_of_a_demo_is_not_emptied(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(InvalidSetting, match="not of a demo"):
        clear(tmp_path)
    assert (tmp_path / "thesis.tex").exists()


def test_a_directory_of_an_earlier_demo_is_emptied(tmp_path: Path) -> None:
    clear(tmp_path / "demo")
    (tmp_path / "demo" / "old").write_text("old")
    clear(tmp_path / "demo")
    assert [path.name for path in (tmp_path / "demo").iterdir()] == [".waltz-demo"]


def test_demos_at_once_use_directories_of_their_own(tmp_path: Path) -> None:
    with claimed(None, tmp_path / "demo") as first, claimed(None, tmp_path / "demo") as second:
        clear(first)
        with claimed(None, tmp_path / "demo") as third, pytest.raises(InvalidSetting, match=f"another demo uses {tmp_path / 'demo'}"), claimed(first):
            pass
    assert [each.name for each in (first, second, third)] == ["demo", "demo-2", "demo-3"]
    with claimed(None, tmp_path / "demo") as again:
        assert again == first
