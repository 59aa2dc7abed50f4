"""The metrics of the spans that a process sends to a collector, the same for log servers and storage nodes. Pure."""

from __future__ import annotations

from typing import Protocol

from waltz_log.core.status.trace_statistics import TraceStatistics
from waltz_log.monitoring.families import Family, Samples, gauge, single

__all__ = ["TRACES"]


class WithTraces(Protocol):
    @property
    def traces(self) -> TraceStatistics | None: ...


def _spans(statistics: WithTraces) -> Samples:
    if statistics.traces is not None:
        yield ("exported",), statistics.traces.exported
        yield ("dropped",), statistics.traces.dropped


TRACES: tuple[Family[WithTraces], ...] = (
    Family(
        "waltz_trace_spans_total",
        "counter",
        ("result",),
        "Spans of traced appends. `result`: `exported`, or `dropped` because the queue was full or the collector did not accept them.",
        _spans,
    ),
    gauge(
        "waltz_trace_spans_waiting",
        (),
        "Spans that wait to be sent; bounded by `tracing.queue_spans_max`.",
        single(lambda found: None if found.traces is None else found.traces.waiting),
    ),
)
"""Only of nodes that trace."""
