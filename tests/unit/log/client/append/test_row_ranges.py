"""Which rows have no answer yet, as ranges: compared with a set."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from waltz_log.client.append.row_ranges import RowRanges


@given(start=st.integers(0, 50), count=st.integers(1, 60), removals=st.lists(st.tuples(st.integers(0, 120), st.integers(0, 40)), max_size=20))
def test_ranges_hold_what_a_set_holds(start: int, count: int, removals: list[tuple[int, int]]) -> None:
    ranges, expected = RowRanges(start, start + count), set(range(start, start + count))
    for first, length in removals:
        wanted = set(range(first, first + length))
        removed = [row for begin, end in ranges.remove(first, first + length) for row in range(begin, end)]
        assert removed == sorted(expected & wanted)
        expected -= wanted
        assert [row for begin, end in ranges for row in range(begin, end)] == sorted(expected)
        assert [row in ranges for row in range(180)] == [row in expected for row in range(180)]
        assert ranges.count == len(expected)
