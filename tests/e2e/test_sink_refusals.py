"""Tables that the sink does not write, in a real session: every way refuses them before it writes anything."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from waltz_delta import DeltaAppend, DeltaHistory, DeltaUpsert
from waltz_delta.base.internal import TableTransaction
from waltz_delta.base.log_store import SINGLE_DRIVER
from waltz_delta.errors import UnsafeTable
from waltz_delta.jobs.maintain import Needs, maintain_table
from waltz_delta.jobs.maintained_tables import Tables
from waltz_delta.landing.dead_letters import DeadLetters
from waltz_delta.settings import DeleteSettings

KEY = "00000000-0000-0000-0000-000000000001"

WELL_FORMED = ({"catalogManaged", "vacuumProtocolCheck"}, {"inCommitTimestamp"})
"""Delta 4.4 opens such a table by its path."""

UNKNOWN = ({"catalogOwned-preview"}, set[str]())
"""Delta 4.4 does not."""


def rows(spark: Any, first: int = 0) -> Any:
    return spark.range(first, first + 3).selectExpr("0 AS partition", "id AS transaction_id", "id AS k", "timestamp'2026-01-01' AS timestamp")


def plant(spark: Any, table: Path, features: tuple[set[str], set[str]]) -> None:
    """Makes the table one of a catalog, as its log says."""
    both, writer = features
    commit = table / "_delta_log" / f"{0:020d}.json"
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    for action in actions:
        if "protocol" in action:
            action["protocol"] = {
                "minReaderVersion": 3,
                "minWriterVersion": 7,
                "readerFeatures": sorted(both),
                "writerFeatures": sorted(both | writer | {"appendOnly", "invariants"}),
            }
        if "commitInfo" in action and "inCommitTimestamp" in writer:
            action["commitInfo"]["inCommitTimestamp"] = action["commitInfo"]["timestamp"]
        if "metaData" in action and "inCommitTimestamp" in writer:
            action["metaData"]["configuration"] |= {"delta.enableInCommitTimestamps": "true"}
    actions.sort(key=lambda action: "commitInfo" not in action)
    commit.write_text("".join(json.dumps(action) + "\n" for action in actions))
    for left in commit.parent.glob("*.crc"):
        left.unlink()
    for left in commit.parent.glob(".*.crc"):
        left.unlink()
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()


def files(table: Path) -> set[str]:
    return {str(path) for path in table.rglob("*")} if table.exists() else set()


def upsert(path: str, spark: Any) -> None:
    DeltaUpsert(path, KEY, ["k"]).write(rows(spark))


def tombstones(path: str, spark: Any) -> None:
    deletes = DeleteSettings(where="k = 1", tombstones=path)
    DeltaUpsert(f"{path}_rows", KEY, ["k"], deletes=deletes, remember_deletes=True).write(rows(spark))


WAYS: dict[str, Callable[[str, Any], object]] = {
    "append": lambda path, spark: DeltaAppend(path, KEY).write(rows(spark)),
    "append by either engine": lambda path, spark: DeltaAppend(path, KEY, engine="auto").write(rows(spark)),
    "clustered append": lambda path, spark: DeltaAppend(path, KEY, cluster_by=["k"]).write(rows(spark)),
    "upsert": upsert,
    "history": lambda path, spark: DeltaHistory(path, KEY, ["k"]).write(rows(spark)),
    "tombstones": tombstones,
    "dead letters": lambda path, spark: DeadLetters(path, KEY).prepare(spark),
    "maintenance": lambda path, spark: maintain_table(Tables(spark), path, Needs(), small_bytes=1 << 20),
    "marks": lambda path, spark: TableTransaction(spark, path).mark({"a": 1}, query="q", batch=0, metadata="{}"),
}


@pytest.mark.parametrize("features", [WELL_FORMED, UNKNOWN], ids=["catalogManaged", "catalogOwned-preview"])
def test_a_catalog_managed_table_is_refused_by_every_way_and_left_as_it_is(spark: Any, tmp_path: Path, features: tuple[set[str], set[str]]) -> None:
    table = tmp_path / "legs"
    rows(spark).write.format("delta").save(str(table))
    plant(spark, table, features)
    before = files(table)
    for name, way in WAYS.items():
        with pytest.raises(UnsafeTable, match="catalog") as raised:
            way(str(table), spark)
        assert raised.value.path == str(table), name
    assert files(table) == before


def test_a_new_table_is_not_made_one_of_a_catalog(spark: Any, tmp_path: Path) -> None:
    ways: dict[str, DeltaAppend | DeltaUpsert] = {
        "append": DeltaAppend(str(tmp_path / "a"), KEY, properties={"delta.feature.catalogManaged": "supported"}),
        "upsert": DeltaUpsert(str(tmp_path / "b"), KEY, ["k"], properties={"delta.feature.catalogOwned-preview": "supported"}),
    }
    for name, way in ways.items():
        with pytest.raises(UnsafeTable, match="catalog"):
            way.write(rows(spark))
        assert not list(tmp_path.rglob("*.parquet")), name


def test_every_way_refuses_a_store_where_two_drivers_could_write_one_version(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The session's store for local files is one that Delta does not know to create a commit only if it is not there."""
    monkeypatch.setattr("waltz_delta.base.log_store._judged", {})
    monkeypatch.setattr("waltz_delta.base.log_store._TRUSTED", {})
    for name, way in WAYS.items():
        table = tmp_path / name.replace(" ", "_")
        with pytest.raises(UnsafeTable, match="two drivers") as raised:
            way(str(table), spark)
        assert SINGLE_DRIVER in str(raised.value)
        assert not list(tmp_path.rglob("*.json")), name
    spark.conf.set(SINGLE_DRIVER, "true")
    try:
        DeltaAppend(str(tmp_path / "single"), KEY).write(rows(spark))
    finally:
        spark.conf.unset(SINGLE_DRIVER)
    assert spark.read.format("delta").load(str(tmp_path / "single")).count() == 3
