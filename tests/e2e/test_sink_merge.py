"""Deletes, soft deletes and histories: equal to a fold of the log by key, however it is cut, replayed, late or interrupted."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from delta.tables import DeltaMergeBuilder, DeltaTable

from waltz_delta import DeltaUpsert, high_water_marks
from waltz_delta.base import internal
from waltz_delta.engine.arrow_transaction import ArrowTransaction
from waltz_delta.errors import KeyMoved
from waltz_delta.landing.history import DeltaHistory
from waltz_delta.landing.merge_sink import MergeSink
from waltz_delta.settings import DeleteSettings
from waltz_log.errors import InvalidRequest

KEY = "a9f9d1de-5f7c-4a4e-9d39-50d9bd5c4c11"
SCHEMA = "partition INT, transaction_id BIGINT, timestamp TIMESTAMP, key STRING, value INT, version INT, op STRING"
HARD = DeleteSettings(where="op = 'D'")
SOFT = DeleteSettings(where="op = 'D'", kind="soft")


def upsert(path: str, cluster_key: str, keys: Sequence[str], **more: Any) -> DeltaUpsert:
    """By the Arrow engine, where nothing else is named and it can; the others are about Spark's."""
    return DeltaUpsert(path, cluster_key, keys, **{"engine": "auto", **more})


@dataclass(frozen=True)
class Event:
    partition: int
    transaction_id: int
    key: str | None
    value: int
    version: int
    deletes: bool

    def order(self, sequence: str) -> tuple[int, int, int]:
        return (self.version if sequence == "version" else self.transaction_id, self.transaction_id, self.partition)


Log = Sequence[Event]


def log_of(count: int, seed: int, *, roaming: bool) -> list[Event]:
    """Random histories of a few keys, a third of them deletes. `roaming`: keys are in every partition, and their versions come in any order."""
    rng = random.Random(seed)
    next_id = [0, 0]
    found = []
    for n in range(count):
        key = rng.randrange(5)
        partition = rng.randrange(2) if roaming else key % 2
        version = rng.randrange(count) if roaming else n
        deletes = rng.random() < 0.3
        found.append(Event(partition, next_id[partition], None if key == 0 else f"k{key}", n, version, deletes))
        next_id[partition] += 1
    return found


def frame(spark: Any, log: Log) -> Any:
    rows = [(e.partition, e.transaction_id, e.key, None if e.deletes else e.value, e.version, "D" if e.deletes else "U") for e in log]
    made = spark.createDataFrame(rows, "partition INT, transaction_id BIGINT, key STRING, value INT, version INT, op STRING")
    return made.selectExpr("partition", "transaction_id", "timestamp_seconds(transaction_id) AS timestamp", "key", "value", "version", "op")


def cuts(log: Log, seed: int, count: int) -> list[list[Event]]:
    """Batches as a source may give them: per partition in order, all of it, and each may begin before the end of the one before (a replay)."""
    rng = random.Random(seed)
    sizes = [sum(e.partition == p for e in log) for p in range(2)]
    ends = [[*sorted(rng.randrange(sizes[p] + 1) for _ in range(count - 1)), sizes[p]] for p in range(2)]
    done = [0, 0]
    batches = []
    for n in range(count):
        starts = [max(0, done[p] - rng.randrange(4)) for p in range(2)]
        batches.append([e for e in log if starts[e.partition] <= e.transaction_id < ends[e.partition][n]])
        done = [max(done[p], ends[p][n]) for p in range(2)]
    return batches


def in_order(log: Log, sequence: str) -> dict[str | None, list[Event]]:
    found: dict[str | None, list[Event]] = {}
    for event in sorted(log, key=lambda e: e.order(sequence)):
        found.setdefault(event.key, []).append(event)
    return found


def folded_rows(log: Log, sequence: str) -> dict[str | None, tuple[int, int, int]]:
    last = {key: events[-1] for key, events in in_order(log, sequence).items()}
    return {key: (e.partition, e.transaction_id, e.value) for key, e in last.items() if not e.deletes}


def folded_soft(log: Log, sequence: str) -> dict[str | None, tuple[int, int, bool, int | None]]:
    """The value of a deleted key is that of the last row before; that is reported only where rows come in order."""
    found = {}
    for key, events in in_order(log, sequence).items():
        last = events[-1]
        values: list[int | None] = [e.value for e in events if not e.deletes]
        found[key] = (last.partition, last.transaction_id, last.deletes, None if sequence == "version" and last.deletes else (values or [None])[-1])
    return found


def folded_history(log: Log, sequence: str) -> set[tuple[str | None, int, int | None, bool, int]]:
    found = set()
    for key, events in in_order(log, sequence).items():
        at = {e.order(sequence)[0]: e for e in events}  # the last of one sequence
        moments = sorted(at)
        for n, moment in enumerate(moments):
            if not at[moment].deletes:
                end = moments[n + 1] if n + 1 < len(moments) else None
                found.add((key, moment, end, end is None, at[moment].value))
    return found


def rows_of(spark: Any, path: Path) -> Any:
    found = spark.read.format("delta").load(str(path)).collect()
    assert len({row.key for row in found}) == len(found), "one row per key"
    return {row.key: (row.partition, row.transaction_id, row.value) for row in found}


def soft_of(spark: Any, path: Path, sequence: str) -> Any:
    found = spark.read.format("delta").load(str(path)).collect()
    assert all((row.deleted_at is not None) == row.deleted for row in found)
    return {r.key: (r.partition, r.transaction_id, r.deleted, None if sequence == "version" and r.deleted else r.value) for r in found}


def history_of(spark: Any, path: Path) -> Any:
    found = [r for r in spark.read.format("delta").load(str(path)).collect() if r.valid_to is None or r.valid_to > r.valid_from]
    assert sum(r.is_current for r in found) == len({r.key for r in found if r.is_current}), "at most one version is current"
    return {(r.key, r.valid_from, r.valid_to, r.is_current, r.value) for r in found}


def merged(spark: Any, make: Callable[[], MergeSink], log: Log, seed: int, batches: int = 3) -> None:
    for batch in cuts(log, seed, batches):
        make().write(frame(spark, batch))


@pytest.mark.parametrize(
    ("engine", "seed", "sequence"),
    [
        ("arrow", 1, "transaction_id"),
        ("arrow", 21, "version"),
        ("arrow", 2, "transaction_id"),
        ("arrow", 22, "version"),
        pytest.param("spark", 1, "transaction_id", marks=pytest.mark.slow),
        ("spark", 3, "version"),
    ],
)
def test_hard_deletes_equal_a_fold_of_the_log_also_when_rows_come_late(spark: Any, tmp_path: Path, engine: str, seed: int, sequence: str) -> None:
    log = log_of(60, seed, roaming=sequence == "version")
    path = tmp_path / "t"
    merged(spark, lambda: upsert(str(path), KEY, ["key"], sequence=sequence, deletes=HARD, engine=engine), log, seed)
    assert rows_of(spark, path) == folded_rows(log, sequence)
    assert (tmp_path / "t_tombstones").exists() == (sequence == "version"), "what cannot come late needs no memory of it"


@pytest.mark.parametrize(
    ("engine", "seed", "sequence"),
    [
        ("arrow", 4, "transaction_id"),
        ("arrow", 24, "version"),
        ("arrow", 5, "transaction_id"),
        ("arrow", 25, "version"),
        pytest.param("spark", 4, "transaction_id", marks=pytest.mark.slow),
        ("spark", 5, "version"),
    ],
)
def test_soft_deletes_equal_a_fold_of_the_log_and_keep_the_last_values(spark: Any, tmp_path: Path, engine: str, seed: int, sequence: str) -> None:
    log = log_of(60, seed, roaming=sequence == "version")
    path = tmp_path / "t"
    merged(spark, lambda: upsert(str(path), KEY, ["key"], sequence=sequence, deletes=SOFT, engine=engine), log, seed)
    assert soft_of(spark, path, sequence) == folded_soft(log, sequence)


@pytest.mark.parametrize(
    ("engine", "seed", "sequence"),
    [
        ("arrow", 6, "transaction_id"),
        ("arrow", 26, "version"),
        ("arrow", 7, "transaction_id"),
        ("arrow", 27, "version"),
        pytest.param("spark", 6, "transaction_id", marks=pytest.mark.slow),
        ("spark", 8, "version"),
    ],
)
def test_a_history_equals_a_fold_of_the_log_also_when_versions_come_late(spark: Any, tmp_path: Path, engine: str, seed: int, sequence: str) -> None:
    log = log_of(60, seed, roaming=sequence == "version")
    path = tmp_path / "t"
    merged(spark, lambda: DeltaHistory(str(path), KEY, ["key"], sequence=sequence, deletes=HARD, engine=engine), log, seed)
    assert history_of(spark, path) == folded_history(log, sequence)


def test_a_key_that_moves_between_partitions_is_refused_without_a_sequence(spark: Any, tmp_path: Path) -> None:
    there, later = [Event(0, 5, "k", 1, 10, False)], [Event(1, 2, "k", 2, 11, False)]
    for n, make in enumerate((DeltaUpsert, DeltaHistory)):
        path = str(tmp_path / f"t{n}")
        make(path, KEY, ["key"]).write(frame(spark, there))
        with pytest.raises(KeyMoved, match="partitions 0 and 1"):
            make(path, KEY, ["key"]).write(frame(spark, later))
        assert high_water_marks(path, KEY) == {0: 5}, "nothing of it was written"
    with pytest.raises(Exception, match=r"key( is)? in two log partitions"):
        upsert(str(tmp_path / "one-batch"), KEY, ["key"]).write(frame(spark, there + later))


@pytest.mark.slow
def test_a_deleted_key_does_not_come_back_with_an_older_row_of_another_partition(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "t"
    sink = upsert(str(path), KEY, ["key"], sequence="version", deletes=HARD)
    sink.write(frame(spark, [Event(0, 0, "k", 1, 1, False), Event(0, 1, "k", 0, 5, True)]))
    sink.write(frame(spark, [Event(1, 0, "k", 2, 3, False)]))
    assert rows_of(spark, path) == {}
    sink.write(frame(spark, [Event(1, 1, "k", 3, 6, False)]))
    assert rows_of(spark, path) == {"k": (1, 1, 3)}


@pytest.mark.parametrize("engine", ["arrow", "spark"])
def test_a_driver_that_died_after_the_tombstones_forgets_no_delete_of_the_larger_batch_that_follows(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    """The table's MERGE comes again under the same number, and what stands beside it must not count as done by it."""
    path = tmp_path / "t"

    def sink() -> DeltaUpsert:
        return upsert(str(path), KEY, ["key"], sequence="version", deletes=HARD, engine=engine)

    sink().write(frame(spark, [Event(0, 0, "a", 1, 1, False), Event(0, 1, "b", 1, 2, False)]))
    deletes = [Event(0, 2, "a", 0, 8, True), Event(0, 3, "b", 0, 9, True)]
    owner, name = (ArrowTransaction, "merge") if engine == "arrow" else (DeltaMergeBuilder, "execute")
    merge = getattr(owner, name)
    made: list[int] = []

    class Died(BaseException):
        pass

    def second_dies(*given: Any, **named: Any) -> Any:
        made.append(1)
        if len(made) == 2:
            raise Died
        return merge(*given, **named)

    with monkeypatch.context() as patched:
        patched.setattr(owner, name, second_dies)
        with pytest.raises(Died):
            sink().write(frame(spark, deletes[:1]))
    assert len(rows_of(spark, path)) == 2, "only beside the table something was written"
    sink().write(frame(spark, deletes))
    sink().write(frame(spark, [Event(1, 0, "a", 2, 5, False), Event(1, 1, "b", 2, 5, False)]))
    assert rows_of(spark, path) == {}, "both are older than the deletes"


def test_a_merge_by_marks_read_before_anothers_merge_loses_the_race(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, rows from before a delete that the other one merged would come back: its marks are not set yet, the deleted row is gone."""
    path = tmp_path / "t"
    log = [Event(0, 0, "k", 1, 0, False), Event(0, 1, "k", 0, 1, True), Event(1, 0, "x", 2, 2, False)]
    upsert(str(path), KEY, ["key"], deletes=HARD, engine="spark").prepare(spark, frame(spark, log).schema)
    original = internal.TableTransaction.mark
    raced: list[bool] = []

    class Died(BaseException):
        pass

    def die(self: Any, *arguments: Any, **named: Any) -> int:
        raise Died

    stage = DeltaUpsert.stage

    def late(self: Any, *arguments: Any, **named: Any) -> Any:
        staged = stage(self, *arguments, **named)
        if not raced:
            raced.append(True)
            monkeypatch.setattr(internal.TableTransaction, "mark", die)
            with pytest.raises(Died):
                upsert(str(path), KEY, ["key"], deletes=HARD, engine="spark").write(frame(spark, log[:2]))
            monkeypatch.setattr(internal.TableTransaction, "mark", original)
        return staged

    monkeypatch.setattr(DeltaUpsert, "stage", late)
    upsert(str(path), KEY, ["key"], deletes=HARD, engine="spark").write(frame(spark, [log[0], log[2]]))
    assert rows_of(spark, path) == {"x": (1, 0, 2)}
    assert high_water_marks(str(path), KEY) == {0: 1, 1: 0}


@pytest.mark.parametrize("sequence", ["transaction_id", "version"])
def test_rows_that_are_lost_with_an_executor_are_read_again(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sequence: str) -> None:
    path = tmp_path / "t"
    log = [Event(0, 0, "k", 1, 0, False), Event(0, 1, "k", 2, 1, False), Event(0, 2, "x", 2, 2, False), Event(0, 3, "x", 2, 3, True)]
    sink = upsert(str(path), KEY, ["key"], sequence=sequence, deletes=HARD, engine="spark")
    stage = DeltaUpsert.stage
    staged: list[Any] = []
    before = held_rows(spark)

    def lose_the_first(self: Any, *arguments: Any, **named: Any) -> Any:
        staged.append(stage(self, *arguments, **named))
        if len(staged) == 1:
            internal.release_held_rows(staged[0].source)
        return staged[-1]

    monkeypatch.setattr(DeltaUpsert, "stage", lose_the_first)
    sink.write(frame(spark, log))
    assert len(staged) == 2
    assert list(rows_of(spark, path)) == ["k"]
    assert high_water_marks(str(path), KEY) == {0: 3}
    assert held_rows(spark) <= before, "the rows of both attempts are freed"


def held_rows(spark: Any) -> set[int]:
    """Ids of what Spark holds, without the states that Delta caches for each table."""
    return {each.id() for each in spark.sparkContext._jsc.sc().getRDDStorageInfo() if "Delta Table State" not in each.name()}


@pytest.mark.slow
def test_optimize_vacuum_columns_and_writes_of_users_in_between_change_nothing(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "t"
    log = log_of(60, 11, roaming=False)
    sink = upsert(str(path), KEY, ["key"], deletes=HARD, cluster_by=["key"], properties={"delta.enableDeletionVectors": "true"})
    sink.write(frame(spark, [e for e in log if e.transaction_id < 10]))
    table = DeltaTable.forPath(spark, str(path))
    table.optimize().executeCompaction()
    spark.sql(f"ALTER TABLE delta.`{path}` ADD COLUMNS (note STRING)")
    DeltaTable.forPath(spark, str(path)).update("true", {"note": "'mine'"})
    spark.sql(f"REORG TABLE delta.`{path}` APPLY (PURGE)")
    table.vacuum()
    sink.write(frame(spark, log))
    assert rows_of(spark, path) == folded_rows(log, "transaction_id")
    noted = {row.key for row in spark.read.format("delta").load(str(path)).collect() if row.note == "mine"}
    kept = {key for key, (_, at, _) in folded_rows(log, "transaction_id").items() if at < 10}
    assert kept <= noted, "rows that no transaction changed keep what the user wrote"


def test_names_that_collide_are_refused(spark: Any, tmp_path: Path) -> None:
    rows = frame(spark, log_of(1, 1, roaming=False))
    with pytest.raises(InvalidRequest, match="a column deleted"):
        upsert(str(tmp_path / "t"), KEY, ["key"], deletes=SOFT).prepare(spark, rows.withColumnRenamed("value", "deleted").schema)
    with pytest.raises(InvalidRequest, match="a column valid_to"):
        DeltaHistory(str(tmp_path / "t"), KEY, ["key"]).prepare(spark, rows.withColumnRenamed("value", "valid_to").schema)
