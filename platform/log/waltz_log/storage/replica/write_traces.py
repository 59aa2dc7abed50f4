"""The spans of traced appends at one replica: the wait for its turn, the write and the sync."""

from __future__ import annotations

from collections.abc import Sequence

from waltz_log.core.formats.traces import unpack_traces
from waltz_log.storage.replica.appender import Pending
from waltz_log.telemetry.tracer import Tracer

__all__ = ["trace_writes"]


def trace_writes(tracer: Tracer, partition: int, batch: Sequence[Pending], began_s: float, ended_s: float, sync_s: float | None) -> None:
    """The trace writes of the blocks of one write round. `sync_s`: the duration of its sync; None: the sync follows later."""
    written_s = ended_s if sync_s is None else max(began_s, ended_s - sync_s)
    for pending in batch:
        if not pending.block.traces:
            continue
        for position, context in unpack_traces(pending.block.traces, pending.block.count):
            transaction_id = pending.block.first_transaction_id + position
            span = tracer.start("waltz.replica.append", context, pending.queued_s, partition=partition, transaction_id=transaction_id)
            tracer.start("waltz.replica.write", span.context, began_s).end(written_s)
            if sync_s is not None:
                tracer.start("waltz.replica.sync", span.context, written_s).end(ended_s)
            span.end(ended_s)
