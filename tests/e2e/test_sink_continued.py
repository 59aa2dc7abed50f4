"""A table goes on as it was filled: in the same mode, from the same cluster, with keys that it can store and names that its columns can have."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from waltz_delta import DeltaAppend, DeltaHistory, DeltaUpsert, Landing, ModeChanged, Undecodable
from waltz_delta.settings import LandingSettings
from waltz_log.errors import ClusterKeyMismatch, InvalidSetting

KEY, OTHER = "a9f9d1de-5f7c-4a4e-9d39-50d9bd5c4c11", "b9f9d1de-5f7c-4a4e-9d39-50d9bd5c4c12"
SCHEMA = "partition INT, transaction_id BIGINT, tail STRING, legs INT"

Make = Callable[..., Any]
MAKE: dict[str, Make] = {
    "append": lambda path, key=KEY, **more: DeltaAppend(str(path), key, **more),
    "upsert": lambda path, key=KEY, **more: DeltaUpsert(str(path), key, ["tail"], **more),
    "history": lambda path, key=KEY, **more: DeltaHistory(str(path), key, ["tail"], **more),
}


def rows(spark: Any, first: int = 0, schema: str = SCHEMA) -> Any:
    return spark.createDataFrame([(0, first + at, f"N{at}", at) for at in range(3)], schema)


@pytest.mark.parametrize("before", MAKE)
def test_a_table_goes_on_in_its_mode_from_its_cluster_and_in_no_other(spark: Any, tmp_path: Path, before: str) -> None:
    """From another cluster, ids begin at 0 again: rows would count as older, and none would arrive, without an error. A table from before the
    property is known by its identifiers."""
    path, others = tmp_path / "t", [mode for mode in MAKE if mode != before]
    MAKE[before](path).write(rows(spark))
    count = spark.read.format("delta").load(str(path)).count()
    for after in others:
        with pytest.raises(ModeChanged) as raised:
            MAKE[after](path).write(rows(spark, 3))
        assert (raised.value.recorded, raised.value.declared) == (before, after)
    with pytest.raises(ClusterKeyMismatch, match=r"filled from the cluster .*former_clusters"):
        MAKE[before](path, OTHER).write(rows(spark))
    assert spark.read.format("delta").load(str(path)).count() == count
    if before == "history":
        MAKE[before](path).write(rows(spark, 3))
        return
    spark.sql(f"ALTER TABLE delta.`{path}` UNSET TBLPROPERTIES IF EXISTS ('waltz.mode')")
    MAKE[before](path).write(rows(spark, 3))
    with pytest.raises(ModeChanged):
        MAKE["upsert" if before == "append" else "append"](path).write(rows(spark, 6))


HIVE = "__HIVE_DEFAULT_PARTITION__"


def test_a_key_that_a_partition_column_cannot_hold_is_a_dead_letter_or_fails(spark: Any, tmp_path: Path) -> None:
    modes = ("upsert", "history")

    def landing(*modes: str, **more: Any) -> Landing:
        targets = [{"table": f"{tmp_path}/{mode}", "mode": mode, "keys": ["tail"], "layout": {"partition_by": ["tail"]}} for mode in modes]
        outputs = [{"target": target, "decode": {"format": "json", "columns": "tail STRING, legs INT"}} for target in targets]
        return Landing(LandingSettings.model_validate({"outputs": outputs, **more}), KEY)

    def raw(values: list[str], first: int = 0) -> Any:
        found = [(0, first + at, 0, 1, json.dumps({"tail": each, "legs": at}).encode(), None) for at, each in enumerate(values)]
        schema = "partition INT, transaction_id BIGINT, client_id INT, header INT, data BINARY, timestamp TIMESTAMP"
        return spark.createDataFrame(found, schema)

    kept = landing(*modes, dead_letters={"table": f"{tmp_path}/letters"})
    kept.write(raw(["N1", "", "N2", HIVE]))
    kept.write(raw([HIVE, "", "N1"], 4))
    for mode in modes:
        held = spark.read.format("delta").load(f"{tmp_path}/{mode}")
        assert held.where("tail IS NULL").count() == 0
        assert {row.tail for row in held.collect()} == {"N1", "N2"}
    reasons = [row.reason for row in spark.read.format("delta").load(f"{tmp_path}/letters").collect()]
    assert len(reasons) == 8
    assert all("partition column cannot hold" in reason for reason in reasons)
    for mode, value in zip(modes, ("", HIVE), strict=True):
        with pytest.raises(Undecodable, match="transaction 8 of partition 0: tail is"):
            landing(mode).write(raw(["N1", value], 7))
        projected = MAKE[mode](tmp_path / mode, partition_by=["tail"])
        with pytest.raises(Exception, match="transaction 7 of partition 0: tail is"):
            projected.write(spark.createDataFrame([(0, 7, value, 1)], SCHEMA))


@pytest.mark.parametrize("mode", MAKE)
def test_odd_names_of_columns_and_tables_land(spark: Any, tmp_path: Path, mode: str) -> None:
    path = tmp_path / "back`tick and ümlaut.d"
    names = ("a.b", "e`f", "ü")
    quoted = ", ".join(f"`{name.replace('`', '``')}` STRING" for name in names)
    for first, more in ((0, ()), (3, (4,))):
        given = [(0, first + at, f"N{at}", *(f"{name} {first + at}" for name in names), *more) for at in range(3)]
        schema = f"partition INT, transaction_id BIGINT, tail STRING, {quoted}" + (", `more.it` INT" if more else "")
        MAKE[mode](path, evolution="add_columns").write(spark.createDataFrame(given, schema))
    found = [row.asDict() for row in spark.read.format("delta").load(str(path)).collect()]
    assert {row["a.b"] for row in found if row["tail"] == "N1"} >= {"a.b 4"}
    assert [row["more.it"] for row in found if row["transaction_id"] == 3 and row["a.b"] == "a.b 3"] == [4]


@pytest.mark.parametrize("mode", MAKE)
def test_names_that_are_one_to_delta_are_refused_before_a_table_is_made(spark: Any, tmp_path: Path, mode: str) -> None:
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        twins = spark.createDataFrame([(0, 0, "N1", 1, 2)], "partition INT, transaction_id BIGINT, tail STRING, legs INT, Legs INT")
        with pytest.raises(InvalidSetting, match="legs and Legs are one name"):
            MAKE[mode](tmp_path / "t").write(twins)
    finally:
        spark.conf.set("spark.sql.caseSensitive", "false")
    assert not (tmp_path / "t").exists()
