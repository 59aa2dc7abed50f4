"""An Arrow column becomes the declared type without a guess: units of numbers, numeric strings, bounds, at any depth."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from pyspark_waltz.decode.arrow_values import declared_values
from pyspark_waltz.decode.problems import Refused
from pyspark_waltz.decode.settings import DecodeSettings

AT = pa.timestamp("us", "UTC")
MOMENT = dt.datetime(2023, 11, 14, 22, 13, 20, tzinfo=dt.UTC)
MS = 1_700_000_000_000
STRINGS = "send numbers, or set numeric_strings to lossless"


def made(values: pa.Array, wanted: pa.DataType, **settings: Any) -> list[Any]:
    found = declared_values(pa.chunked_array([values]), wanted, "c", DecodeSettings(format="arrow", columns="c INT", **settings))
    return list(found.to_pylist())


NESTED = [
    (pa.array([MS, None]), AT, [MOMENT, None]),
    (pa.array([[MS], None, []], pa.large_list(pa.int64())), pa.list_(AT), [[MOMENT], None, []]),
    (pa.array([{"at": MS, "more": 1}, None]), pa.struct([("at", AT)]), [{"at": MOMENT}, None]),
    (pa.array([[("k", MS)], None], pa.map_(pa.string(), pa.int64())), pa.map_(pa.string(), AT), [[("k", MOMENT)], None]),
]


@pytest.mark.parametrize(("values", "wanted", "found"), NESTED)
def test_a_whole_number_is_a_timestamp_in_the_declared_unit_alone(values: pa.Array, wanted: pa.DataType, found: list[Any]) -> None:
    assert made(values, wanted, timestamp_unit="ms") == found
    assert made(values, wanted, timestamp_unit="s", timestamp_units={"c": "ms", "c.at": "ms"}) == found
    with pytest.raises(Refused, match=r"c(\.at)? is int64 and no unit is declared; set timestamp_unit"):
        made(values, wanted)
    with pytest.raises(Refused, match=r"c(\.at)? is 1700000000000000000 microseconds from 1970, out of bounds; .*timestamp_unit=s"):
        made(values, wanted, timestamp_unit="s")


def test_numbers_of_other_widths_and_too_large_ones() -> None:
    assert made(pa.array([1_700_000_000], pa.int32()), AT, timestamp_unit="s") == [MOMENT]
    assert made(pa.array([1_700_000_000], pa.uint64()), AT, timestamp_unit="s") == [MOMENT]
    with pytest.raises(Refused, match=r"c is int64, not .*, or out of bounds in the unit s; check timestamp_unit"):
        made(pa.array([MS * 1_000_000]), AT, timestamp_unit="s")
    with pytest.raises(Refused, match="c is int32, not date32"):
        made(pa.array([20_260_102], pa.int32()), pa.date32(), timestamp_unit="s")
    with pytest.raises(Refused, match=r"c is int64, not timestamp\[us\]"):
        made(pa.array([MS]), pa.timestamp("us"), timestamp_unit="ms")


def test_timestamps_and_dates_are_held_to_the_bounds() -> None:
    late = pa.array([253_402_300_799], pa.timestamp("s", "UTC"))
    assert made(late, AT) == [dt.datetime(9999, 12, 31, 23, 59, 59, tzinfo=dt.UTC)]
    assert made(pa.array([dt.date(9999, 12, 31)]), pa.date32()) == [dt.date(9999, 12, 31)]
    for values, wanted, reported in (
        (pa.array([253_402_300_800], pa.timestamp("s", "UTC")), AT, "253402300800000000 microseconds"),
        (pa.array([MS * 1_000_000], AT), AT, "out of bounds"),
        (pa.array([[None, MS * 1_000_000]], pa.list_(AT)), pa.list_(AT), "out of bounds"),
        (pa.array([20_260_102], pa.int32()).cast(pa.date32()), pa.date32(), "20260102 days from 1970, not a date from 0001-01-01"),
    ):
        with pytest.raises(Refused, match=reported):
            made(values, wanted)
    with pytest.raises(Refused, match="earliest_timestamp=2000-01-01"):
        made(pa.array([1_700_000_000], pa.timestamp("ms", "UTC")), AT, earliest_timestamp="2000-01-01")


KINDS = [pa.array(["5"]), pa.array(["5"], pa.large_string()), pa.array([b"5"]), pa.array(["5"]).dictionary_encode()]


@pytest.mark.parametrize("values", KINDS)
@pytest.mark.parametrize("wanted", [pa.int32(), pa.int64(), pa.float64(), pa.decimal128(5, 2)])
def test_a_string_is_no_number_unless_it_is_declared_so(values: pa.Array, wanted: pa.DataType) -> None:
    with pytest.raises(Refused, match=STRINGS):
        made(values, wanted)
    assert made(values, wanted, numeric_strings="lossless") == [5]


@pytest.mark.parametrize(
    ("text", "wanted", "found"),
    [
        ("-7", pa.int8(), -7),
        ("0x1F", pa.int32(), None),
        ("05", pa.int32(), None),
        ("5.0", pa.int32(), None),
        ("300", pa.int8(), None),
        ("2.500", pa.decimal128(5, 2), Decimal("2.50")),
        ("2.505", pa.decimal128(5, 2), None),
        ("1e2", pa.decimal128(5, 2), None),
        ("12345.00", pa.decimal128(5, 2), None),
        ("1e2", pa.float64(), 100.0),
        ("nan", pa.float64(), None),
        ("1e999", pa.float64(), None),
    ],
)
def test_a_lossless_string_spells_a_number_that_the_column_holds(text: str, wanted: pa.DataType, found: Any) -> None:
    for values, kind, expected in ((pa.array([text]), wanted, [found]), (pa.array([[None, text]]), pa.list_(wanted), [[None, found]])):
        if found is not None:
            assert made(values, kind, numeric_strings="lossless") == expected
        else:
            with pytest.raises(Refused, match="c is "):
                made(values, kind, numeric_strings="lossless")
