"""The commit of the Arrow engine: exactly one of several writers, whatever happens to answers, and nothing that was decided from an older table."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import deltalake.transaction
import pytest
from deltalake import CommitProperties, DeltaTable, Field, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.schema import PrimitiveType

from tests.unit.sink.engine.arrow_tables import MARK, METADATA, SHAPE, append, begin, commit, creating, files, held, opened
from verification.lake.races import Place, s3_place
from waltz_delta import NotADeltaTable, high_water_marks
from waltz_delta.base.checkpoints import CHECKPOINTS
from waltz_delta.engine import arrow_transaction
from waltz_delta.engine.allowed import refusal_of_path
from waltz_delta.engine.arrow_table import NotOpened, OpenedTable
from waltz_delta.engine.arrow_transaction import ArrowTransaction, Overtaken
from waltz_delta.engine.stores import file_system
from waltz_delta.errors import StoreUnavailable
from waltz_delta.marks.restores import is_ours, restored_by


def text(path: Path, version: int) -> str:
    return (path / "_delta_log" / f"{version:020d}.json").read_text()


def test_rows_and_marks_are_one_commit_and_the_mark_never_expires(tmp_path: Path) -> None:
    table = opened(tmp_path)
    assert begin(table).exists is False
    assert [append(table, 0, 10), append(table, 10, 15)] == [0, 1]
    assert held(tmp_path) == list(range(15))
    assert high_water_marks(str(tmp_path), "key") == {0: 14}
    actions = [json.loads(line) for line in text(tmp_path, 1).splitlines()]
    assert sorted(name for action in actions for name in action) == ["add", "commitInfo", "txn"]
    assert [action["txn"] for action in actions if "txn" in action] == [{"appId": MARK, "version": 14}], "without a date"
    assert is_ours(actions[0]["commitInfo"], "key")
    assert actions[0]["commitInfo"]["readVersion"] == 0
    transaction = ArrowTransaction(table)
    assert (transaction.read_version, transaction.versions(), transaction.versions_at(0)) == (1, {MARK: 14}, {MARK: 9})
    assert transaction.properties() == SHAPE.properties


def test_of_writers_that_decided_from_one_version_exactly_one_commits(tmp_path: Path) -> None:
    table = opened(tmp_path)
    append(table, 0, 1)
    for mark in range(1, 6):
        start = threading.Barrier(4)
        won: list[int] = []

        def race(mark: int = mark, start: threading.Barrier = start, won: list[int] = won) -> None:
            own = opened(tmp_path)
            transaction, written = begin(own), files(own, mark, mark + 1)
            start.wait()
            with suppress(Overtaken):
                won.append(commit(transaction, written, mark))

        threads = [threading.Thread(target=race) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert won == [mark]
    assert held(tmp_path) == list(range(6))


def test_a_mark_that_another_commit_changed_is_compared_at_the_commit(tmp_path: Path) -> None:
    """deltalake itself accepts a lower mark, and the same one, from a fresh snapshot."""
    table = opened(tmp_path)
    append(table, 0, 10)
    late = begin(table)
    written = files(table, 10, 20)
    append(opened(tmp_path), 10, 20)
    with pytest.raises(Overtaken):
        commit(late, written, 19)
    assert held(tmp_path) == list(range(20))


def test_a_commit_of_another_kind_in_between_does_not_lose_the_batch(tmp_path: Path) -> None:
    table = opened(tmp_path)
    append(table, 0, 10)
    transaction, written = begin(table), files(table, 10, 20)
    for number in range(3):
        other = DeltaTable(str(tmp_path))
        other.create_write_transaction(
            [], "append", other.schema(), commit_properties=CommitProperties(app_transactions=[Transaction("other", number)])
        )
    DeltaTable(str(tmp_path)).delete("id = 3")
    assert commit(transaction, written, 19) == 5
    assert held(tmp_path) == [id for id in range(20) if id != 3]


def restore_as_spark(table: DeltaTable) -> None:
    """Spark's RESTORE to version 0 neither changes the protocol nor the metadata, so deltalake sees no conflict with an append."""
    url = table.table_uri.rstrip("/")
    store, root = file_system(url if url.startswith("s3:") else unquote(urlsplit(url).path), table._storage_options or {})
    with store.open_input_file(f"{root}/_delta_log/{1:020d}.json") as log:
        files = [action["add"]["path"] for action in map(json.loads, log.read().splitlines()) if "add" in action]
    info = {"timestamp": 1, "operation": "RESTORE", "operationParameters": {"version": 0}}
    removed = [{"remove": {"path": path, "deletionTimestamp": 1, "dataChange": True}} for path in files]
    commit = "\n".join(json.dumps(action) for action in ({"commitInfo": info}, *removed))
    with store.open_output_stream(f"{root}/_delta_log/{table.version() + 1:020d}.json") as log:
        log.write(commit.encode())


CHANGES: dict[str, Callable[[DeltaTable], object]] = {
    "a RESTORE": lambda table: table.restore(0),
    "a RESTORE by Spark": restore_as_spark,
    "a property": lambda table: table.alter.set_table_properties({"delta.dataSkippingNumIndexedCols": "1"}),
    "a constraint": lambda table: table.alter.add_constraint({"positive": "id >= 0"}),
    "a column": lambda table: table.alter.add_columns(Field("more", PrimitiveType("string"), nullable=True)),
    "a feature": lambda table: table.alter.add_feature(feature(), allow_protocol_versions_increase=True),
}


def feature() -> Any:
    from deltalake import TableFeatures

    return TableFeatures.TimestampWithoutTimezone


@pytest.mark.parametrize("change", CHANGES)
def test_a_commit_that_was_decided_before_a_change_of_the_table_is_not_made(tmp_path: Path, change: str) -> None:
    """deltalake itself accepts an append that was decided before a feature was added."""
    table = opened(tmp_path)
    append(table, 0, 10)
    append(table, 10, 20)
    transaction, written = begin(table), files(table, 20, 30)
    CHANGES[change](DeltaTable(str(tmp_path)))
    version = DeltaTable(str(tmp_path)).version()
    with pytest.raises(Overtaken):
        commit(transaction, written, 29)
    assert DeltaTable(str(tmp_path)).version() == version
    assert "RESTORE" not in change or any(restored_by(info) for _, info in begin(table).commits(1))


@pytest.mark.parametrize("store", ["local", "s3"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_between_the_comparison_and_the_put_is_not_overtaken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str, store: str
) -> None:
    """Neither by the compare-and-set, nor by deltalake's own check, which the engine does not need."""
    with contextlib.ExitStack() as stack:
        place = Place(str(tmp_path), {}) if store == "local" else stack.enter_context(s3_place())
        path, storage = place.location, place.storage
        table = opened(path, storage)
        append(table, 0, 10)
        append(table, 10, 20)
        transaction, written = begin(table), files(table, 20, 30)
        raced: list[int] = []

        def slow(_: OpenedTable, create: Callable[[], None]) -> None:
            if not raced:
                raced.append(1)
                CHANGES[change](DeltaTable(path, storage_options=dict(storage)))
            create()

        with creating(monkeypatch, slow), pytest.raises(Overtaken):
            commit(transaction, written, 29)
        found = DeltaTable(path, storage_options=dict(storage)).to_pyarrow_table()["id"].to_pylist()
        assert sorted(found) == list(range(10 if "RESTORE" in change else 20))


def test_the_version_of_a_commit_is_known_exactly_when_another_one_came_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = opened(tmp_path)
    append(table, 0, 10)
    raced: list[int] = []

    def slow(_: OpenedTable, create: Callable[[], None]) -> None:
        if not raced:
            raced.append(1)
            other = DeltaTable(str(tmp_path))
            named = CommitProperties(app_transactions=[Transaction("other", 1)])
            other.create_write_transaction([], "append", other.schema(), commit_properties=named)
        create()

    with creating(monkeypatch, slow):
        version = append(table, 10, 20)
    assert version == 2
    assert f'"{MARK}"' in text(tmp_path, version)


@pytest.mark.parametrize("lands", [True, False])
def test_a_driver_that_is_interrupted_in_its_commit_decides_it_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lands: bool) -> None:
    """An interrupt may arrive after the commit that it interrupts."""
    table = opened(tmp_path)
    append(table, 0, 10)

    def interrupted(_: OpenedTable, create: Callable[[], None]) -> None:
        if lands:
            create()
        raise KeyboardInterrupt

    with creating(monkeypatch, interrupted), pytest.raises(KeyboardInterrupt):
        append(table, 10, 20)
    for driver in (table, opened(tmp_path)):
        assert begin(driver).version(MARK) == (19 if lands else 9)
    assert append(table, 20 if lands else 10, 25) == (2 if lands else 1)
    assert held(tmp_path) == list(range(25))


@pytest.mark.parametrize(("store", "held_before"), [("local", 0), ("local", 10), ("s3", 10)])
def test_an_interrupt_while_the_properties_of_a_commit_are_read_stays_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str, held_before: int
) -> None:
    """deltalake would report it as a value that cannot be serialized."""
    with contextlib.ExitStack() as stack:
        place = Place(str(tmp_path), {}) if store == "local" else stack.enter_context(s3_place())
        path, storage = place.location, place.storage
        table = opened(path, storage)
        if held_before:
            append(table, 0, held_before)
        written = files(table, held_before, 20)
        dumps, met = json.dumps, list[int]()

        def interrupted(value: Any, **named: Any) -> str:
            if METADATA in (value, *(value.get("commitInfo", {}).values() if isinstance(value, dict) else ())):
                met.append(1)
                raise KeyboardInterrupt
            return dumps(value, **named)

        transaction = begin(table)
        with monkeypatch.context() as patched:
            patched.setattr(json, "dumps", interrupted)
            with pytest.raises(KeyboardInterrupt):
                commit(transaction, written, 19)
        assert met
        assert begin(opened(path, storage)).version(MARK) == (held_before - 1 if held_before else None)


INTERRUPTED = """
import random, signal, sys, time
from verification.lake.log_table import MARK, append, begin, opened

signal.signal(signal.SIGALRM, signal.default_int_handler)
drawn, table = random.Random(7), opened(sys.argv[1])
append(table, 0, 1)
began_s = time.perf_counter()
append(table, 1, 2)
took_s = time.perf_counter() - began_s
for _ in range(40):
    try:
        signal.setitimer(signal.ITIMER_REAL, drawn.uniform(0.0001, 2 * took_s))
        mark = begin(table).version(MARK)
        append(table, mark + 1, mark + 3)
        time.sleep(60)
    except KeyboardInterrupt:
        pass
print(begin(opened(sys.argv[1])).version(MARK))
"""


def test_signals_at_any_moment_of_a_batch_neither_lose_nor_repeat_rows(tmp_path: Path) -> None:
    found = subprocess.run([sys.executable, "-c", INTERRUPTED, str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stderr
    assert held(tmp_path) == list(range(int(found.stdout) + 1))
    assert int(found.stdout) > 1, "some batches landed"


@pytest.mark.parametrize("lands", [True, False])
def test_an_error_means_that_the_outcome_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lands: bool) -> None:
    """As when the answer of the store is lost: the commit is there or not, and the rows are in the table once."""
    table = opened(tmp_path)
    append(table, 0, 10)
    failed: list[int] = []

    def unanswered(_: OpenedTable, create: Callable[[], None]) -> None:
        if lands or failed:
            create()
        if not failed:
            failed.append(1)
            raise CommitFailedError("Concurrent transaction failed")

    with creating(monkeypatch, unanswered):
        assert append(table, 10, 20) == 1
    assert held(tmp_path) == list(range(20))
    assert append(table, 20, 21) == 2


def test_an_unanswered_creation_is_found_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = opened(tmp_path)
    create = deltalake.transaction.create_table_with_add_actions

    def unanswered(*given: Any, **named: Any) -> None:
        create(*given, **named)
        raise DeltaError("no answer")

    monkeypatch.setattr(deltalake.transaction, "create_table_with_add_actions", unanswered)
    assert append(table, 0, 3) == 0
    assert held(tmp_path) == [0, 1, 2]


def test_a_table_that_another_driver_created_meanwhile_is_decided_again(tmp_path: Path) -> None:
    table = opened(tmp_path)
    transaction, written = begin(table), files(table, 0, 3)
    append(opened(tmp_path), 0, 3)
    with pytest.raises(Overtaken):
        commit(transaction, written, 2)
    assert held(tmp_path) == [0, 1, 2]


@pytest.mark.parametrize("answered", [True, False])
def test_an_empty_table_is_created_once_with_its_identifiers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answered: bool) -> None:
    create = deltalake.transaction.create_table_with_add_actions

    def called(*given: Any, **named: Any) -> None:
        create(*given, **named)
        if not answered:
            raise DeltaError("no answer")

    monkeypatch.setattr(deltalake.transaction, "create_table_with_add_actions", called)
    first, second = ArrowTransaction(opened(tmp_path)), ArrowTransaction(opened(tmp_path))
    assert first.create(SHAPE, {"waltz.mode:upsert": 1}, metadata=METADATA) == 0
    for late in (second, ArrowTransaction(opened(tmp_path))):
        with pytest.raises(Overtaken):
            late.create(SHAPE, {"waltz.mode:append": 1}, metadata=METADATA)
    found = ArrowTransaction(opened(tmp_path))
    assert (found.read_version, found.versions(), found.properties()) == (0, {"waltz.mode:upsert": 1}, SHAPE.properties)
    assert held(tmp_path) == []


def test_a_store_that_keeps_failing_ends_with_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = opened(tmp_path)
    append(table, 0, 10)
    tried: list[int] = []

    def refuse(*_: object) -> None:
        tried.append(1)
        raise DeltaError("\x1b[31mGeneric S3 error: 503 Slow Down\x1b[0m\n  0: backtrace\n  1: more")

    with creating(monkeypatch, refuse), pytest.raises(StoreUnavailable) as failed:
        append(table, 10, 20)
    assert str(failed.value) == f"the table's store is unavailable: Generic S3 error: 503 Slow Down: path={tmp_path}"
    assert len(tried) == arrow_transaction.FAILURES_MAX
    assert append(table, 10, 20) == 1


def test_a_table_that_was_replaced_under_an_open_handle_is_noticed(tmp_path: Path) -> None:
    path, other = tmp_path / "t", tmp_path / "other"
    table = opened(path)
    for first in (0, 10, 20):
        append(table, first, first + 10)
    transaction, written = begin(table), files(table, 30, 40)
    strange = opened(other)
    for number in range(4):
        append(strange, number, number + 1)
    shutil.rmtree(path)
    other.rename(path)
    with pytest.raises(Overtaken):
        commit(transaction, written, 39)
    assert begin(table).table_id != transaction.table_id
    assert held(path) == [0, 1, 2, 3]
    shutil.rmtree(path)
    assert begin(table).exists is False


def test_a_damaged_log_is_refused_with_what_to_do(tmp_path: Path) -> None:
    for number in range(4):
        append(opened(tmp_path), number, number + 1)
    newest = tmp_path / "_delta_log" / f"{3:020d}.json"
    content = newest.read_bytes()
    newest.write_bytes(b"")
    with pytest.raises(NotADeltaTable, match=r"newest commit 0{19}3\.json is empty.*restore that file"):
        begin(opened(tmp_path))
    newest.write_bytes(content)
    os.remove(tmp_path / "_delta_log" / f"{1:020d}.json")
    with pytest.raises(NotADeltaTable, match="its log lacks commits; move away what is left of the table"):
        begin(opened(tmp_path))


def test_marks_alone_are_a_commit(tmp_path: Path) -> None:
    table = opened(tmp_path)
    append(table, 0, 10)
    assert begin(table).mark({MARK: 3}, query="waltz", batch=-1, metadata=METADATA) == 1
    assert begin(table).version(MARK) == 3
    assert held(tmp_path) == list(range(10))


def test_checkpoints_follow_the_interval_and_keep_the_marks_and_the_statistics(tmp_path: Path) -> None:
    table = opened(tmp_path)
    append(table, 0, 1)
    DeltaTable(str(tmp_path)).alter.set_table_properties({"delta.checkpointInterval": "5"})
    hint = tmp_path / "_delta_log" / "._last_checkpoint.crc"
    hint.write_text("of an older hint, by Spark")
    for number in range(1, 7):
        append(table, number, number + 1)
        assert CHECKPOINTS.settle(60)
    assert [path.name for path in (tmp_path / "_delta_log").glob("*.checkpoint.parquet")] == [f"{5:020d}.checkpoint.parquet"]
    assert not hint.exists(), "Spark would read the log without the checkpoint"
    for version in range(5):
        (tmp_path / "_delta_log" / f"{version:020d}.json").unlink()
    assert begin(opened(tmp_path)).version(MARK) == 6
    assert held(tmp_path) == list(range(7))
    statistics = DeltaTable(str(tmp_path)).get_add_actions(flatten=True)
    assert sorted(statistics["max.id"].to_pylist()) == list(range(7))


def test_a_checkpoint_of_a_removed_table_does_not_bring_it_back(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = opened(path)
    append(table, 0, 1)
    identity = begin(table).table_id
    shutil.rmtree(path)
    table.write_checkpoint(identity)
    assert not list(path.rglob("*.parquet"))
    append(opened(path), 0, 1)
    table.write_checkpoint(identity)
    assert not list(path.rglob("*.checkpoint.parquet"))


def test_a_directory_with_other_content_is_refused_and_that_of_a_first_batch_that_died_is_not(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(NotADeltaTable, match="a file is there"):
        opened_without_reserving(tmp_path / "file").is_table()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    with pytest.raises(NotADeltaTable, match=r"holds notes\.txt"):
        opened_without_reserving(tmp_path / "other").is_table()
    died = opened(tmp_path / "died")
    files(died, 0, 3)
    assert died.is_table() is False
    shutil.rmtree(tmp_path / "died" / "_delta_log")
    assert died.is_table() is False, "an object store has no directories"
    append(died, 0, 3)
    assert died.is_table() is True


def opened_without_reserving(path: Path) -> Any:
    from contextlib import nullcontext

    from waltz_delta.engine.arrow_table import ArrowTable

    return ArrowTable(str(path), str(path), {}, nullcontext)


UNKNOWN = {
    **{
        name: ({"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": [feature], "writerFeatures": [feature]}, "integer")
        for name, feature in (("a feature", "of next year"), ("a catalog", "catalogManaged"))
    },
    "a version": ({"minReaderVersion": 4, "minWriterVersion": 8}, "integer"),
    "a type": ({"minReaderVersion": 1, "minWriterVersion": 2}, "geometry"),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_table_that_deltalake_does_not_open_is_left_to_spark(tmp_path: Path, name: str) -> None:
    protocol, kind = UNKNOWN[name]
    schema = {"type": "struct", "fields": [{"name": "c", "type": kind, "nullable": True, "metadata": {}}]}
    metadata = {"id": "1", "format": {"provider": "parquet", "options": {}}, "schemaString": json.dumps(schema), "partitionColumns": []}
    table = opened(tmp_path)
    commit = "\n".join(json.dumps(action) for action in ({"protocol": protocol}, {"metaData": {**metadata, "configuration": {}}}))
    (tmp_path / "_delta_log" / f"{0:020d}.json").write_text(commit)
    with pytest.raises(NotOpened, match="deltalake does not open the table"):
        table.open()


@pytest.mark.parametrize("name", ["a b", "50%", "é#1", "what?", "=,;"])
def test_odd_letters_in_a_path_are_no_problem(tmp_path: Path, name: str) -> None:
    table = opened(tmp_path / name)
    append(table, 0, 3)
    append(table, 3, 5)
    assert sorted(path.name for path in tmp_path.iterdir()) == [name]
    assert high_water_marks(str(tmp_path / name), "key") == {0: 4}
    assert held(tmp_path / name) == list(range(5))


def test_a_path_that_deltalake_would_misread_is_left_to_spark() -> None:
    """It opens the directory `a b` for the path `a%20b`."""
    assert "escape" in str(refusal_of_path("file", "/lake/a%20b"))
    assert refusal_of_path("file", "/lake/50%") is None
    assert refusal_of_path("s3a", "s3a://bucket/table") is None
    assert "hdfs: paths" in str(refusal_of_path("hdfs", "/lake/t"))


@pytest.mark.parametrize(("zone", "text", "version"), [("Europe/Berlin", "11:15", 0), ("America/New_York", "05:45", 1), ("UTC", "10:31", 1)])
def test_a_time_of_a_restore_is_one_of_the_sessions_zone(tmp_path: Path, zone: str, text: str, version: int) -> None:
    table = opened(tmp_path)
    for number, (hour, minute) in enumerate([(10, 0), (10, 30), (11, 0)]):
        append(table, number, number + 1)
        at_s = datetime(2026, 11, 20, hour, minute, tzinfo=UTC).timestamp()
        os.utime(tmp_path / "_delta_log" / f"{number:020d}.json", (at_s, at_s))
    assert ArrowTransaction(table, zone=zone).version_until(3, f"2026-11-20 {text}:00.0") == version


def test_rows_are_counted_where_a_file_has_no_statistics(tmp_path: Path) -> None:
    append(opened(tmp_path), 0, 5)
    assert opened(tmp_path).count() == 5
    commit = tmp_path / "_delta_log" / f"{0:020d}.json"
    lines = [json.loads(line) for line in commit.read_text().splitlines()]
    for line in lines:
        line.get("add", {}).pop("stats", None)
    commit.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert opened(tmp_path).count() == 5
