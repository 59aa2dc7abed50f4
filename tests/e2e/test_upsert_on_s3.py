"""Upserts by the Arrow engine on an S3 server that Spark cannot reach: it has no jar for `s3a` paths. No test here may call Delta in the JVM."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from delta.tables import DeltaTable as SparkTable
from deltalake import DeltaTable

from pyspark_waltz.source import SCHEMA
from tests.e2e.delta_calls import refuse_delta
from tests.e2e.edge_values import MOMENT
from verification.lake.races import s3_place
from waltz_delta import DeltaUpsert, SchemaMismatch, high_water_marks, starting_transaction_ids
from waltz_delta.base import internal
from waltz_delta.dead_letters_replay import _land
from waltz_delta.errors import KeyMoved, ModeChanged, TableRestored, UnsafeTable
from waltz_delta.landing import merge_sink
from waltz_delta.landing.landing import Landing
from waltz_delta.marks.batch import GivenRows, LostRace
from waltz_delta.marks.marks import EPOCH_IDS, BatchRange, app_id, merge_app_id, merged_app_id
from waltz_delta.settings import LandingSettings
from waltz_delta.tables.finished import table_outcome
from waltz_delta.tables.mode import mode_app_id
from waltz_delta.tables.time_zone import recorded_zone
from waltz_log.errors import InvalidSetting

KEY, OTHER = "a9f9d1de-5f7c-4a4e-9d39-50d9bd5c4c11", "0b7c9f0e-8a0f-4b6e-9f0a-7e1b6d0c2a55"
COLUMNS = "partition INT, transaction_id BIGINT, k STRING, n INT"
Row = tuple[int, int, str, int | None]


@pytest.fixture(scope="module")
def storage() -> Iterator[dict[str, str]]:
    with s3_place() as place:
        yield dict(place.storage)


@pytest.fixture
def without_delta(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call of Delta in the JVM fails."""
    refuse_delta(spark, monkeypatch)


@pytest.fixture(params=["local", "s3"])
def place(request: pytest.FixtureRequest, storage: dict[str, str], tmp_path: Path) -> tuple[str, dict[str, str]]:
    """Path and storage options of a table that does not exist yet."""
    if request.param == "local":
        return str(tmp_path / "t"), {}
    return f"s3a://lake/{re.sub('[^a-z0-9]+', '-', request.node.name.lower())}", storage


@pytest.fixture
def upsert(place: tuple[str, dict[str, str]], without_delta: None) -> Callable[..., DeltaUpsert]:
    path, storage = place
    return lambda **more: DeltaUpsert(path, KEY, ["k"], **{"storage": storage, "engine": "auto", **more})


def frame(spark: Any, rows: Sequence[tuple[Any, ...]], columns: str = COLUMNS) -> Any:
    return spark.createDataFrame(list(rows), columns)


def table(place: tuple[str, Mapping[str, str]]) -> DeltaTable:
    path, storage = place
    return DeltaTable(path.replace("s3a:", "s3:"), storage_options=dict(storage) or None)


def covered(start: int, end: int) -> BatchRange:
    return BatchRange({0: end}, {0: start}, exact=True)


def held(place: tuple[str, Mapping[str, str]]) -> dict[str, tuple[Any, ...]]:
    found = table(place).to_pyarrow_table().to_pylist()
    rows = {row.pop("k"): tuple(row.values()) for row in found}
    assert len(rows) == len(found), "one row per key"
    return rows


def test_a_call_of_delta_in_the_jvm_would_be_noticed(spark: Any, tmp_path: Path, without_delta: None) -> None:
    calls = (
        lambda: internal.TableTransaction(spark, str(tmp_path)),
        lambda: internal.check_versions(spark),
        lambda: spark.read.format("delta"),
        lambda: SparkTable.forPath(spark, str(tmp_path)),
        lambda: DeltaUpsert(str(tmp_path / "t"), KEY, ["k"], engine="spark").prepare(spark, frame(spark, []).schema),
    )
    for call in calls:
        with pytest.raises(AssertionError, match="a call of Delta in the JVM"):
            call()


def test_a_table_is_created_merged_into_and_counted_without_delta_in_the_jvm(spark: Any, place: Any, upsert: Any) -> None:
    path, storage = place
    sink = upsert(properties={"delta.logRetentionDuration": "interval 60 days"})
    sink.prepare(spark, frame(spark, []).schema)
    created = sink.begin(spark)
    assert (created.read_version, set(created.versions())) == (0, {mode_app_id("upsert"), "waltz.timeZone:UTC"})
    assert created.properties()["delta.logRetentionDuration"] == "interval 60 days"
    sink.write(frame(spark, [(0, 0, "a", 1), (0, 1, "b", 2), (1, 0, "c", 3)]))
    upsert().write(frame(spark, [(0, 1, "b", 2), (0, 2, "a", 4)]))
    assert held(place) == {"a": (0, 2, 4), "b": (0, 1, 2), "c": (1, 0, 3)}
    assert high_water_marks(path.replace("s3a:", "s3:"), KEY, storage_options=storage) == sink.marks(spark) == {0: 2, 1: 0}
    outcome = table_outcome(spark, sink, {0: 1})
    assert (outcome.version, outcome.rows, outcome.transactions) == (2, 3, 2)
    assert recorded_zone(sink.begin(spark)) == "UTC"
    (newest,) = table(place).history(1)
    assert (newest["isBlindAppend"], newest["waltzQuery"]) == (False, "waltz")


def test_a_batch_that_changes_nothing_moves_the_marks_alone(spark: Any, place: Any, upsert: Any) -> None:
    sink = upsert()
    sink.write(frame(spark, [(0, 5, "a", 1)]))
    files = table(place).file_uris()
    sink.stage_late(spark, frame(spark, [(0, 3, "a", 9)])).commit()
    assert sink.marks(spark) == {0: 5}
    rows = frame(spark, [(0, 6, "a", 9)]).where("n < 5")  # filtered, as by a projection
    staged = sink.stage(spark, covered(6, 7), GivenRows(rows), None)
    staged.commit()
    assert (held(place), sink.marks(spark), table(place).file_uris()) == ({"a": (0, 5, 1)}, {0: 6}, files)


def test_columns_are_added_and_one_of_a_type_that_no_file_of_the_engine_has_is_refused_before(spark: Any, place: Any, upsert: Any) -> None:
    upsert().write(frame(spark, [(0, 0, "a", 1)]))
    more = f"{COLUMNS}, text STRING"
    with pytest.raises(SchemaMismatch, match="the table has no such column"):
        upsert().write(frame(spark, [(0, 1, "b", 2, "x")], more))
    running = upsert(evolution="add_columns")
    running.write(frame(spark, [(0, 1, "b", 2, "x")], more))
    running.write(frame(spark, [(0, 2, "c", 3, "y")], more))
    assert held(place) == {"a": (0, 0, 1, None), "b": (0, 1, 2, "x"), "c": (0, 2, 3, "y")}
    with pytest.raises(SchemaMismatch, match=r"cannot be added by the Arrow engine: the column pause has the type interval"):
        rows = frame(spark, [(0, 3, "d", 4, "z")], more).selectExpr("*", "INTERVAL '1' DAY AS pause")
        upsert(evolution="add_columns", engine="arrow").write(rows)
    assert [field.name for field in table(place).schema().fields] == ["partition", "transaction_id", "k", "n", "text"]


def test_a_restore_is_followed_at_the_start_and_ends_a_running_query(spark: Any, place: Any, upsert: Any) -> None:
    running = upsert()
    for at in range(3):
        running.write(frame(spark, [(0, at, "a", at), (0, at + 10, f"k{at}", at)]))
    found = table(place)
    found.restore(1)
    with pytest.raises(TableRestored):
        running.write(frame(spark, [(0, 13, "a", 9)]))
    fresh = upsert()
    fresh.prepare(spark, frame(spark, []).schema)
    assert (fresh.marks(spark), sorted(held(place))) == ({0: 10}, ["a", "k0"])
    fresh.write(frame(spark, [(0, at, f"k{at - 10}", at) for at in range(11, 14)]))
    assert (fresh.marks(spark), sorted(held(place))) == ({0: 13}, ["a", "k0", "k1", "k2", "k3"])


def test_of_two_drivers_one_creates_the_table_and_one_merges_each_batch(spark: Any, place: Any, upsert: Any) -> None:
    first, second = upsert(), upsert()
    found = second.engine.arrow(spark)
    asked = found.is_table

    def overtaken() -> bool:
        there = asked()
        first.prepare(spark, frame(spark, []).schema)
        return bool(there)

    found.is_table = overtaken
    second.prepare(spark, frame(spark, []).schema)
    assert [commit["operation"] for commit in table(place).history()] == ["CREATE TABLE"]
    batch = frame(spark, [(0, 0, "a", 1), (0, 1, "b", 2)])
    staged = [sink.stage(spark, covered(0, 2), GivenRows(batch), None) for sink in (first, second)]
    staged[1].commit()
    with pytest.raises(LostRace):
        staged[0].commit()
    first.write(batch)
    assert (held(place), table(place).version()) == ({"a": (0, 0, 1), "b": (0, 1, 2)}, 1)
    with pytest.raises(KeyMoved):
        first.write(frame(spark, [(1, 0, "a", 1)]))


def test_the_marks_of_a_merge_whose_driver_died_are_set_before_the_next_one(spark: Any, place: Any, upsert: Any) -> None:
    """As Spark's engine leaves it: the MERGE is committed with its number, and its marks are only in the metadata of the commit."""
    sink = upsert()
    sink.write(frame(spark, [(0, 0, "a", 1)]))
    before = sink.begin(spark)
    rows, numbers = frame(spark, [(0, 1, "b", 2)]), (merge_app_id(KEY), merged_app_id(KEY))
    assert [before.version(name) for name in numbers] == [1, 1]
    record = {"waltz": {"cluster": KEY, "merge": 2, "marks": {"0": 1}, "read": before.read_version}}
    staged = sink._arrow_merge(spark, before, rows, {}, -1)
    before.merge(staged.merge, {numbers[0]: 2}, query="spark", batch=-1, metadata=json.dumps(record))
    sink.begin(spark).mark({"another": 1}, query="a user", batch=-1, metadata="")
    assert sink.begin(spark).versions()[app_id(KEY, 0)] == 0, "its marks are missing"
    with pytest.raises(LostRace):
        sink.stage(spark, covered(1, 3), GivenRows(rows), None)
    assert sink.begin(spark).versions()[app_id(KEY, 0)] == 1
    sink.write(frame(spark, [(0, 1, "b", 8), (0, 2, "c", 3)]))
    assert (held(place), sink.marks(spark)) == ({"a": (0, 0, 1), "b": (0, 1, 2), "c": (0, 2, 3)}, {0: 2})
    assert [sink.begin(spark).version(name) for name in numbers] == [3, 3]


def test_late_rows_replace_nothing_newer_also_those_of_a_former_cluster(spark: Any, place: Any, upsert: Any) -> None:
    sink = upsert()
    sink.write(frame(spark, [(0, 5, "a", 5), (0, 6, "b", 6)]))
    _land(spark, sink, frame(spark, [(0, 2, "a", 2), (0, 3, "late", 3), (1, 4 - EPOCH_IDS, "b", 4), (1, 5 - EPOCH_IDS, "former", 5)]))
    assert held(place) == {"a": (0, 5, 5), "b": (0, 6, 6), "late": (0, 3, 3), "former": (1, 5 - EPOCH_IDS, 5)}
    assert sink.marks(spark) == {0: 6}


def test_another_mode_is_refused_before_the_first_batch(spark: Any, place: Any, upsert: Any) -> None:
    path, storage = place
    upsert().prepare(spark, frame(spark, []).schema)
    landing = Landing(LandingSettings.model_validate({"outputs": [{"target": {"table": path, "storage": storage, "engine": "arrow"}}]}), KEY)
    with pytest.raises(ModeChanged) as raised:
        landing.prepare(spark, SCHEMA)
    assert (raised.value.recorded, raised.value.declared) == ("upsert", "append")


def test_a_landing_of_a_keyed_table_needs_no_delta_in_the_jvm(spark: Any, place: Any, without_delta: None) -> None:
    path, storage = place
    target = {"table": path, "storage": storage, "mode": "upsert", "keys": ["k"], "deletes": {"headers": [9]}, "evolution": "add_columns"}
    output = {"target": target, "decode": {"format": "json", "columns": "k STRING, n INT"}}
    settings = LandingSettings.model_validate({"outputs": [output]})
    log = [(0, at, MOMENT, 9 if at == 3 else 1, json.dumps({"k": f"k{at % 3}", "n": at}).encode()) for at in range(8)]
    for end in (2, 5, 8):
        landing = Landing(settings, KEY)
        landing.write(spark.createDataFrame(log[:end], SCHEMA))
        assert landing.starting_transaction_ids(spark, [0]) == f'{{"0": {end}}}'
    assert {key: row[-1] for key, row in held(place).items()} == {"k0": 6, "k1": 7, "k2": 5}
    assert landing.marks(spark) == {path: {0: 7}}
    assert starting_transaction_ids(spark, path, KEY, storage=storage) == '{"0": 8}'


def test_what_only_spark_does_is_refused_on_s3_with_the_reason(spark: Any, storage: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    path, given = "s3a://lake/refused", dict[str, Any](storage=storage, engine="arrow")
    schema = frame(spark, []).schema
    for more, reason in (
        (dict[str, Any](properties={"owner": "somebody"}), "deltalake creates no table with the property owner"),
        ({"properties": {"delta.enableChangeDataFeed": "true"}}, "the Arrow engine writes no change data feed"),
        ({"cluster_by": ["k"]}, "clustering"),
    ):
        with pytest.raises(InvalidSetting, match=f"engine is arrow, and .*{reason}"):
            DeltaUpsert(path, KEY, ["k"], **given, **more).prepare(spark, schema)
    DeltaUpsert(path, KEY, ["k"], **given).write(frame(spark, [(0, 1, "a", 1)]))
    with pytest.raises(UnsafeTable, match=r"Spark's engine inherits a table of former_clusters, and two drivers could both write"):
        DeltaUpsert(path, OTHER, ["k"], former_clusters=[KEY], **given).prepare(spark, schema)
    monkeypatch.setattr(merge_sink, "ARROW_ROWS_MAX", 1)
    with pytest.raises(UnsafeTable, match=r"because a batch has more than 1 transactions, .*, and two drivers could both write"):
        DeltaUpsert(path, KEY, ["k"], storage=storage).write(frame(spark, [(0, 2, "a", 1), (0, 3, "a", 2)]))
    assert held((path, storage)) == {"a": (0, 1, 1)}


@pytest.mark.parametrize("first", ["spark", "arrow"])
def test_a_table_goes_on_from_one_engine_to_the_other(spark: Any, tmp_path: Path, first: str) -> None:
    path, expected = str(tmp_path / "t"), dict[str, tuple[Any, ...]]()
    engines = ["spark", "arrow", "spark", "auto"] if first == "spark" else ["arrow", "spark", "auto", "spark"]
    for at, engine in enumerate(engines):
        sink: Any = DeltaUpsert(path, KEY, ["k"], engine=engine)
        sink.write(frame(spark, [(0, 2 * at, "a", at), (0, 2 * at + 1, f"k{at}", at)]))
        expected |= {"a": (0, 2 * at, at), f"k{at}": (0, 2 * at + 1, at)}
        assert (held((path, {})), high_water_marks(path, KEY)) == (expected, {0: 2 * at + 1})
    assert internal.TableTransaction(spark, path).versions()[merged_app_id(KEY)] == len(engines)
    with pytest.raises(ModeChanged):
        Landing(LandingSettings.model_validate({"outputs": [{"target": {"table": path, "engine": "spark"}}]}), KEY).prepare(spark, SCHEMA)
