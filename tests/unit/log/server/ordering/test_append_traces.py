"""The spans of traced appends at their owner, against a tracer that keeps them."""

from __future__ import annotations

import struct
from typing import Any

from waltz_log.core.formats.block import Block
from waltz_log.core.formats.records import encode_records
from waltz_log.core.formats.traces import TRACES_MAX, pack_traces, unpack_traces
from waltz_log.core.quotas import Meter
from waltz_log.core.status.trace_statistics import TraceStatistics
from waltz_log.server.ordering.append_traces import RECENT_MAX, AppendTraces, TracedAppend
from waltz_log.server.ordering.sequencer import ReceivedFrame, Sequencer
from waltz_log.transport import waltz_pb2 as pb


def _context(number: int) -> bytes:
    return (number + 1).to_bytes(16, "big") + (number + 1).to_bytes(8, "big") + b"\x01"


class _Span:
    def __init__(self, name: str, parent: bytes, number: int, started_s: float) -> None:
        self.name, self.parent, self.context, self.started_s = name, parent, _context(1000 + number), started_s
        self.ended_s: float | None = None
        self.attributes: dict[str, Any] = {}

    def end(self, ended_s: float | None = None, **attributes: Any) -> None:
        assert self.ended_s is None, "ended twice"
        self.ended_s = ended_s
        self.attributes.update(attributes)


class _Tracer:
    def __init__(self) -> None:
        self.spans: list[_Span] = []

    def start(self, name: str, parent: bytes, started_s: float, **attributes: Any) -> _Span:
        self.spans.append(_Span(name, parent, len(self.spans), started_s))
        self.spans[-1].attributes.update(attributes)
        return self.spans[-1]

    def named(self, name: str) -> list[_Span]:
        return [span for span in self.spans if span.name == name]

    def statistics(self) -> TraceStatistics:
        return TraceStatistics(0, 0, 0)


class _Appender:
    client_id = 7
    last_sequence = 0
    on_disk = False
    meter: Meter | None = None
    quota_refusals = 0

    def answer(self, answers: Any, append_time_ms: int) -> None: ...
    def refuse_over_quota(self, sequence: int, refusal: Any) -> None: ...
    def fail(self, error: Any) -> None: ...


def _frame(appender: _Appender, first: int, count: int, traced: list[tuple[int, bytes]], lock: int | None = None, mark: int = 9) -> ReceivedFrame:
    bodies = [b"data"] * count
    message = pb.AppendFrame(
        generation=1,
        lengths=struct.pack(f">{count}i", *[44] * count),
        marks=struct.pack(f">{count}q", *[mark] * count),
        lock_counts=b"" if lock is None else b"\x01\x00\x00" * count,
        locks=b"" if lock is None else struct.pack(f">{count}q", *[lock] * count),
        records=encode_records(appender.client_id, 1, 0, first, [0] * count, bodies),
        traces=pack_traces(traced),
    )
    frame = ReceivedFrame(appender, message)
    frame.received_s = 1.0
    return frame


def _order(frames: list[ReceivedFrame]) -> tuple[_Tracer, AppendTraces, Block | None, list[TracedAppend]]:
    tracer = _Tracer()
    traces = AppendTraces(0, tracer)
    sequenced = Sequencer(0, 1, 9, lock_entries_max=1000, record_bytes_max=1000).sequence(frames, 5)
    in_flight = traces.order(frames, sequenced, 2.0, 3.0)
    return tracer, traces, sequenced.block, in_flight


def test_an_accepted_append_has_its_stages_and_travels_on_to_the_replicas() -> None:
    appender = _Appender()
    tracer, traces, block, in_flight = _order([_frame(appender, 1, 2, []), _frame(appender, 3, 3, [(1, _context(1))])])
    assert [each.transaction_id for each in in_flight] == [13]
    assert block is not None
    assert unpack_traces(block.traces, block.count) == [(3, tracer.named("waltz.server.replicate")[0].context)]
    traces.settle(in_flight, 4.0, committed=True)
    shown = {span.name: (span.started_s, span.ended_s) for span in tracer.spans}
    assert shown == {
        "waltz.server.append": (1.0, 4.0),
        "waltz.server.queue": (1.0, 2.0),
        "waltz.server.lock_decision": (2.0, 3.0),
        "waltz.server.replicate": (3.0, 4.0),
    }
    append = tracer.named("waltz.server.append")[0]
    assert append.parent == _context(1)
    assert append.attributes == {"partition": 0, "outcome": "committed", "transaction_id": 13}
    assert {span.parent for span in tracer.spans if span is not append} == {append.context}


def test_a_rejected_append_ends_at_the_locks_and_names_the_winner() -> None:
    frames = [_frame(_Appender(), 1, 1, [(0, _context(1))], lock=5), _frame(_Appender(), 1, 1, [(0, _context(2))], lock=5)]
    tracer, _, block, in_flight = _order(frames)
    assert len(in_flight) == 1
    assert block is not None
    _, lost = tracer.named("waltz.server.append")
    assert lost.attributes == {"partition": 0, "outcome": "rejected", "winner": 10}
    assert lost.ended_s == 3.0
    assert len(tracer.named("waltz.server.replicate")) == 1


def test_a_refused_append_and_one_that_the_session_left_undecided_end() -> None:
    appender = _Appender()
    appender.last_sequence = 5
    tracer, _, block, in_flight = _order([_frame(appender, 1, 1, [(0, _context(1))])])
    assert (block, in_flight) == (None, [])
    assert tracer.named("waltz.server.append")[0].attributes["outcome"] == "refused"
    tracer, traces, _, in_flight = _order([_frame(_Appender(), 1, 1, [(0, _context(1))])])
    traces.settle(in_flight, 4.0, committed=False)
    assert tracer.named("waltz.server.append")[0].attributes["outcome"] == "undecided"
    assert all(span.ended_s is not None for span in tracer.spans)
    assert traces.answer(pb.TracesRequest(first_transaction_id=0, last_transaction_id=99, count_max=9)).transaction_ids == b""


def test_no_more_appends_of_a_block_are_traced_than_the_bound() -> None:
    frames = [_frame(_Appender(), 1, 60, [(at, _context(at)) for at in range(60)]) for _ in range(3)]
    _, _, _, in_flight = _order(frames)
    assert len(in_flight) == TRACES_MAX


def test_a_block_without_traces_stays_as_it_is() -> None:
    tracer, _, block, in_flight = _order([_frame(_Appender(), 1, 2, [])])
    assert block is not None
    assert (block.traces, in_flight, tracer.spans) == (b"", [], [])


def test_the_newest_traced_appends_of_a_range_are_answered() -> None:
    tracer = _Tracer()
    traces = AppendTraces(0, tracer)
    for number in range(RECENT_MAX + 100):
        append, replicate = tracer.start("a", b"", 0.0), tracer.start("r", b"", 0.0)
        traces.settle([TracedAppend(2 * number, _context(number), append, replicate)], 1.0, committed=True)
    answer = traces.answer(pb.TracesRequest(first_transaction_id=2000, last_transaction_id=2011, count_max=4))
    assert struct.unpack(">4q", answer.transaction_ids) == (2004, 2006, 2008, 2010)
    assert answer.contexts == b"".join(map(_context, (1002, 1003, 1004, 1005)))
    forgotten = traces.answer(pb.TracesRequest(first_transaction_id=0, last_transaction_id=199, count_max=4))
    assert forgotten.transaction_ids == b""
    assert traces.answer(pb.TracesRequest(first_transaction_id=0, last_transaction_id=10**6, count_max=-1)).transaction_ids == b""
