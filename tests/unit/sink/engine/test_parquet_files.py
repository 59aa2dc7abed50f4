"""Files that a task writes: row checks, partition values, names, sizes, and what the file itself says of its columns."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from pyspark.sql import Row

from waltz_delta.engine import parquet_files
from waltz_delta.engine.allowed import TableShape
from waltz_delta.engine.file_statistics import indexed_leaves
from waltz_delta.engine.parquet_files import FilePlan, is_own_file, write_files
from waltz_delta.engine.partition_values import partition_text
from waltz_delta.engine.row_checks import REFUSED, RowRefused, fitted
from waltz_delta.engine.written_files import listed


def plan(place: Path, schema: pa.Schema, **changed: Any) -> FilePlan:
    given: Mapping[str, Any] = {"required": frozenset(), "partition_by": (), "compression": "snappy", "write_id": "0" * 32} | changed
    return FilePlan(location=str(place), storage={}, schema=schema, indexed=tuple(indexed_leaves(schema, {})), **given)


def written(asked: FilePlan, *batches: pa.Table, task: int = 0, attempt: int = 0) -> list[dict[str, Any]]:
    source = iter([batch for each in batches for batch in each.to_batches()])
    return [row for batch in write_files(asked, source, task=task, attempt=attempt) for row in batch.to_pylist()]


def test_a_file_has_the_rows_its_size_after_closing_and_a_name_of_its_attempt(tmp_path: Path) -> None:
    rows = pa.table({"n": pa.array([1, 2, 3], pa.int32())})
    for attempt in (7, 8):
        (found,) = written(plan(tmp_path, rows.schema), rows, rows, task=3, attempt=attempt)
        file = tmp_path / found["path"]
        assert found["size"] == file.stat().st_size
        assert json.loads(found["statistics"])["numRecords"] == 6 == parquet.read_table(file).num_rows
        assert is_own_file(file.name)
    assert len(list(tmp_path.iterdir())) == 2, "a task that runs again writes another file"
    assert written(plan(tmp_path, rows.schema), rows.slice(0, 0)) == []


def test_large_files_are_written_in_row_groups_of_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_files, "ROW_GROUP_BYTES", 1000)
    rows = pa.table({"n": pa.array(range(100), pa.int64())})
    (found,) = written(plan(tmp_path, rows.schema), *[rows] * 5)
    file = parquet.ParquetFile(tmp_path / found["path"])
    assert (file.metadata.num_row_groups, file.metadata.num_rows) == (3, 500)


def test_floats_have_no_bounds_in_the_file_either_at_any_depth(tmp_path: Path) -> None:
    kind = pa.struct([("f", pa.float32()), ("l", pa.list_(pa.float64())), ("n", pa.int64())])
    maps, structs = pa.map_(pa.string(), pa.float64()), [{"f": 1.0, "l": [math.nan], "n": 1}] * 2
    rows = pa.table({"d": [math.nan, 1.0], "s": pa.array(structs, kind), "m": pa.array([[("k", 1.0)]] * 2, maps)})
    (found,) = written(plan(tmp_path, rows.schema), rows)
    group = parquet.ParquetFile(tmp_path / found["path"]).metadata.row_group(0)
    bounded = {group.column(n).path_in_schema for n in range(group.num_columns) if group.column(n).statistics is not None}
    assert bounded == {"s.n", "m.key_value.key"}
    only = pa.table({"d": [1.0]})
    (found,) = written(plan(tmp_path, only.schema), only)
    assert parquet.ParquetFile(tmp_path / found["path"]).metadata.row_group(0).column(0).statistics is None


def test_each_partition_value_has_a_flat_file_without_the_column(tmp_path: Path) -> None:
    odd = ["", "%2F", "..", "a/b", "a=b", "__HIVE_DEFAULT_PARTITION__", "é ü", "null"]
    values = sorted([*odd, None], key=lambda value: (value is not None, value or ""))
    rows = pa.table({"p": pa.array([value for value in values for _ in (0, 1)], pa.string()), "n": pa.array(range(2 * len(values)), pa.int32())})
    found = written(plan(tmp_path, rows.schema, partition_by=("p",)), rows.slice(0, 5), rows.slice(5))
    assert {json.loads(row["partition_values"])["p"] for row in found} == {None, *odd} - {"", "__HIVE_DEFAULT_PARTITION__"}
    assert sum(json.loads(row["statistics"])["numRecords"] for row in found) == rows.num_rows
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(row["path"] for row in found), "no directory, no escaped letter"
    assert all(parquet.read_schema(tmp_path / row["path"]).names == ["n"] for row in found)


def test_partition_values_are_texts_of_deltas_protocol() -> None:
    texts = {None: None, "": None, "x y": "x y", True: "true", False: "false", -5: "-5", date(1, 2, 3): "0001-02-03"}
    assert {value: partition_text(value) for value in texts} == texts


def test_rows_that_do_not_fit_the_table_are_refused_with_one_sentence() -> None:
    schema = pa.schema([("n", pa.int32()), ("t", pa.timestamp("us", "UTC"))])
    fitting = pa.table({"t": pa.array([0], pa.timestamp("us", "America/New_York")), "n": pa.array([1], pa.int32())})
    assert fitted(fitting, schema, {"n"}).schema == schema
    wrong: dict[str, pa.Table] = {
        "n: is int32 in the table, int64 in the rows": fitting.set_column(1, "n", pa.array([1], pa.int64())),
        "n: is int32 in the table, string in the rows": fitting.set_column(1, "n", pa.array(["1"])),
        "t: is timestamp[us, tz=UTC] in the table, timestamp[us] in the rows": fitting.set_column(0, "t", pa.array([0], pa.timestamp("us"))),
        "n: must not be null in the table": fitting.set_column(1, "n", pa.array([None], pa.int32())),
        "n: the rows do not have it": fitting.drop_columns(["n"]),
        "more: the table has no such column": fitting.append_column("more", pa.array([1])),
    }
    for reason, rows in wrong.items():
        with pytest.raises(RowRefused) as refused:
            fitted(rows, schema, {"n"})
        assert str(refused.value) == f"{REFUSED}{reason}\n"


def test_a_nested_column_of_another_type_is_refused_and_other_memory_layouts_are_cast() -> None:
    wanted = pa.schema([("c", pa.list_(pa.struct([("s", pa.string()), ("m", pa.map_(pa.string(), pa.binary()))])))])
    large = pa.list_(pa.struct([("s", pa.large_string()), ("m", pa.map_(pa.string(), pa.large_binary()))]))
    value = [{"s": "x", "m": [("k", b"v")]}]
    assert fitted(pa.table({"c": pa.array([value, None], large)}), wanted, ()).column(0).to_pylist() == [value, None]
    assert fitted(pa.table({"c": pa.array(["x"]).dictionary_encode()}), pa.schema([("c", pa.string())]), ()).column(0).to_pylist() == ["x"]
    other = pa.list_(pa.struct([("s", pa.string()), ("renamed", pa.map_(pa.string(), pa.binary()))]))
    with pytest.raises(RowRefused, match="c: is list"):
        fitted(pa.table({"c": pa.array([[{"s": "x", "renamed": []}]], other)}), wanted, ())


def test_a_task_that_fails_leaves_no_file_and_no_open_stream(tmp_path: Path) -> None:
    good, bad = pa.table({"n": pa.array([1], pa.int32())}), pa.table({"n": pa.array(["x"])})
    with pytest.raises(RowRefused):
        written(plan(tmp_path, good.schema), good, bad)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_listed_twice_in_one_commit_is_refused() -> None:
    """`deltalake` commits it, and every reader then finds its rows twice."""
    rows = [Row(task=0, path=f"part-{at}", size=1, modified_ms=1, partition_values="{}", statistics="{}") for at in (1, 0, 2)]
    assert [action.path for action in listed(rows, TableShape({}, (), {})).added] == ["part-0", "part-1", "part-2"]
    with pytest.raises(AssertionError, match=r"listed twice.*part-1"):
        listed([*rows, rows[0]], TableShape({}, (), {}))


def test_readers_of_spark_know_the_calendar_of_old_days(tmp_path: Path) -> None:
    rows = pa.table({"d": pa.array([date(1, 1, 1)], pa.date32())})
    (found,) = written(plan(tmp_path, rows.schema), rows)
    assert int(parquet.ParquetFile(tmp_path / found["path"]).metadata.metadata[b"org.apache.spark.version"].split(b".")[0]) >= 3


def test_a_day_outside_of_pythons_years_is_a_partition_value_too(tmp_path: Path) -> None:
    days = [-800_000, -719_163, 2_932_897]
    rows = pa.table({"d": pa.array(days, pa.int32()).cast(pa.date32()), "n": pa.array([1, 2, 3], pa.int32())})
    found = written(plan(tmp_path, rows.schema, partition_by=("d",)), rows)
    assert [json.loads(row["partition_values"]) for row in found] == [{"d": "-0221-09-04"}, {"d": "0000-12-31"}, {"d": "+10000-01-01"}]
