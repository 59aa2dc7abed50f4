"""Spans of a node or a pipeline: recorded with OpenTelemetry's SDK and sent to a collector by a thread of its own.

The queue between is bounded, and a span that finds it full is dropped and counted. So a collector that is slow, dead or absent costs memory for
`queue_spans_max` spans and nothing else.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased
from opentelemetry.trace import Link, SpanKind

from waltz_log.core.status.trace_statistics import TraceStatistics
from waltz_log.loggers import get_logger
from waltz_log.telemetry.settings import TracingSettings
from waltz_log.telemetry.spans import RecordedSpan, below, named_attributes, span_context, wall_ns
from waltz_log.telemetry.tracer import SpanAttribute

__all__ = ["ExportingTracer", "exporting_tracer"]

log = get_logger(__name__)

BATCH_SPANS = 512
"""Spans in one request to the collector."""

CLOSE_S = 2.0
"""How long the end of a process waits for the last spans to be sent."""


class ExportingTracer:
    """A `Tracer` that sends spans through an exporter. `close` it."""

    def __init__(self, service: str, instance: str, settings: TracingSettings, exporter: SpanExporter) -> None:
        self._queue = BoundedSpans(exporter, settings)
        resource = Resource.create({"service.name": service, "service.instance.id": instance})
        self._provider = TracerProvider(sampler=ParentBased(ALWAYS_ON), resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(self._queue)
        self._tracer = self._provider.get_tracer("waltz")

    def start(self, name: str, parent: bytes, started_s: float, **attributes: SpanAttribute) -> RecordedSpan:
        return self.start_linked(name, parent, started_s, (), **attributes)

    def start_linked(self, name: str, parent: bytes | None, started_s: float, links: Iterable[bytes], **attributes: SpanAttribute) -> RecordedSpan:
        """A span with links to others. `parent` None: the first of a trace of its own."""
        under = Context() if parent is None else below(parent)
        linked = [Link(span_context(each)) for each in links]
        return RecordedSpan(self._tracer.start_span(name, under, SpanKind.INTERNAL, named_attributes(attributes), linked, wall_ns(started_s)))

    def statistics(self) -> TraceStatistics:
        return self._queue.statistics()

    def close(self) -> None:
        """Sends what waits, for `CLOSE_S` at most. Blocks."""
        self._queue.close(CLOSE_S)


class BoundedSpans(SpanProcessor):
    """OpenTelemetry's batches behind a bound that counts what it drops."""

    def __init__(self, exporter: SpanExporter, settings: TracingSettings) -> None:
        self._most = settings.queue_spans_max
        self._lock = threading.Lock()
        self._waiting = self._exported = self._dropped = 0
        self._failing = False
        self._exporter = exporter
        self._batches = BatchSpanProcessor(
            _Counted(exporter, self),
            max_queue_size=self._most,
            schedule_delay_millis=settings.export_interval_s * 1000,
            max_export_batch_size=min(BATCH_SPANS, self._most),
        )

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        pass

    def on_end(self, span: ReadableSpan) -> None:
        with self._lock:
            if self._waiting >= self._most:
                self._dropped += 1
                return
            self._waiting += 1
        self._batches.on_end(span)

    def exported(self, count: int, accepted: bool) -> None:
        with self._lock:
            self._waiting -= count
            if accepted:
                self._exported += count
            else:
                self._dropped += count
            changed, self._failing = self._failing is accepted, not accepted
        if changed and accepted:
            log.info("collector accepts spans again")
        elif changed:
            log.warning("collector does not accept spans", dropped=count)

    def statistics(self) -> TraceStatistics:
        with self._lock:
            return TraceStatistics(exported=self._exported, dropped=self._dropped, waiting=self._waiting)

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._batches.force_flush(timeout_millis)

    def shutdown(self) -> None:
        self.close(CLOSE_S)

    def close(self, timeout_s: float) -> None:
        ending = threading.Thread(target=self._batches.shutdown, name="waltz spans end", daemon=True)
        ending.start()
        ending.join(timeout_s)


class _Counted(SpanExporter):
    def __init__(self, exporter: SpanExporter, counts: BoundedSpans) -> None:
        self._exporter = exporter
        self._counts = counts

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = SpanExportResult.FAILURE
        try:
            result = self._exporter.export(spans)
        finally:
            self._counts.exported(len(spans), result is SpanExportResult.SUCCESS)
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)


def exporting_tracer(service: str, instance: str, settings: TracingSettings) -> ExportingTracer:
    """Sends spans to the settings' collector. Raises `ModuleNotFoundError` if the extra `tracing` is not installed."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    # The exporter logs each request that fails, with its traceback. `BoundedSpans` reports the first and the last of an incident.
    logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)
    return ExportingTracer(service, instance, settings, OTLPSpanExporter(settings.endpoint, timeout=settings.export_timeout_s))
