"""Upsert by key: equal to a fold of the log, however it was cut, replayed or interrupted."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from delta.tables import DeltaTable

from waltz_delta import DeltaUpsert, SchemaMismatch, high_water_marks
from waltz_delta.base import internal
from waltz_delta.landing.merge import MergedTable
from waltz_log.errors import InvalidRequest

KEY = "a9f9d1de-5f7c-4a4e-9d39-50d9bd5c4c11"
SCHEMA = "partition INT, transaction_id BIGINT, tail STRING, legs INT"
Log = Sequence[tuple[int, int, str | None, int]]


def upsert(path: str, cluster_key: str, keys: Sequence[str], **more: Any) -> DeltaUpsert:
    """By the Arrow engine, where nothing else is named and it can; the others are about Spark's."""
    return DeltaUpsert(path, cluster_key, keys, **{"engine": "auto", **more})


def log_of(rows: int, *, keys: int = 7, partitions: int = 2, seed: int = 3) -> Log:
    """Each key lives in one partition and carries its running state, as an application writes it that appends under a lock on the key."""
    rng = random.Random(seed)
    next_id, legs = [0] * partitions, dict.fromkeys(range(keys), 0)
    found: list[tuple[int, int, str | None, int]] = []
    for _ in range(rows):
        key = rng.randrange(keys)
        partition = key % partitions
        legs[key] += 1
        found.append((partition, next_id[partition], None if key == 0 else f"N{key}", legs[key]))
        next_id[partition] += 1
    return found


def fold(log: Log) -> dict[str | None, tuple[int, int, int]]:
    state: dict[str | None, tuple[int, int, int]] = {}
    for partition, transaction_id, key, legs in log:
        if key not in state or transaction_id > state[key][1]:
            state[key] = (partition, transaction_id, legs)
    return state


def held(spark: Any, path: Path) -> dict[str | None, tuple[int, int, int]]:
    rows = spark.read.format("delta").load(str(path)).collect()
    assert len({row.tail for row in rows}) == len(rows), "one row per key"
    return {row.tail: (row.partition, row.transaction_id, row.legs) for row in rows}


def frame(spark: Any, rows: Log) -> Any:
    return spark.createDataFrame(list(rows), SCHEMA)


def marks_of(log: Log) -> dict[int, int]:
    return {partition: max(row[1] for row in log if row[0] == partition) for partition in {row[0] for row in log}}


class Died(BaseException):
    pass


def die(self: Any, *arguments: Any, **named: Any) -> int:
    raise Died


def test_a_table_at_a_relative_path_is_made_by_the_first_batch(spark: Any, tmp_path: Path) -> None:
    log = log_of(20)
    path = os.path.relpath(tmp_path / "t")
    assert not Path(path).is_absolute()
    DeltaUpsert(path, KEY, ["tail"]).write(frame(spark, log))
    assert held(spark, tmp_path / "t") == fold(log)
    assert high_water_marks(path, KEY) == marks_of(log)


def test_a_merge_runs_code_that_the_merges_before_it_compiled(spark: Any, tmp_path: Path) -> None:
    """With Spark's default, `spark.sql.codegen.cache.maxEntries=100`, each merge compiles some 60 classes again, and Java compiles their methods."""
    log, compiled = log_of(80), []
    metric = spark._jvm.org.apache.spark.metrics.source.CodegenMetrics.METRIC_COMPILATION_TIME()
    sink = upsert(str(tmp_path / "t"), KEY, ["tail"])
    for start in range(0, len(log), 20):
        before = metric.getCount()
        sink.write(frame(spark, log[start : start + 20]))
        compiled.append(metric.getCount() - before)
    assert compiled[-1] <= 10, compiled
    assert held(spark, tmp_path / "t") == fold(log)


def test_batches_of_any_cut_with_replays_equal_a_fold_of_the_log(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "t"
    log = log_of(120)
    for start, end in ((0, 40), (20, 61), (0, 61), (30, 120)):
        upsert(str(path), KEY, ["tail"]).write(frame(spark, log[start:end]))
        assert held(spark, path) == fold(log[: max(end, len([1 for row in log if row[1] <= high_water_marks(str(path), KEY).get(row[0], -1)]))])
    assert held(spark, path) == fold(log)
    assert high_water_marks(str(path), KEY) == marks_of(log)


def test_a_late_row_never_moves_a_key_back_even_without_marks(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t"
    upsert(str(path), KEY, ["tail"], engine="spark").write(frame(spark, [(0, 5, "N1", 6)]))
    state = MergedTable.state
    monkeypatch.setattr(MergedTable, "state", lambda self, spark: replace(state(self, spark), marks={}))
    upsert(str(path), KEY, ["tail"], engine="spark").write(frame(spark, [(0, 4, "N1", 5), (0, 3, "N2", 1)]))
    assert held(spark, path) == {"N1": (0, 5, 6), "N2": (0, 3, 1)}


def test_a_driver_that_died_between_merge_and_marks_is_finished_by_the_next(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t"
    log = log_of(40)
    upsert(str(path), KEY, ["tail"], engine="spark").write(frame(spark, log[:20]))
    with monkeypatch.context() as patched:
        patched.setattr(internal.TableTransaction, "mark", die)
        with pytest.raises(Died):
            upsert(str(path), KEY, ["tail"], engine="spark").write(frame(spark, log[20:40]))
    assert high_water_marks(str(path), KEY) == marks_of(log[:20]), "the merge is in, its marks are not"
    DeltaTable.forPath(spark, str(path)).update("tail = 'nobody'", {"legs": "legs + 1"})
    DeltaTable.forPath(spark, str(path)).optimize().executeCompaction()
    versions = DeltaTable.forPath(spark, str(path)).history().count()
    upsert(str(path), KEY, ["tail"], engine="spark").write(frame(spark, log[30:40]))
    assert high_water_marks(str(path), KEY) == marks_of(log)
    assert DeltaTable.forPath(spark, str(path)).history().count() == versions + 1, "marks alone were added, nothing was merged again"
    assert held(spark, path) == fold(log)


def test_two_writers_of_disjoint_partitions_lose_nothing_though_they_merge_at_once(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t"
    start = [(0, 0, "N0", 1), (1, 0, "N1", 1)]
    upsert(str(path), KEY, ["tail"], engine="spark").write(frame(spark, start))
    mine, theirs = [(0, 1, "N0", 2)], [(1, 1, "N1", 2)]
    original = MergedTable.merge
    raced: list[bool] = []

    def slow(self: Any, *arguments: Any, **named: Any) -> Any:
        if not raced:
            raced.append(True)
            upsert(str(path), KEY, ["tail"], engine="spark").write(frame(spark, theirs))
        return original(self, *arguments, **named)

    monkeypatch.setattr(MergedTable, "merge", slow)
    upsert(str(path), KEY, ["tail"], engine="spark").write(frame(spark, mine))
    assert held(spark, path) == fold([*start, *mine, *theirs])
    assert high_water_marks(str(path), KEY) == {0: 1, 1: 1}


def test_two_drivers_at_once_agree_with_the_fold(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "t"
    log = log_of(60)
    upsert(str(path), KEY, ["tail"]).prepare(spark, frame(spark, log).schema)
    failures: list[BaseException] = []

    def run(cuts: list[int]) -> None:
        try:
            for start, end in pairwise(cuts):
                upsert(str(path), KEY, ["tail"], attempts=20).write(frame(spark.newSession(), log[start:end]))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(cuts,)) for cuts in ([0, 30, 60], [0, 20, 60])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert not failures
    assert held(spark, path) == fold(log)


@pytest.mark.slow
def test_a_restored_table_is_merged_again_from_where_it_then_was(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the last MERGE before was left without its marks: no writer may set them again."""
    path = tmp_path / "t"
    log = log_of(40)
    upsert(str(path), KEY, ["tail"], engine="spark").write(frame(spark, log[:20]))
    table = DeltaTable.forPath(spark, str(path))
    at = table.history(1).selectExpr("cast(timestamp AS STRING)").collect()[0][0]
    upsert(str(path), KEY, ["tail"], engine="spark").write(frame(spark, log[20:30]))
    with monkeypatch.context() as patched:
        patched.setattr(internal.TableTransaction, "mark", die)
        with pytest.raises(Died):
            upsert(str(path), KEY, ["tail"], engine="spark").write(frame(spark, log[30:]))
    table.restoreToTimestamp(at)
    table.optimize().executeCompaction()
    fresh = upsert(str(path), KEY, ["tail"], engine="spark")
    fresh.prepare(spark, frame(spark, log).schema)
    assert high_water_marks(str(path), KEY) == marks_of(log[:20])
    assert held(spark, path) == fold(log[:20])
    fresh.write(frame(spark, log))
    assert held(spark, path) == fold(log)
    assert high_water_marks(str(path), KEY) == marks_of(log)


def test_a_landing_that_cannot_work_is_refused_before_the_first_batch(spark: Any, tmp_path: Path) -> None:
    schema = frame(spark, log_of(1)).schema
    with pytest.raises(InvalidRequest, match="at least one key"):
        upsert("t", KEY, [])
    with pytest.raises(InvalidRequest, match="no column tial"):
        upsert(str(tmp_path / "t"), KEY, ["tial"]).prepare(spark, schema)
    with pytest.raises(InvalidRequest, match="no column seq"):
        upsert(str(tmp_path / "t"), KEY, ["tail"], sequence="seq").prepare(spark, schema)
    spark.sql("SELECT 1 AS x").write.format("delta").save(str(tmp_path / "other"))
    with pytest.raises(SchemaMismatch):
        upsert(str(tmp_path / "other"), KEY, ["tail"]).prepare(spark, schema)
