"""Trace contexts beside records: what is well formed goes round, what is not is left out, and records do not change."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from waltz_log.core.formats.traces import CONTEXT_BYTES, TRACES_MAX, is_context, pack_traces, unpack_traces

CONTEXTS = st.binary(min_size=24, max_size=24).map(lambda ids: ids + b"\x01").filter(is_context)


@given(st.lists(st.tuples(st.integers(0, 999), CONTEXTS), max_size=2 * TRACES_MAX))
def test_positions_and_contexts_go_round_up_to_the_bound(entries: list[tuple[int, bytes]]) -> None:
    assert unpack_traces(pack_traces(entries), 1000) == entries[:TRACES_MAX]


@given(st.binary(max_size=3000), st.integers(0, 5))
def test_any_bytes_are_read_without_an_error(column: bytes, count: int) -> None:
    found = unpack_traces(column, count)
    assert len(found) <= TRACES_MAX
    assert all(position < count and is_context(context) for position, context in found)


def test_contexts_that_name_no_recorded_span_are_left_out() -> None:
    good = bytes(range(1, 25)) + b"\x01"
    bad = [bytes(16) + good[16:], good[:16] + bytes(8) + b"\x01", good[:24] + b"\x00"]
    assert not any(is_context(each) for each in [*bad, good[:-1], b""])
    assert unpack_traces(pack_traces([(0, bad[0]), (1, good), (2, bad[1]), (3, bad[2]), (9, good)]), 9) == [(1, good)]
    assert len(good) == CONTEXT_BYTES
