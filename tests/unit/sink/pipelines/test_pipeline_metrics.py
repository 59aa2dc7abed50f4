"""What Spark reports of its queries becomes a status, metrics for Prometheus and a line."""

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

from waltz_delta.pipelines import metrics as metrics_module
from waltz_delta.pipelines.lag_clock import LagClock
from waltz_delta.pipelines.listener import StatusBoard
from waltz_delta.pipelines.metrics import METRICS, LiveLine, PrometheusMetrics, status_line
from waltz_delta.pipelines.metrics_port import MetricsSettings
from waltz_log.errors import InvalidSetting


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def progress(name: str, landed: dict[str, Any], log: dict[str, Any] | None, rows: int = 0) -> dict[str, Any]:
    latest = None if log is None else json.dumps(log)
    return {
        "name": name,
        "numInputRows": rows,
        "durationMs": {"triggerExecution": 2000, "addBatch": 1500, "latestOffset": 20},
        "sources": [{"endOffset": json.dumps(landed), "latestOffset": latest}],
    }


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def board(clock: Clock) -> StatusBoard:
    board = StatusBoard(clock)
    board.add("legs", lambda: 3)
    return board


def test_lag_is_what_the_log_holds_and_the_tables_do_not(board: StatusBoard, clock: Clock) -> None:
    board.progressed(progress("legs", {"0": 10, "1": 5, "initial": True}, {"0": 30, "1": 5}, rows=10))
    assert board.statuses()["legs"].lag_transactions == 20
    clock.now += 4
    assert board.statuses()["legs"].lag_s == 4, "it grows while nothing is heard"
    board.progressed(progress("legs", {"0": 30, "1": 5}, {"0": 40, "1": 5}, rows=20))
    status = board.statuses()["legs"]
    assert (status.lag_transactions, status.lag_s) == (10, 0), "those ten are seen for the first time"
    clock.now += 3
    board.progressed(progress("legs", {"0": 40, "1": 5}, {"0": 40, "1": 5}, rows=10))
    status = board.statuses()["legs"]
    assert (status.lag_transactions, status.lag_s, status.rows, status.batches, status.rows_per_s) == (0, 0, 40, 3, 5.0)
    assert (status.batch_s, status.phases_s, status.dead_letters) == (2.0, {"addBatch": 1.5, "latestOffset": 0.02}, 3)
    assert status.landed == {0: 40, 1: 5}


def test_progress_without_offsets_or_of_others_changes_nothing(board: StatusBoard) -> None:
    board.progressed(progress("stranger", {"0": 1}, {"0": 9}, rows=1))
    board.progressed({"name": None, "sources": []})
    board.progressed({"name": "legs", "sources": [{"endOffset": None}]})
    board.progressed(progress("legs", {"0": 7, "began": {"0": 0}}, None, rows=7))
    status = board.statuses()["legs"]
    assert (list(board.statuses()), status.landed, status.lag_transactions) == (["legs"], {0: 7}, 0)


def test_counts_go_on_over_a_new_start(board: StatusBoard) -> None:
    board.progressed(progress("legs", {"0": 7}, {"0": 7}, rows=7))
    board.ended("legs", failed=True)
    assert not board.statuses()["legs"].running
    board.add("legs", lambda: 2)
    board.progressed(progress("legs", {"0": 9}, {"0": 9}, rows=2))
    status = board.statuses()["legs"]
    assert (status.running, status.failures, status.rows, status.dead_letters) == (True, 1, 9, 5)


def test_the_lag_clock_reports_the_age_of_the_oldest_that_is_missing() -> None:
    lag = LagClock()
    for now, count in ((0, 10), (1, 10), (2, 30), (5, 60)):
        lag.log_at(now, count)
    assert [lag.behind_s(6, landed) for landed in (0, 10, 29, 30, 60)] == [6, 4, 4, 1, 0]


def scraped(text: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def test_every_metric_is_served_with_its_value(board: StatusBoard) -> None:
    with PrometheusMetrics(board, MetricsSettings(port=0)) as metrics:
        board.progressed(progress("legs", {"0": 10}, {"0": 30}, rows=10))
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


def test_the_line_is_for_terminals_alone(board: StatusBoard) -> None:
    board.progressed(progress("legs", {"0": 1000}, {"0": 3000}, rows=1000))
    assert status_line(board.statuses()) == "legs 1,000 rows, 500/s, batch 2.0 s, behind 2,000 (0.0 s), 3 dead letters"
    board.ended("legs", failed=False)
    assert status_line(board.statuses()).startswith("legs [not running] 1,000 rows")
    quiet, terminal = io.StringIO(), Terminal()
    for stream in (quiet, terminal):
        with LiveLine(board, stream):
            pass
    assert quiet.getvalue() == ""
    assert "1,000 rows" in terminal.getvalue()
