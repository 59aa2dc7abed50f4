"""The traced appends of a client: their spans, from the call to the outcome, and the trace contexts that are sent beside their records.

Used only with `ClientSettings.tracing`. A bulk append has one span for the call, whose context is sent beside the first row of each of its frames.
An outbox keeps the context of the span that submitted an intent, and each sending of the intent has a span below it.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial

from waltz_log.client.append.append_window import AppendWindow
from waltz_log.client.append.bulk import BulkAppend
from waltz_log.client.transactions.transaction import Receipt
from waltz_log.errors import LockConflict, NotAppended, OutcomeUnknown
from waltz_log.telemetry.application import ApplicationTracer
from waltz_log.telemetry.tracer import OpenSpan

__all__ = ["TracedAppends"]


class TracedAppends:
    """Creating one raises `ModuleNotFoundError` if OpenTelemetry's API is not installed."""

    def __init__(self) -> None:
        self._tracer = ApplicationTracer()

    @property
    def recording(self) -> bool:
        """Whether the caller is inside a span that is recorded, so that its appends are traced."""
        return self._tracer.recording

    @property
    def context(self) -> bytes | None:
        """The context of the caller's span, to continue its trace later; None if the caller is not traced."""
        return self._tracer.context

    def begin(self, window: AppendWindow, future: asyncio.Future[Receipt], waited_s: float) -> None:
        """Begins the span of an append that was just enqueued, `waited_s` seconds after the call."""
        if self._tracer.recording:
            self._follow(window, future, self._tracer.start("waltz.append", time.perf_counter() - waited_s, partition=window.partition))

    def resume(self, window: AppendWindow, future: asyncio.Future[Receipt], context: bytes) -> None:
        """Begins the span of an append that was just enqueued, in the trace of a stored `context`."""
        self._follow(window, future, self._tracer.start("waltz.append", time.perf_counter(), context, partition=window.partition))

    def _follow(self, window: AppendWindow, future: asyncio.Future[Receipt], span: OpenSpan) -> None:
        window.traced[future] = span.context
        future.add_done_callback(partial(_end, window, span))

    def begin_bulk(self, window: AppendWindow, bulk: BulkAppend) -> None:
        if self._tracer.recording:
            span = self._tracer.start("waltz.append_bulk", time.perf_counter(), partition=window.partition)
            window.traced[bulk] = span.context
            bulk.when_done = partial(_end_bulk, window, span, bulk)


def _end(window: AppendWindow, span: OpenSpan, future: asyncio.Future[Receipt]) -> None:
    window.traced.pop(future, None)
    if future.cancelled():
        span.end(outcome="given_up")
        return
    error = future.exception()
    if error is None:
        span.end(outcome="committed", transaction_id=future.result().transaction_id)
    elif isinstance(error, LockConflict):
        span.end(outcome="rejected", winner=error.winner)
    elif isinstance(error, OutcomeUnknown):
        span.end(outcome="unknown")
    else:
        span.end(outcome="not_appended" if isinstance(error, NotAppended) else "failed")


def _end_bulk(window: AppendWindow, span: OpenSpan, bulk: BulkAppend) -> None:
    if window.traced.pop(bulk, None) is not None:
        receipt = bulk.receipt
        span.end(submitted=receipt.submitted, committed=sum(each.length for each in receipt.appended))
