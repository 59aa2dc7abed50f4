"""Spans of an application's appends, made with the tracer provider that the application configured.

The application samples: an append has a span exactly where the current span is recorded. An append outside a span has none.
"""

from __future__ import annotations

from opentelemetry import trace
from opentelemetry.trace import SpanKind

from waltz_log.telemetry.spans import RecordedSpan, below, context_of, named_attributes, wall_ns
from waltz_log.telemetry.tracer import SpanAttribute

__all__ = ["ApplicationTracer"]


class ApplicationTracer:
    """Uses the API alone: without an SDK no span is recorded."""

    def __init__(self) -> None:
        self._tracer = trace.get_tracer("waltz")

    @property
    def recording(self) -> bool:
        """Whether the current span of the caller is recorded."""
        parent = trace.get_current_span().get_span_context()
        return parent.is_valid and parent.trace_flags.sampled

    @property
    def context(self) -> bytes | None:
        """The context of the current span of the caller, if it is recorded."""
        return context_of(trace.get_current_span()) if self.recording else None

    def start(self, name: str, started_s: float, parent: bytes | None = None, **attributes: SpanAttribute) -> RecordedSpan:
        """A span below the one that `parent` names; None: below the current one."""
        named, under = named_attributes(attributes), None if parent is None else below(parent)
        return RecordedSpan(self._tracer.start_span(name, under, kind=SpanKind.PRODUCER, attributes=named, start_time=wall_ns(started_s)))
