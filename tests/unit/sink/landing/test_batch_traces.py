"""The traces of appends that a batch landed, against a memory and an exporter of the test."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from waltz_delta.landing.batch_traces import SAMPLE_MAX, WAITING_MAX, BatchTraces, Ranges
from waltz_log.client.inspection.recent_traces import TracedTransaction
from waltz_log.errors import Unavailable
from waltz_log.telemetry.exporting_tracer import ExportingTracer
from waltz_log.telemetry.settings import TracingSettings


class _Memory:
    def __init__(self, traced: Sequence[TracedTransaction]) -> None:
        self._traced = traced
        self.asked: list[tuple[Ranges, int]] = []
        self.released = threading.Event()
        self.released.set()
        self.fails = False
        self.closed = False

    def traced(self, ranges: Ranges, count_max: int) -> Sequence[TracedTransaction]:
        self.released.wait(30)
        self.asked.append((ranges, count_max))
        if self.fails:
            raise Unavailable(reason="no owner answers")
        return self._traced

    def close(self) -> None:
        self.closed = True


def _traced(count: int) -> list[TracedTransaction]:
    return [TracedTransaction(1, at, (at + 1).to_bytes(16, "big") + bytes(7) + b"\x09\x01") for at in range(count)]


def _traces(memory: _Memory) -> tuple[BatchTraces, InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    settings = TracingSettings(endpoint="http://unused", export_interval_s=0.05)
    return BatchTraces("legs", ExportingTracer("waltz-pipeline", "legs", settings, exporter), memory), exporter


def test_each_traced_append_of_a_batch_gets_a_span_in_its_trace_linked_with_the_batch() -> None:
    memory = _Memory(_traced(2))
    traces, exporter = _traces(memory)
    now_s = time.perf_counter()
    traces.landed({1: (0, 9), 2: (5, 6)}, now_s - 2, now_s - 1, 7, 3)
    traces.close()
    assert memory.asked == [({1: (0, 9), 2: (5, 6)}, SAMPLE_MAX // 2)]
    assert memory.closed
    *commits, batch = exporter.get_finished_spans()
    assert batch.name == "waltz.delta.batch"
    assert batch.parent is None
    assert [link.context.trace_id for link in batch.links] == [1, 2]
    assert dict(batch.attributes or {}) == {"waltz.pipeline": "legs", "waltz.tables": 3, "waltz.batch_id": 7, "waltz.traced": 2}
    assert [(span.name, span.parent.span_id if span.parent else None) for span in commits] == [("waltz.delta.commit", 9)] * 2
    assert [span.context.trace_id for span in commits if span.context] == [1, 2]
    assert [(span.attributes or {})["waltz.transaction_id"] for span in commits] == [0, 1]
    assert all(abs((span.end_time or 0) - (span.start_time or 0) - 1e9) < 5e6 for span in (*commits, batch))


def test_a_batch_without_traced_appends_makes_no_span() -> None:
    memory = _Memory([TracedTransaction(1, 0, bytes(25))])
    traces, exporter = _traces(memory)
    traces.landed({1: (0, 9)}, 0.0, 1.0, None, 1)
    traces.close()
    assert memory.asked
    assert exporter.get_finished_spans() == ()


def test_of_many_traced_appends_a_bounded_sample_is_completed() -> None:
    traces, exporter = _traces(_Memory(_traced(3 * SAMPLE_MAX)))
    traces.landed({1: (0, 999)}, 0.0, 1.0, None, 1)
    traces.close()
    assert len(exporter.get_finished_spans()) == SAMPLE_MAX + 1


def test_owners_that_do_not_answer_hold_up_no_batch_and_later_ones_are_traced() -> None:
    memory = _Memory(_traced(1))
    traces, exporter = _traces(memory)
    memory.released.clear()
    memory.fails = True
    began_s = time.monotonic()
    for _ in range(3 * WAITING_MAX):
        traces.landed({1: (0, 9)}, 0.0, 1.0, None, 1)
    assert time.monotonic() - began_s < 20
    memory.released.set()
    while len(memory.asked) < WAITING_MAX:
        time.sleep(0.01)
    memory.fails = False
    traces.landed({1: (0, 9)}, 0.0, 1.0, 5, 1)
    traces.close()
    assert len(memory.asked) <= WAITING_MAX + 2
    assert "waltz.delta.batch" in [span.name for span in exporter.get_finished_spans()]
