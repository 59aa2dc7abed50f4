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
@pytest.mark.parametrize("after", MAKE)
def test_another_mode_is_refused_and_the_same_one_goes_on(spark: Any, tmp_path: Path, before: str, after: str) -> None:
    MAKE[before](tmp_path / "t").write(rows(spark))
    count = spark.read.format("delta").load(str(tmp_path / "t")).count()
    if before == after:
        MAKE[after](tmp_path / "t").write(rows(spark, 3))
        return
    with pytest.raises(ModeChanged) as raised:
        MAKE[after](tmp_path / "t").write(rows(spark, 3))
    assert (raised.value.recorded, raised.value.declared) == (before, after)
    assert spark.read.format("delta").load(str(tmp_path / "t")).count() == count


@pytest.mark.parametrize(("before", "after"), [("append", "upsert"), ("upsert", "append")])
def test_a_table_from_before_the_property_is_known_by_its_identifiers(spark: Any, tmp_path: Path, before: str, after: str) -> None:
    MAKE[before](tmp_path / "t").write(rows(spark))
    spark.sql(f"ALTER TABLE delta.`{tmp_path / 't'}` UNSET TBLPROPERTIES IF EXISTS ('waltz.mode')")
    MAKE[before](tmp_path / "t").write(rows(spark, 3))
    with pytest.raises(ModeChanged):
        MAKE[after](tmp_path / "t").write(rows(spark, 6))


@pytest.mark.parametrize("mode", MAKE)
def test_a_table_is_not_continued_from_another_cluster(spark: Any, tmp_path: Path, mode: str) -> None:
    """Its ids begin at 0 again: rows would count as older, and none would arrive, without an error."""
    MAKE[mode](tmp_path / "t").write(rows(spark))
    count = spark.read.format("delta").load(str(tmp_path / "t")).count()
    with pytest.raises(ClusterKeyMismatch, match=r"filled from the cluster .*former_clusters"):
        MAKE[mode](tmp_path / "t", OTHER).write(rows(spark))
    assert spark.read.format("delta").load(str(tmp_path / "t")).count() == count


HIVE = "__HIVE_DEFAULT_PARTITION__"


@pytest.mark.parametrize(
    ("value", "mode"),
    [("", "history"), (HIVE, "upsert"), pytest.param("", "upsert", marks=pytest.mark.slow), pytest.param(HIVE, "history", marks=pytest.mark.slow)],
)
def test_a_key_that_a_partition_column_cannot_hold_is_a_dead_letter_or_fails(spark: Any, tmp_path: Path, mode: str, value: str) -> None:
    def landing(folder: str, **more: Any) -> Landing:
        target = {"table": f"{tmp_path}/{folder}", "mode": mode, "keys": ["tail"], "layout": {"partition_by": ["tail"]}}
        output = {"target": target, "decode": {"format": "json", "columns": "tail STRING, legs INT"}}
        return Landing(LandingSettings.model_validate({"outputs": [output], **more}), KEY)

    def raw(values: list[str], first: int = 0) -> Any:
        found = [(0, first + at, 0, 1, json.dumps({"tail": each, "legs": at}).encode(), None) for at, each in enumerate(values)]
        schema = "partition INT, transaction_id BIGINT, client_id INT, header INT, data BINARY, timestamp TIMESTAMP"
        return spark.createDataFrame(found, schema)

    kept = landing("kept", dead_letters={"table": f"{tmp_path}/letters"})
    kept.write(raw(["N1", value, "N2"]))
    kept.write(raw([value, "N1"], 3))
    held = spark.read.format("delta").load(f"{tmp_path}/kept")
    assert held.where("tail IS NULL").count() == 0
    assert {row.tail for row in held.collect()} == {"N1", "N2"}
    reasons = [row.reason for row in spark.read.format("delta").load(f"{tmp_path}/letters").collect()]
    assert len(reasons) == 2
    assert all("partition column cannot hold" in reason for reason in reasons)
    with pytest.raises(Undecodable, match="transaction 1 of partition 0: tail is"):
        landing("strict").write(raw(["N1", value]))
    projected = MAKE[mode](tmp_path / "projected", partition_by=["tail"])
    with pytest.raises(Exception, match="transaction 0 of partition 0: tail is"):
        projected.write(spark.createDataFrame([(0, 0, value, 1)], SCHEMA))


@pytest.mark.parametrize("mode", MAKE)
def test_odd_names_of_columns_and_tables_land(spark: Any, tmp_path: Path, mode: str) -> None:
    path = tmp_path / "back`tick and ümlaut.d"
    names = ("a.b", "e`f", "ü")
    for first in (0, 3):
        quoted = ", ".join(f"`{name.replace('`', '``')}` STRING" for name in names)
        given = [(0, first + at, f"N{at}", *(f"{name} {first + at}" for name in names)) for at in range(3)]
        MAKE[mode](path).write(spark.createDataFrame(given, f"partition INT, transaction_id BIGINT, tail STRING, {quoted}"))
    more = f"partition INT, transaction_id BIGINT, tail STRING, {quoted}, `more.of it` INT".replace("of it", "it")
    MAKE[mode](path, evolution="add_columns").write(spark.createDataFrame([(0, 6, "N0", "1", "2", "3", 4)], more))
    found = [row.asDict() for row in spark.read.format("delta").load(str(path)).collect()]
    assert {row["a.b"] for row in found if row["tail"] == "N1"} >= {"a.b 4"}
    assert [row["more.it"] for row in found if row["transaction_id"] == 6 and row["a.b"] == "1"] == [4]


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
