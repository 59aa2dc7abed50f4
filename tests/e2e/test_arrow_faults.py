"""What Spark and the Arrow engine make of each other's tables where `deltalake` was once wrong: the change feed, decimals, hard links."""

from __future__ import annotations

import errno
import os
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from waltz_delta import DeltaAppend, DeltaUpsert, SchemaMismatch
from waltz_delta.engine import store_probe
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


def test_a_decimal_of_another_scale_is_refused_and_one_of_the_same_is_merged_exactly(spark: Any, tmp_path: Path) -> None:
    """deltalake would round it in a MERGE."""
    path = str(tmp_path / "t")
    edges = [Decimal("-9999999999999.99"), Decimal("0.01"), Decimal("9999999999999.99")]
    ddl = "partition INT, transaction_id BIGINT, k INT, price DECIMAL({},{})"
    sink = DeltaUpsert(path, KEY, ["k"], engine="arrow")
    for turn in (0, 1):
        sink.write(spark.createDataFrame([(0, 3 * turn + at, at, edges[at - turn]) for at in range(3)], ddl.format(15, 2)))
    assert [row["price"] for row in DeltaTable(path).to_pyarrow_table().sort_by("k").to_pylist()] == [edges[at - 1] for at in range(3)]
    assert "delta-rs" in DeltaTable(path).history(1)[0]["engineInfo"]
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
    assert "delta-rs" not in DeltaTable(path).history(1)[0]["engineInfo"]
    assert "no hard links" in capfd.readouterr().err
