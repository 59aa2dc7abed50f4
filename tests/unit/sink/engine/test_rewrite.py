"""Rewriting a table's files: which files of any writer are read and written again, and what of each row stays."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as fs
import pyarrow.parquet as parquet
import pytest
from deltalake import write_deltalake

from waltz_delta.engine import rewrite as rewriting
from waltz_delta.engine.arrow_table import ArrowTable
from waltz_delta.engine.folds import DELETES
from waltz_delta.engine.key_index import KeyIndex
from waltz_delta.engine.newest import Newest
from waltz_delta.engine.rewrite import Rewritten, candidates, rewrite
from waltz_delta.engine.row_checks import RowRefused
from waltz_delta.engine.stored_rows import NotRead, StoredFile, row_groups
from waltz_delta.engine.written_files import file_plan

LONG = pa.int64()
PLACE = (("partition", pa.int32()), ("transaction_id", pa.int64()))


def columns_of(key: pa.DataType = LONG) -> pa.Schema:
    return pa.schema([*PLACE, ("k", key), ("n", pa.int32())])


def rows_of(keys: list[Any], first_id: int, key: pa.DataType = LONG) -> Any:
    columns = [
        pa.array([0] * len(keys), pa.int32()),
        pa.array(range(first_id, first_id + len(keys))),
        pa.array(keys, key),
        pa.array(range(len(keys)), pa.int32()),
    ]
    return pa.Table.from_arrays(columns, schema=columns_of(key))


def batch_of(keys: list[Any], first_id: int = 1000, key: pa.DataType = LONG, *, deletes: bool = False) -> Any:
    rows = rows_of(keys, first_id, key)
    return rows.append_column(DELETES, pa.array([deletes] * len(keys), pa.bool_()))


def opened(path: Path) -> Any:
    found = ArrowTable(str(path), str(path), {}, nullcontext)
    table = found.open()
    assert table is not None
    return found, table


def chosen(path: Path, batch: Any) -> list[StoredFile]:
    return candidates(opened(path)[1].living_files(), KeyIndex(batch, ["k"]))


def rewritten(path: Path, batch: Any) -> Rewritten:
    table, version = opened(path)
    index = KeyIndex(batch, ["k"])
    names = [field["name"] for field in version.shape.schema["fields"]]
    plan = file_plan(table, version.shape, names, "snappy")
    return rewrite(plan, candidates(version.living_files(), index), Newest("t", ["k"], "transaction_id", names), index, batch)


def written_rows(path: Path, found: Rewritten) -> list[dict[str, Any]]:
    return [row for file in found.written for row in parquet.read_table(path / file["path"]).to_pylist()]


def test_only_files_that_lose_rows_are_written_again(tmp_path: Path) -> None:
    for first in (0, 100, 200, 300):
        write_deltalake(str(tmp_path), rows_of(list(range(first, first + 10)), first), mode="append")
    batch = batch_of([105, 350])
    assert len(chosen(tmp_path, batch)) == 3, "the bounds of the batch reach over three files"
    found = rewritten(tmp_path, batch)
    assert len(found.removed) == 1
    assert sorted(row["k"] for row in written_rows(tmp_path, found)) == [*range(100, 110), 350]
    assert {row["transaction_id"] for row in written_rows(tmp_path, found) if row["k"] in (105, 350)} == {1000, 1001}


def test_a_batch_without_effect_writes_nothing(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path), rows_of([1, 2], 5000))
    assert rewritten(tmp_path, batch_of([1, 2], 10)) == Rewritten([], [])
    assert rewritten(tmp_path, batch_of([7], 10, deletes=True)) == Rewritten([], [])
    assert rewritten(tmp_path, batch_of([], 10)) == Rewritten([], [])


def test_a_file_whose_rows_all_go_is_removed_and_not_written(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path), rows_of([1, 2], 0))
    found = rewritten(tmp_path, batch_of([1, 2], deletes=True))
    assert (len(found.removed), list(found.written)) == (1, [])


EDGES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.string(), ["", "a", "ä", "x" * 40 + "a", "x" * 40 + "z", "\U0010ffff" * 40, None]),
    (pa.int64(), [-(2**63), 2**53 + 1, 2**63 - 1, None]),
    (pa.date32(), [date(1, 1, 1), date(1582, 10, 4), date(9999, 12, 31), None]),
    (pa.timestamp("us", "UTC"), [datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC), None]),
    (pa.timestamp("us"), [datetime(1969, 12, 31, 23, 59, 59, 999999), datetime(2020, 1, 1, microsecond=1), None]),
    (pa.binary(), [b"", b"\xff" * 40, None]),
    (pa.bool_(), [True, False, None]),
]


@pytest.mark.parametrize(("kind", "keys"), EDGES, ids=[str(kind) for kind, _ in EDGES])
def test_a_file_is_chosen_for_each_key_that_it_holds(tmp_path: Path, kind: pa.DataType, keys: list[Any]) -> None:
    for at, key in enumerate(keys):
        write_deltalake(str(tmp_path), rows_of([key], at, kind), mode="append")
    for key in keys:
        batch = batch_of([key], key=kind)
        found = rewritten(tmp_path, batch)
        assert len(found.removed) == 1, key
        assert [row["k"] for row in written_rows(tmp_path, found)] == [key]


def test_bounds_that_are_rounded_down_to_milliseconds_hide_no_row(tmp_path: Path) -> None:
    moment = datetime(2020, 1, 1, 0, 0, 0, 123456, tzinfo=UTC)
    kind = pa.timestamp("us", "UTC")
    write_deltalake(str(tmp_path), rows_of([moment], 0, kind))
    assert "2020-01-01T00:00:00.123Z" in (tmp_path / "_delta_log" / f"{0:020d}.json").read_text(), "deltalake does so too"
    assert len(rewritten(tmp_path, batch_of([moment], key=kind)).removed) == 1
    assert chosen(tmp_path, batch_of([moment + timedelta(milliseconds=2)], key=kind)) == []


def test_a_file_without_statistics_may_hold_any_key(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path), rows_of([1], 0), configuration={"delta.dataSkippingNumIndexedCols": "0"})
    write_deltalake(str(tmp_path), rows_of([2], 1), mode="append")
    assert len(chosen(tmp_path, batch_of([7]))) == 2
    assert len(rewritten(tmp_path, batch_of([2])).removed) == 1


def test_only_files_with_nulls_may_hold_null(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path), rows_of([1], 0))
    write_deltalake(str(tmp_path), rows_of([None], 1), mode="append")
    assert len(chosen(tmp_path, batch_of([None]))) == 1
    assert len(chosen(tmp_path, batch_of([None, 1]))) == 2


def test_a_partitioned_table_keeps_each_row_in_its_partition(tmp_path: Path) -> None:
    schema = pa.schema([*columns_of(), ("day", pa.date32())])
    days = [date(2026, 1, 1), date(2026, 1, 2), None]
    rows = rows_of([1, 2, 3], 0).append_column("day", pa.array(days, pa.date32()))
    write_deltalake(str(tmp_path), rows, partition_by=["day"])
    batch = batch_of([1, 4]).append_column("day", pa.array([days[1], None], pa.date32()))
    found = rewritten(tmp_path, batch.select([*schema.names, DELETES]))
    assert sorted(file["partition_values"] for file in found.written) == ['{"day": "2026-01-02"}', '{"day": null}']
    assert [removed.partition_values for removed in found.removed] == [{"day": "2026-01-01"}]
    assert sorted((row["k"], "day" in row) for row in written_rows(tmp_path, found)) == [(1, False), (4, False)]


def test_files_are_written_in_sizes_that_can_be_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewriting, "FILE_BYTES", 14_000)
    for first in range(0, 1000, 250):
        write_deltalake(str(tmp_path), rows_of(list(range(first, first + 250)), first), mode="append")
    found = rewritten(tmp_path, batch_of(list(range(0, 1000, 100))))
    assert (len(found.removed), len(found.written)) == (4, 2)
    assert sorted(row["k"] for row in written_rows(tmp_path, found)) == list(range(1000))
    assert len({file["path"] for file in found.written}) == 2


def test_null_in_a_column_that_must_not_be_null_is_refused_and_nothing_is_left_open(tmp_path: Path) -> None:
    schema = pa.schema([*PLACE, pa.field("k", pa.int64()), pa.field("n", pa.int32(), nullable=False)])
    write_deltalake(str(tmp_path), rows_of([1], 0).cast(schema))
    batch = batch_of([1]).set_column(3, "n", pa.array([None], pa.int32()))
    with pytest.raises(RowRefused, match="n: must not be null"):
        rewritten(tmp_path, batch)


# ---- what is read ----------------------------------------------------------------------------------------------------------------------------------


def stored(tmp_path: Path, rows: Any, **options: Any) -> StoredFile:
    parquet.write_table(rows, tmp_path / "f.parquet", **options)
    return StoredFile("f.parquet", (tmp_path / "f.parquet").stat().st_size, {})


def read(tmp_path: Path, file: StoredFile, schema: pa.Schema) -> Any:
    return pa.concat_tables(row_groups(fs.LocalFileSystem(), str(tmp_path), file, schema))


def test_columns_and_fields_that_were_added_later_are_null(tmp_path: Path) -> None:
    old = pa.table(
        {
            "s": pa.array([{"a": 1}, None, {"a": None}]),
            "l": pa.array([[{"a": 1}], None, []]),
            "m": pa.array([[("x", {"a": 1})], None, []], pa.map_(pa.string(), pa.struct([("a", pa.int64())]))),
        }
    )
    inner = pa.struct([("b", pa.string()), ("a", pa.int64())])
    schema = pa.schema([("new", pa.decimal128(38, 2)), ("s", inner), ("l", pa.list_(inner)), ("m", pa.map_(pa.string(), inner))])
    found = read(tmp_path, stored(tmp_path, old), schema)
    assert found.schema == schema
    assert found.to_pylist() == [
        {"new": None, "s": {"b": None, "a": 1}, "l": [{"b": None, "a": 1}], "m": [("x", {"b": None, "a": 1})]},
        {"new": None, "s": None, "l": None, "m": None},
        {"new": None, "s": {"b": None, "a": None}, "l": [], "m": []},
    ]


def test_times_of_spark_reach_beyond_nanoseconds(tmp_path: Path) -> None:
    moments = [datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999)]
    file = stored(tmp_path, pa.table({"t": pa.array(moments, pa.timestamp("us"))}), use_deprecated_int96_timestamps=True)
    assert read(tmp_path, file, pa.schema([("t", pa.timestamp("us", "UTC"))]))["t"].cast(pa.timestamp("us")).to_pylist() == moments


def test_days_of_the_julian_calendar_are_left_to_spark(tmp_path: Path) -> None:
    rows = pa.table({"k": [1]}).replace_schema_metadata({"org.apache.spark.legacyDateTime": ""})
    with pytest.raises(NotRead, match="Julian"):
        read(tmp_path, stored(tmp_path, rows), pa.schema([("k", pa.int64())]))


def test_every_row_group_is_read_and_each_row_once(tmp_path: Path) -> None:
    file = stored(tmp_path, pa.table({"k": np.arange(1000), "d": [Decimal(n) for n in range(1000)]}), row_group_size=64)
    assert read(tmp_path, file, pa.schema([("k", pa.int64())]))["k"].to_pylist() == list(range(1000))


def test_paths_are_those_of_the_log(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"k": [1]}), tmp_path / "a b%.parquet")
    assert read(tmp_path, StoredFile("a%20b%25.parquet", 1, {}), pa.schema([("k", pa.int64())])).num_rows == 1
