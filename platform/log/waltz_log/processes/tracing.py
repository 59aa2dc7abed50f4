"""The tracer of a serving process, for as long as it serves."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from waltz_log.extras import explain_missing
from waltz_log.telemetry.settings import TracingSettings
from waltz_log.telemetry.tracer import Tracer

__all__ = ["tracing"]


@asynccontextmanager
async def tracing(settings: TracingSettings | None, service: str, instance: str | None = None) -> AsyncIterator[Tracer | None]:
    """None where nothing is to be traced; OpenTelemetry is not imported then. `instance`: by default names this process. Sends the last spans in the
    end, for a bounded time."""
    if settings is None:
        yield None
        return
    with explain_missing("the setting `tracing`", "tracing"):
        from waltz_log.telemetry.exporting_tracer import exporting_tracer

        tracer = exporting_tracer(service, instance or f"{socket.gethostname()}-{os.getpid()}", settings)
    try:
        yield tracer
    finally:
        await asyncio.to_thread(tracer.close)
