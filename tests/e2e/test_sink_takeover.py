"""A table that one cluster filled continues with the cluster that replaces it, if the pipeline declares that."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.letters import Died, raw
from waltz_delta import DeltaAppend, DeltaHistory, DeltaUpsert, Landing, dataset_at, high_water_marks
from waltz_delta.base import internal
from waltz_delta.dead_letters_replay import Replayed, replay
from waltz_delta.jobs.audit_compare import compare_keyed
from waltz_delta.landing import takeover
from waltz_delta.landing.merge import MergedTable
from waltz_delta.marks.batch import GivenRows, LostRace
from waltz_delta.marks.marks import EPOCH_IDS, BatchRange
from waltz_delta.settings import DeleteSettings, LandingSettings, TargetSettings
from waltz_log.errors import ClusterKeyMismatch

FIRST, SECOND, THIRD = (f"{letter}9f9d1de-5f7c-4a4e-9d39-50d9bd5c4c1{letter}" for letter in "abc")
SCHEMA = "partition INT, transaction_id BIGINT, tail STRING, legs INT"
DELETES = DeleteSettings(where="legs < 0")
FORMER = 100 - EPOCH_IDS
"""In the table, the id that was 100 in the log of the first cluster."""

Make = Callable[..., Any]
MAKE: dict[str, Make] = {
    "append": lambda path, key, **more: DeltaAppend(str(path), key, **more),
    "upsert": lambda path, key, **more: DeltaUpsert(str(path), key, ["tail"], deletes=DELETES, remember_deletes=True, **more),
    "history": lambda path, key, **more: DeltaHistory(str(path), key, ["tail"], deletes=DELETES, **more),
}
Row = tuple[int, int, str, int]
BEFORE: list[Row] = [(0, 100, "N0", 1), (0, 101, "N1", 1), (0, 102, "N2", 1), (0, 103, "N3", 1), (0, 104, "N3", -1)]
AFTER: list[Row] = [(1, 0, "N1", 2), (1, 1, "N2", -1), (0, 0, "N4", 2)]
"""The new cluster has a key in another partition, and begins at 0 again."""
EXPECTED: dict[str, list[tuple[Any, ...]]] = {
    "append": sorted([(p, at - EPOCH_IDS, tail, legs) for p, at, tail, legs in BEFORE] + AFTER),
    "upsert": sorted([(0, FORMER, "N0", 1), AFTER[0], AFTER[2]]),
    "history": sorted([(0, FORMER, "N0", 1), AFTER[0], AFTER[2]]),
}


def frame(spark: Any, rows: list[Row]) -> Any:
    return spark.createDataFrame(rows, SCHEMA)


def held(spark: Any, path: Path) -> list[tuple[Any, ...]]:
    """The rows of an append, the newest row of each key of a merged table."""
    rows = spark.read.format("delta").load(str(path))
    if "is_current" in rows.columns:
        rows = rows.where("is_current")
    return sorted(tuple(row) for row in rows.select("partition", "transaction_id", "tail", "legs").collect())


@pytest.mark.parametrize("mode", ["append", "upsert", pytest.param("history", marks=pytest.mark.slow)])
def test_a_declared_takeover_counts_all_rows_of_the_new_cluster_as_newer(spark: Any, tmp_path: Path, mode: str) -> None:
    path, make = tmp_path / "t", MAKE[mode]
    hanging = make(path, FIRST)
    hanging.write(frame(spark, BEFORE))
    with pytest.raises(ClusterKeyMismatch, match=rf"set former_clusters: \[{FIRST}\]"):
        make(path, SECOND).write(frame(spark, AFTER))
    staged = hanging.stage(spark, BatchRange({0: 201}, {0: 200}, exact=False), GivenRows(frame(spark, [(0, 200, "N9", 9)])), None)
    make(path, SECOND, former_clusters=[FIRST]).write(frame(spark, AFTER))
    assert held(spark, path) == EXPECTED[mode]
    assert high_water_marks(str(path)) == high_water_marks(str(path), SECOND) == {0: 0, 1: 1}
    assert high_water_marks(str(path), FIRST) == {0: 104}

    with pytest.raises(LostRace):
        staged.commit()
    for writer in (hanging, make(path, FIRST), make(path, FIRST, former_clusters=[SECOND])):
        with pytest.raises(ClusterKeyMismatch, match="another cluster has inherited"):
            writer.write(frame(spark, [(0, 200, "N9", 9)]))
    make(path, SECOND, former_clusters=[FIRST]).write(frame(spark, [*AFTER, (1, 2, "N5", 2)]))
    assert held(spark, path) == sorted([*EXPECTED[mode], (1, 2, "N5", 2)]), "once, and no row twice"
    if mode == "append":
        assert dataset_at(str(path), {0: 0, 1: 1}).count_rows() == len(EXPECTED[mode])

    make(path, THIRD, former_clusters=[FIRST, SECOND]).write(frame(spark, [(0, 0, "N0", 3)]))
    found = {(row[2], row[3]): row[1] for row in held(spark, path)}
    assert (found["N0", 3], found["N4", 2]) == (0, -EPOCH_IDS)
    assert (found.get(("N0", 1)), found["N1", 2]) == (FORMER - EPOCH_IDS if mode == "append" else None, -EPOCH_IDS)


def test_a_version_of_a_former_cluster_ends_where_the_new_one_begins(spark: Any, tmp_path: Path) -> None:
    MAKE["history"](tmp_path / "t", FIRST).write(frame(spark, BEFORE))
    MAKE["history"](tmp_path / "t", SECOND, former_clusters=[FIRST]).write(frame(spark, AFTER))
    rows = spark.read.format("delta").load(str(tmp_path / "t")).where("tail IN ('N1', 'N3')").orderBy("tail", "valid_from")
    assert [tuple(row) for row in rows.select("tail", "valid_from", "valid_to", "is_current").collect()] == [
        ("N1", FORMER + 1, 0, False),
        ("N1", 0, None, True),
        ("N3", FORMER + 3, FORMER + 4, False),
    ]


@pytest.mark.parametrize(
    "step", [pytest.param("superseded", marks=pytest.mark.slow), "tombstones lowered", pytest.param("all lowered", marks=pytest.mark.slow)]
)
def test_a_takeover_that_a_crash_ends_anywhere_is_continued(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """The former cluster's driver died too, between a MERGE and its marks."""
    path, make = tmp_path / "t", MAKE["upsert"]
    make(path, FIRST).write(frame(spark, BEFORE[:2]))
    with monkeypatch.context() as patched:
        patched.setattr(MergedTable, "_mark", _dies)
        with pytest.raises(Died):
            make(path, FIRST, engine="spark").write(frame(spark, BEFORE))
    with monkeypatch.context() as patched:
        if step == "superseded":
            patched.setattr(takeover, "epochs_among", _dies)
        elif step == "tombstones lowered":
            lower = takeover._lower
            patched.setattr(takeover, "_lower", lambda spark, table, *rest: _dies() if table == str(path) else lower(spark, table, *rest))
        else:
            patched.setattr(takeover.log, "info", _dies)
        with pytest.raises(Died):
            make(path, SECOND, former_clusters=[FIRST]).write(frame(spark, AFTER))
    with pytest.raises(ClusterKeyMismatch):
        make(path, FIRST).write(frame(spark, [(0, 200, "N9", 9)]))
    make(path, SECOND, former_clusters=[FIRST]).write(frame(spark, AFTER))
    assert held(spark, path) == EXPECTED["upsert"]
    tombstones = spark.read.format("delta").load(f"{path}_tombstones")
    assert sorted((row.tail, row.transaction_id) for row in tombstones.collect()) == [("N2", 1), ("N3", FORMER + 4)]
    assert high_water_marks(str(path), FIRST) == {0: 104}


def _dies(*_: object, **__: object) -> Any:
    raise Died


@pytest.mark.slow
@pytest.mark.parametrize("goes_on", [FIRST, SECOND])
def test_a_restore_to_before_the_takeover_undoes_it_for_either_cluster(spark: Any, tmp_path: Path, goes_on: str) -> None:
    path, make = tmp_path / "t", MAKE["upsert"]
    make(path, FIRST).write(frame(spark, BEFORE))
    version = internal.table_version(spark, str(path))
    make(path, SECOND, former_clusters=[FIRST]).write(frame(spark, AFTER))
    spark.sql(f"RESTORE TABLE delta.`{path}` TO VERSION AS OF {version}")
    assert high_water_marks(str(path)) == {0: 104}, "before a query has started"
    if goes_on == FIRST:
        make(path, FIRST).write(frame(spark, [*BEFORE, (0, 105, "N5", 1)]))
        assert held(spark, path) == [(0, 100, "N0", 1), (0, 101, "N1", 1), (0, 102, "N2", 1), (0, 105, "N5", 1)]
        assert high_water_marks(str(path)) == {0: 105}
    else:
        make(path, SECOND, former_clusters=[FIRST]).write(frame(spark, AFTER))
        assert held(spark, path) == EXPECTED["upsert"]
        assert high_water_marks(str(path)) == {0: 0, 1: 1}


def test_letters_of_a_former_cluster_land_below_the_rows_of_the_new_one(spark: Any, tmp_path: Path) -> None:
    def settings(columns: str, **more: Any) -> LandingSettings:
        decode = {"format": "json", "columns": columns}
        tables = [{"table": str(tmp_path / "all")}, {"table": str(tmp_path / "keyed"), "mode": "upsert", "keys": ["k"]}]
        outputs = [{"decode": decode, "target": each, "projection": {"select": "k, CAST(n AS STRING) n"}} for each in tables]
        return LandingSettings.model_validate({"outputs": outputs, "dead_letters": {"table": str(tmp_path / "dead")}, **more})

    strict, lenient = "k STRING, n INT", "k STRING, n STRING"
    Landing(settings(strict), FIRST).write(raw(spark, [(0, at, 1, b'{"k": "%s", "n": "%s"}' % (k, n)) for at, (k, n) in enumerate(LETTERS)]))
    after = settings(lenient, former_clusters=[FIRST])
    Landing(after, SECOND).write(raw(spark, [(0, 0, 1, b'{"k": "a", "n": "new"}'), (0, 1, 1, b'{"k": "c", "n": "new"}')]))
    assert replay(spark, after) == [Replayed(str(tmp_path / name), 2, 0, 0, {}) for name in ("all", "keyed")]
    rows = {name: spark.read.format("delta").load(str(tmp_path / name)).select("transaction_id", "k", "n").collect() for name in ("all", "keyed")}
    former = [(-EPOCH_IDS, "a", "x"), (1 - EPOCH_IDS, "b", "y")]
    assert sorted(map(tuple, rows["all"])) == [*former, (0, "a", "new"), (1, "c", "new")]
    assert sorted(map(tuple, rows["keyed"])) == [former[1], (0, "a", "new"), (1, "c", "new")]
    assert replay(spark, after) == []


LETTERS = [(b"a", b"x"), (b"b", b"y")]


@pytest.mark.parametrize("sequence", ["transaction_id", pytest.param("legs", marks=pytest.mark.slow)])
def test_an_audit_compares_the_rows_of_the_new_cluster_alone(spark: Any, tmp_path: Path, sequence: str) -> None:
    def sink(key: str) -> DeltaUpsert:
        return DeltaUpsert(str(tmp_path / "t"), key, ["tail"], sequence=sequence, former_clusters=[FIRST])

    log = frame(spark, [(1, 0, "N1", 5), (1, 1, "N2", 2)])
    sink(FIRST).write(frame(spark, [(0, 100, "N1", 7), (0, 101, "N9", 1)]))
    sink(SECOND).write(log)
    target = TargetSettings(table=str(tmp_path / "t"), mode="upsert", keys=("tail",), sequence=sequence)

    def differences() -> list[str]:
        return list(map(str, compare_keyed(log, spark.read.format("delta").load(str(tmp_path / "t")), target, 20, whole=True)))

    assert differences() == []
    spark.sql(f"UPDATE delta.`{tmp_path / 't'}` SET legs = 3 WHERE tail = 'N2'")
    assert differences() == ['changed: key={"tail":"N2"}']
