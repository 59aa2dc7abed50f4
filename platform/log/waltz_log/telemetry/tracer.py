"""The port through which nodes and clients record spans. Imports no OpenTelemetry.

A component that may trace has a tracer or None, and tests that once for a block. Times are seconds of `time.perf_counter`, which the component
reads for its statistics already. A context is what `core.formats.traces` describes. Attributes name partitions, transaction ids and outcomes, never
data or keys.
"""

from __future__ import annotations

from typing import Protocol

from waltz_log.core.status.trace_statistics import TraceStatistics

__all__ = ["OpenSpan", "SpanAttribute", "Tracer"]

SpanAttribute = str | int | float | bool


class OpenSpan(Protocol):
    @property
    def context(self) -> bytes:
        """For the spans below it, also in other processes."""
        ...

    def end(self, ended_s: float | None = None, **attributes: SpanAttribute) -> None:
        """Once. `ended_s`: now by default. Keywords become attributes `waltz.NAME`."""


class Tracer(Protocol):
    """No call waits for a collector."""

    def start(self, name: str, parent: bytes, started_s: float, **attributes: SpanAttribute) -> OpenSpan:
        """A span below the one that `parent` names."""
        ...

    def statistics(self) -> TraceStatistics: ...
