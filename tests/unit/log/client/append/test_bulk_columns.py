"""Columns to append in bulk: a range of them makes the frame that its appends make one by one; what can never be appended is refused whole."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any, TypeAlias, cast

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waltz_log.client import Draft, Lock
from waltz_log.client.append import record_encoding
from waltz_log.client.append.bulk_columns import BulkColumns, checked_rows
from waltz_log.client.append.packing import pack_append
from waltz_log.client.append.producer import Producer
from waltz_log.client.append.record_encoding import FEW_BODIES, encode_in_columns, encode_without_numpy
from waltz_log.client.base.settings import ClientSettings
from waltz_log.core.formats.record_columns import encode_record_columns
from waltz_log.errors import InvalidBatch, InvalidRequest
from waltz_log.transport.large_messages import AppendColumns

Row: TypeAlias = "tuple[bytes, int, list[str], list[str], list[str]]"
"""Data, header, write, read and append locks."""

MOST = 1000
HEADERS = st.integers(-(2**31), 2**31 - 1)
KEYS = st.lists(st.text(max_size=6), max_size=3)
ROWS = st.lists(st.tuples(st.binary(max_size=30), HEADERS, KEYS, KEYS, KEYS), min_size=1, max_size=30)


async def _one_by_one(drafts: Sequence[Draft], client_id: int, generation: int, partition: int, first: int, since: int) -> AppendColumns:
    """The frame of a window that holds these appends."""
    options = ClientSettings()
    owners = cast(Any, None)
    producer = Producer(partition, client_id, owners, options, random.Random(1))
    producer.window.next_sequence = first
    for draft in drafts:
        assert producer.try_enqueue(pack_append(asyncio.get_running_loop().create_future(), producer, draft, 1e9))
    frame = producer.window.pack(client_id, generation, since, 0.0)
    assert frame is not None
    return frame


def _drafts(rows: Sequence[Row], mark: int) -> list[Draft]:
    return [Draft(data, header, _locks(write), _locks(read), _locks(append), mark) for data, header, write, read, append in rows]


def _locks(keys: Sequence[str]) -> list[Lock]:
    return [Lock("", key) for key in keys]


def _arrow(rows: Sequence[Row], large: bool, before: int) -> BulkColumns:
    """Arrays that begin within their buffers."""
    kinds = (pa.large_binary(), pa.large_list(pa.large_string())) if large else (pa.binary(), pa.list_(pa.binary()))
    padded: list[Row] = [(b"before", 1, ["x", "y"], ["z"], [])] * before + list(rows)
    columns = [pa.array([row[at] for row in padded], kind).slice(before) for at, kind in enumerate((kinds[0], pa.int32(), *kinds[1:] * 3))]
    return BulkColumns(*columns)


@given(rows=ROWS, source=st.sampled_from(["python", "arrow", "large arrow"]), before=st.integers(0, 3), cut=st.data(), mark=st.integers(-1, 2**40))
@settings(max_examples=200, deadline=None)
def test_a_range_of_columns_makes_the_frame_that_its_appends_make(rows: list[Row], source: str, before: int, cut: st.DataObject, mark: int) -> None:
    start = cut.draw(st.integers(0, len(rows) - 1))
    stop = cut.draw(st.integers(start + 1, len(rows)))
    columns = _arrow(rows, source == "large arrow", before)
    if source == "python":
        data, headers, write, read, append = ([*column] for column in zip(*rows, strict=True))
        columns = BulkColumns(data, headers, write, read, append)
    found = checked_rows(columns, MOST, 255)
    expected = asyncio.run(_one_by_one(_drafts(rows[start:stop], mark), 7, 3, 2, 40, mark))
    counts, locks = found.lock_columns(start, stop)
    assert (counts if locks else b"", locks) == (expected.lock_counts, expected.locks)
    for encode in (encode_in_columns, encode_without_numpy, encode_record_columns):
        lengths, records = encode(7, 3, 2, 40, found.headers(start, stop), found.bodies(start, stop))
        assert (lengths, records) == (expected.lengths, expected.records)
    sizes = [found.size(row, row + 1) for row in range(start, stop)]
    assert found.size(start, stop) == sum(sizes)
    for room in (0, sizes[0], sum(sizes) // 2, sum(sizes)):
        fitting = found.fitting(start, stop, room)
        assert sum(sizes[:fitting]) <= room
        assert fitting == len(sizes) or sum(sizes[: fitting + 1]) > room


@given(count=st.integers(FEW_BODIES, FEW_BODIES + 200), sizes=st.lists(st.integers(0, 40), min_size=1, max_size=20), header=HEADERS)
@settings(max_examples=50, deadline=None)
def test_many_records_are_encoded_to_the_same_bytes_with_and_without_numpy(count: int, sizes: list[int], header: int) -> None:
    bodies = [random.Random(at).randbytes(sizes[at % len(sizes)]) for at in range(count)]
    for headers in (header, [header ^ at for at in range(len(bodies))]):
        numbers = (2**31 - 1, 5, 3, 4000)  # sequences pass 4096
        assert encode_in_columns(*numbers, headers, bodies) == encode_without_numpy(*numbers, headers, bodies)


def test_large_frames_are_encoded_where_there_is_no_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    bodies = [b"%d" % at for at in range(FEW_BODIES)]
    with_numpy = encode_in_columns(1, 2, 3, 4, 5, bodies)
    record_encoding._encoder.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "waltz_log.core.formats.record_columns", None)
    assert record_encoding._encoder() is encode_without_numpy
    assert encode_in_columns(1, 2, 3, 4, 5, bodies) == with_numpy
    record_encoding._encoder.cache_clear()


def test_the_name_of_the_locks_and_the_mark_hold_for_all_rows() -> None:
    columns = BulkColumns([b"a", b"b"], header=4, write_locks=[["x"], [b"x", "y"]], lock_name="seat", high_water_mark=9)
    found = checked_rows(columns, MOST, 255)
    drafts = [Draft(b"a", 4, [Lock("seat", "x")]), Draft(b"b", 4, [Lock("seat", "x"), Lock("seat", "y")])]
    expected = asyncio.run(_one_by_one(drafts, 1, 1, 0, 1, -1))
    assert found.lock_columns(0, 2) == (expected.lock_counts, expected.locks)
    assert (found.headers(0, 2), found.mark) == (4, 9)


def test_a_column_of_a_table_is_one_column_however_it_is_chunked() -> None:
    for chunks in ([], [[b"a", b"b"]], [[b"a"], [], [b"b", b"c"]]):
        column = pa.chunked_array(chunks, pa.binary())
        found = checked_rows(BulkColumns(column), MOST, 255)
        assert [bytes(each) for each in found.bodies(0, found.count)] == [each for chunk in chunks for each in chunk]


WRONG: dict[str, tuple[Any, int | None, str]] = {
    "text": ([b"a", "b"], 1, "data"),
    "null": (pa.array([b"a", b"b", None]), 2, "data"),
    "null in a slice": (pa.array([b"a", b"b", None]).slice(1), 1, "data"),
    "numbers": (pa.array([1, 2]), None, "data"),
    "one above the limit": ([b"a", bytes(MOST + 1)], 1, "data"),
    "one above the limit in an array": (pa.array([b"a", b"b", bytes(MOST + 1)]).slice(1), 1, "data"),
    "no list": (7, None, "data"),
    "header text": (BulkColumns([b"a", b"b"], header=[1, "2"]), 1, "header"),
    "header above 32 bits": (BulkColumns([b"a", b"b"], header=[1, 2**31]), 1, "header"),
    "one header above 32 bits": (BulkColumns([b"a"], header=2**31), None, "header"),
    "headers too short": (BulkColumns([b"a", b"b"], header=[1]), 1, "header"),
    "headers of 64 bits": (BulkColumns([b"a"], header=pa.array([1], pa.int64())), None, "header"),
    "null header": (BulkColumns([b"a"], header=pa.array([None], pa.int32())), 0, "header"),
    "locks too short": (BulkColumns([b"a", b"b"], write_locks=[["x"]]), 1, "write_locks"),
    "locks too long": (BulkColumns([b"a"], read_locks=pa.array([["x"], ["y"]])), 1, "read_locks"),
    "locks not in lists": (BulkColumns([b"a", b"b"], append_locks=[["x"], "y"]), 1, "append_locks"),
    "text array as locks": (BulkColumns([b"a"], write_locks=pa.array(["x"])), None, "write_locks"),
    "lists of numbers": (BulkColumns([b"a"], write_locks=pa.array([[1]])), None, "write_locks"),
    "a number as a lock": (BulkColumns([b"a", b"b"], write_locks=[["x", "y"], [3]]), 1, "write_locks"),
    "a lock that is no text": (BulkColumns([b"a", b"b"], write_locks=[[], ["\ud800"]]), 1, "write_locks"),
    "null list": (BulkColumns([b"a", b"b"], write_locks=pa.array([["x"], None])), 1, "write_locks"),
    "null lock": (BulkColumns([b"a", b"b"], write_locks=pa.array([["x", "y"], ["z", None]])), 1, "write_locks"),
    "too many locks": (BulkColumns([b"a", b"b"], write_locks=[["x"], ["x", "y"]], read_locks=[[], ["z"]]), 1, "write_locks"),
}


@pytest.mark.parametrize("name", WRONG)
def test_rows_that_can_never_be_appended_are_refused_with_row_and_column(name: str) -> None:
    source, row, column = WRONG[name]
    with pytest.raises(InvalidBatch) as refused:
        checked_rows(source if isinstance(source, BulkColumns) else BulkColumns(source), MOST, 2)
    assert (refused.value.row, refused.value.column) == (row, column)


@pytest.mark.parametrize("wrong", [{"high_water_mark": -2}, {"high_water_mark": 2**63}, {"high_water_mark": "1"}, {"lock_name": 3}])
def test_a_mark_or_a_lock_name_that_is_none_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        checked_rows(BulkColumns([b"a"], write_locks=[["x"]], **wrong), MOST, 2)


@pytest.mark.parametrize("names", [["value"], ["data", "key"], ["data", "data"], []])
def test_a_record_batch_with_other_columns_is_refused(names: list[str]) -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([b"a"])] * len(names), names=names)
    with pytest.raises(InvalidBatch, match="record batch"):
        BulkColumns.of_batch(batch)
