"""The block `tracing` in the settings of log servers, storage nodes and pipelines."""

from __future__ import annotations

from pydantic import Field

from waltz_log.settings import Settings

__all__ = ["TracingSettings"]


class TracingSettings(Settings):
    """Where a process sends the spans of traced appends, in the OpenTelemetry protocol over HTTP. The application decides which appends are traced.
    Needs the extra `tracing`. Headers, for example an access token, come from the variable `OTEL_EXPORTER_OTLP_HEADERS`."""

    endpoint: str = Field(
        pattern=r"^https?://[^\s/]+(/\S*)?$",
        description="Address of the collector's traces, usually `http://HOST:4318/v1/traces`.",
    )
    queue_spans_max: int = Field(
        default=4096,
        ge=64,
        le=1_000_000,
        description="Spans that wait to be sent. If the queue is full, more spans are dropped and counted: a slow collector never slows an append.",
    )
    export_interval_s: float = Field(
        default=1.0, ge=0.05, le=60.0, description="How often the waiting spans are sent. Longer intervals make fewer requests."
    )
    export_timeout_s: float = Field(
        default=5.0, ge=0.1, le=60.0, description="Deadline of one request to the collector. Its spans are dropped when it is over."
    )
