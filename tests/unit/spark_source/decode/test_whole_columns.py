"""Whole columns at once give what `pyarrow.array` gives and what each value gives alone."""

from __future__ import annotations

import gc
import re
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql.types import ArrayType, IntegerType, StringType, StructField, StructType, TimestampType

from pyspark_waltz.decode import times
from pyspark_waltz.decode.json_columns import JsonColumns
from pyspark_waltz.decode.json_scalars import Day, Moment
from pyspark_waltz.decode.problems import Problems
from pyspark_waltz.decode.settings import DecodeSettings
from pyspark_waltz.decode.whole_columns import common_shape, extremes, no_collections, numbers, texts


@given(st.lists(st.one_of(st.none(), st.text(), st.text("abc"))))
@example(["x" * 255, "", "y" * 256])
def test_texts_are_what_arrow_makes_of_them(values: list[str | None]) -> None:
    found = texts(values)
    found.validate(full=True)
    assert found.equals(pa.array(values, pa.string()))


@given(st.lists(st.one_of(st.none(), st.integers(-(2**31), 2**31 - 1))), st.lists(st.one_of(st.none(), st.floats(allow_nan=False, width=32))))
def test_numbers_are_what_arrow_makes_of_them(whole: list[int | None], fractions: list[float | None]) -> None:
    for values, letter, kind in ((whole, "i", pa.int32()), (whole, "q", pa.int64()), (fractions, "d", pa.float64()), (fractions, "f", pa.float32())):
        found = numbers(values, letter, kind)
        found.validate(full=True)
        assert found.equals(pa.array(values, kind))


def test_what_arrow_refuses_is_refused() -> None:
    for values in ([1], ["a", 1], [None, 1.5]):
        with pytest.raises((pa.ArrowInvalid, TypeError)):
            texts(values)
    for letter, kind, value in (("i", pa.int32(), 2**31), ("b", pa.int8(), 128), ("i", pa.int32(), "1"), ("d", pa.float64(), "1")):
        with pytest.raises((pa.ArrowInvalid, pa.ArrowTypeError, OverflowError)):
            numbers([0, value], letter, kind)


def test_a_shape_is_that_of_each_text_and_no_other() -> None:
    dates = pa.array(["2026-01-02", None, "1999-12-31"])
    assert common_shape(dates) == common_shape(dates.slice(2)) == common_shape(dates.slice(0, 1)) == "0000-00-00"
    for other in ("2026-01-2", "2026-01-0a", "2026/01/02", "2026-01-02 ", "é026-01-0"):
        assert common_shape(pa.array(["2026-01-02", other])) is None
        assert common_shape(pa.array([other, "2026-01-02", "2026-01-02"])) is None
    assert common_shape(pa.array([None, None], pa.string())) is None
    assert common_shape(pa.array([], pa.string())) is None
    assert common_shape(pa.array(["", ""])) is None


def changed(text: str) -> list[str]:
    """The text with each character replaced, left out, or doubled."""
    found = []
    for at in range(len(text)):
        found += [text[:at] + other + text[at + 1 :] for other in "09azTZ:-+. \n/"]
        found += [text[:at] + text[at + 1 :], text[:at] + text[at] + text[at:]]
    return found


def alone(kind: Any, values: list[str]) -> tuple[list[Any], dict[int, str]]:
    problems = Problems()
    return kind.column(values, range(len(values)), problems).to_pylist(), problems.reasons


def test_a_column_of_one_shape_is_a_date_or_time_only_if_each_of_them_is() -> None:
    settings = DecodeSettings(format="json", columns="at TIMESTAMP")
    day = Day("d", "DATE", pa.date32())
    moment = Moment("t", "TIMESTAMP", pa.timestamp("us", "UTC"), settings, times.time_zone("UTC"))
    for text in changed("2026-01-02"):
        values, reasons = alone(day, [text, text])
        good = re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text) is not None and times.days_of(text) is not None
        assert (values[0] is not None, values[1] is not None, not reasons) == (good, good, good), text
    for start in ("2026-01-02T03:04:05.25+01:00", "2026-01-02 03:04Z", "2026-01-02T03:04:05"):
        for text in changed(start):
            values, reasons = alone(moment, [text, text])
            micros = times.micros_of_text(text, times.time_zone("UTC"), cut=False)
            assert (values[0] is not None, values[1] is not None, not reasons) == (micros is not None,) * 3, text
            if micros is not None:
                assert times.micros_of(values[0]) == micros, text


@pytest.mark.parametrize("text", ["0000-12-31T23:00:00-02:00", "0000-12-31", "0000-12-31T23:00:00Z"])
def test_a_time_in_the_year_0_is_none_whatever_stands_beside_it(text: str) -> None:
    """With its offset, the first is in the year 1, which Arrow accepts and Python does not."""
    settings = DecodeSettings(format="json", columns="at TIMESTAMP")
    moment = Moment("t", "TIMESTAMP", pa.timestamp("us", "UTC"), settings, times.time_zone("UTC"))
    for beside in ([], [text], ["2026-01-02T03:04:05-02:00"], ["2026-01-02"], ["x"]):
        values, reasons = alone(moment, [text, *beside])
        assert (values[0], 0 in reasons) == (None, True), beside


def test_a_problem_belongs_to_its_transaction_in_a_batch_of_any_size() -> None:
    columns = "k STRING, at TIMESTAMP, n ARRAY<INT>"
    struct = StructType([StructField("k", StringType()), StructField("at", TimestampType()), StructField("n", ArrayType(IntegerType()))])
    arrow = [pa.string(), pa.timestamp("us", "UTC"), pa.list_(pa.int32())]
    decoder = JsonColumns(struct, arrow, DecodeSettings(format="json", columns=columns), times.time_zone("UTC"))
    documents = [b'{"k": "v%d", "at": "2026-01-02T03:04:05Z", "n": [%d]}' % (n, n) for n in range(9_000)]
    wrong = {5: b"no JSON", 700: b'{"at": "soon"}', 2_047: b'{"at": "12:30"}', 2_048: b'{"n": ["1"]}', 5_003: b'{"at": "2026-02-30"}', 8_999: b"[]"}
    for at, document in wrong.items():
        documents[at] = document
    problems = Problems()
    keys, moments, lists = decoder.decode(pa.array(documents, pa.binary()), problems)
    assert sorted(problems.reasons) == sorted(wrong)
    good = [n for n in range(9_000) if n not in wrong]
    assert [keys[n].as_py() for n in good] == [f"v{n}" for n in good]
    assert [lists[n].as_py() for n in good] == [[n] for n in good]
    assert all(moments[n].is_valid for n in good)


@given(st.lists(st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1))))
def test_the_extremes_of_a_column_are_those_of_its_values(values: list[int | None]) -> None:
    given = [value for value in values if value is not None]
    array = pa.array([7, *values], pa.int64()).slice(1)
    assert extremes(array) == ((min(given), max(given)) if given else None)


def test_python_searches_for_cycles_again_after_a_batch() -> None:
    for before in (gc.enable, gc.disable):
        before()
        enabled = gc.isenabled()
        try:
            with pytest.raises(RuntimeError), no_collections():
                assert not gc.isenabled()
                raise RuntimeError
            assert gc.isenabled() == enabled
        finally:
            gc.enable()
