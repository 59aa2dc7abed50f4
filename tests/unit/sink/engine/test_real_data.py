"""Real data, and shapes of real data, from JSON to the files of a table: another reader finds each value in its place (tests/data/real/README.md)."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VariantType,
)

from tests.unit.sink.engine.arrow_tables import METADATA, opened
from waltz_delta.decode.decode_batch import BatchDecoder
from waltz_delta.decode.decoding_plan import DecodingPlan
from waltz_delta.decode.row_checks import Checks
from waltz_delta.engine.allowed import TableShape
from waltz_delta.engine.arrow_schema import arrow_schema
from waltz_delta.engine.arrow_transaction import ArrowTransaction
from waltz_delta.engine.file_statistics import indexed_leaves
from waltz_delta.engine.log_actions import AddFile
from waltz_delta.engine.parquet_files import FilePlan, write_files
from waltz_delta.engine.written_files import WrittenFiles, delta_schema
from waltz_delta.marks.batch import DATA, PROBLEM
from waltz_delta.settings import DecodeSettings

REAL = Path(__file__).parents[3] / "data" / "real"
COMMITS = 3
TEXT, LEG = StringType(), IntegerType()


def struct(**kinds: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in kinds.items()])


def listed(kind: DataType, depth: int = 1) -> DataType:
    return ArrayType(kind) if depth == 1 else ArrayType(listed(kind, depth - 1))


COLUMNS = {
    "languages": struct(letter=TEXT, languages=MapType(TEXT, MapType(TEXT, listed(TEXT)))),
    "territories": struct(locale=TEXT, names=MapType(TEXT, TEXT)),
    "media_types": struct(name=TEXT, source=TEXT, charset=TEXT, compressible=BooleanType(), extensions=listed(TEXT)),
    "countries": struct(type=TEXT, id=TEXT, properties=struct(name=TEXT), geometry=struct(type=TEXT, coordinates=listed(DoubleType(), 4))),
    "zone_changes": struct(zone=TEXT, at=TimestampType(), offset_s=LEG, summer=BooleanType(), abbreviation=TEXT),
}


def decoded(columns: StructType, documents: Sequence[bytes]) -> pa.Table:
    """The rows, of which each must decode."""
    kept = StructField("transaction_id", LongType())
    texts = [StructField(each.name, TEXT if isinstance(each.dataType, VariantType) else each.dataType) for each in columns.fields]
    result = StructType([kept, *texts, StructField(DATA, BinaryType()), StructField(PROBLEM, TEXT)])
    settings = DecodeSettings(format="json", columns="declared apart")
    decoder = BatchDecoder(DecodingPlan(("transaction_id",), columns, result, settings, "UTC", Checks(), None))
    given = pa.RecordBatch.from_pydict({"transaction_id": pa.array(range(len(documents)), pa.int64()), "data": pa.array(documents, pa.binary())})
    rows = pa.Table.from_batches([decoder.decode(given)])
    assert rows[PROBLEM].drop_null().to_pylist() == []
    return rows.drop_columns([DATA, PROBLEM])


def appended(path: Path, columns: StructType, documents: Sequence[bytes]) -> list[dict[str, Any]]:
    """The rows of the table in the order of the log, as deltalake reads them."""
    shape = TableShape(delta_schema(StructType([StructField("transaction_id", LongType()), *columns.fields])), (), {})
    schema, table, rows = arrow_schema(shape.schema), opened(path), decoded(columns, documents)
    for number in range(COMMITS):
        plan = FilePlan(table.location, {}, schema, frozenset(), (), tuple(indexed_leaves(schema, {})), "snappy", f"{number:032d}")
        part = rows.slice(number * len(rows) // COMMITS, (number + 1) * len(rows) // COMMITS - number * len(rows) // COMMITS)
        files = [each for batch in write_files(plan, iter(part.to_batches()), task=0, attempt=0) for each in batch.to_pylist()]
        actions = [AddFile(each["path"], each["size"], {}, each["modified_ms"], each["statistics"]) for each in files]
        ArrowTransaction(table).commit(WrittenFiles(tuple(actions), shape), {"waltz:key:0": number}, query="waltz", batch=-1, metadata=METADATA)
    found: list[dict[str, Any]] = DeltaTable(str(path)).to_pyarrow_table().sort_by("transaction_id").to_pylist(maps_as_pydicts="strict")
    assert [row.pop("transaction_id") for row in found] == list(range(len(documents)))
    return found


def values(path: str, value: Any) -> Iterator[tuple[str, str]]:
    """Each value that is there with its path, as the README describes them."""
    if isinstance(value, dict | list):
        for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from values(f"{path}/{name}", inner)
    elif isinstance(value, bool):
        yield path, str(value).lower()
    elif isinstance(value, int | float):
        yield path, str(math.floor(value * 1e4 + 0.5))
    elif isinstance(value, datetime):
        yield path, value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    elif value is not None:
        yield path, value


def sums(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    found = [(number, path, text) for number, row in enumerate(rows) for path, text in values("", row)]
    placed = sum(zlib.crc32(f"{path}={text}".encode()) * (number + 1) for number, path, text in found)
    return {"rows": len(rows), "values": len(found), "letters": sum(len(text) for *_, text in found), "placed": str(placed)}


@pytest.mark.parametrize("name", COLUMNS)
def test_another_reader_finds_each_value_of_real_data(tmp_path: Path, name: str) -> None:
    documents = (REAL / f"{name}.jsonl").read_bytes().splitlines()
    assert sums(appended(tmp_path / name, COLUMNS[name], documents)) == json.loads((REAL / "sums.json").read_text())[name]


def test_every_file_of_real_data_has_sums_and_columns_and_is_small() -> None:
    names = {path.stem for path in REAL.glob("*.jsonl")}
    assert names == set(COLUMNS) == set(json.loads((REAL / "sums.json").read_text()))
    assert max(path.stat().st_size for path in REAL.glob("*.jsonl")) < 100_000


def test_429_columns_of_which_most_are_empty_keep_their_places(tmp_path: Path) -> None:
    kinds: list[DataType] = [LEG, TEXT, DoubleType(), BooleanType(), LongType(), TimestampType(), listed(LEG)]
    columns = StructType([StructField(f"{'Ünit' if at % 5 else 'a.b'} {at}", kinds[at % len(kinds)]) for at in range(429)])
    start = datetime(2026, 1, 2, tzinfo=UTC)

    def value(row: int, at: int) -> Any:
        made: list[Any] = [row - at, f"{row}·{at}", row / 7, row % 2 == 0, row << 40, start + timedelta(seconds=row, microseconds=at), [row, at]]
        return made[at % len(kinds)]

    expected = [{field.name: value(row, at) if (row * at) % 11 == 1 else None for at, field in enumerate(columns.fields)} for row in range(40)]
    documents = [json.dumps({name: each for name, each in row.items() if each is not None}, default=datetime.isoformat).encode() for row in expected]
    assert appended(tmp_path / "wide", columns, documents) == expected


def test_a_column_with_values_of_every_type_keeps_each_as_it_is() -> None:
    every = [1, -0.5, "1", "", True, None, [], [1, "a", None], {}, {"a": {"b": [{}]}}, "\u0000\U0001f600", 1e300, 12345678901234567890]
    rows = decoded(struct(v=VariantType(), n=LEG), [json.dumps({"v": each, "n": at}).encode() for at, each in enumerate(every)])
    found = [None if text is None else json.loads(text) for text in rows["v"].to_pylist()]
    assert [(type(each), each) for each in found] == [(type(each), each) for each in every]
    assert rows["n"].to_pylist() == list(range(len(every)))
