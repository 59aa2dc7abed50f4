"""Both engines on one table, the checks of rows, what other readers find, and the choice of the engine, in a real session."""

from __future__ import annotations

import os
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, get_args
from zoneinfo import ZoneInfo

import pytest
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import functions as f

from pyspark_waltz.options import EARLIEST
from pyspark_waltz.source import SCHEMA
from tests.e2e.edge_values import EDGES, MOMENT, same, written
from verification.lake.races import s3_place
from waltz_delta import DeltaAppend, DeltaUpsert, SchemaMismatch, high_water_marks
from waltz_delta.base import internal
from waltz_delta.engine.arrow_transaction import ArrowTransaction
from waltz_delta.engine.choice import EngineChoice
from waltz_delta.engine.commit_files import ENGINE
from waltz_delta.landing.landing import Landing
from waltz_delta.settings import LandingSettings
from waltz_delta.tables.finished import table_outcome
from waltz_delta.tables.mode import written_as
from waltz_log.errors import InvalidSetting

KEY = "a9f9d1de-5f7c-4a4e-9d39-50d9bd5c4c11"


def rows(spark: Any, first: int, end: int) -> Any:
    return spark.range(first, end).selectExpr("0 AS partition", "id AS transaction_id", "cast(id AS STRING) AS text")


def ids(spark: Any, path: str) -> list[int]:
    return sorted(row[0] for row in spark.read.format("delta").load(path).select("transaction_id").collect())


def test_a_table_goes_on_mark_for_mark_from_one_engine_to_the_other(spark: Any, tmp_path: Path) -> None:
    engines: list[EngineChoice] = ["spark", "arrow", "spark", "arrow"]
    path = str(tmp_path / "t")
    for number, engine in enumerate(engines):
        DeltaAppend(path, KEY, engine=engine).write(rows(spark, max(0, 10 * number - 5), 10 * number + 10))
        assert high_water_marks(path, KEY) == {0: 10 * number + 9}
    assert ids(spark, path) == list(range(40))
    assert sorted(DeltaTable(path).to_pyarrow_table()["transaction_id"].to_pylist()) == list(range(40))
    assert [commit.get("engineInfo") == ENGINE for commit in reversed(DeltaTable(path).history())] == [False, True, False, True]


def test_other_readers_find_each_value_with_and_without_data_skipping(spark: Any, tmp_path: Path) -> None:
    """One file for each row, so that a wrong bound hides it from an equality."""
    path = str(tmp_path / "t")
    ddl = "partition INT, transaction_id BIGINT, " + ", ".join(f"{name} {kind}" for name, (kind, _) in EDGES.items())
    made = [(0, at, *(values[at] for _, values in EDGES.values())) for at in range(3)]
    sink = DeltaAppend(path, KEY, engine="arrow", partition_by=["p"])
    sink.write(spark.createDataFrame(made, ddl).repartition(3, "transaction_id"))
    found = {row.transaction_id: row for row in spark.read.format("delta").load(path).collect()}
    for at in range(3):
        for name, (_, values) in EDGES.items():
            expected = None if name == "p" and at != 1 else values[at]  # as Delta reads such partition values
            assert same(found[at][name], expected), (name, at)
    missed: list[str] = []
    for name, (kind, values) in EDGES.items():
        if kind.startswith(("STRUCT", "MAP", "BINARY")) or name == "p":
            continue
        for at, value in enumerate(values):
            compared = f.col(name).isNull() if value is None else f.col(name) == f.lit(written(value)).cast(kind)
            matching = {row[0] for row in spark.read.format("delta").load(path).where(compared).select("transaction_id").collect()}
            missed += [] if at in matching else [f"{name} = {value!r}"]
    greater = spark.read.format("delta").load(path).where("d > 5").count()
    assert (missed, greater) == ([], 2), "NaN is greater than every number"
    table = DeltaTable(path)
    assert {row["transaction_id"]: row["s"] for row in table.to_pyarrow_table().to_pylist()} == dict(enumerate(EDGES["s"][1]))
    for where, expected in (
        ("n = CAST('12345678901234.5678' AS DECIMAL(18,4))", [0]),
        ("h < 0", [1]),
        ("s = ''", [0]),
        ("a > DATE '9999-12-30'", [1]),
        ("""t < arrow_cast('0001-01-03T00:00:00Z', 'Timestamp(Microsecond, Some("UTC"))')""", [0]),
        ("m >= CAST('9999999999999.99' AS DECIMAL(15,2))", [1]),
    ):
        rows_found = QueryBuilder().register("t", table).execute(f"SELECT transaction_id FROM t WHERE {where}").read_all()
        assert list(map(int, rows_found["transaction_id"].to_pylist())) == expected, where


def test_a_row_that_the_table_forbids_is_refused_and_a_rule_of_the_table_is_left_to_spark(spark: Any, tmp_path: Path, capfd: Any) -> None:
    path = str(tmp_path / "t")
    spark.sql(f"CREATE TABLE delta.`{path}` (partition INT, transaction_id BIGINT, text STRING NOT NULL) USING delta")
    sink = DeltaAppend(path, KEY, engine="arrow")
    sink.write(rows(spark, 0, 3))
    with pytest.raises(SchemaMismatch, match=r"must not be null in the table: .*column=text"):
        sink.write(rows(spark, 3, 5).withColumn("text", f.expr("CASE WHEN transaction_id = 3 THEN text END")))
    assert ids(spark, path) == [0, 1, 2]
    running = DeltaAppend(path, KEY, engine="auto")
    running.write(rows(spark, 3, 5))
    spark.sql(f"ALTER TABLE delta.`{path}` ADD CONSTRAINT short CHECK (length(text) < 2)")
    with pytest.raises(InvalidSetting, match="CHECK constraint short"):
        sink.write(rows(spark, 5, 6))
    running.write(rows(spark, 5, 10))
    with pytest.raises(Exception, match="short"):
        running.write(rows(spark, 10, 11))
    assert ids(spark, path) == list(range(10))
    assert [line for line in capfd.readouterr().err.splitlines() if "table engine chosen" in line and "CHECK constraint short" in line]


def test_columns_are_added_with_their_types_and_seen_by_the_other_engine(spark: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    DeltaAppend(path, KEY, engine="arrow").write(rows(spark, 0, 2))
    more = rows(spark, 2, 4).selectExpr("*", "named_struct('x', 1, 'y-z', array(1.5D)) AS deep", "cast(1 AS DECIMAL(9,2)) AS price")
    DeltaAppend(path, KEY, engine="arrow", evolution="add_columns").write(more)
    DeltaAppend(path, KEY, engine="spark").write(more.withColumn("transaction_id", f.col("transaction_id") + 2))
    found = spark.read.format("delta").load(path).orderBy("transaction_id").collect()
    assert [None if row.deep is None else row.deep["y-z"] for row in found] == [None, None, *[[1.5]] * 4]
    assert [row.price for row in found] == [None, None, *[Decimal("1.00")] * 4]
    assert written_as(internal.TableTransaction(spark, path).properties(), internal.transaction_versions(spark, path), [KEY]) == "append"


def test_an_append_uses_no_class_of_delta_in_the_jvm(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("a class of Delta")

    monkeypatch.setattr(internal.TableTransaction, "__init__", refuse)
    monkeypatch.setattr(internal, "check_versions", refuse)
    monkeypatch.setattr("delta.tables.DeltaTable.isDeltaTable", refuse)
    monkeypatch.setattr("delta.tables.DeltaTable.forPath", refuse)
    path = str(tmp_path / "t")
    target = {"table": path, "engine": "arrow", "evolution": "add_columns"}
    for select in ("data", "data, length(data) AS bytes"):
        settings = LandingSettings.model_validate({"outputs": [{"target": target, "projection": {"select": select}}]})
        landing = Landing(settings, KEY)
        made = spark.createDataFrame([(0, at, MOMENT, 1, b"x") for at in range(5 if select == "data" else 9)], SCHEMA)
        assert landing.starting_transaction_ids(spark, [0]) == f'{{"0": {EARLIEST if select == "data" else 5}}}'
        landing.write(made)
    assert (landing.marks(spark), landing.outputs[0][1].count(spark)) == ({path: {0: 8}}, 9)


def test_a_landing_fills_a_table_on_s3_without_a_jar_for_it(spark: Any) -> None:
    with s3_place() as place:
        path, storage = "s3a://lake/tables/legs", dict(place.storage)
        target = {"table": path, "engine": "auto", "storage": storage, "layout": {"partition_by": ["header"]}}
        settings = LandingSettings.model_validate({"outputs": [{"target": target}]})
        for end in (5, 9):
            made = spark.createDataFrame([(0, at, MOMENT, at % 2, b"x") for at in range(end)], SCHEMA)
            Landing(settings, KEY).write(made)
        landing = Landing(settings, KEY)
        assert landing.starting_transaction_ids(spark, [0]) == '{"0": 9}'
        outcome = table_outcome(spark, landing.outputs[0][1], {0: 4})
        assert (outcome.version, outcome.rows, outcome.transactions, outcome.marks) == (1, 9, 4, {0: 8})
        found = DeltaTable("s3://lake/tables/legs", storage_options=storage).to_pyarrow_table(filters=[("header", "=", 1)])
        assert sorted(found["transaction_id"].to_pylist()) == [1, 3, 5, 7]


def test_a_time_of_a_restore_means_the_same_version_for_both_engines(spark: Any, tmp_path: Path) -> None:
    """Delta records it without a zone, and reads it in the session's."""
    path, zone, berlin = str(tmp_path / "t"), "spark.sql.session.timeZone", ZoneInfo("Europe/Berlin")
    for number in range(3):
        DeltaAppend(path, KEY).write(rows(spark, 10 * number, 10 * number + 10))
        at_s = datetime(2026, 11, 20, 10 + number, tzinfo=berlin).timestamp()
        os.utime(tmp_path / "t" / "_delta_log" / f"{number:020d}.json", (at_s, at_s))
    before = spark.conf.get(zone)
    spark.conf.set(zone, "Europe/Berlin")
    try:
        found = [DeltaAppend(path, KEY, engine=engine).begin(spark).version_until(3, "2026-11-20 11:30:00.0") for engine in get_args(EngineChoice)]
    finally:
        spark.conf.set(zone, before)
    assert found == [1, 1, 1]


def test_fields_and_types_that_deltalake_cannot_add_are_added_by_spark(spark: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    sink = DeltaAppend(path, KEY, evolution="add_columns")
    sink.write(rows(spark, 0, 2).selectExpr("partition", "transaction_id", "named_struct('a', 1) AS s"))
    sink.write(rows(spark, 2, 4).selectExpr("partition", "transaction_id", "named_struct('a', 1, 'b', 'x') AS s"))
    assert isinstance(sink.begin(spark), ArrowTransaction)
    sink.write(rows(spark, 4, 6).selectExpr("partition", "transaction_id", "named_struct('a', 1, 'b', 'x') AS s", "parse_json('[1]') AS v"))
    assert not isinstance(sink.begin(spark), ArrowTransaction), "VARIANT is a feature that this engine does not write"
    found = spark.read.format("delta").load(path).selectExpr("transaction_id", "s.b", "to_json(v)").collect()
    assert sorted(map(tuple, found)) == [(0, None, None), (1, None, None), (2, "x", None), (3, "x", None), (4, "x", "[1]"), (5, "x", "[1]")]
    with pytest.raises(SchemaMismatch, match=r"cannot be added by the Arrow engine.* column=s\.c"):
        other = DeltaAppend(str(tmp_path / "arrow"), KEY, evolution="add_columns", engine="arrow")
        other.write(rows(spark, 0, 2).selectExpr("partition", "transaction_id", "named_struct('a', 1) AS s"))
        other.write(rows(spark, 2, 4).selectExpr("partition", "transaction_id", "named_struct('a', 1, 'c', 'x') AS s"))


def test_a_batch_that_the_driver_does_not_collect_is_merged_by_spark(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "t")
    sink = DeltaUpsert(path, KEY, ["text"])

    def keyed(first: int, end: int) -> Any:
        return rows(spark, first, end).selectExpr(
            "nullif(partition, 1) AS partition", "nullif(transaction_id, -1) AS transaction_id", "nullif(text, '') AS text"
        )

    sink.write(keyed(0, 10))
    size = "Total size of serialized results of 2 tasks (1.2 GiB) is bigger than spark.driver.maxResultSize (1024.0 MiB)"

    def refused(rows: Any) -> Any:
        raise RuntimeError(size)

    with monkeypatch.context() as patched:
        patched.setattr(type(keyed(0, 1)), "toArrow", refused)
        sink.write(keyed(5, 20))
    sink.write(keyed(20, 25))
    assert ids(spark, path) == list(range(25))
    commits = [(commit["operation"], commit.get("engineInfo") == ENGINE) for commit in reversed(DeltaTable(path).history())]
    assert [each for each in commits if each in (("WRITE", True), ("MERGE", False))] == [("WRITE", True), ("MERGE", False), ("WRITE", True)]
