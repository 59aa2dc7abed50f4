"""What Spark and the Arrow engine make of each other's tables where `deltalake` was once wrong: the change feed, other checkpoints, decimals."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from waltz_delta import DeltaAppend, DeltaUpsert, SchemaMismatch, high_water_marks
from waltz_delta.engine import store_probe
from waltz_delta.engine.commit_files import ENGINE
from waltz_log.errors import InvalidSetting

KEY = "a9f9d1de-5f7c-4a4e-9d39-50d9bd5c4c11"


def rows(spark: Any, first: int, end: int) -> Any:
    return spark.range(first, end).selectExpr("0 AS partition", "id AS transaction_id", "cast(id AS STRING) AS text")


def ids(spark: Any, path: str) -> list[int]:
    return sorted(row[0] for row in spark.read.format("delta").load(path).select("transaction_id").collect())


def test_the_change_feed_of_spark_has_each_row_of_an_append_once(spark: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    feed = "TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')"
    spark.sql(f"CREATE TABLE delta.`{path}` (partition INT, transaction_id BIGINT, text STRING) USING delta {feed}")
    sink = DeltaAppend(path, KEY, engine="arrow")
    for first in (0, 3):
        sink.write(rows(spark, first, first + 3))
    spark.sql(f"DELETE FROM delta.`{path}` WHERE transaction_id = 1")
    changes = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 0).load(path)
    found = sorted((row._commit_version, row._change_type, row.transaction_id, row.text) for row in changes.collect())
    assert found == [*((1 + at // 3, "insert", at, str(at)) for at in range(6)), (3, "delete", 1, "1")]


def in_parts(spark: Any, path: str) -> None:
    size = "spark.databricks.delta.checkpoint.partSize"
    spark.conf.set(size, "2")
    try:
        checkpoint(spark, path)
    finally:
        spark.conf.unset(size)


def of_version_2(spark: Any, path: str) -> None:
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.checkpointPolicy' = 'v2')")
    checkpoint(spark, path)
    spark.sql(f"ALTER TABLE delta.`{path}` UNSET TBLPROPERTIES ('delta.checkpointPolicy')")


def checkpoint(spark: Any, path: str) -> None:
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, path).checkpoint()


CHECKPOINTS: dict[str, tuple[Callable[[Any, str], None], str]] = {
    "in parts": (in_parts, "[0-9]*.checkpoint.0000000001.*.parquet"),
    "version 2": (of_version_2, "[0-9]*.checkpoint.????????-*"),
}


def delete_commits(log: Path, before: int) -> None:
    for commit in log.glob("*.json"):
        if commit.stem.isdigit() and int(commit.stem) < before:
            commit.unlink()


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_a_table_goes_on_from_a_checkpoint_of_another_kind(spark: Any, tmp_path: Path, kind: str) -> None:
    path, log = str(tmp_path / "t"), tmp_path / "t" / "_delta_log"
    sink = DeltaAppend(path, KEY, engine="arrow")
    for first in range(0, 12, 3):
        sink.write(rows(spark, first, first + 3))
    write, names = CHECKPOINTS[kind]
    write(spark, path)
    newest = max(int(made.name[:20]) for made in log.glob(names))
    delete_commits(log, newest)
    assert high_water_marks(path, KEY) == {0: 11}
    again = DeltaAppend(path, KEY, engine="arrow")
    again.write(rows(spark, 0, 15))
    assert high_water_marks(path, KEY) == {0: 14}
    DeltaTable(path).create_checkpoint()
    delete_commits(log, DeltaTable(path).version())
    # The reader of deltalake for PyArrow does not know the feature `v2Checkpoint`.
    found = QueryBuilder().register("t", DeltaTable(path)).execute("SELECT transaction_id FROM t").read_all()
    assert sorted(pa.table(found)["transaction_id"].to_pylist()) == list(range(15))
    assert ids(spark, path) == list(range(15))


def test_a_decimal_of_another_scale_is_refused_and_one_of_the_same_is_merged_exactly(spark: Any, tmp_path: Path) -> None:
    """deltalake would round it in a MERGE."""
    path = str(tmp_path / "t")
    edges = [Decimal("-9999999999999.99"), Decimal("0.01"), Decimal("9999999999999.99")]
    ddl = "partition INT, transaction_id BIGINT, k INT, price DECIMAL({},{})"
    sink = DeltaUpsert(path, KEY, ["k"], engine="arrow")
    for turn in (0, 1):
        sink.write(spark.createDataFrame([(0, 3 * turn + at, at, edges[at - turn]) for at in range(3)], ddl.format(15, 2)))
    assert [row["price"] for row in DeltaTable(path).to_pyarrow_table().sort_by("k").to_pylist()] == [edges[at - 1] for at in range(3)]
    assert DeltaTable(path).history(1)[0]["engineInfo"] == ENGINE
    with pytest.raises(SchemaMismatch, match="price"):
        DeltaUpsert(path, KEY, ["k"], engine="arrow").write(spark.createDataFrame([(0, 6, 0, Decimal("1.2345"))], ddl.format(15, 4)))


def test_a_file_system_without_hard_links_is_left_to_spark(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(store_probe, "_proven_devices", set())
    monkeypatch.setattr(os, "link", refuse)
    path = str(tmp_path / "t")
    with pytest.raises(InvalidSetting, match="is arrow, and the file system of its directory makes no hard links"):
        DeltaAppend(path, KEY, engine="arrow").write(rows(spark, 0, 3))
    assert not Path(path).exists()
    DeltaAppend(path, KEY, engine="auto").write(rows(spark, 0, 3))
    assert ids(spark, path) == [0, 1, 2]
    assert DeltaTable(path).history(1)[0]["engineInfo"] != ENGINE
    assert "no hard links" in capfd.readouterr().err
