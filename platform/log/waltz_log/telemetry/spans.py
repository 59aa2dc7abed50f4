"""Between trace contexts as bytes and OpenTelemetry's spans. Imports its API alone, which an application has that traces."""

from __future__ import annotations

import time
from collections.abc import Mapping

from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, TraceFlags, set_span_in_context

from waltz_log.core.formats.traces import CONTEXT_BYTES
from waltz_log.telemetry.tracer import SpanAttribute

__all__ = ["RecordedSpan", "below", "context_of", "named_attributes", "span_context", "wall_ns"]


def wall_ns(at_s: float) -> int:
    """The wall clock, in nanoseconds, at a time of `perf_counter`."""
    return time.time_ns() - int((time.perf_counter() - at_s) * 1e9)


def context_of(span: Span) -> bytes:
    found = span.get_span_context()
    return found.trace_id.to_bytes(16, "big") + found.span_id.to_bytes(8, "big") + bytes([int(found.trace_flags) & 0xFF])


def span_context(context: bytes) -> SpanContext:
    if len(context) != CONTEXT_BYTES:
        raise ValueError(f"a trace context has {CONTEXT_BYTES} bytes: {len(context)}")
    trace_id, span_id = int.from_bytes(context[:16], "big"), int.from_bytes(context[16:24], "big")
    return SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(context[24]))


def below(context: bytes) -> Context:
    """For a span whose parent is the span that the context names, in whatever process that was."""
    return set_span_in_context(NonRecordingSpan(span_context(context)), Context())


def named_attributes(attributes: Mapping[str, SpanAttribute]) -> dict[str, SpanAttribute]:
    return {f"waltz.{name}": value for name, value in attributes.items()}


class RecordedSpan:
    """An `OpenSpan` of OpenTelemetry."""

    __slots__ = ("_span",)

    def __init__(self, span: Span) -> None:
        self._span = span

    @property
    def context(self) -> bytes:
        return context_of(self._span)

    def end(self, ended_s: float | None = None, **attributes: SpanAttribute) -> None:
        self._span.set_attributes(named_attributes(attributes))
        self._span.end(None if ended_s is None else wall_ns(ended_s))
