"""Arrow streams that are damaged, crafted, or expand to far more than their bytes."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import DataType, DecimalType, FloatType, IntegerType, StringType, StructField, StructType

from pyspark_waltz.decode import arrow_streams
from pyspark_waltz.decode.arrow_streams import ArrowColumns
from pyspark_waltz.decode.problems import Problems
from pyspark_waltz.decode.settings import DecodeSettings


def stream(table: Any, compression: str | None = None) -> bytes:
    into = io.BytesIO()
    with pa.ipc.new_stream(into, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write(table)
    return into.getvalue()


def decoded(kind: DataType, arrow: Any, *data: bytes, **settings: Any) -> list[Any]:
    """For each stream with a column `a` its values, or its problem."""
    columns = StructType([StructField("a", kind)])
    found = DecodeSettings(format="arrow", columns="a INT", **settings)
    problems = Problems()
    arrays, owners = ArrowColumns(columns, [arrow], found).decode(pa.array(data, pa.binary()), problems)
    values = arrays[0].to_pylist()
    return [problems.reasons.get(n) or [value for value, owner in zip(values, owners, strict=True) if owner == n] for n in range(len(data))]


STRINGS = "send numbers, or set numeric_strings to lossless"
GOOD = stream(pa.table({"a": pa.array(["x", "yz"], pa.string())}))


def test_offsets_outside_of_their_buffer_and_text_that_is_none_are_problems() -> None:
    right = (0).to_bytes(4, "little") + (1).to_bytes(4, "little") + (3).to_bytes(4, "little")
    assert GOOD.count(right) == 1
    reads_before = GOOD.replace(right, (0).to_bytes(4, "little") + (-300).to_bytes(4, "little", signed=True) + (3).to_bytes(4, "little"))
    reads_behind = GOOD.replace(right, (0).to_bytes(4, "little") + (1 << 29).to_bytes(4, "little") + ((1 << 29) + 9).to_bytes(4, "little"))
    no_text = GOOD.replace(b"xyz", b"x\xff\xfe")
    broken = "is not an Arrow IPC stream"
    assert decoded(StringType(), pa.string(), GOOD, reads_before, reads_behind, no_text) == [["x", "yz"], broken, broken, broken]


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_a_compressed_stream_is_read_and_one_that_expands_too_far_is_refused_before_it_does(
    compression: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow_streams, "BYTES_MAX", 8_000_000)
    small = stream(pa.table({"a": pa.array(["x"] * 5_000).dictionary_encode()}), compression)
    bomb = stream(pa.table({"a": pa.array([0] * 5_000_000, pa.int32())}), compression)
    before, damaged = pa.default_memory_pool().max_memory(), [bomb[:at] + bytes([each]) + bomb[at + 1 :] for at in range(400) for each in (0, 255)]
    assert len(bomb) < 100_000
    assert decoded(StringType(), pa.string(), small, bomb) == [["x"] * 5_000, "holds more than 8000000 bytes without compression"]
    for each in damaged:
        decoded(IntegerType(), pa.int32(), each)
    assert pa.default_memory_pool().max_memory() - before < 20_000_000


def test_a_column_that_is_there_twice_is_a_problem_of_its_transaction() -> None:
    twice = stream(pa.Table.from_arrays([pa.array(["x"]), pa.array(["y"])], names=["a", "a"]))
    assert decoded(StringType(), pa.string(), twice, GOOD) == ["a is 2 columns of the stream", ["x", "yz"]]


def test_a_few_bytes_that_stand_for_many_rows_are_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    many = stream(pa.table({"a": pa.nulls(arrow_streams.ROWS_MAX + 1)}))
    assert len(many) < 1000
    monkeypatch.setattr(arrow_streams, "BYTES_MAX", 100_000)
    repeated = stream(pa.table({"a": pa.array(["x" * 50_000] * 10).dictionary_encode()}))
    large = stream(pa.table({"a": pa.array(["x" * 200_000])}))
    limit = "holds more than 1000000 rows or 100000 bytes"
    expanded = "holds more than 100000 bytes without its dictionaries"
    assert decoded(StringType(), pa.string(), many, large, repeated, GOOD) == [limit, limit, expanded, ["x", "yz"]]


def test_values_that_another_type_would_change_are_refused() -> None:
    for kind, arrow, values, reason in (
        (IntegerType(), pa.int32(), pa.array([True]), "a is bool, not int32"),
        (IntegerType(), pa.int32(), pa.array([5], pa.timestamp("s")), "a is timestamp[s], not int32"),
        (
            IntegerType(),
            pa.int32(),
            pa.array([b"0x1F"], pa.binary_view()),
            "a is binary_view, not int32; send numbers, or set numeric_strings to lossless",
        ),
        (FloatType(), pa.float32(), pa.array([1e300]), "a has a double that does not fit into float"),
    ):
        assert decoded(kind, arrow, stream(pa.table({"a": values}))) == [reason]
    assert decoded(IntegerType(), pa.bool_(), stream(pa.table({"a": pa.array([5])}))) == ["a is int64, not bool"]
    assert decoded(IntegerType(), pa.date32(), stream(pa.table({"a": pa.array([5], pa.timestamp("s"))}))) == ["a is timestamp[s], not date32[day]"]


def test_numeric_strings_are_exact_decimals_or_refused() -> None:
    """Arrow converts some long texts to other numbers without an error."""
    kind, arrow = DecimalType(38, 18), pa.decimal128(38, 18)
    long = "340674356637139460317"
    found = decoded(kind, arrow, *[stream(pa.table({"a": [text]})) for text in (long, long[1:], "1.50")], numeric_strings="lossless")
    assert found[0] == f"a is the string {long}, not decimal128(38, 18)"
    assert [str(found[1][0]), str(found[2][0])] == [f"{long[1:]}.{'0' * 18}", f"1.50{'0' * 16}"]
