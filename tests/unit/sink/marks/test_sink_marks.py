"""Marks: their names, their arithmetic, and reading them without a JVM."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltz_delta.errors import GapInTable, NotADeltaTable, SchemaMismatch, UnsupportedDelta, WriteContended
from waltz_delta.marks.marks import (
    BatchRange,
    app_id,
    cluster_key_among,
    clusters_now,
    epoch_app_id,
    epochs_among,
    marks_among,
    merge_app_id,
    overlap,
    position,
    refuse_gaps,
    superseded_app_id,
)
from waltz_log.errors import InvalidRequest

KEY = "5e7b1f0c-54d1-4f3c-9c59-0b8ac2f7f0a1"
marks = st.dictionaries(st.integers(0, 5), st.integers(0, 60))
ranges = st.dictionaries(st.integers(0, 5), st.tuples(st.integers(0, 60), st.integers(0, 20)), min_size=1)


def test_a_partition_without_a_mark_accepts_its_first_batch_and_no_later_one() -> None:
    def of(first: int, origins: dict[int, int] | None, exact: bool = True) -> BatchRange:
        return BatchRange(ends={0: first + 5}, starts={0: first}, exact=exact, origins=origins)

    refuse_gaps("t", of(0, {}), {})
    refuse_gaps("t", of(7, {0: 7}), {})
    refuse_gaps("t", of(7, None), {})
    refuse_gaps("t", of(7, {}, exact=False), {})
    refuse_gaps("t", BatchRange(ends={0: 7}, starts={0: 7}, exact=True, origins={}), {})
    for origins, first_missing in (({}, 0), ({0: 3}, 3)):
        with pytest.raises(GapInTable) as raised:
            refuse_gaps("t", of(7, origins), {1: 99})
        assert raised.value.facts == {"path": "t", "partition": 0, "first": first_missing, "last": 6}
        assert "delete the checkpoint" in str(raised.value)


def test_marks_are_found_among_identifiers_of_others() -> None:
    versions = {app_id(KEY, 0): 7, app_id(KEY, 12): 9, merge_app_id(KEY): 18, app_id("other", 0): 3, "spark": 1, f"waltz:{KEY}:x": 2}
    assert marks_among(versions, KEY) == {0: 7, 12: 9}


def test_a_table_is_filled_from_the_cluster_of_the_last_takeover() -> None:
    found = {app_id(KEY, 0): 7, merge_app_id(KEY): 2, "spark": 1}
    assert clusters_now(found) == [KEY]
    found[superseded_app_id(KEY)] = 1
    assert (clusters_now(found), epochs_among(found)) == ([KEY], {KEY: 0}), "a takeover that has only begun"
    found[epoch_app_id("second")] = 1
    assert (clusters_now(found), epochs_among(found)) == (["second"], {KEY: 0, "second": 1}), "before its first row"
    found |= {app_id("second", 3): 5, merge_app_id("second"): 4, epoch_app_id("third"): 2}
    assert cluster_key_among(found, "t") == "third"
    assert cluster_key_among(found | {epoch_app_id("third"): -1}, "t") == "second", "a RESTORE has undone the last one"
    undone = found | {epoch_app_id("third"): -1, epoch_app_id("second"): -1, app_id("second", 3): -1}
    assert cluster_key_among(undone, "t") == KEY, "though the number of its last MERGE stays"
    assert (clusters_now({}), cluster_key_among({"spark": 1}, "t")) == ([], None)
    with pytest.raises(InvalidRequest, match="holds the logs of 2 clusters"):
        cluster_key_among({app_id(KEY, 0): 1, app_id("second", 0): 1}, "t")


@given(marks, ranges)
def test_position_rises_with_every_batch_that_adds_something(held: dict[int, int], spans: dict[int, tuple[int, int]]) -> None:
    batch = BatchRange(ends={p: first + n for p, (first, n) in spans.items()}, starts={p: first for p, (first, _) in spans.items()}, exact=True)
    new = {p: mark for p, mark in batch.marks().items() if mark > held.get(p, -1)}
    assert (position({**held, **new}) > position(held)) == bool(new)


@given(st.integers(-1, 8), st.integers(0, 8), st.integers(0, 3), st.booleans())
def test_a_gap_of_even_one_transaction_is_refused(mark: int, first: int, count: int, begun: bool) -> None:
    """The mark is that of the table, or, before its first batch, of where the query began."""
    held, origins = ({0: mark}, {}) if begun else ({}, {0: mark + 1})
    batch = BatchRange(ends={0: first + count}, starts={0: first}, exact=True, origins=origins)
    missing = set(range(mark + 1, first)) if count else set()
    if not missing:
        refuse_gaps("t", batch, held)
        return
    with pytest.raises(GapInTable) as raised:
        refuse_gaps("t", batch, held)
    assert (raised.value.facts["first"], raised.value.facts["last"]) == (min(missing), max(missing))


@given(marks, ranges)
def test_overlapping_and_new_ranges_make_up_the_batch(held: dict[int, int], spans: dict[int, tuple[int, int]]) -> None:
    batch = BatchRange(ends={p: first + n for p, (first, n) in spans.items()}, starts={p: first for p, (first, _) in spans.items()}, exact=True)
    dropped = overlap(batch, held)
    for partition, (first, count) in spans.items():
        rows = set(range(first, first + count))
        kept = {at for at in rows if partition not in dropped or at > dropped[partition]}
        assert kept == {at for at in rows if at > held.get(partition, -1)}


def test_a_batch_beyond_the_mark_is_refused_with_what_would_be_missing() -> None:
    batch = BatchRange(ends={0: 10, 1: 5}, starts={0: 4, 1: 5}, exact=True)
    refuse_gaps("t", batch, {0: 3, 1: 0})
    refuse_gaps("t", batch, {0: 9})
    refuse_gaps("t", batch, {})
    with pytest.raises(GapInTable) as caught:
        refuse_gaps("t", batch, {0: 1})
    assert (caught.value.partition, caught.value.first, caught.value.last) == (0, 2, 3)
    refuse_gaps("t", BatchRange(ends=batch.ends, starts=batch.starts, exact=False), {0: 1})


def test_errors_survive_pickling() -> None:
    for error in (
        NotADeltaTable(path="p", reason="r"),
        SchemaMismatch(path="p", column="c", reason="r"),
        GapInTable(path="p", partition=0, first=1, last=2),
        WriteContended(path="p", attempts=3),
        UnsupportedDelta(expected="a", got="b"),
    ):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), again.facts) == (type(error), str(error), error.facts)


def test_marks_are_importable_without_spark() -> None:
    code = (
        "from waltz_delta import high_water_marks, NotADeltaTable; import sys; print([n for n in ('pyspark', 'delta', 'grpc') if n in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert out.stdout.strip() == "[]"
