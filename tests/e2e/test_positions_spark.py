"""Log positions of tables that Spark writes: merges, checkpoints of both kinds, and the table as of a position in Spark."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import functions as f

from tools.doc_blocks import blocks
from waltz_delta import DeltaAppend, DeltaUpsert, consistent_cut, dataframe_at, dataset_at, high_water_marks, version_at
from waltz_delta.base import internal
from waltz_delta.base.checkpoints import CHECKPOINTS
from waltz_delta.marks.positions_log import TableLog
from waltz_log.errors import InvalidRequest
from waltz_log.testing import SyncInMemoryCluster

PAGE = Path(__file__).resolve().parents[2] / "docs" / "concepts" / "log_positions.md"

KEY = "a9f9d1de-5f7c-4a4e-9d39-50d9bd5c4c11"


def rows(spark: Any, first: int, end: int) -> Any:
    return spark.range(first, end).selectExpr("0 AS partition", "id AS transaction_id", "cast(id % 4 AS STRING) AS name", "id AS n").coalesce(1)


def test_the_programs_of_the_page_run(spark: Any, tmp_path: Path) -> None:
    programs = [block.text.replace("/lake", str(tmp_path)) for block in blocks(PAGE.name, PAGE.read_text()) if block.language == "python"]
    own_write, as_of, cut = (compile(program, PAGE.name, "exec") for program in programs)
    orders, customers = DeltaAppend(f"{tmp_path}/orders", KEY), DeltaUpsert(f"{tmp_path}/customers", KEY, ["name"])
    orders.write(rows(spark, 0, 42))
    customers.write(rows(spark, 0, 20))
    with SyncInMemoryCluster() as cluster, ThreadPoolExecutor() as job:
        client = cluster.client()
        client.append_bulk(0, [b"{}"] * 42)

        def land() -> None:
            feed = client.feed(0, after=41)
            next(feed)
            feed.close()
            orders.write(rows(spark, 42, 43))

        landed = job.submit(land)
        names: dict[str, Any] = {"client": client, "order": SimpleNamespace(to_json=lambda: b'{"n": 42}')}
        exec(own_write, names)
        landed.result()
    assert (names["receipt"].transaction_id, names["version"]) == (42, 1)
    exec(as_of, names)
    assert (names["before"], sorted(names["rows"]["n"].to_pylist())) == ({0: 42}, list(range(43)))
    orders.write(rows(spark, 43, 50))
    assert dataset_at(f"{tmp_path}/orders", names["before"]).to_table().sort_by("n") == names["rows"].sort_by("n")
    assert version_at(f"{tmp_path}/orders", {0: 41}) == 0
    exec(cut, names)
    assert (names["cut"].position, names["cut"].exact) == ({0: 19}, True)
    assert (names["orders"].count_rows(), names["customers"].count_rows()) == (20, 4)


def test_a_cut_of_tables_that_spark_fills_is_what_both_report(spark: Any, tmp_path: Path) -> None:
    plain, merged = str(tmp_path / "plain"), str(tmp_path / "merged")
    for first, end in ((0, 10), (10, 18), (18, 30)):
        DeltaAppend(plain, KEY).write(rows(spark, first, end))
    for first, end in ((0, 13), (13, 25)):
        DeltaUpsert(merged, KEY, ["name"]).write(rows(spark, first, end))
    assert (high_water_marks(plain), high_water_marks(merged)) == ({0: 29}, {0: 24})
    cut = consistent_cut([plain, merged])
    assert (cut.position, cut.exact, cut.versions[plain]) == ({0: 24}, True, 2)
    fold = {str(at % 4): at for at in range(25)}
    assert {row.name: row.n for row in dataframe_at(spark, merged, cut.position).collect()} == fold
    assert sorted(row.n for row in dataframe_at(spark, plain, cut.position).collect()) == list(range(25))
    assert dataset_at(plain, cut.position).count_rows() == 25
    assert dataframe_at(spark, plain, {0: 24}, exact=False).count() == 30
    assert {row.name: row.n for row in dataframe_at(spark, merged, {0: 12}).collect()} == {str(at % 4): at for at in range(13)}
    with pytest.raises(InvalidRequest, match="exact=False"):
        dataframe_at(spark, merged, {0: 15})


@pytest.mark.parametrize("policy", ["classic", "v2"])
def test_checkpoints_of_spark_keep_the_marks(spark: Any, tmp_path: Path, policy: str) -> None:
    path = str(tmp_path / "t")
    sink = DeltaAppend(path, KEY, properties={"delta.checkpointPolicy": policy, "delta.checkpointInterval": "3"})
    sink.write(rows(spark, 0, 5))
    for last in range(1, 5):
        transaction = internal.TableTransaction(spark, path)
        transaction.mark({f"waltz:{KEY}:0": 4 + last}, query="q", batch=-1, metadata="")
        assert CHECKPOINTS.settle(60), "the checkpoint of this commit is written before the next one"
    log = Path(path, "_delta_log")
    assert any(".checkpoint." in name.name for name in log.iterdir()), "the case is there"
    assert {version: found[f"waltz:{KEY}:0"] for version, found in TableLog(path).newest_first()} == {n: 4 + n for n in range(5)}
    for name in (*log.glob("0000000000000000000[0-2].*"), *log.glob(".0000000000000000000[0-2].*")):
        name.unlink()
    assert high_water_marks(path) == {0: 8}
    assert version_at(path, {0: 8}) == 4


def test_a_late_date_is_written_and_read_as_it_is_and_so_is_one_of_an_older_table(spark: Any, tmp_path: Path) -> None:
    late = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
    rows = spark.sql(f"SELECT 0 AS partition, 0L AS transaction_id, TIMESTAMP '{late:%Y-%m-%d %H:%M:%S}' AS until")
    written, merged, older = str(tmp_path / "written"), str(tmp_path / "merged"), str(tmp_path / "older")
    spark.conf.set("spark.sql.parquet.outputTimestampType", "INT96")
    try:
        rows.write.format("delta").save(older)
        spark.conf.set("spark.sql.parquet.outputTimestampType", "INT96")  # as in a session of the user's own
        DeltaAppend(written, KEY).write(rows)
        spark.conf.set("spark.sql.parquet.outputTimestampType", "INT96")
        DeltaUpsert(merged, KEY, ["until"]).write(rows)
    finally:
        spark.conf.unset("spark.sql.parquet.outputTimestampType")
    for path in (written, merged):
        files = list(Path(path).glob("*.parquet"))
        assert {str(pq.ParquetFile(file).schema.column(2).physical_type) for file in files} == {"INT64"}, "and at least one"
    (old_file,) = Path(older).glob("*.parquet")
    assert str(pq.ParquetFile(old_file).schema.column(2).physical_type) == "INT96"
    DeltaAppend(older, KEY).write(rows.withColumn("transaction_id", f.lit(1).cast("long")))
    for path, position in ((written, {0: 0}), (merged, {0: 0}), (older, {0: 1})):
        found = dataset_at(path, position).to_table()
        assert found.num_rows
        assert set(found["until"].to_pylist()) == {late}
        assert {moment.to_pydatetime() for moment in found.to_pandas()["until"]} == {late}, "pandas keeps the microseconds of the file"
    for path in (written, merged):  # and a reader of the table's files without us
        table = DeltaTable(path)
        assert table.to_pyarrow_table()["until"].to_pylist() == [late]
        assert [moment.to_pydatetime() for moment in table.to_pandas()["until"]] == [late]
