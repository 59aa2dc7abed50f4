"""A filter on any column of any type finds its rows through a dataset of the product, and files outside of its range are still not read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as _pc
import pytest
from deltalake import DeltaTable

from tests.unit.sink.engine.arrow_tables import METADATA, opened
from waltz_delta.base.dataset import open_dataset
from waltz_delta.engine.allowed import TableShape
from waltz_delta.engine.arrow_schema import arrow_schema
from waltz_delta.engine.arrow_transaction import ArrowTransaction
from waltz_delta.engine.file_statistics import indexed_leaves
from waltz_delta.engine.log_actions import AddFile
from waltz_delta.engine.parquet_files import FilePlan, write_files
from waltz_delta.engine.written_files import WrittenFiles

pc: Any = _pc

COLUMNS: Mapping[str, tuple[str, list[Any]]] = {
    "binary": ("binary", [b"", b"\xff", None]),
    "boolean": ("boolean", [True, False, None]),
    "date": ("date", [date(1, 1, 1), date(9999, 12, 31), None]),
    "decimal": ("decimal(38,0)", [Decimal(10**37 + 1), Decimal(-(10**37) - 1), None]),
    "double": ("double", [math.inf, -0.0, 1.5]),
    "empty": ("integer", [None, None, 1]),
    "float": ("float", [-math.inf, 2.5, None]),
    "integer": ("integer", [-5, 7, 9]),
    "price": ("decimal(15,2)", [Decimal("-1.25"), Decimal("0.01"), None]),
    "text": ("string", ["", "x" * 40, None]),
    "time": ("timestamp", [datetime(1, 1, 2, tzinfo=UTC), datetime(2026, 1, 2, 3, 4, 5, 678901, UTC), None]),
    "p": ("string", ["a", "50% /=\u00e9", None]),
}


def written(path: Path, partition_by: tuple[str, ...] = ()) -> None:
    """A file for each row."""
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, (kind, _) in COLUMNS.items()]
    shape = TableShape({"type": "struct", "fields": fields}, partition_by, {})
    schema, table = arrow_schema(shape.schema), opened(path)
    for at in range(3):
        plan = FilePlan(table.location, {}, schema, frozenset(), partition_by, tuple(indexed_leaves(schema, {})), "snappy", f"{at:032d}")
        rows = pa.Table.from_pylist([{name: values[at] for name, (_, values) in COLUMNS.items()}], schema=schema)
        (file,) = (row for batch in write_files(plan, iter(rows.to_batches()), task=0, attempt=0) for row in batch.to_pylist())
        values = {name: COLUMNS[name][1][at] for name in partition_by}
        action = AddFile(file["path"], file["size"], values, file["modified_ms"], file["statistics"])
        ArrowTransaction(table).commit(WrittenFiles((action,), shape), {"m": at}, query="q", batch=-1, metadata=METADATA)


@pytest.mark.parametrize("partition_by", [(), ("p",)])
def test_a_filter_on_any_column_finds_its_row(tmp_path: Path, partition_by: tuple[str, ...]) -> None:
    written(tmp_path, partition_by)
    dataset = open_dataset(str(tmp_path))
    whole = dataset.to_table()
    assert whole.num_rows == 3
    for name, (_, values) in COLUMNS.items():
        for value in values:
            field = pc.field(name)
            filters = [field.is_null()] if value is None else [field == pa.scalar(value, dataset.schema.field(name).type), field.is_valid()]
            for wanted in filters:
                assert dataset.to_table(filter=wanted).num_rows == whole.filter(wanted).num_rows > 0, (name, value)


@pytest.mark.parametrize(("name", "value"), [("integer", 7), ("text", "x" * 40), ("date", date(9999, 12, 31)), ("p", "50% /=\u00e9")])
def test_a_file_outside_of_the_range_of_a_filter_is_not_read(tmp_path: Path, name: str, value: Any) -> None:
    written(tmp_path, ("p",))
    dataset = open_dataset(str(tmp_path))
    for file in pa.table(DeltaTable(str(tmp_path)).get_add_actions(flatten=True)).to_pylist():
        if file["min.integer"] == COLUMNS["integer"][1][0]:
            (tmp_path / file["path"]).unlink()
    assert dataset.to_table(filter=(pc.field(name) == value) & pc.field(name).is_valid())["integer"].to_pylist() == [7]


def test_a_table_without_files_has_no_rows(tmp_path: Path) -> None:
    fields = [{"name": "n", "type": "integer", "nullable": True, "metadata": {}}]
    nothing = WrittenFiles((), TableShape({"type": "struct", "fields": fields}, (), {}))
    ArrowTransaction(opened(tmp_path)).commit(nothing, {"m": 1}, query="q", batch=-1, metadata=METADATA)
    assert open_dataset(str(tmp_path)).to_table(filter=pc.field("n") == 1).num_rows == 0
