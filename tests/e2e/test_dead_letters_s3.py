"""Dead letters on S3 without DynamoDB: exactly once, whatever is cut off, and replayed once, by one run and by two."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.e2e.letters import KEY, ROWS, Died, landing, one_commit_each, raw
from verification.lake.races import s3_place
from verification.lake.store_faults import FAULTS, NONE, PERMANENT, FaultyStore, faulty_store
from waltz_delta import dead_letters_replay
from waltz_delta.base.job_outcome import Failure
from waltz_delta.console.tables import letters_of_transaction, waiting_letters
from waltz_delta.dead_letters_replay import Replayed, replay
from waltz_delta.decode.decode import DATA, PROBLEM
from waltz_delta.engine import commit_files
from waltz_delta.engine.stores import file_system
from waltz_delta.errors import StoreUnavailable, TableRestored, UnsafeTable
from waltz_delta.landing.dead_letters import DeadLetters
from waltz_delta.landing.landing import Landing, needs_delta
from waltz_delta.marks.marks import BatchRange
from waltz_delta.marks.positions_log import TableLog
from waltz_delta.settings import LandingSettings
from waltz_log.errors import InvalidSetting
from waltz_log.exit_codes import UNAVAILABLE

ALL, DEAD = "s3a://lake/tables/all", "s3a://lake/tables/dead"
BURIED = [
    ("", 0, 2, "no route for header 7"),
    ("", 0, 4, "no route for header 9"),
    (ALL, 0, 1, "n is not INT: two"),
    (ALL, 0, 3, "n is not INT: three"),
    (ALL, 1, 0, "is not UTF-8"),
    (ALL, 1, 1, "is not one JSON object: Extra data at character 20"),
]
Storage = dict[str, str]


@pytest.fixture(scope="module")
def server() -> Iterator[Storage]:
    with s3_place() as place:
        yield dict(place.storage)


@pytest.fixture
def storage(server: Storage) -> Storage:
    """An empty place: the tables of the test before are gone."""
    files, root = file_system("s3://lake/tables", server)
    files.delete_dir_contents(root, missing_dir_ok=True)
    return server


def on_s3(storage: Storage, columns: str = "k STRING NOT NULL, n INT", select: str = "k, n", **changes: Any) -> LandingSettings:
    made = landing(Path(), columns=columns).model_dump()["outputs"][0]
    made["target"] |= {"table": ALL, "storage": storage}
    made["projection"]["select"] = select
    return landing(Path(), outputs=[made], dead_letters={"table": DEAD, "storage": storage}, **changes)


def read(storage: Storage, path: str, *columns: str) -> list[tuple[Any, ...]]:
    found = DeltaTable(path, storage_options=storage).to_pyarrow_table(columns=list(columns)).to_pylist()
    return sorted((tuple(row[name] for name in columns) for row in found), key=repr)


def letters(storage: Storage) -> list[tuple[Any, ...]]:
    return read(storage, DEAD, "target", "partition", "transaction_id", "reason")


def ids(storage: Storage) -> list[int]:
    return [row[0] for row in read(storage, ALL, "transaction_id")]


def waiting(storage: Storage) -> list[tuple[Any, ...]]:
    return [row[:3] for row in read(storage, DEAD, "target", "partition", "transaction_id", "replayed_at") if row[3] is None]


def at_once(*calls: Callable[[], object]) -> list[BaseException]:
    """Runs all of them at the same time. Returns what they raised."""
    start, raised = threading.Barrier(len(calls)), list[BaseException]()

    def run(call: Callable[[], object]) -> None:
        start.wait()
        try:
            call()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    return raised


@pytest.fixture
def without_delta(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of Delta in the session may be used, as without its jars."""
    for name in ("check_versions", "TableTransaction", "transaction_versions", "table_version"):
        monkeypatch.setattr(f"waltz_delta.base.internal.{name}", _not_there)
    for name in ("landing.dead_letters.is_table", "landing.append.is_table", "dead_letters_replay.is_table"):
        monkeypatch.setattr(f"waltz_delta.{name}", _not_there)


def _not_there(*_: Any, **__: Any) -> Any:
    raise AssertionError("Delta in Spark is used")


def test_letters_on_s3_are_there_once_and_before_their_table_even_if_drivers_die(
    spark: Any, storage: Storage, monkeypatch: pytest.MonkeyPatch, without_delta: None
) -> None:
    """The first driver dies between the two commits; the others find what it left. Each runs the same batch."""
    settings, batch = on_s3(storage), raw(spark, ROWS)
    assert not needs_delta(settings)
    with monkeypatch.context() as patched:
        one_commit_each(patched)
        with pytest.raises(Died):
            Landing(settings, KEY).write(batch)
    assert letters(storage) == BURIED
    assert not DeltaTable.is_deltatable(ALL, storage_options=storage), "letters first"
    for _ in range(2):
        again = Landing(settings, KEY)
        again.write(batch)
        assert (letters(storage), ids(storage)) == (BURIED, [0])
        assert again.statistics().dead_letters == 0
    assert settings.dead_letters is not None
    assert waiting_letters(settings.dead_letters).count == len(BURIED)
    assert [each.target for each in letters_of_transaction(settings.dead_letters, KEY, 1, 0)] == [ALL]


def test_two_drivers_on_s3_write_each_letter_once(spark: Any, storage: Storage, without_delta: None) -> None:
    """Both find no table of letters, and both have the same batches."""
    settings = on_s3(storage)
    landings = [Landing(settings, KEY) for _ in range(2)]
    assert at_once(*(lambda each=each: each.write(raw(spark, ROWS[:4])) for each in landings)) == []
    assert at_once(*(lambda each=each: each.write(raw(spark, ROWS)) for each in landings)) == []
    assert (letters(storage), ids(storage)) == (BURIED, [0])
    assert sum(each.statistics().dead_letters for each in landings) == len(BURIED)


def test_letters_below_the_marks_are_added_if_the_first_attempt_judged_otherwise(
    spark: Any, storage: Storage, monkeypatch: pytest.MonkeyPatch, without_delta: None
) -> None:
    """The driver died between letters and table. The next one has columns for which one more row is bad."""
    with monkeypatch.context() as patched:
        one_commit_each(patched)
        with pytest.raises(Died):
            Landing(on_s3(storage, unrouted="skip"), KEY).write(raw(spark, ROWS[:4]))
    for _ in range(2):
        Landing(on_s3(storage, columns="k INT NOT NULL, n INT", unrouted="skip"), KEY).write(raw(spark, ROWS[:4]))
        assert [row[1:3] for row in letters(storage)] == [(0, 0), (0, 1), (0, 3)]
    assert ids(storage) == []


@pytest.fixture(scope="module")
def faulty() -> Iterator[FaultyStore]:
    with faulty_store() as store:
        yield store


@pytest.fixture
def store(faulty: FaultyStore) -> FaultyStore:
    """An empty place without faults."""
    faulty.fail(NONE)
    files, root = file_system("s3://lake/tables", faulty.storage)
    files.delete_dir_contents(root, missing_dir_ok=True)
    return faulty


def written(spark: Any, dead: DeadLetters, end: int) -> int:
    """Writes a batch of the first transactions of a partition, all of which are bad. Returns how many letters it wrote."""
    rows = raw(spark, ROWS[:end]).selectExpr("*", f"data AS {DATA}", f"'bad' AS {PROBLEM}").drop("data")
    return dead.write(spark, BatchRange({0: end}, {0: 0}, exact=True), {ALL: lambda marks: rows.where(f"transaction_id > {marks.get(0, -1)}")}, 0)


def places(storage: Storage) -> list[tuple[Any, ...]]:
    return [row[1:3] for row in letters(storage)]


@pytest.mark.parametrize("name", [name for name in FAULTS if name != "a read of a data file fails"])
def test_a_fault_that_passes_neither_loses_nor_repeats_letters(spark: Any, store: FaultyStore, name: str) -> None:
    dead = DeadLetters(DEAD, KEY, [ALL], storage=store.storage)
    dead.prepare(spark)
    store.fail(name)
    assert written(spark, dead, 2) == 2
    assert store.fail(NONE) > 0
    assert written(spark, dead, 2) == 0
    assert places(store.storage) == [(0, 0), (0, 1)]


@pytest.mark.parametrize("begins", ["", "/part-", ".json"])
@pytest.mark.parametrize("name", PERMANENT)
def test_a_fault_that_stays_is_one_sentence_and_the_letters_are_written_later(spark: Any, store: FaultyStore, name: str, begins: str) -> None:
    """At the start, in a task, and at the commit."""
    DeadLetters(DEAD, KEY, [ALL], storage=store.storage).prepare(spark)
    dead = DeadLetters(DEAD, KEY, [ALL], storage=store.hasty)
    dead.prepare(spark)
    store.fail(name, begins=begins)
    with pytest.raises(StoreUnavailable, match=PERMANENT[name][1]) as failed:
        written(spark, dead, 2)
    assert "\n" not in str(failed.value)
    assert store.fail(NONE) > 0
    assert letters(store.storage) == []
    assert (written(spark, dead, 3), written(spark, dead, 3)) == (3, 0)
    assert places(store.storage) == [(0, 0), (0, 1), (0, 2)]


@pytest.mark.parametrize("name", FAULTS)
def test_a_replay_lands_and_marks_each_letter_once_whatever_fails(spark: Any, store: FaultyStore, name: str) -> None:
    Landing(on_s3(store.storage), KEY).write(raw(spark, ROWS))
    store.fail(name)
    replay(spark, on_s3(store.storage, **FIXED))
    assert store.fail(NONE) > 0
    assert (ids(store.storage), letters(store.storage)) == ([0, 1, 3], BURIED)
    assert waiting(store.storage) == [("", 0, 2), ("", 0, 4), (ALL, 1, 0), (ALL, 1, 1)]


@pytest.mark.parametrize(
    ("name", "begins"),
    [("the bucket disappears", "all/part-"), ("credentials expire", "dead/part-"), ("the bucket disappears", "dead/_delta_log/")],
)
def test_a_replay_that_is_cut_off_by_its_store_goes_on_later(spark: Any, store: FaultyStore, name: str, begins: str) -> None:
    Landing(on_s3(store.storage), KEY).write(raw(spark, ROWS))
    store.fail(name, begins=begins)
    with pytest.raises(Exception, match=PERMANENT[name][1]) as failed:
        replay(spark, on_s3(store.hasty, **FIXED))
    assert store.fail(NONE) > 0
    assert Failure.of(failed.value).code == UNAVAILABLE
    replay(spark, on_s3(store.storage, **FIXED))
    assert (ids(store.storage), letters(store.storage)) == ([0, 1, 3], BURIED)
    assert waiting(store.storage) == [("", 0, 2), ("", 0, 4), (ALL, 1, 0), (ALL, 1, 1)]


FIXED = {"columns": "k STRING NOT NULL, n STRING", "select": "k, try_cast(n AS INT) AS n"}


def test_a_replay_on_s3_lands_each_letter_once_and_marks_it(
    spark: Any, storage: Storage, monkeypatch: pytest.MonkeyPatch, without_delta: None
) -> None:
    Landing(on_s3(storage), KEY).write(raw(spark, ROWS))
    fixed, reported = on_s3(storage, **FIXED), Replayed(ALL, 2, 2, 0, {"is not UTF-8": 1, "is not one JSON object": 1})
    before = TableLog(DEAD, storage).version
    assert replay(spark, fixed, dry_run=True) == [reported]
    assert (ids(storage), TableLog(DEAD, storage).version) == ([0], before), "a dry run changes nothing"
    with monkeypatch.context() as patched:
        patched.setattr(dead_letters_replay, "_mark", _die)
        with pytest.raises(Died):
            replay(spark, fixed)
    assert (ids(storage), len(waiting(storage))) == ([0, 1, 3], len(BURIED))
    assert replay(spark, fixed) == [reported]
    assert (ids(storage), letters(storage)) == ([0, 1, 3], BURIED)
    still = [("", 0, 2), ("", 0, 4), (ALL, 1, 0), (ALL, 1, 1)]
    assert waiting(storage) == still
    first = read(storage, DEAD, "transaction_id", "replayed_at")
    assert [each.landed for each in replay(spark, fixed)] == [0]
    assert (ids(storage), waiting(storage)) == ([0, 1, 3], still)
    assert read(storage, DEAD, "transaction_id", "replayed_at") == first
    Landing(fixed, KEY).write(raw(spark, [*ROWS, (0, 5, 1, b"none")]))
    assert (len(letters(storage)), ids(storage)) == (len(BURIED) + 1, [0, 1, 3]), "the marks are those of before"


def _die(*_: Any) -> None:
    raise Died


def test_of_two_replays_at_once_each_letter_lands_once(spark: Any, storage: Storage, monkeypatch: pytest.MonkeyPatch, without_delta: None) -> None:
    """They meet before they land, and before they mark. New letters come while they mark."""
    Landing(on_s3(storage), KEY).write(raw(spark, ROWS))
    fixed = on_s3(storage, **FIXED)
    meeting, mark = threading.Barrier(2), dead_letters_replay._mark
    land = dead_letters_replay._land

    def landing_together(*given: Any) -> None:
        meeting.wait(60)
        land(*given)

    def marking_together(*given: Any) -> None:
        if not meeting.wait(60):
            Landing(on_s3(storage), KEY).write(raw(spark, [*ROWS, (0, 5, 1, b"none")]))
        mark(*given)

    monkeypatch.setattr(dead_letters_replay, "_land", landing_together)
    monkeypatch.setattr(dead_letters_replay, "_mark", marking_together)
    assert at_once(*[lambda: replay(spark, fixed)] * 2) == []
    assert ids(storage) == [0, 1, 3]
    assert [row[1:3] for row in letters(storage)] == [row[1:3] for row in sorted([*BURIED, (ALL, 0, 5, "")], key=repr)]
    assert waiting(storage) == [("", 0, 2), ("", 0, 4), (ALL, 0, 5), (ALL, 1, 0), (ALL, 1, 1)]


@pytest.mark.parametrize("marked_at_once", [1, 100])
def test_the_answer_to_the_commit_of_a_replays_marks_may_be_lost(
    spark: Any, storage: Storage, monkeypatch: pytest.MonkeyPatch, marked_at_once: int
) -> None:
    Landing(on_s3(storage), KEY).write(raw(spark, ROWS))
    monkeypatch.setattr(dead_letters_replay, "MARKED_AT_ONCE", marked_at_once)
    put, lost = commit_files.create_commit, list[int]()

    def losing(opened: Any, *given: Any) -> None:
        put(opened, *given)
        if not lost and any(field["name"] == "replayed_at" for field in opened.shape.schema["fields"]):
            lost.append(1)
            raise OSError("the answer is lost")

    monkeypatch.setattr(commit_files, "create_commit", losing)
    before = TableLog(DEAD, storage).version
    replay(spark, on_s3(storage, **FIXED))
    assert lost
    assert TableLog(DEAD, storage).version == before + (2 if marked_at_once == 1 else 1)
    assert waiting(storage) == [("", 0, 2), ("", 0, 4), (ALL, 1, 0), (ALL, 1, 1)]


def test_letters_on_s3_follow_a_restore_and_end_a_query_that_it_meets(spark: Any, storage: Storage, without_delta: None) -> None:
    running = Landing(on_s3(storage), KEY)
    for end in (1, 2):
        running.write(raw(spark, ROWS[:end]))
    assert [row[1:3] for row in letters(storage)] == [(0, 1)]
    DeltaTable(DEAD, storage_options=storage).restore(0)
    with pytest.raises(TableRestored) as raised:
        running.write(raw(spark, ROWS))
    assert raised.value.path == DEAD
    assert letters(storage) == []
    DeltaTable(ALL, storage_options=storage).restore(0)
    for _ in range(2):
        Landing(on_s3(storage), KEY).write(raw(spark, ROWS))
        assert letters(storage) == BURIED


KEYED = {"table": "s3a://lake/tables/keyed", "mode": "upsert", "keys": ["k"], "properties": {"delta.enableChangeDataFeed": "true"}}


def test_a_replay_into_a_table_that_spark_cannot_write_ends_before_anything_lands(spark: Any, storage: Storage) -> None:
    settings = on_s3(storage)
    Landing(settings, KEY).write(raw(spark, ROWS))
    merged = settings.model_dump(mode="json")
    merged["outputs"].append({**merged["outputs"][0], "target": {**KEYED, "storage": storage}})
    merged["outputs"][0]["decode"]["columns"] = "k STRING NOT NULL, n STRING"
    merged["outputs"][0]["projection"]["select"] = "k, try_cast(n AS INT) AS n"
    with pytest.raises((UnsafeTable, InvalidSetting), match="s3a"):
        replay(spark, LandingSettings.model_validate(merged))
    assert ids(storage) == [0]


def test_letters_that_must_be_written_by_arrow_are_refused_where_it_cannot(spark: Any, tmp_path: Path) -> None:
    settings = landing(tmp_path, dead_letters={"table": "hdfs://nowhere/dead", "engine": "arrow"})
    with pytest.raises(InvalidSetting, match="engine is arrow, and the Arrow engine does not write to hdfs: paths"):
        DeadLetters.declared(settings.dead_letters, KEY).prepare(spark)  # type: ignore[arg-type]
