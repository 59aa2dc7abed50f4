"""A job reports to the log how far its tables are, and never more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from waltz_delta.jobs.job_arguments import parse_arguments
from waltz_delta.landing.landing_progress import LandingProgress
from waltz_delta.pipelines.listener import StatusBoard
from waltz_delta.pipelines.subscribing import Subscribing
from waltz_log.errors import InvalidRequest, OutOfRange, Unavailable

JOB = ("--cluster", "127.0.0.1:5101", "--table", "/lake/orders", "--checkpoint", "/lake/checkpoints/orders")


class Registry:
    """Keeps what it receives; `fails` is raised once by the next call."""

    def __init__(self) -> None:
        self.marks: dict[str, dict[int, int]] = {}
        self.labels: dict[str, dict[str, str]] = {}
        self.calls: list[str] = []
        self.fails: Exception | None = None
        self.closed = False

    def _call(self, what: str) -> None:
        self.calls.append(what)
        failure, self.fails = self.fails, None
        if failure is not None:
            raise failure

    def register(self, name: str, marks: Mapping[int, int], labels: Mapping[str, str] | None = None) -> Any:
        self._call("register")
        self.marks[name], self.labels[name] = dict(marks), dict(labels or {})

    def report(self, name: str, marks: Mapping[int, int]) -> Any:
        self._call("report")
        if name not in self.marks:
            raise InvalidRequest(reason="no such subscriber")
        self.marks[name] |= marks

    def close(self) -> None:
        self.closed = True


def job(registry: Registry, *more: str) -> tuple[Subscribing, StatusBoard, list[str]]:
    board, lines = StatusBoard(), list[str]()
    pipelines = parse_arguments("ingest", [*JOB, *more], upsert=False).pipelines
    subscribing = Subscribing(board, pipelines, lambda name, line: lines.append(f"{name} {line}"), connect=lambda cluster: registry, pause_s=600.0)
    board.add("ingest", LandingProgress)
    return subscribing, board, lines


def landed(board: StatusBoard, **ends: int) -> None:
    offsets = {partition.removeprefix("p"): end for partition, end in ends.items()}
    board.progressed({"name": "ingest", "numInputRows": 1, "sources": [{"endOffset": offsets, "latestOffset": offsets}]})


def test_it_registers_with_what_has_landed_and_reports_what_lands_after() -> None:
    registry = Registry()
    subscribing, board, lines = job(registry, "--subscriber", "orders-table")
    subscribing.report()
    assert registry.calls == []
    landed(board, p0=10, p1=0)
    subscribing.report()
    subscribing.report()
    assert registry.marks == {"orders-table": {0: 9, 1: -1}}
    assert registry.labels["orders-table"] == {"pipeline": "ingest", "tables": "/lake/orders"}
    assert registry.calls == ["register", "report"]
    with subscribing:
        landed(board, p0=25, p1=3)
    assert registry.marks == {"orders-table": {0: 24, 1: 2}}
    assert registry.calls == ["register", "report", "report"]
    assert registry.closed
    assert lines == []


def test_more_partitions_are_registered_as_they_come() -> None:
    registry = Registry()
    subscribing, board, _ = job(registry, "--subscriber", "orders-table")
    landed(board, p0=10)
    subscribing.report()
    landed(board, p0=11, p5=4)
    subscribing.report()
    assert registry.marks == {"orders-table": {0: 10, 5: 3}}
    assert registry.calls == ["register", "report", "register", "report"]


def test_a_removed_subscriber_registers_again_and_a_failure_is_reported_and_tried_again() -> None:
    registry = Registry()
    subscribing, board, lines = job(registry, "--subscriber", "orders-table")
    landed(board, p0=10)
    registry.fails = Unavailable(reason="nobody answers")
    subscribing.report()
    assert registry.marks == {}
    assert "could not report its progress to the log" in lines[0]
    subscribing.report()
    assert registry.marks == {"orders-table": {0: 9}}
    del registry.marks["orders-table"]
    landed(board, p0=12)
    subscribing.report()
    assert registry.marks == {"orders-table": {0: 11}}
    registry.fails = OutOfRange(partition=0, asked=12, first=40, last=50)
    landed(board, p0=13)
    subscribing.report()
    assert "nothing is kept for it" in lines[1]


def test_a_job_that_is_not_asked_to_reports_nothing() -> None:
    registry = Registry()
    subscribing, board, _ = job(registry)
    with subscribing:
        landed(board, p0=10)
    assert (registry.calls, registry.closed) == ([], False)
