"""The spans of traced appends at their owner: in the queue, at the locks, until a majority has it; and the newest of them, for readers.

Exists only where a server traces. Clients that trace send contexts beside their records, so nothing is made for an append that is not traced.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from struct import pack
from typing import NamedTuple

from waltz_log.core.formats.block import Block
from waltz_log.core.formats.columns import headers_array
from waltz_log.core.formats.traces import TRACES_MAX, pack_traces, unpack_traces
from waltz_log.server.ordering.sequencer import Appender, ReceivedFrame, Sequenced
from waltz_log.telemetry.tracer import OpenSpan, Tracer
from waltz_log.transport import waltz_pb2 as pb

__all__ = ["AppendTraces", "TracedAppend"]

RECENT_MAX = 4096
"""Committed appends of a partition whose contexts are kept for readers, about 150 bytes each."""

ANSWERED_MAX = 1024
"""Contexts in one answer."""


class TracedAppend(NamedTuple):
    """One that is in flight to the replicas."""

    transaction_id: int
    context: bytes
    """The client's."""
    append: OpenSpan
    replicate: OpenSpan


class AppendTraces:
    """The append traces of one partition, for as long as its server owns it."""

    def __init__(self, partition: int, tracer: Tracer) -> None:
        self._partition = partition
        self._tracer = tracer
        self._recent: deque[tuple[int, bytes]] = deque(maxlen=RECENT_MAX)

    def order(self, frames: Sequence[ReceivedFrame], sequenced: Sequenced, began_s: float, ended_s: float) -> list[TracedAppend]:
        """Records the outcome of the traced appends of a block, which was ordered between these two times, and adds the contexts for the replicas
        to the block. Returns those that are in it: `settle` them."""
        in_flight: list[TracedAppend] = []
        for frame, sequence, context in _traced(frames, sequenced):
            append = self._tracer.start("waltz.server.append", context, frame.received_s, partition=self._partition)
            self._tracer.start("waltz.server.queue", append.context, frame.received_s).end(began_s)
            lock_decision = self._tracer.start("waltz.server.lock_decision", append.context, began_s)
            transaction_id = _committed_as(sequenced, frame.appender, sequence)
            if transaction_id is None:
                winner = next((won for by, at, won in sequenced.rejected if by is frame.appender and at == sequence), None)
                facts: dict[str, str | int] = {"outcome": "refused"} if winner is None else {"outcome": "rejected", "winner": winner}
                lock_decision.end(ended_s, **facts)
                append.end(ended_s, **facts)
                continue
            lock_decision.end(ended_s, outcome="accepted", transaction_id=transaction_id)
            in_flight.append(TracedAppend(transaction_id, context, append, self._tracer.start("waltz.server.replicate", append.context, ended_s)))
        if in_flight and sequenced.block is not None:
            sequenced.block = _with_traces(sequenced.block, in_flight)
        return in_flight

    def settle(self, appends: Sequence[TracedAppend], at_s: float, *, committed: bool) -> None:
        """They are on the disks of a majority. Not `committed`: the session ended before, and recovery decides."""
        for each in appends:
            outcome = "committed" if committed else "undecided"
            each.replicate.end(at_s)
            each.append.end(at_s, outcome=outcome, transaction_id=each.transaction_id)
            if committed:
                self._recent.append((each.transaction_id, each.context))

    def answer(self, request: pb.TracesRequest) -> pb.TracesResponse:
        """The newest traced appends of the range, in order."""
        recent = list(self._recent)
        first = bisect_left(recent, (request.first_transaction_id, b""))
        last = bisect_right(recent, request.last_transaction_id, key=lambda each: each[0])
        count = min(max(0, request.count_max), ANSWERED_MAX)
        found = recent[max(first, last - count) : last]
        return pb.TracesResponse(
            transaction_ids=pack(f">{len(found)}q", *[each for each, _ in found]), contexts=b"".join([context for _, context in found])
        )


def _traced(frames: Sequence[ReceivedFrame], sequenced: Sequenced) -> Iterator[tuple[ReceivedFrame, int, bytes]]:
    """Frame, sequence and context of the traced appends, `TRACES_MAX` at most."""
    broken = {id(appender) for appender, _ in sequenced.broken}
    left = TRACES_MAX
    for frame in frames:
        if frame.traces and id(frame.appender) not in broken and left > 0:
            entries = unpack_traces(frame.traces, frame.count)[:left]
            left -= len(entries)
            sequences = headers_array(frame.records, frame.lengths)["sequence"]
            for position, context in entries:
                yield frame, int(sequences[position]), context


def _committed_as(sequenced: Sequenced, appender: Appender, sequence: int) -> int | None:
    """Its transaction id, if it is in the block."""
    for by, ranges in sequenced.committed:
        if by is appender:
            for first, count, transaction_id in ranges:
                if first <= sequence < first + count:
                    return transaction_id + sequence - first
    return None


def _with_traces(block: Block, appends: Sequence[TracedAppend]) -> Block:
    entries = sorted((each.transaction_id - block.first_transaction_id, each.replicate.context) for each in appends)
    return replace(block, traces=pack_traces(entries))
