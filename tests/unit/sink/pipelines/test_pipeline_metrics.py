"""What tables hold, what the log holds and what Spark reports become a status as of now, metrics for Prometheus and a line."""

from __future__ import annotations

import io
import json
import shutil
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import structlog
from prometheus_client.parser import text_string_to_metric_families

from waltz_delta.landing.landing_progress import LandingProgress
from waltz_delta.marks.marks import BatchRange
from waltz_delta.pipelines import metrics as metrics_module
from waltz_delta.pipelines.lag_clock import SAMPLES_MAX, LagClock
from waltz_delta.pipelines.listener import StatusBoard
from waltz_delta.pipelines.metrics import METRICS, LiveLine, PrometheusMetrics, status_line
from waltz_delta.pipelines.metrics_port import MetricsSettings
from waltz_log.errors import InvalidSetting


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Landed:
    """The landing of a query: what its tables hold, as of now."""

    def __init__(self) -> None:
        self.now = LandingProgress(dead_letters=3)

    def __call__(self) -> LandingProgress:
        return self.now

    def batch(self, number: int, starts: dict[int, int], ends: dict[int, int]) -> None:
        covered = BatchRange(ends=ends, starts=starts, exact=True)
        self.now = self.now.began(covered).ended(covered, number)


def report(number: int, landed: dict[str, Any], log: dict[str, Any] | None = None, rows: int = 0) -> dict[str, Any]:
    """What Spark reports after a batch, or while it waits. It counts a row for each scan of it."""
    latest = None if log is None else json.dumps(log)
    return {
        "name": "legs",
        "batchId": number,
        "numInputRows": rows,
        "durationMs": {"triggerExecution": 2000, "addBatch": 1500, "latestOffset": 20},
        "sources": [{"endOffset": json.dumps(landed), "latestOffset": latest}],
    }


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def landed() -> Landed:
    return Landed()


@pytest.fixture
def board(clock: Clock, landed: Landed) -> StatusBoard:
    board = StatusBoard(clock)
    board.add("legs", landed)
    return board


def test_lag_grows_while_a_batch_hangs_that_spark_has_not_reported(board: StatusBoard, landed: Landed, clock: Clock) -> None:
    board.log_read("legs", {0: 100, 1: 5}, {0: 0, 1: 0})
    landed.batch(0, {0: 0, 1: 0}, {0: 100, 1: 5})
    board.progressed(report(0, {"0": 100, "1": 5}, {"0": 100, "1": 5}, rows=105))
    assert board.statuses()["legs"].lag_s == 0
    landed.now = landed.now.began(BatchRange(ends={0: 200, 1: 5}, starts={0: 100, 1: 5}, exact=True))  # and hangs
    clock.now += 1
    board.log_read("legs", {0: 200, 1: 5}, {})
    clock.now += 146
    board.log_read("legs", {0: 17_634, 1: 5}, {})
    status = board.statuses()["legs"]
    assert (status.lag_transactions, status.lag_s, status.log_age_s) == (17_534, 146, 0)
    clock.now += 4
    status = board.statuses()["legs"]
    assert (status.lag_transactions, status.lag_s, status.log_age_s) == (17_534, 150, 4), "it grows while the log does not answer, too"
    landed.batch(1, {0: 100, 1: 5}, {0: 200, 1: 5})
    status = board.statuses()["legs"]
    assert (status.lag_transactions, status.lag_s) == (17_434, 4), "a commit shows at once, before Spark reports the batch"


def test_the_first_batch_of_a_job_that_hangs_has_the_lag_of_everything_it_lacks(board: StatusBoard, clock: Clock) -> None:
    board.log_read("legs", {0: 17_534}, {0: 0})
    assert board.undated("legs") == [0]
    board.log_was("legs", {0: ((1, 17_534), (60, 900), (900, 1), (3600, 0))})
    assert board.undated("legs") == []
    status = board.statuses()["legs"]
    assert (status.lag_transactions, status.lag_s) == (17_534, 900), "the log knows how old it is, not the job that started now"
    clock.now += 30
    assert board.statuses()["legs"].lag_s == 930


def test_the_oldest_transaction_that_is_missing_gives_the_age_however_busy_other_partitions_are(
    board: StatusBoard, landed: Landed, clock: Clock
) -> None:
    landed.batch(0, {0: 0, 1: 0}, {0: 1, 1: 1})
    for at in range(1, 61):
        board.log_read("legs", {0: 2, 1: 1000 * at}, {})
        landed.batch(at, {0: 1, 1: 0}, {0: 1, 1: 1000 * at})
        clock.now += 1
    board.log_read("legs", {1: 60_005}, {})
    clock.now += 1
    assert (board.statuses()["legs"].lag_transactions, board.statuses()["legs"].lag_s) == (6, 61)


def test_a_batch_counts_once_however_often_it_is_read(board: StatusBoard, landed: Landed) -> None:
    landed.batch(0, {0: 0}, {0: 40})
    board.progressed(report(0, {"0": 40}, {"0": 40}, rows=120))
    status = board.statuses()["legs"]
    assert (status.rows, status.rows_per_s, status.batches, status.batch_s) == (40, 20.0, 1, 2.0)
    assert (status.phases_s, status.dead_letters, status.landed) == ({"addBatch": 1.5, "latestOffset": 0.02}, 3, {0: 40})
    board.progressed(report(0, {"0": 40}, {"0": 40}))
    landed.batch(1, {0: 40}, {0: 50})
    landed.batch(2, {0: 50}, {0: 90})
    board.progressed(report(1, {"0": 50}, {"0": 50}, rows=30))
    assert (board.statuses()["legs"].batches, board.statuses()["legs"].rows_per_s) == (2, 5.0), "of the batch that is reported, not of those after it"
    assert board.statuses()["legs"].rows == 90


def test_progress_without_offsets_or_of_others_changes_nothing(board: StatusBoard) -> None:
    board.progressed({**report(0, {"0": 1}, {"0": 9}, rows=1), "name": "stranger"})
    board.progressed({"name": None, "sources": []})
    board.progressed({"name": "legs", "sources": [{"endOffset": None}]})
    board.progressed(report(0, {"0": 7, "began": {"0": 0}}, None, rows=7))
    status = board.statuses()["legs"]
    assert (list(board.statuses()), status.landed, status.lag_transactions) == (["legs"], {0: 7}, 0)


def test_counts_go_on_over_a_new_start(board: StatusBoard, landed: Landed) -> None:
    landed.batch(0, {0: 0}, {0: 7})
    board.ended("legs", failed=True)
    assert not board.statuses()["legs"].running
    again = Landed()
    again.now = LandingProgress(dead_letters=2).known({0: 6})
    board.add("legs", again)
    again.batch(1, {0: 7}, {0: 9})
    status = board.statuses()["legs"]
    assert (status.running, status.failures, status.rows, status.dead_letters) == (True, 1, 9, 5)


def test_a_pipeline_that_fails_before_its_first_batch_is_behind_as_well(board: StatusBoard, clock: Clock) -> None:
    board.ended("legs", failed=True)
    board.log_read("legs", {0: 5}, {0: 0})
    clock.now += 20
    assert (board.statuses()["legs"].lag_transactions, board.statuses()["legs"].lag_s) == (5, 20)


def test_a_pipeline_whose_tables_were_never_read_has_no_lag_instead_of_a_wrong_one(board: StatusBoard, clock: Clock) -> None:
    board.ended("planes", failed=True)
    board.log_read("planes", {0: 5000}, {0: 0})
    assert board.undated("planes") == []
    assert board.statuses()["planes"].lag_transactions == 0
    with PrometheusMetrics(board, MetricsSettings(port=0)) as metrics, urllib.request.urlopen(f"http://127.0.0.1:{metrics.port}/metrics") as answer:
        found = scraped(answer.read().decode())
    mine = (("pipeline", "planes"),)
    assert found["waltz_pipeline_running"][mine] == 0
    assert mine not in found["waltz_pipeline_lag_transactions"]
    assert mine not in found["waltz_pipeline_lag_seconds"]
    assert "lag not known" in status_line(board.statuses())
    board.add("planes", lambda: LandingProgress().known({0: 4899}))
    assert board.statuses()["planes"].lag_transactions == 100


def test_the_lag_clock_reports_the_age_of_the_oldest_that_is_missing() -> None:
    lag = LagClock()
    for now, end in ((0, 10), (1, 10), (2, 30), (5, 60)):
        lag.log_at(now, end)
    assert [lag.behind_s(6, landed) for landed in (0, 10, 29, 30, 60)] == [6, 4, 4, 1, 0]
    lag.log_was([(-50, 4), (-90, 2), (3, 40)])
    assert [lag.behind_s(6, landed) for landed in (0, 2, 4, 10, 60)] == [96, 56, 6, 4, 0], "what it saw itself is more exact"


def test_the_lag_clock_keeps_a_long_lag_in_bounded_memory() -> None:
    lag = LagClock()
    for at in range(10 * SAMPLES_MAX):
        lag.log_at(at, at + 1)
    assert lag.behind_s(10 * SAMPLES_MAX, 0) == 10 * SAMPLES_MAX
    assert len(lag._samples) <= SAMPLES_MAX


def scraped(text: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def test_every_metric_is_served_with_its_value(board: StatusBoard, landed: Landed) -> None:
    with PrometheusMetrics(board, MetricsSettings(port=0)) as metrics:
        landed.batch(0, {0: 0}, {0: 10})
        board.progressed(report(0, {"0": 10}, {"0": 30}, rows=20))
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics.port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
    found = scraped(text)
    mine = (("pipeline", "legs"),)
    names = {name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count") for name in found}
    assert {metric.name for metric in METRICS} == {name for name in names if name.startswith("waltz_pipeline_")} - {
        "waltz_pipeline_batch_seconds_created"
    }
    assert {"waltz_build_info", "process_cpu_seconds_total"} <= names, "those of every process are served as well"
    assert found["waltz_pipeline_lag_transactions"] == {mine: 20}
    assert found["waltz_pipeline_rows_total"] == {mine: 10}
    assert found["waltz_pipeline_dead_letters_total"] == {mine: 3}
    assert found["waltz_pipeline_batch_seconds_sum"] == {mine: 2}
    assert found["waltz_pipeline_next_transaction_id"] == {(("partition", "0"), ("pipeline", "legs")): 10}
    assert found["waltz_pipeline_phase_seconds"][("phase", "addBatch"), ("pipeline", "legs")] == 1.5
    for metric in METRICS:
        assert f"# HELP {metric.name} {metric.meaning}" in text.replace("\\\\", "\\")
        assert f"# TYPE {metric.name} {metric.kind}" in text


def test_the_file_holds_the_last_word(board: StatusBoard, tmp_path: Path) -> None:
    path = tmp_path / "made" / "waltz.prom"
    with PrometheusMetrics(board, MetricsSettings(file=path)):
        assert scraped(path.read_text())["waltz_pipeline_running"] == {(("pipeline", "legs"),): 1}
        board.ended("legs", failed=True)
    assert scraped(path.read_text())["waltz_pipeline_failures_total"] == {(("pipeline", "legs"),): 1}


def test_a_file_that_cannot_be_written_ends_neither_the_writer_nor_the_job(
    board: StatusBoard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_module, "FILE_INTERVAL_S", 0.01)
    path = tmp_path / "made" / "waltz.prom"
    with structlog.testing.capture_logs() as logs:
        with PrometheusMetrics(board, MetricsSettings(file=path)):
            shutil.rmtree(path.parent)
            wait_until(lambda: len(logs) > 0)
            time.sleep(0.05)  # several more attempts
            path.parent.mkdir()
            wait_until(path.exists)
            shutil.rmtree(path.parent)
        assert {each["event"] for each in logs} == {"metrics file not written"}
        assert 1 <= len(logs) <= 2, "a line for each incident, not for each attempt"


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_port_that_is_in_use_is_reported(board: StatusBoard) -> None:
    with (
        PrometheusMetrics(board, MetricsSettings(port=0)) as metrics,
        pytest.raises(InvalidSetting, match="--metrics-port cannot listen"),
        PrometheusMetrics(board, MetricsSettings(port=metrics.port)),
    ):
        pass


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_line_is_for_terminals_alone(board: StatusBoard, landed: Landed) -> None:
    landed.batch(0, {0: 0}, {0: 1000})
    board.progressed(report(0, {"0": 1000}, {"0": 3000}, rows=2000))
    assert status_line(board.statuses()) == "legs 1,000 rows, 500/s, batch 2.0 s, behind 2,000 (0.0 s), 3 dead letters"
    board.ended("legs", failed=False)
    assert status_line(board.statuses()).startswith("legs [not running] 1,000 rows")
    quiet, terminal = io.StringIO(), Terminal()
    for stream in (quiet, terminal):
        with LiveLine(board, stream):
            pass
    assert quiet.getvalue() == ""
    assert "1,000 rows" in terminal.getvalue()
