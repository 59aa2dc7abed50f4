"""The traces of appends that a micro-batch landed: each gets a span of the commit, linked with a span of the batch.

Records after the commit and in a thread of its own, so that neither a slow owner nor a dead collector holds up a batch. Owners remember their newest
traced appends; of one that changed since, the trace ends before the commit.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol
from uuid import UUID

from waltz_log.client.inspection.inspect import ClusterInspector
from waltz_log.client.inspection.recent_traces import TracedTransaction
from waltz_log.core.formats.traces import is_context
from waltz_log.errors import WaltzError
from waltz_log.loggers import get_logger
from waltz_log.telemetry.tracer import OpenSpan, SpanAttribute

__all__ = ["BatchTraces", "OwnersMemory"]

log = get_logger(__name__)

SAMPLE_MAX = 64
"""Appends of one batch whose traces are completed: the newest of each partition."""

WAITING_MAX = 64
"""Batches that wait for the thread. More are not traced."""

TIMEOUT_S = 5.0
CLOSE_S = 5.0

Ranges = Mapping[int, tuple[int, int]]
"""First and last transaction id by partition."""


class LinkingTracer(Protocol):
    def start_linked(self, name: str, parent: bytes | None, started_s: float, links: Iterable[bytes], **attributes: SpanAttribute) -> OpenSpan: ...
    def close(self) -> None: ...


class Memory(Protocol):
    def traced(self, ranges: Ranges, count_max: int) -> Sequence[TracedTransaction]: ...
    def close(self) -> None: ...


class OwnersMemory:
    """What the owners of the log's partitions remember. Connects on first use."""

    def __init__(self, cluster: str, cluster_key: UUID | None, principal: str) -> None:
        self._cluster = cluster
        self._cluster_key = cluster_key
        self._principal = principal
        self._inspector: ClusterInspector | None = None

    def traced(self, ranges: Ranges, count_max: int) -> Sequence[TracedTransaction]:
        """Raises `WaltzError` where the cluster is not reached."""
        if self._inspector is None:
            self._inspector = ClusterInspector(self._cluster, TIMEOUT_S, self._cluster_key)
        return self._inspector.recent_traces(ranges, count_max, self._principal)

    def close(self) -> None:
        if self._inspector is not None:
            self._inspector.close()


class _Landed(NamedTuple):
    ranges: Ranges
    began_s: float
    ended_s: float
    batch_id: int | None
    tables: int


class BatchTraces:
    """The batch traces of one pipeline. `close` it."""

    def __init__(self, pipeline: str, tracer: LinkingTracer, memory: Memory) -> None:
        self._pipeline = pipeline
        self._tracer = tracer
        self._memory = memory
        self._waiting: queue.Queue[_Landed | None] = queue.Queue(WAITING_MAX)
        self._thread = threading.Thread(target=self._run, name=f"waltz traces {pipeline}", daemon=True)
        self._thread.start()

    def landed(self, ranges: Ranges, began_s: float, ended_s: float, batch_id: int | None, tables: int) -> None:
        """A batch was committed between these two times of `perf_counter`. `tables` counts its tables. Never waits."""
        try:
            self._waiting.put_nowait(_Landed(ranges, began_s, ended_s, batch_id, tables))
        except queue.Full:
            log.warning("batch not traced", pipeline=self._pipeline, waiting=WAITING_MAX)

    def close(self) -> None:
        """Records what waits, for a bounded time."""
        try:
            self._waiting.put(None, timeout=CLOSE_S)
        except queue.Full:
            return
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while (landed := self._waiting.get()) is not None:
            try:
                self._record(landed)
            except WaltzError as error:
                log.warning("batch not traced", pipeline=self._pipeline, error=str(error))
        self._memory.close()
        self._tracer.close()

    def _record(self, landed: _Landed) -> None:
        count_max = max(1, SAMPLE_MAX // max(1, len(landed.ranges)))
        traced = [each for each in self._memory.traced(landed.ranges, count_max) if is_context(each.context)][:SAMPLE_MAX]
        if not traced:
            return
        of_batch: dict[str, SpanAttribute] = {"pipeline": self._pipeline, "tables": landed.tables}
        if landed.batch_id is not None:
            of_batch["batch_id"] = landed.batch_id
        contexts = [each.context for each in traced]
        batch = self._tracer.start_linked("waltz.delta.batch", None, landed.began_s, contexts, **of_batch, traced=len(traced))
        for each in traced:
            place: dict[str, SpanAttribute] = {"partition": each.partition, "transaction_id": each.transaction_id}
            commit = self._tracer.start_linked("waltz.delta.commit", each.context, landed.began_s, [batch.context], **of_batch, **place)
            commit.end(landed.ended_s)
        batch.end(landed.ended_s)
