"""Maintenance by the engine that writes a table: Spark reads what the Arrow engine compacted and cleaned up, and goes on with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.e2e.edge_values import EDGES
from verification.lake.races import s3_place
from waltz_delta import DeltaAppend, high_water_marks
from waltz_delta.engine.choice import EngineChoice
from waltz_delta.engine.compaction import Compacted
from waltz_delta.jobs.maintain import Needs, maintain_table, retention
from waltz_delta.jobs.maintained_tables import Tables, chosen
from waltz_log.errors import InvalidSetting

KEY = "a9f9d1de-5f7c-4a4e-9d39-50d9bd5c4c11"
SMALL = 1 << 20
DDL = "partition INT, transaction_id BIGINT, " + ", ".join(f"{name} {kind}" for name, (kind, _) in EDGES.items())
INT96 = "spark.sql.parquet.outputTimestampType"


def rows(spark: Any, first: int) -> Any:
    return spark.createDataFrame([(0, first + at, *(values[at] for _, values in EDGES.values())) for at in range(3)], DDL)


def all_rows(spark: Any, path: str) -> list[str]:
    return sorted(map(repr, spark.read.format("delta").load(path).collect()))


@pytest.fixture
def old_times(spark: Any) -> Iterator[None]:
    """Spark writes times in 96 bits, its default until version 4."""
    before = spark.conf.get(INT96)
    spark.conf.set(INT96, "INT96")
    yield
    spark.conf.set(INT96, before)


@pytest.mark.parametrize("partition_by", [[], ["p"]])
def test_spark_reads_what_the_arrow_engine_compacted_and_cleaned_up(spark: Any, tmp_path: Path, old_times: None, partition_by: list[str]) -> None:
    path = str(tmp_path / "t")
    engines: list[EngineChoice] = ["spark", "arrow", "spark", "arrow"]
    for number, engine in enumerate(engines):
        DeltaAppend(path, KEY, engine=engine, partition_by=partition_by).write(rows(spark, 3 * number))
    before, version, marks = all_rows(spark, path), DeltaTable(path).version(), high_water_marks(path)
    tables = chosen(spark, [path], "auto", {})
    assert list(tables.arrow) == [path]
    assert "nothing that this engine does not write" in tables.reasons[path]
    files = len(DeltaTable(path).file_uris())
    dry = maintain_table(tables, path, Needs(hours=0.0), small_bytes=SMALL, dry_run=True)
    assert (dry.engine, dry.before.files, dry.after, dry.compacted) == ("arrow", files, None, None)
    kept = maintain_table(tables, path, Needs(versions=(version,)), small_bytes=SMALL)
    assert kept.compacted is not None
    odd = 2 if partition_by else 0  # Spark's two files of a partition whose name deltalake escapes otherwise
    assert kept.compacted == Compacted(removed=files - odd, added=2 if partition_by else 1, left=odd)
    assert kept.after is not None
    assert kept.after.files == kept.compacted.added + odd
    spark.catalog.clearCache()
    assert all_rows(spark, path) == before
    assert high_water_marks(path) == marks
    assert spark.read.format("delta").option("versionAsOf", version).load(path).count() == 12, "files that were removed a moment ago"
    for name, (kind, values) in EDGES.items():
        if kind in ("BIGINT", "INT", "STRING", "DATE", "DOUBLE") and name != "p":
            literal = f"CAST('{values[1]}' AS {kind})" if kind != "STRING" else f"'{values[1]}'"
            assert spark.read.format("delta").load(path).where(f"{name} = {literal}").count() == 4, name
    cleaned = maintain_table(tables, path, Needs(hours=0.0), small_bytes=SMALL)
    assert cleaned.compacted == Compacted(left=odd)
    assert cleaned.vacuumed is not None
    assert cleaned.vacuumed >= (0 if partition_by else files), "of other paths the files stay"
    assert all_rows(spark, path) == before
    DeltaAppend(path, KEY).write(rows(spark, 12))
    spark.sql(f"OPTIMIZE delta.`{path}`")
    spark.sql(f"DELETE FROM delta.`{path}` WHERE transaction_id = 0")
    assert spark.read.format("delta").load(path).count() == 14
    assert spark.read.format("delta").load(path).where("transaction_id = 14").count() == 1


def test_a_table_on_s3_is_maintained_without_a_jar_for_it(spark: Any) -> None:
    with s3_place() as place:
        path, storage = "s3a://lake/tables/t", dict(place.storage)
        for number in range(3):
            DeltaAppend(path, KEY, storage=storage).write(
                spark.range(5 * number, 5 * number + 5).selectExpr("0 AS partition", "id AS transaction_id")
            )
        tables = chosen(spark, [path], "auto", {path: storage})
        assert retention(tables, path, Needs(positions=({0: 9},)))[1] == "the table's own"
        done = maintain_table(tables, path, Needs(hours=0.0, positions=({0: 9},)), small_bytes=SMALL)
        assert (done.engine, done.compacted) == ("arrow", Compacted(removed=done.before.files, added=1))
        assert done.because == 'log position {"0": 9}'
        found = DeltaTable("s3://lake/tables/t", storage_options=storage)
        assert sorted(found.to_pyarrow_table()["transaction_id"].to_pylist()) == list(range(15))
        done = maintain_table(tables, path, Needs(hours=0.0), small_bytes=SMALL)
        assert done.vacuumed is not None
        assert done.vacuumed >= 3
        assert sorted(found.to_pyarrow_table()["transaction_id"].to_pylist()) == list(range(15))


def test_a_table_whose_pipeline_names_sparks_engine_is_maintained_by_it(spark: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    DeltaAppend(path, KEY, engine="spark").write(spark.range(5).selectExpr("0 AS partition", "id AS transaction_id"))
    for sparks, reason in ([path], "the setting engine is spark"), ([], "nothing that this engine does not write"):
        found = chosen(spark, [path], "auto", {}, sparks=sparks)
        assert (path in found.arrow, reason in found.reasons[path]) == (not sparks, True)


def test_a_clustered_table_is_left_to_spark_with_the_reason(spark: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    spark.sql(f"CREATE TABLE delta.`{path}` (id BIGINT) USING delta CLUSTER BY (id)")
    for number in range(2):
        spark.range(number, number + 1).write.format("delta").mode("append").save(path)
    tables = chosen(spark, [path], "auto", {})
    assert (tables.arrow, "clustering" in tables.reasons[path]) == ({}, True)
    done = maintain_table(tables, path, Needs(), small_bytes=SMALL)
    assert (done.engine, done.compacted) == ("spark", None)
    assert done.after is not None
    assert done.after.files == 1
    with pytest.raises(InvalidSetting, match=r"arrow.*clustering"):
        chosen(spark, [path], "arrow", {})
    assert Tables(spark).is_there(path)
