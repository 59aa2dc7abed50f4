"""Spans on their way to a collector: bounded, counted, and never waited for."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from waltz_log.core.formats.traces import is_context
from waltz_log.core.status.trace_statistics import TraceStatistics
from waltz_log.errors import InvalidSetting
from waltz_log.telemetry.exporting_tracer import ExportingTracer, exporting_tracer
from waltz_log.telemetry.settings import TracingSettings

SETTINGS = TracingSettings(endpoint="http://127.0.0.1:9/v1/traces", queue_spans_max=64, export_interval_s=0.05, export_timeout_s=0.2)
PARENT = bytes(range(1, 25)) + b"\x01"
PATIENCE_S = 30.0


class _Stuck(SpanExporter):
    """A collector that does not answer."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.release = threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.asked.set()
        self.release.wait(PATIENCE_S)
        return SpanExportResult.FAILURE

    def shutdown(self) -> None:
        pass


def _until(tracer: ExportingTracer, wanted: TraceStatistics) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while tracer.statistics() != wanted:
        assert time.monotonic() < deadline, tracer.statistics()
        time.sleep(0.01)


def test_a_span_has_the_parent_and_the_times_that_it_was_given() -> None:
    exporter = InMemorySpanExporter()
    tracer = ExportingTracer("waltz-server", "one", SETTINGS, exporter)
    now_s = time.perf_counter()
    span = tracer.start("waltz.server.append", PARENT, now_s - 2, partition=3)
    assert is_context(span.context)
    span.end(now_s - 1, outcome="committed")
    tracer.close()
    (found,) = exporter.get_finished_spans()
    assert found.context is not None
    assert found.parent is not None
    assert found.context.trace_id.to_bytes(16, "big") == PARENT[:16] == span.context[:16]
    assert found.parent.span_id.to_bytes(8, "big") == PARENT[16:24]
    assert dict(found.attributes or {}) == {"waltz.partition": 3, "waltz.outcome": "committed"}
    assert found.start_time is not None
    assert found.end_time is not None
    assert abs(found.end_time - found.start_time - 1e9) < 5e6
    assert abs(time.time_ns() - found.end_time) < 60e9
    assert tracer.statistics() == TraceStatistics(exported=1, dropped=0, waiting=0)


def test_a_span_below_one_that_is_not_recorded_is_not_recorded() -> None:
    exporter = InMemorySpanExporter()
    tracer = ExportingTracer("waltz-server", "one", SETTINGS, exporter)
    tracer.start("waltz.server.append", PARENT[:24] + b"\x00", time.perf_counter()).end()
    tracer.close()
    assert exporter.get_finished_spans() == ()


def test_a_collector_that_does_not_answer_costs_a_bounded_queue_and_counts_the_rest() -> None:
    stuck = _Stuck()
    tracer = ExportingTracer("waltz-server", "one", SETTINGS, stuck)
    try:
        tracer.start("first", PARENT, time.perf_counter()).end()
        assert stuck.asked.wait(PATIENCE_S)
        began_s = time.perf_counter()
        for _ in range(1000):
            tracer.start("more", PARENT, time.perf_counter()).end()
        assert time.perf_counter() - began_s < PATIENCE_S / 3, "spans waited for the collector"
        assert tracer.statistics() == TraceStatistics(exported=0, dropped=1000 - 63, waiting=64)
    finally:
        stuck.release.set()
    _until(tracer, TraceStatistics(exported=0, dropped=1001, waiting=0))
    began_s = time.monotonic()
    tracer.close()
    assert time.monotonic() - began_s < PATIENCE_S


def test_a_dead_collector_is_reported_and_its_spans_are_counted() -> None:
    tracer = exporting_tracer("waltz-server", "one", SETTINGS)
    tracer.start("lost", PARENT, time.perf_counter()).end()
    _until(tracer, TraceStatistics(exported=0, dropped=1, waiting=0))
    tracer.close()


@pytest.mark.parametrize("endpoint", ["", "localhost:4318", "ftp://here/x", "http://", "http://a b/v1"])
def test_an_endpoint_that_is_no_address_is_refused(endpoint: str) -> None:
    with pytest.raises(InvalidSetting):
        TracingSettings(endpoint=endpoint)
