"""The engine that `waltz pipeline check` names is the one that the job chooses, for each reason; both engines create the same table; and the limits
of what the driver merges."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pyspark_waltz.source import SCHEMA
from waltz_delta import DeltaAppend, DeltaUpsert, Landing, UnsupportedDelta, high_water_marks
from waltz_delta.base import internal
from waltz_delta.base.checkpoint_pace import INTERVAL
from waltz_delta.engine import choice
from waltz_delta.landing import merge_sink
from waltz_delta.landing.landing import sink_for
from waltz_delta.landing.output_decoder import OutputDecoder
from waltz_delta.pipelines.pipeline_check import declared_engine, table_schema
from waltz_delta.settings import LandingSettings, OutputSettings
from waltz_delta.tables.mode import written_as
from waltz_delta.tables.time_zone import recorded_zone, zone_app_id
from waltz_log.errors import InvalidSetting

KEY = "a9f9d1de-5f7c-4a4e-9d39-50d9bd5c4c11"
UPSERT: dict[str, Any] = {"mode": "upsert", "keys": ["k"]}
HARD = {"headers": [9]}

Line = tuple[str, str, str]


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> list[Line]:
    """Table, engine and reason of each line."""
    lines: list[Line] = []
    monkeypatch.setattr(choice, "log", SimpleNamespace(info=lambda event, *, table, engine, reason: lines.append((table, engine, reason))))
    return lines


DECLARED: dict[str, tuple[str, str, dict[str, Any], bool]] = {
    "an append": ("arrow", "k STRING", {}, False),
    "partitions of text": ("arrow", "k STRING", {"layout": {"partition_by": ["k"]}}, False),
    "partitions of decimals": ("spark", "k DECIMAL(9,2)", {"layout": {"partition_by": ["k"]}}, False),
    "clusters": ("spark", "k STRING", {"layout": {"cluster_by": ["k"]}}, False),
    "deletion vectors": ("spark", "k STRING", {"properties": {"delta.enableDeletionVectors": "true"}}, False),
    "an own property": ("spark", "k STRING", {"properties": {"owner": "somebody"}}, False),
    "a feature": ("spark", "k STRING", {"properties": {"delta.feature.timestampntz": "supported"}}, False),
    "a constraint": ("spark", "k STRING", {"properties": {"delta.constraints.short": "length(k) < 9"}}, False),
    "a type": ("spark", "k VARIANT", {}, False),
    "an upsert": ("arrow", "k STRING NOT NULL, d ARRAY<DOUBLE>, at TIMESTAMP", UPSERT, False),
    "hard deletes": ("arrow", "k STRING", {**UPSERT, "deletes": HARD}, False),
    "letters": ("arrow", "k STRING", UPSERT, True),
    "hard deletes with letters": ("arrow", "k STRING", {**UPSERT, "deletes": HARD}, True),
    "soft deletes": ("arrow", "k STRING", {**UPSERT, "deletes": {**HARD, "kind": "soft"}}, False),
    "a sequence": ("arrow", "k STRING, v INT", {**UPSERT, "sequence": "v"}, False),
    "a sequence of DOUBLE": ("spark", "k STRING, v DOUBLE", {**UPSERT, "sequence": "v"}, False),
    "FLOAT": ("arrow", "k STRING, f FLOAT", UPSERT, False),
    "DOUBLE in a STRUCT": ("arrow", "k STRING, s STRUCT<d: DOUBLE>", UPSERT, False),
    "a long DECIMAL": ("arrow", "k STRING, d DECIMAL(16,2)", UPSERT, False),
    "a key of DOUBLE": ("spark", "k DOUBLE", UPSERT, False),
    "a change data feed": ("spark", "k STRING", {**UPSERT, "properties": {"delta.enableChangeDataFeed": "true"}}, False),
    "a partitioned upsert": ("arrow", "k STRING", {**UPSERT, "layout": {"partition_by": ["k"]}}, False),
    "a clustered upsert": ("spark", "k STRING", {**UPSERT, "layout": {"cluster_by": ["k"]}}, False),
    "an upsert with a feature": ("arrow", "k STRING", {**UPSERT, "properties": {"delta.feature.timestampntz": "supported"}}, False),
    "an upsert with another feature": ("spark", "k STRING", {**UPSERT, "properties": {"delta.feature.deletionVectors": "supported"}}, False),
    "an upsert with an own property": ("arrow", "k STRING", {**UPSERT, "properties": {"owner": "somebody"}}, False),
    "a history": ("arrow", "k STRING", {**UPSERT, "mode": "history"}, False),
    "a history by a key of DOUBLE": ("spark", "k DOUBLE", {**UPSERT, "mode": "history"}, False),
}
"""The engine, the columns, the target, and whether there are dead letters."""


@pytest.mark.parametrize("name", DECLARED)
def test_the_check_of_a_file_names_the_engine_and_the_reason_of_the_job(spark: Any, tmp_path: Path, logged: list[Line], name: str) -> None:
    """A second start finds the table that the first one created, by whichever engine, and decides in the same way by the table alone."""
    engine, columns, target, dead_letters = DECLARED[name]
    path = str(tmp_path / "t")
    settings = {"target": {"table": path, "engine": "auto", **target}, "decode": {"format": "json", "columns": columns}}
    output = OutputSettings.model_validate(settings)
    said = declared_engine(output, table_schema(output), dead_letters=dead_letters)
    schema = OutputDecoder(output, dead_letters=dead_letters).good(spark.createDataFrame([], SCHEMA)).schema
    sink_for(output, KEY, dead_letters=dead_letters).prepare(spark, schema)
    assert [said] == [engine if engine == "arrow" else f"{engine}: {reason}" for table, engine, reason in logged if table == path]
    assert said.partition(":")[0] == engine
    if target.get("mode", "append") != "append":  # a table for appends is created by its first batch
        sink_for(output, KEY, dead_letters=dead_letters).prepare(spark, schema)
        assert [line[1] for line in logged if line[0] == path] == [engine, engine]
        if engine == "spark":
            refused = OutputSettings.model_validate({**settings, "target": {**settings["target"], "table": f"{path}2", "engine": "arrow"}})
            with pytest.raises(InvalidSetting, match="engine is arrow, and"):
                sink_for(refused, KEY, dead_letters=dead_letters).prepare(spark, schema)
            assert not (tmp_path / "t2").exists(), "it is refused before its table is created"


@pytest.mark.parametrize("table", ["s3://bucket/t", "hdfs:/t", "/lake/a%20b"])
@pytest.mark.parametrize("mode", [{}, UPSERT])
def test_the_check_of_a_file_judges_a_place_as_the_job_does(spark: Any, logged: list[Line], table: str, mode: dict[str, Any]) -> None:
    settings = {"target": {"table": table, "engine": "auto", **mode}, "decode": {"format": "json", "columns": "k STRING"}}
    output = OutputSettings.model_validate(settings)
    said = declared_engine(output, table_schema(output), dead_letters=False)
    if said == "arrow":
        assert table == "s3://bucket/t", "opening it needs the store"
        return
    sink = sink_for(output, KEY, dead_letters=False)
    sink.engine.choose(spark, None)
    assert [(table, said)] == [(place, f"{engine}: {reason}") for place, engine, reason in logged]


def test_spark_derives_the_columns_that_decide_for_a_select_list(tmp_path: Path, spark_environment: dict[str, str]) -> None:
    """In a process of its own, because the command ends its session."""
    targets = {name: f"{{table: {tmp_path / name}, engine: auto, mode: upsert, keys: [k]}}" for name in ("whole", "broken")}
    keys = {"whole": "header", "broken": "CAST(header AS DOUBLE)"}
    outputs = "".join(f"  - {{target: {targets[name]}, projection: {{select: '{keys[name]} AS k, header AS n'}}}}\n" for name in targets)
    file = tmp_path / "legs.yaml"
    file.write_text(f"name: legs\nsource: {{cluster: [localhost:1]}}\ncheckpoint: /c\noutputs:\n{outputs}")
    command = [sys.executable, "-m", "waltz_log.cli", "pipeline", "check", str(file), "--output", "json"]
    engines = []
    for more in ([], ["--spark"]):
        done = subprocess.run([*command, *more], env=spark_environment, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        engines.append({Path(table).name: engine for table, engine in json.loads(done.stdout)[0]["engines"].items()})
    undecided = "arrow: if its columns allow it, needs Spark: --spark"
    assert engines[0] == {"whole": undecided, "broken": undecided}
    assert engines[1]["whole"] == "arrow"
    assert engines[1]["broken"].startswith("spark: the Arrow engine does not merge by k")


@pytest.fixture
def zone(spark: Any) -> Iterator[Any]:
    """Sets the time zone of the session for one test."""
    name = "spark.sql.session.timeZone"
    before = spark.conf.get(name)
    yield lambda value: spark.conf.set(name, value)
    spark.conf.set(name, before)


@pytest.mark.parametrize("layout", [{}, {"partition_by": ["text"]}])
def test_both_engines_create_the_same_table(spark: Any, tmp_path: Path, zone: Any, layout: dict[str, Any]) -> None:
    """Property by property, and mark by mark. What the one records in a property of ours, the other shows by its identifiers."""
    zone("Asia/Tokyo")
    defaults = "spark.databricks.delta.properties.defaults."
    spark.conf.set(f"{defaults}deletedFileRetentionDuration", "interval 9 days")
    spark.conf.set(f"{defaults}appendOnly", "true")
    spark.conf.set(f"{defaults}checkpointInterval", "7")
    try:
        rows = spark.range(0, 5).selectExpr("0 AS partition", "id AS transaction_id", "cast(id AS STRING) AS text", "now() AS at")
        made: dict[str, Any] = {}
        for engine in ("spark", "arrow"):
            own = {"delta.appendOnly": "false", "delta.dataSkippingNumIndexedCols": "3"}
            sink = DeltaAppend(str(tmp_path / engine), KEY, properties=own, engine=engine, **layout)
            sink.write(rows)
            made[engine] = internal.TableTransaction(spark, str(tmp_path / engine))
    finally:
        for name in ("deletedFileRetentionDuration", "appendOnly", "checkpointInterval"):
            spark.conf.unset(f"{defaults}{name}")
    properties = {engine: table.properties() for engine, table in made.items()}
    shown = {"waltz.mode", "waltz.timeZone"}
    assert {name: value for name, value in properties["spark"].items() if name not in shown} == properties["arrow"]
    assert properties["arrow"]["delta.deletedFileRetentionDuration"] == "interval 9 days"
    assert properties["arrow"]["delta.appendOnly"] == "false"
    assert properties["arrow"][INTERVAL] == "100"
    assert set(properties["spark"]) >= shown
    versions = {engine: table.versions() for engine, table in made.items()}
    assert versions["arrow"] == {**versions["spark"], zone_app_id(spark): 1}
    for described in (
        lambda engine: written_as(properties[engine], versions[engine], [KEY]),
        lambda engine: recorded_zone(made[engine]),
        lambda engine: json.loads(made[engine].schema_text()),
        lambda engine: made[engine].read_version,
        lambda engine: high_water_marks(str(tmp_path / engine)),
        lambda engine: spark.sql(f"DESCRIBE DETAIL delta.`{tmp_path / engine}`").select("partitionColumns").collect(),
    ):
        assert described("spark") == described("arrow")
    assert recorded_zone(made["arrow"]) == "Asia/Tokyo"


def test_a_property_of_every_table_of_the_session_that_the_arrow_engine_does_not_follow_is_left_to_spark(
    spark: Any, tmp_path: Path, logged: list[Line]
) -> None:
    name = "spark.databricks.delta.properties.defaults.enableDeletionVectors"
    rows = spark.range(0, 5).selectExpr("0 AS partition", "id AS transaction_id", "cast(id AS STRING) AS k")
    spark.conf.set(name, "true")
    try:
        DeltaAppend(str(tmp_path / "append"), KEY, engine="auto").write(rows)
        DeltaUpsert(str(tmp_path / "upsert"), KEY, ["k"], engine="auto").write(rows)
    finally:
        spark.conf.unset(name)
    assert [engine for _, engine, _ in logged] == ["spark", "spark"]
    assert all("delta.enableDeletionVectors=true" in reason for _, _, reason in logged)


@pytest.mark.parametrize("first", ["arrow", "spark"])
def test_a_session_with_another_zone_is_refused_whichever_engine_created_the_table(spark: Any, tmp_path: Path, zone: Any, first: str) -> None:
    path = str(tmp_path / "t")

    def landing(engine: str) -> Landing:
        output = {"target": {"table": path, "engine": engine}, "projection": {"select": "data, CAST(timestamp AS DATE) AS day"}}
        return Landing(LandingSettings.model_validate({"outputs": [output]}), KEY)

    made = spark.sql("SELECT 0 AS partition, 0L AS transaction_id, now() AS timestamp, 1 AS header, X'00' AS data")
    zone("Europe/Berlin")
    landing(first).write(made)
    for engine in ("arrow", "spark"):
        landing(engine).prepare(spark, made.schema)
    zone("America/New_York")
    for engine in ("arrow", "spark"):
        with pytest.raises(InvalidSetting, match=r"timeZone is America/New_York, and the table was filled with Europe/Berlin"):
            landing(engine).prepare(spark, made.schema)
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('waltz.timeZone' = 'America/New_York')")
    landing("arrow").prepare(spark, made.schema)


def test_what_is_too_large_for_the_driver_is_logged_with_auto_and_refused_with_arrow(
    spark: Any, tmp_path: Path, logged: list[Line], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "t")

    def rows(first: int, end: int) -> Any:
        return spark.createDataFrame([(0, at, str(at % 3)) for at in range(first, end)], "partition INT, transaction_id BIGINT, k STRING")

    sink = DeltaUpsert(path, KEY, ["k"], engine="auto")
    monkeypatch.setattr(merge_sink, "ARROW_ROWS_MAX", 5)
    sink.write(rows(0, 5))
    sink.write(rows(5, 11))
    with pytest.raises(InvalidSetting, match=r"engine is arrow, and a batch has more than 5 transactions, .*set maxTransactionsPerTrigger"):
        DeltaUpsert(path, KEY, ["k"], engine="arrow").write(rows(11, 17))
    sink.write(rows(11, 16))
    monkeypatch.setattr(merge_sink, "TABLE_BYTES_MAX", 100)
    with pytest.raises(InvalidSetting, match=r"engine is arrow, and the table has more than 100 bytes"):
        DeltaUpsert(path, KEY, ["k"], engine="arrow").write(rows(16, 18))
    sink.write(rows(16, 18))
    DeltaUpsert(path, KEY, ["k"], engine="spark").write(rows(18, 19))
    own = [(engine, "batch" in reason, "bytes" in reason) for _, engine, reason in logged]
    arrow, refused = ("arrow", False, False), ("arrow", False, False)
    assert own == [arrow, ("spark", True, False), refused, arrow, refused, ("spark", False, True)]
    assert sorted((row.k, row.transaction_id) for row in spark.read.format("delta").load(path).collect()) == [("0", 18), ("1", 16), ("2", 17)]
    assert high_water_marks(path) == {0: 18}


def test_another_version_of_delta_matters_only_where_spark_writes(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(internal, "DELTA_VERSION", "3.2.1")
    made = spark.sql("SELECT 0 AS partition, 0L AS transaction_id, now() AS timestamp, 1 AS header, X'00' AS data")

    def landing(name: str, **target: Any) -> Landing:
        return Landing(LandingSettings.model_validate({"outputs": [{"target": {"table": str(tmp_path / name), "engine": "auto", **target}}]}), KEY)

    arrow = landing("arrow")
    assert arrow.starting_transaction_ids(spark, [0])
    arrow.write(made)
    assert arrow.marks(spark) == {str(tmp_path / "arrow"): {0: 0}}
    with pytest.raises(UnsupportedDelta):
        landing("clustered", layout={"cluster_by": ["header"]}).write(made)
    spark.sql(f"ALTER TABLE delta.`{tmp_path / 'arrow'}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    with pytest.raises(UnsupportedDelta):
        landing("arrow").starting_transaction_ids(spark, [0])


def test_columns_of_a_merge_are_found_in_other_letters_and_with_odd_names(spark: Any, tmp_path: Path) -> None:
    """The table's own names count: pyarrow and deltalake distinguish letters that Delta does not."""
    path = str(tmp_path / "t")
    names = ("Tail", "a.b", "e`f", ".ü")
    quoted = ", ".join(f"`{name.replace('`', '``')}` STRING" for name in names)
    spark.sql(f"CREATE TABLE delta.`{path}` (partition INT, transaction_id BIGINT, {quoted}) USING delta")
    for turn in range(2):
        columns = ", ".join(f"`{name.replace('`', '``').upper()}` STRING" for name in names)
        given = [(0, 3 * turn + at, f"N{at}", *(f"{name} {turn}" for name in names[1:])) for at in range(3)]
        rows = spark.createDataFrame(given, f"partition INT, transaction_id BIGINT, {columns}")
        DeltaUpsert(path, KEY, ["TAIL"], engine="arrow").write(rows)
    found = sorted(tuple(row)[1:] for row in spark.read.format("delta").load(path).collect())
    assert found == [(3 + at, f"N{at}", *(f"{name} 1" for name in names[1:])) for at in range(3)]
