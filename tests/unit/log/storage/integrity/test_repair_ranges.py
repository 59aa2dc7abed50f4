from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from waltz_log.storage.integrity.repair import merged, ranges


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_ranges_cover_every_id_once_and_report_the_bad_ones(data: st.DataObject) -> None:
    first = data.draw(st.integers(0, 20))
    last = data.draw(st.integers(first, first + 40))
    pairs = st.tuples(st.integers(first, last), st.integers(first, last)).map(lambda pair: (min(pair), max(pair)))
    bad = data.draw(st.lists(pairs, max_size=6))
    expected = {place for low, high in bad for place in range(low, high + 1)}
    found = ranges(first, last, merged(bad))
    assert [place for low, high, _ in found for place in range(low, high + 1)] == list(range(first, last + 1))
    assert {place for low, high, damaged in found if damaged for place in range(low, high + 1)} == expected
    assert all(one[2] != other[2] for one, other in itertools.pairwise(found)), "as few as can be"
