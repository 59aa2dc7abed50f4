"""Filters that the source applies for Spark, against SQL's own judgement on every value."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import datasource as ds

from pyspark_waltz.filters import Pushed, push
from pyspark_waltz.intervals import ALL, Intervals
from pyspark_waltz.schema import SCHEMA, SCHEMA_WITH_METADATA

VALUES = range(-12, 13)
value = st.integers(-10, 10)
nullable = st.none() | value
COMPARISONS: dict[Any, Any] = {
    ds.EqualTo: lambda a, b: a == b,
    ds.GreaterThan: lambda a, b: a > b,
    ds.GreaterThanOrEqual: lambda a, b: a >= b,
    ds.LessThan: lambda a, b: a < b,
    ds.LessThanOrEqual: lambda a, b: a <= b,
}


def filters(column: str) -> Any:
    path = (column,)
    plain = st.one_of(
        st.sampled_from(list(COMPARISONS)).flatmap(lambda kind: nullable.map(lambda v: kind(path, v))),
        nullable.map(lambda v: ds.EqualNullSafe(path, v)),
        st.lists(nullable, max_size=5).map(lambda vs: ds.In(path, tuple(vs))),
        st.sampled_from([ds.IsNull(path), ds.IsNotNull(path)]),
    )
    return plain | plain.map(ds.Not)


def judged(each: Any, at: int) -> bool | None:
    """As SQL judges it for a column that holds `at`: true, false or null."""
    match each:
        case ds.Not(child):
            inner = judged(child, at)
            return None if inner is None else not inner
        case ds.IsNull():
            return False
        case ds.IsNotNull():
            return True
        case ds.EqualNullSafe(_, v):
            return bool(at == v)
        case ds.In(_, values):
            return True if at in values else None if None in values else False
        case _:
            return None if each.value is None else bool(COMPARISONS[type(each)](at, each.value))


@given(st.lists(filters("header"), max_size=4))
@settings(deadline=None)
def test_filters_pass_the_same_rows_as_sql(asked: list[Any]) -> None:
    pushed, left = push(asked, SCHEMA.names)
    assert left == []
    expected = [at for at in VALUES if all(judged(each, at) is True for each in asked)]
    assert [at for at in VALUES if at in pushed.of("header")] == expected
    assert pushed.nothing == (not pushed.of("header").spans)


@given(st.lists(st.tuples(value, value), max_size=6), st.lists(st.tuples(value, value), max_size=6))
@settings(deadline=None)
def test_intervals_are_sets(left: list[tuple[int, int]], right: list[tuple[int, int]]) -> None:
    def members(spans: list[tuple[int, int]]) -> set[int]:
        return {at for at in VALUES if any(low <= at <= high for low, high in spans)}

    a, b = Intervals.of(left), Intervals.of(right)
    assert {at for at in VALUES if at in a & b} == members(left) & members(right)
    assert {at for at in VALUES if at in ~a} == set(VALUES) - members(left)
    assert ~~a == a
    assert all(before[1] + 1 < after[0] for before, after in zip(a.spans, a.spans[1:], strict=False))


def test_filters_go_where_they_are_seen_to_and_the_rest_stays_with_spark() -> None:
    asked: list[Any] = [
        ds.EqualTo(("partition",), 3),
        ds.GreaterThanOrEqual(("transaction_id",), 10),
        ds.In(("header",), (1, 2)),
        ds.EqualTo(("data",), b"x"),
        ds.StringStartsWith(("header",), "1"),
        ds.EqualTo(("header", "inner"), 1),
        ds.EqualTo(("header",), 1.5),
        ds.EqualTo(("client_id",), 7),
    ]
    pushed, left = push(asked, SCHEMA.names)
    assert left == asked[3:]
    assert pushed.of("partition") == Intervals(((3, 3),))
    assert pushed.tests == {"header": Intervals(((1, 2),))}
    assert push(asked[-1:], SCHEMA_WITH_METADATA.names)[0].tests == {"client_id": Intervals(((7, 7),))}
    assert Pushed().of("partition") == ALL


def test_times_narrow_what_is_read_and_are_checked_again() -> None:
    moment = datetime(2023, 11, 14, 22, 13, 20, 1500, tzinfo=UTC)
    ms = 1_700_000_000_001
    path = ("timestamp",)
    for each, expected in [
        (ds.GreaterThanOrEqual(path, moment), (ms, None)),
        (ds.GreaterThan(path, moment), (ms, None)),
        (ds.GreaterThan(path, moment + timedelta(microseconds=499)), (ms + 1, None)),
        (ds.LessThan(path, moment), (None, ms + 1)),
        (ds.LessThanOrEqual(path, moment.astimezone(timezone(timedelta(hours=3)))), (None, ms + 1)),
        (ds.EqualTo(path, moment), (ms, ms + 1)),
        (ds.In(path, (moment, moment + timedelta(seconds=1))), (ms, ms + 1001)),
        (ds.Not(ds.EqualTo(path, moment)), (None, None)),
        (ds.GreaterThan(path, moment.replace(tzinfo=None)), (None, None)),
        (ds.LessThan(path, datetime(1960, 1, 1, tzinfo=UTC)), (None, 0)),
    ]:
        pushed, left = push([each], SCHEMA.names)
        assert left == [each]
        assert (pushed.from_ms, pushed.until_ms) == expected, each
    assert push([ds.EqualTo(path, None)], SCHEMA.names)[0].nothing


@pytest.mark.parametrize("odd", [True, "1", 1.0, b"1"])
def test_values_of_other_types_are_left_to_spark(odd: object) -> None:
    assert Intervals.compared("EqualTo", odd, negated=False) is None
    assert Intervals.compared("StringContains", 1, negated=False) is None
