"""Readers of a table that the Arrow engine wrote agree with each other on every type: Spark with and without data skipping, DuckDB, and DataFusion.

Each row has a file of its own, so that a wrong bound hides it from a filter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, date, datetime
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from tests.e2e.edge_values import EDGES, MOMENT, written
from waltz_delta import DeltaAppend
from waltz_delta.base.dataset import open_dataset

KEY = "a9f9d1de-5f7c-4a4e-9d39-50d9bd5c4c11"
WALL = [datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999), MOMENT.replace(tzinfo=None)]
COLUMNS = {**EDGES, "w": ("TIMESTAMP_NTZ", WALL)}
SCALARS = {name: (kind, values) for name, (kind, values) in COLUMNS.items() if not kind.startswith(("STRUCT", "MAP")) and name != "p"}
SKIPPING = "spark.databricks.delta.stats.skipping"

Found = Mapping[str, set[int]]
"""The ids of the rows that each condition keeps, by its name."""


@pytest.fixture(scope="module")
def path(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A table of three rows, each in a file of its own."""
    place = str(tmp_path_factory.mktemp("readers") / "t")
    ddl = "partition INT, transaction_id BIGINT, " + ", ".join(f"{name} {kind}" for name, (kind, _) in COLUMNS.items())
    made = [(0, at, *(values[at] for _, values in COLUMNS.values())) for at in range(3)]
    DeltaAppend(place, KEY, engine="arrow", partition_by=["p"]).write(spark.createDataFrame(made, ddl).repartition(3, "transaction_id"))
    assert len(DeltaTable(place).file_uris()) == 3
    return place


def spark_literal(kind: str, value: Any) -> str:
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    text = written(value).replace("\\", "\\\\").replace("'", "\\'")
    return f"CAST('{text}' AS {kind})"


def duckdb_literal(kind: str, value: Any) -> str:
    if isinstance(value, bytes):
        return f"from_hex('{value.hex()}')"
    types = {"STRING": "VARCHAR", "TIMESTAMP": "TIMESTAMPTZ", "TIMESTAMP_NTZ": "TIMESTAMP"}
    return f"CAST('{quoted(value)}' AS {types.get(kind, kind)})"


def datafusion_literal(kind: str, value: Any) -> str:
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    if isinstance(value, datetime):
        zone = "None" if value.tzinfo is None else 'Some("UTC")'
        return f"arrow_cast('{quoted(value)}', 'Timestamp(Microsecond, {zone})')"
    return f"CAST('{quoted(value)}' AS {'VARCHAR' if kind == 'STRING' else kind})"


def quoted(value: Any) -> str:
    return written(value).replace("'", "''")


def conditions(literal: Any) -> Iterator[tuple[str, str]]:
    """Each condition by a name that is the same for all readers."""
    for name, (kind, values) in SCALARS.items():
        for value in values:
            if value is None:
                yield f"{name} is null", f"{name} IS NULL"
                continue
            for operator in ("=", "<", ">", "<=", ">="):
                yield f"{name} {operator} {value!r}", f"{name} {operator} {literal(kind, value)}"


def expected(spark: Any, path: str) -> Found:
    """All conditions of each row in one query without a filter: no file and no row group can be skipped."""
    before = spark.conf.get(SKIPPING, "true")
    spark.conf.set(SKIPPING, "false")
    try:
        named = list(conditions(spark_literal))
        columns = [f"coalesce({condition}, false) AS c{at}" for at, (_, condition) in enumerate(named)]
        rows = spark.read.format("delta").load(path).selectExpr("transaction_id", *columns).collect()
    finally:
        spark.conf.set(SKIPPING, before)
    assert [row.transaction_id for row in sorted(rows)] == [0, 1, 2]
    return {name: {row.transaction_id for row in rows if row[f"c{at}"]} for at, (name, _) in enumerate(named)}


def differences(found: Iterable[tuple[str, set[int]]], wanted: Found) -> list[str]:
    given = dict(found)
    assert set(given) == set(wanted)
    return [f"{name}: {sorted(given[name])}, not {sorted(wanted[name])}" for name in wanted if given[name] != wanted[name]]


def test_filters_at_the_edges_of_every_type_find_the_same_rows_in_every_reader(spark: Any, path: str) -> None:
    wanted = expected(spark, path)
    frame = spark.read.format("delta").load(path)
    skipping = (
        (name, {row[0] for row in frame.where(condition).select("transaction_id").collect()}) for name, condition in conditions(spark_literal)
    )
    assert differences(skipping, wanted) == []

    duck = duckdb.connect()
    duck.execute("SET TimeZone = 'UTC'")
    duck.register("t", open_dataset(path))
    by_duckdb = (
        (name, {row[0] for row in duck.execute(f"SELECT transaction_id FROM t WHERE {condition}").fetchall()})
        for name, condition in conditions(duckdb_literal)
    )
    assert differences(by_duckdb, wanted) == []

    builder = QueryBuilder().register("t", DeltaTable(path))
    by_datafusion = (
        (name, set(map(int, pa.table(builder.execute(f"SELECT transaction_id FROM t WHERE {condition}").read_all())["transaction_id"].to_pylist())))
        for name, condition in conditions(datafusion_literal)
    )
    assert differences(by_datafusion, wanted) == []


def test_joins_on_keys_at_the_edges_of_every_type_find_each_row_once_in_every_reader(spark: Any, path: str) -> None:
    held = DeltaTable(path).to_pyarrow_table()
    each = {(at, at) for at in range(3)}
    duck = duckdb.connect()
    duck.register("t", open_dataset(path))
    duck.register("k", held)
    frame = spark.read.format("delta").load(path)
    for name in SCALARS:
        query = f"SELECT t.transaction_id, k.transaction_id FROM t JOIN k ON t.{name} IS NOT DISTINCT FROM k.{name}"
        assert sorted(duck.execute(query).fetchall()) == sorted(each), name
        keys = frame.select("transaction_id", name).withColumnRenamed("transaction_id", "other").withColumnRenamed(name, "key")
        joined = frame.join(keys, frame[name].eqNullSafe(keys["key"])).select("transaction_id", "other").collect()
        assert sorted(map(tuple, joined)) == sorted(each), name


def test_duckdb_finds_each_value_as_it_was_written(path: str) -> None:
    duck = duckdb.connect()
    duck.execute("SET TimeZone = 'UTC'")
    duck.register("t", open_dataset(path))
    found = duck.sql("SELECT * FROM t ORDER BY transaction_id").to_arrow_table()
    for name, (kind, values) in COLUMNS.items():
        if name != "p":
            given = found[name].to_pylist(maps_as_pydicts="strict")
            assert list(map(comparable, given)) == list(map(comparable, values)), (name, kind)


def comparable(value: Any) -> Any:
    """NaN is not equal to itself, and 0.0 is equal to -0.0."""
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC)
    return value if not isinstance(value, date) or isinstance(value, datetime) else value.isoformat()
