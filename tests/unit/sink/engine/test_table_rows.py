"""The rows of a table as tasks read them: values of partition columns, columns that a file lacks, old timestamps, and bounded batches."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from deltalake import write_deltalake

from tests.unit.sink.engine.arrow_tables import opened
from waltz_delta.engine import table_rows
from waltz_delta.engine.arrow_transaction import ArrowTransaction
from waltz_delta.engine.stores import file_system
from waltz_delta.engine.table_rows import ReadPlan
from waltz_delta.errors import NotADeltaTable


def read(path: Path, schema: Any, partition_by: list[str], columns: tuple[str, ...] | None = None) -> list[dict[str, Any]]:
    """All rows, as the tasks of one job return them."""
    table = opened(path)
    found = table.open()
    assert found is not None
    plan = ReadPlan(str(path), {}, columns or tuple(schema.names), schema)
    files, root = file_system(str(path), {})
    listed = table_rows._files(found, partition_by)
    given = [{"path": path, "partition_values": values} for path, values in listed]
    batches = [batch for file in given for batch in table_rows._rows_of_file(plan, files, root, file)]
    return [row for batch in batches for row in batch.to_pylist()]


def test_values_of_partition_columns_come_from_the_log_and_columns_that_a_file_lacks_are_null(tmp_path: Path) -> None:
    made = pa.table(
        {
            "text": ["a b%20c/d", None, "é"],
            "flag": [True, None, False],
            "day": [date(2026, 11, 29), None, date(1, 1, 1)],
            "number": pa.array([-1, None, 7], pa.int32()),
            "id": [0, 1, 2],
        }
    )
    write_deltalake(str(tmp_path), made, partition_by=["text", "flag", "day", "number"])
    write_deltalake(str(tmp_path), made.slice(0, 1).append_column("more", pa.array([5])), mode="append", schema_mode="merge")
    schema = pa.schema([*made.schema, ("more", pa.int64())])
    rows = sorted(read(tmp_path, schema, ["text", "flag", "day", "number"]), key=lambda row: (row["id"], row["more"] is None))
    expected = [{**row, "more": None} for row in made.to_pylist()]
    assert rows == [{**expected[0], "more": 5}, *expected]


def test_columns_have_the_names_that_were_asked_for(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path), pa.table({"Partition": [3], "other": ["x"]}))
    assert read(tmp_path, pa.schema([("partition", pa.int64())]), [], ("Partition",)) == [{"partition": 3}]


def test_a_date_of_the_year_9999_in_sparks_old_format_is_read(tmp_path: Path) -> None:
    last = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
    file, schema = tmp_path / "old.parquet", pa.schema([("at", pa.timestamp("us", "UTC"))])
    parquet.write_table(pa.table({"at": pa.array([last], schema.types[0])}), file, use_deprecated_int96_timestamps=True)
    plan = ReadPlan(str(tmp_path), {}, ("at",), schema)
    found = list(table_rows._rows_of_file(plan, *file_system(str(tmp_path), {}), {"path": file.name, "partition_values": "{}"}))
    assert [batch.to_pylist() for batch in found] == [[{"at": last}]]


def test_a_batch_has_no_more_bytes_than_the_bound_and_no_row_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_rows, "BATCH_BYTES", 10_000)
    file, schema = tmp_path / "f.parquet", pa.schema([("data", pa.binary())])
    payloads = [bytes([number]) * 1_000 for number in range(100)]
    parquet.write_table(pa.table({"data": payloads}, schema=schema), file, use_dictionary=False, compression="none")
    plan = ReadPlan(str(tmp_path), {}, ("data",), schema)
    found = list(table_rows._rows_of_file(plan, *file_system(str(tmp_path), {}), {"path": file.name, "partition_values": "{}"}))
    assert max(batch.nbytes for batch in found) <= 11_000
    assert [row["data"] for batch in found for row in batch.to_pylist()] == payloads


def test_rows_are_those_of_the_version_that_the_transaction_sees(tmp_path: Path) -> None:
    spark: Any = None
    with pytest.raises(NotADeltaTable):
        ArrowTransaction(opened(tmp_path)).rows(spark, ["id"])
    write_deltalake(str(tmp_path), pa.table({"id": [1]}))
    table = opened(tmp_path)
    transaction = ArrowTransaction(table)
    write_deltalake(str(tmp_path), pa.table({"id": [2]}), mode="append")
    later = ArrowTransaction(table)
    assert (transaction.read_version, later.read_version) == (0, 1)
    assert 0 < transaction.files().bytes < later.files().bytes
