"""Tables as users make them and change them under a sink: generated columns, defaults, a STRUCT that grows, a column that is widened, VOID, names
that the log or a MERGE has too. Each goes on, or is refused with what to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from delta.tables import DeltaTable

from tests.e2e.letters import raw
from waltz_delta import DeltaAppend, DeltaHistory, DeltaUpsert, Landing, SchemaMismatch
from waltz_delta.base.quoting import table_at
from waltz_delta.settings import LandingSettings
from waltz_delta.tables.column_names import OF_MERGE
from waltz_log.errors import InvalidSetting

KEY = "a9f9d1de-5f7c-4a4e-9d39-50d9bd5c4c11"
PLACE = "partition INT, transaction_id BIGINT"
REAL = Path(__file__).parents[1] / "data" / "real"
Make = Callable[..., Any]
MAKE: dict[str, Make] = {
    "append": lambda path, **more: DeltaAppend(str(path), KEY, **more),
    "upsert": lambda path, **more: DeltaUpsert(str(path), KEY, ["tail"], **more),
    "history": lambda path, **more: DeltaHistory(str(path), KEY, ["tail"], **more),
}


def user_table(spark: Any, path: Path, mode: str) -> None:
    table = DeltaTable.create(spark).tableName(table_at(str(path))).location(str(path)).property("delta.feature.allowColumnDefaults", "supported")
    more = ", valid_from BIGINT, valid_to BIGINT, is_current BOOLEAN" if mode == "history" else ""
    table = table.addColumns(spark.createDataFrame([], f"{PLACE}, tail STRING, legs INT, s STRUCT<a: INT>, l ARRAY<STRUCT<a: INT>>{more}").schema)
    table.addColumn("twice", "INT", nullable=False, generatedAlwaysAs="s.a * 2").addColumn("home", "STRING").execute()
    spark.sql(f"ALTER TABLE {table_at(str(path))} ALTER COLUMN home SET DEFAULT 'here'")
    spark.sql(f"ALTER TABLE {table_at(str(path))} SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')")


@pytest.mark.parametrize("mode", ["append", pytest.param("upsert", marks=pytest.mark.slow), "history"])
def test_a_users_table_goes_on_as_it_is_made_and_changed_under_the_sink(spark: Any, tmp_path: Path, mode: str) -> None:
    path = tmp_path / "back`tick"
    narrow, wide = "s STRUCT<a: INT>, l ARRAY<STRUCT<a: INT>>", "s STRUCT<b: STRING, a: INT>, l ARRAY<STRUCT<a: INT, `c.d`: INT>>"

    def rows(number: int, kinds: str, *values: Any) -> Any:
        return spark.createDataFrame([(0, number, f"N{number}", number, *values)], f"{PLACE}, tail STRING, legs INT, {kinds}")

    user_table(spark, path, mode)
    running = MAKE[mode](path)
    running.write(rows(0, narrow, (1,), [(1,)]))
    spark.sql(f"ALTER TABLE {table_at(str(path))} ALTER COLUMN legs TYPE BIGINT")
    running.write(rows(1, narrow, (2,), None))
    with pytest.raises(SchemaMismatch, match=r"evolution: add_columns adds it.*column=s\.b"):
        MAKE[mode](path).write(rows(2, wide, ("x", 3), [(3, 4)]))
    MAKE[mode](path, evolution="add_columns").write(rows(2, wide, ("x", 3), [(3, 4)]))
    found = spark.read.format("delta").load(str(path)).selectExpr("tail", "legs", "typeof(legs)", "s.a", "s.b", "l.a", "l.`c.d`", "twice", "home")
    assert sorted(tuple(row) for row in found.collect()) == [
        ("N0", 0, "bigint", 1, None, [1], [None], 2, "here"),
        ("N1", 1, "bigint", 2, None, None, None, 4, "here"),
        ("N2", 2, "bigint", 3, "x", [3], [4], 6, "here"),
    ]


def test_a_column_without_a_type_is_left_out_or_refused_with_what_to_do(spark: Any, tmp_path: Path) -> None:
    spark.sql(f"CREATE TABLE delta.`{tmp_path / 't'}` ({PLACE}, tail STRING, v VOID) USING delta")
    for mode in ("append", "upsert"):
        with pytest.raises(SchemaMismatch, match=r"has no type in the table \(VOID\): remove it there, or leave it out"):
            MAKE[mode](tmp_path / "t").write(spark.createDataFrame([(0, 0, "N0", "x")], f"{PLACE}, tail STRING, v STRING"))
    MAKE["append"](tmp_path / "t").write(spark.createDataFrame([(0, 0, "N0")], f"{PLACE}, tail STRING"))
    with pytest.raises(InvalidSetting, match="column v has no type"):
        MAKE["append"](tmp_path / "new").write(spark.sql("SELECT 0 AS partition, 0L AS transaction_id, NULL AS v"))
    assert spark.read.format("delta").load(str(tmp_path / "t")).count() == 1


@pytest.mark.parametrize("mode", MAKE)
def test_a_name_that_a_merge_has_itself_is_refused_before_a_table_is_made_and_appended(spark: Any, tmp_path: Path, mode: str) -> None:
    for name in sorted(OF_MERGE) if mode == "upsert" else ["filepath"]:
        rows = spark.createDataFrame([(0, 0, "N0", "x")], f"{PLACE}, tail STRING, `{name}` STRING")
        if mode == "append":
            MAKE[mode](tmp_path / name).write(rows)
            assert [row[name] for row in spark.read.format("delta").load(str(tmp_path / name)).collect()] == ["x"]
            continue
        with pytest.raises(InvalidSetting, match="Delta needs this name itself"):
            MAKE[mode](tmp_path / name).write(rows)
        assert not (tmp_path / name).exists()


def test_fields_with_the_names_of_the_logs_columns_get_others(spark: Any, tmp_path: Path) -> None:
    own = ["timestamp", "header", "partition", "topic", "key", "transaction_id"]
    fields = {f"{name}_in_data": name for name in own}
    decode = {"format": "json", "columns": ", ".join(f"{name} STRING" for name in fields), "fields": fields}
    keyed = {"table": str(tmp_path / "keyed"), "mode": "upsert", "keys": ["key_in_data"]}
    outputs = [{"decode": decode, "target": target} for target in ({"table": str(tmp_path / "all")}, keyed)]
    document = json.dumps({name: f"a {name}" for name in own}).encode()
    Landing(LandingSettings.model_validate({"outputs": outputs}), KEY).write(raw(spark, [(3, 7, 1, document)]))
    for name in ("all", "keyed"):
        (row,) = spark.read.format("delta").load(str(tmp_path / name)).collect()
        assert (row.partition, row.transaction_id, row.header) == (3, 7, 1)
        assert [row[name] for name in fields] == [f"a {name}" for name in own]


def test_a_shuffled_history_of_real_data_is_one_of_ranges_without_gaps(spark: Any, tmp_path: Path) -> None:
    """Changes of time zones in random order, in two batches: each version ends where the next one of its zone begins."""
    documents = (REAL / "zone_changes.jsonl").read_bytes().splitlines()
    decode = {"format": "json", "columns": "zone STRING, at TIMESTAMP, offset_s INT, summer BOOLEAN, abbreviation STRING"}
    target = {"table": str(tmp_path / "zones"), "mode": "history", "keys": ["zone"], "sequence": "at"}
    landing = Landing(LandingSettings.model_validate({"outputs": [{"decode": decode, "target": target}]}), KEY)
    half = len(documents) // 2
    for first, part in ((0, documents[:half]), (half, documents[half:])):
        landing.write(raw(spark, [(0, first + at, 1, document) for at, document in enumerate(part)]))
    expected = []
    changes = [json.loads(document) for document in documents]
    for zone in {change["zone"] for change in changes}:
        of_zone = sorted((change for change in changes if change["zone"] == zone), key=lambda change: str(change["at"]))
        ends = [*(later["at"] for _, later in pairwise(of_zone)), None]
        expected += [(zone, each["at"], end, end is None, each["offset_s"]) for each, end in zip(of_zone, ends, strict=True)]
    shown = "date_format({0}, \"yyyy-MM-dd'T'HH:mm:ss'Z'\")"
    columns = ("zone", shown.format("valid_from"), shown.format("valid_to"), "is_current", "offset_s")
    found = spark.read.format("delta").load(str(tmp_path / "zones")).selectExpr(*columns).collect()
    assert sorted(map(tuple, found), key=repr) == sorted(expected, key=repr)
