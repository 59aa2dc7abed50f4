"""The end of the log is asked for while no batch ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import structlog

from pyspark_waltz.offsets import Extent
from waltz_delta.jobs.job_arguments import parse_arguments
from waltz_delta.landing.landing_progress import LandingProgress
from waltz_delta.pipelines.listener import StatusBoard
from waltz_delta.pipelines.log_watch import AGES_S, LogWatch
from waltz_delta.pipelines.pipeline import PipelineSettings
from waltz_log.errors import Unavailable

JOB = ("--cluster", "127.0.0.1:5101", "--table", "/lake/orders", "--checkpoint", "/lake/checkpoints/orders")
NOW_MS = 10_000_000


class View:
    """A log with one transaction every second of the past `ages_s`."""

    def __init__(self) -> None:
        self.extent = Extent(0, 1000)
        self.fails = False
        self.asked: list[Sequence[int]] = []
        self.closed = False

    def extents(self) -> Mapping[int, Extent]:
        if self.fails:
            raise Unavailable(reason="no owner answers")
        return {0: self.extent}

    def past_ends(self, partitions: Sequence[int], times_ms: Sequence[int]) -> Mapping[int, Sequence[int]]:
        self.asked.append(partitions)
        return {p: [max(0, 1000 - (NOW_MS - at_ms) // 1000) for at_ms in times_ms] for p in partitions}

    def close(self) -> None:
        self.closed = True


def job(*more: str) -> PipelineSettings:
    return parse_arguments("ingest", [*JOB, *more], upsert=False).pipelines[0]


def watch(board: StatusBoard, settings: PipelineSettings, view: View, pause_s: float = 0.01) -> LogWatch:
    return LogWatch(board, [settings], connect=lambda options: view, pause_s=pause_s, now_ms=lambda: NOW_MS)


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_query_that_has_landed_nothing_has_the_age_of_the_first_transaction() -> None:
    board, view, settings = StatusBoard(), View(), job()
    board.add(settings.name, LandingProgress)
    watching = watch(board, settings, view)
    watching.read(settings, view)
    watching.read(settings, view)
    status = board.statuses()[settings.name]
    assert status.lag_transactions == 1000
    assert 1000 / 1.26 <= status.lag_s <= 1010
    assert view.asked == [[0]], "once: later ends are seen as they come"


@pytest.mark.parametrize(
    ("start", "behind"), [("earliest", 1000), ("latest", 0), ('{"0": 990}', 10), ('{"0": -1}', 0)], ids=["earliest", "latest", "an id", "its end"]
)
def test_a_query_without_a_table_begins_where_it_is_declared(start: str, behind: int) -> None:
    board, view, settings = StatusBoard(), View(), job("--starting", start)
    board.add(settings.name, LandingProgress)
    watch(board, settings, view).read(settings, view)
    assert board.statuses()[settings.name].lag_transactions == behind


def test_a_log_that_does_not_answer_is_said_once_and_asked_again() -> None:
    board, view, settings = StatusBoard(), View(), job()
    board.add(settings.name, LandingProgress)
    with structlog.testing.capture_logs() as logs:
        view.fails = True
        with watch(board, settings, view):
            until(lambda: logs)
            time.sleep(0.05)  # several more attempts
            assert board.statuses()[settings.name].log_age_s > 0.05
            view.fails = False
            until(lambda: board.statuses()[settings.name].lag_transactions == 1000)
            view.extent = Extent(0, 1234)
            until(lambda: board.statuses()[settings.name].lag_transactions == 1234)
        until(lambda: view.closed)
    assert [each["event"] for each in logs] == ["log end not read"]


def test_a_question_for_ages_is_within_the_limit_of_a_storage_node() -> None:
    assert len(AGES_S) <= 64
    assert AGES_S[-1] > 14 * 86_400
