"""The merge rules of statistics, their declaration, and their JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from importlib import import_module
from pkgutil import walk_packages
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import waltz_log
from waltz_log.errors import ProtocolViolation
from waltz_log.statistics import (
    BY_KEY,
    CONCATENATE,
    FIELDS,
    LAST,
    MAX,
    MIN,
    SUM,
    ByKey,
    Highest,
    Newest,
    Rule,
    Summed,
    by_attribute,
    from_json,
    is_snapshot,
    merge,
    rules_of,
    snapshot,
    to_json,
    worst_of,
)


@snapshot
@dataclass(frozen=True, slots=True)
class Part:
    number: Newest[int]
    count: Summed[int]


@snapshot
@dataclass(frozen=True, slots=True)
class Opened:
    state: Newest[Literal["open"]]
    count: Summed[int]


@snapshot
@dataclass(frozen=True, slots=True)
class Closed:
    state: Newest[Literal["closed"]]
    reason: Newest[str | None]


@snapshot
@dataclass(frozen=True, slots=True)
class Whole:
    mark: Highest[int | None]
    parts: ByKey[Mapping[int, Opened | Closed]]
    note: Newest[str] = ""


SETTINGS = settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))

WORST = worst_of("refusing", "low", "ample")


# ---- rules -----------------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "one", "other", "expected"),
    [
        (SUM, 3, 4, 7),
        (MAX, 3, 4, 4),
        (MAX, True, False, True),
        (MIN, 3, 4, 3),
        (LAST, "a", "b", "b"),
        (CONCATENATE, (0, 2), (1,), (0, 2, 1)),
        (BY_KEY, {10: "a", 0: "b"}, {2: "c", 10: "d"}, {0: "b", 2: "c", 10: "d"}),
        (FIELDS, Part(1, 5), Part(2, 6), Part(2, 11)),
        (by_attribute("number"), (Part(0, 1), Part(3, 1)), (Part(1, 1), Part(3, 9)), (Part(0, 1), Part(1, 1), Part(3, 9))),
        (WORST, "ample", "refusing", "refusing"),
        (WORST, "low", "unheard of", "low"),
    ],
)
def test_each_rule_makes_one_value_of_two(rule: Rule, one: Any, other: Any, expected: Any) -> None:
    assert rule.merge(one, other) == expected
    assert rule.merge(None, other) == other
    assert rule.merge(one, None) == one
    if rule.commutative:
        assert rule.merge(other, one) == expected


def test_partitions_are_in_the_order_of_their_numbers() -> None:
    assert list(BY_KEY.merge({0: "a", 10: "b"}, {2: "c"})) == [0, 2, 10]


numbers = st.none() | st.integers()
VALUES: list[tuple[Rule, st.SearchStrategy[Any]]] = [
    (SUM, numbers),
    (MAX, numbers),
    (MIN, numbers),
    (LAST, st.none() | st.text()),
    (CONCATENATE, st.none() | st.lists(st.integers()).map(tuple)),
    (BY_KEY, st.none() | st.dictionaries(st.integers(0, 5), st.integers())),
    (FIELDS, st.none() | st.builds(Part, numbers, numbers)),
    (by_attribute("number"), st.none() | st.lists(st.builds(Part, st.integers(0, 5), numbers), unique_by=lambda part: part.number).map(tuple)),
    (WORST, st.none() | st.sampled_from(["refusing", "low", "ample", "other", "another"])),
]


@settings(SETTINGS)
@given(st.data())
@pytest.mark.parametrize(("rule", "values"), VALUES, ids=lambda value: value.name if isinstance(value, Rule) else "")
def test_every_rule_is_associative_and_some_are_commutative(rule: Rule, values: st.SearchStrategy[Any], data: st.DataObject) -> None:
    one, two, three = (data.draw(values) for _ in range(3))
    assert rule.merge(rule.merge(one, two), three) == rule.merge(one, rule.merge(two, three))
    if rule.commutative:
        assert rule.merge(one, two) == rule.merge(two, one)


def test_statistics_of_two_classes_do_not_merge() -> None:
    with pytest.raises(TypeError, match="Part and Opened"):
        merge([Part(1, 1), Opened("open", 1)])


# ---- classes ---------------------------------------------------------------------------------------------------------------------------------------


def test_a_field_without_a_rule_is_refused() -> None:
    @dataclass(frozen=True)
    class Lacking:
        count: Summed[int]
        forgotten: int

    with pytest.raises(TypeError, match=r"Lacking\.forgotten declares 0 merge rules"):
        snapshot(Lacking)


def test_a_field_with_two_rules_and_a_class_that_can_change_are_refused() -> None:
    @dataclass(frozen=True)
    class Twice:
        count: Annotated[int, SUM, MAX]

    @dataclass
    class Changing:
        count: Summed[int]

    with pytest.raises(TypeError, match=r"Twice\.count declares 2 merge rules"):
        snapshot(Twice)
    with pytest.raises(TypeError, match="Changing is not a frozen dataclass"):
        snapshot(Changing)


@cache
def statistics_classes() -> tuple[type, ...]:
    """Every class of the log whose name says that it is one."""
    modules = [import_module(each.name) for each in walk_packages(waltz_log.__path__, "waltz_log.") if _defines(each.name)]
    found = {value for module in modules for value in vars(module).values() if isinstance(value, type) and value.__name__.endswith("Statistics")}
    return tuple(sorted(found, key=lambda cls: (cls.__module__, cls.__name__)))


def _defines(name: str) -> bool:
    """Whether the source of a module has such a class; the others need not be imported."""
    from importlib.util import find_spec

    spec = find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    with open(spec.origin, encoding="utf-8") as source:
        return any(line.startswith("class ") and "Statistics" in line for line in source)


def test_every_field_of_every_statistics_class_declares_its_rule() -> None:
    found = statistics_classes()
    assert {"ServerStatistics", "NodeStatistics", "JournalStatistics", "OutboxStatistics", "LockStatistics", "SegmentStatistics"} <= {
        cls.__name__ for cls in found
    }
    assert [cls.__qualname__ for cls in found if not (is_dataclass(cls) and is_snapshot(cls))] == []
    assert [cls.__qualname__ for cls in found if list(rules_of(cls)) != [field.name for field in fields(cls)]] == []


# ---- JSON ------------------------------------------------------------------------------------------------------------------------------------------


def test_a_field_that_has_its_default_is_left_out_of_the_json() -> None:
    assert to_json(Whole(None, {3: Opened("open", 1)})) == {"mark": None, "parts": {"3": {"state": "open", "count": 1}}}
    assert to_json(Whole(4, {}, "seen")) == {"mark": 4, "parts": {}, "note": "seen"}


def test_unknown_fields_are_ignored_or_refused_as_the_reader_says() -> None:
    data = {"number": 1, "count": 2, "newer": 3}
    assert from_json(Part, data, unknown="ignore") == Part(1, 2)
    with pytest.raises(ProtocolViolation, match="Part has no newer"):
        from_json(Part, data, unknown="refuse")
    nested = {"mark": 1, "parts": {"0": {"state": "open", "count": 1, "newer": 3}}}
    assert from_json(Whole, nested, unknown="ignore").parts == {0: Opened("open", 1)}
    with pytest.raises(ProtocolViolation, match="Opened has no newer"):
        from_json(Whole, nested, unknown="refuse")


def test_missing_fields_are_refused_or_empty_as_the_reader_says() -> None:
    with pytest.raises(ProtocolViolation, match="Part without count"):
        from_json(Part, {"number": 1}, unknown="refuse")
    assert from_json(Part, {"number": 1}, unknown="refuse", missing="empty") == Part(1, 0)
    assert from_json(Whole, {}, unknown="refuse", missing="empty") == Whole(None, {})


@pytest.mark.parametrize("data", [[], {"mark": 1, "parts": {"0": {"state": "ajar"}}}, {"mark": 1, "parts": {"0": 7}}, {"mark": 1, "parts": 3}])
def test_invalid_statistics_are_refused(data: Any) -> None:
    with pytest.raises(ProtocolViolation):
        from_json(Whole, data, unknown="ignore")


# ---- every class -----------------------------------------------------------------------------------------------------------------------------------


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """Of a field's type. Floats are quarters, whose sums are exact."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return values_of(arguments[0])
    if origin in (Union, UnionType):
        return st.one_of([values_of(each) for each in arguments])
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is tuple:
        items = values_of(arguments[0])
        return st.lists(items, max_size=2).map(tuple)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return st.dictionaries(values_of(arguments[0]), values_of(arguments[1]), max_size=2)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return st.sampled_from(list(hint))
    if isinstance(hint, type) and is_dataclass(hint):
        return snapshots(hint)
    simple: dict[Any, st.SearchStrategy[Any]] = {
        int: st.integers(0, 9),
        bool: st.booleans(),
        str: st.sampled_from(["a", "low", ""]),
        float: st.integers(0, 20).map(lambda count: count / 4),
        NoneType: st.none(),
    }
    return simple[hint]


@cache
def snapshots(cls: type) -> st.SearchStrategy[Any]:
    hints = get_type_hints(cls, include_extras=True)
    drawn: Mapping[str, st.SearchStrategy[Any]] = {field.name: values_of(hints[field.name]) for field in fields(cls)}
    made: Callable[..., Any] = cls
    return st.builds(made, **drawn)


WITH_JSON = [cls for cls in statistics_classes() if cls.__name__ != "LockStatistics"]
"""Of locks, the server reports `LockTableStatistics`."""


@pytest.mark.parametrize("cls", WITH_JSON, ids=lambda cls: cls.__name__)
@settings(SETTINGS)
@given(st.data())
def test_statistics_of_every_class_merge_in_any_grouping_and_survive_json(cls: type, data: st.DataObject) -> None:
    one, two, three = (data.draw(snapshots(cls)) for _ in range(3))
    assert from_json(cls, json.loads(json.dumps(to_json(one))), unknown="refuse") == one
    assert merge([merge([one, two]), three]) == merge([one, merge([two, three])])
