"""A commit in a directory of this machine holds what `deltalake` would commit, is created once, and is seen whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from tests.unit.sink.engine.arrow_tables import MARK, append, begin, commit, files, held, opened
from verification.lake.s3_server import S3Server
from waltz_delta.engine import commit_files
from waltz_delta.engine.arrow_table import ArrowTable, LoadedTable, OpenedTable
from waltz_delta.engine.arrow_transaction import Overtaken
from waltz_delta.engine.commit_files import ENGINE, create_commit, no_hooks
from waltz_delta.engine.log_actions import AddFile, Change, RemoveFile

INFO = {"userMetadata": '{"waltz": {}}', "waltzCommit": "id", "isBlindAppend": False, "readVersion": 0, "waltzQuery": "q", "waltzBatch": 3}
STATISTICS = json.dumps({"numRecords": 1, "minValues": {"n": 7}, "maxValues": {"n": 7}, "nullCount": {"n": 0}})
DRAWN = {"timestamp", "engineInfo", "clientVersion", "deletionTimestamp"}


def newest(path: str, storage: dict[str, str] | None = None) -> OpenedTable:
    found = opened(path, storage).open()
    assert found is not None
    return found


def created(path: str, storage: dict[str, str] | None = None) -> None:
    rows = pa.table({"n": [1, 2], "p": ["a", None]})
    write_deltalake(path, rows, partition_by=["p"], storage_options=storage)


def change(first: str) -> Change:
    added = [AddFile("p=b/part-0.parquet", 1000, {"p": "b"}, 1_700_000_000_000, STATISTICS), AddFile("part-1.parquet", 9, {"p": None}, 1, STATISTICS)]
    return Change(added, [RemoveFile(first, 12, {"p": "a"})], data_change=False)


def settled(text: str) -> list[Any]:
    """The actions of a commit, without the time and the writer, and without what is null."""
    return [{kind: _without(values) for kind, values in json.loads(line).items()} for line in text.splitlines()]


def _without(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in DRAWN and not (value is None and name != "p")}


def test_a_commit_holds_what_deltalake_commits(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    created(path)
    create_commit(newest(path), change("p=a/part-9.parquet"), {"waltz:k:1": 5, "waltz:k:0": 7}, INFO)
    own = (tmp_path / "t" / "_delta_log" / f"{1:020d}.json").read_text()
    with S3Server() as server:
        created("s3://lake/t", server.storage)
        there = newest("s3://lake/t", server.storage)
        create_commit(there, change("p=a/part-9.parquet"), {"waltz:k:1": 5, "waltz:k:0": 7}, INFO)
        theirs = (opened("s3://lake/t", server.storage).commit_text(1) or b"").decode()
    assert "commitInfo" in json.loads(own.splitlines()[0]), "readers of this log find it in the first line"
    assert json.loads(own.splitlines()[0])["commitInfo"]["engineInfo"] == ENGINE
    key = json.dumps
    assert sorted(settled(own), key=lambda each: key(each, sort_keys=True)) == sorted(settled(theirs), key=lambda each: key(each, sort_keys=True))
    assert DeltaTable(path).transaction_version("waltz:k:1") == 5


def test_of_many_creators_of_one_version_one_succeeds(tmp_path: Path) -> None:
    path = str(tmp_path)
    created(path)
    base, start, outcomes = newest(path), threading.Barrier(8), list[bool]()

    def create(number: int) -> None:
        start.wait()
        try:
            create_commit(base, Change(), {"who": number}, {**INFO, "waltzBatch": number})
            outcomes.append(True)
        except FileExistsError:
            outcomes.append(False)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == [False] * 7 + [True]
    (info,) = DeltaTable(path).history(1)
    assert DeltaTable(path).transaction_version("who") == info["waltzBatch"]
    assert [each.name for each in (tmp_path / "_delta_log").iterdir() if each.suffix == ".tmp"] == []


@pytest.mark.parametrize("failing", ["write", "fsync", "link"])
def test_a_medium_that_fails_leaves_no_part_of_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    path = str(tmp_path)
    created(path)
    base, before = newest(path), sorted(each.name for each in (tmp_path / "_delta_log").iterdir())

    def fails(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        if failing == "write":
            patched.setattr(json, "dumps", fails)
        else:
            patched.setattr(os, failing, fails)
        with pytest.raises(OSError, match="No space left"):
            create_commit(base, Change(), {"m": 1}, INFO)
    assert sorted(each.name for each in (tmp_path / "_delta_log").iterdir()) == before
    create_commit(base, Change(), {"m": 1}, INFO)
    assert DeltaTable(path).transaction_version("m") == 1


def test_what_a_killed_creator_left_is_ignored_by_every_reader(tmp_path: Path) -> None:
    path = str(tmp_path)
    created(path)
    (tmp_path / "_delta_log" / f".{1:020d}.abc.tmp").write_text('{"commitInfo": {}}\n{"add":')
    create_commit(newest(path), Change(), {"m": 1}, INFO)
    table = DeltaTable(path)
    table.create_checkpoint()
    assert (table.version(), newest(path).version, newest(path).identifier("m")) == (1, 1, 1)


def chain(path: Path, count: int) -> tuple[ArrowTable, int]:
    """A table, and the version that its driver knows."""
    table = opened(path)
    for number in range(count):
        append(table, number, number + 1)
    known = table.open()
    assert known is not None
    return table, known.version


def by_another(path: Path, count: int) -> None:
    for number in range(count):
        table = DeltaTable(str(path))
        named = CommitProperties(app_transactions=[Transaction("other", number)])
        table.create_write_transaction([], "append", table.schema(), commit_properties=named, post_commithook_properties=no_hooks())


def cleaned(path: Path, *versions: int) -> None:
    """A checkpoint of the newest version, and a cleanup that has removed these commits."""
    DeltaTable(str(path)).create_checkpoint()
    for version in versions:
        (path / "_delta_log" / f"{version:020d}.json").unlink()


@pytest.mark.parametrize("hint", [True, False])
def test_a_commit_is_not_made_behind_a_checkpoint_of_a_log_that_was_cleaned_up(tmp_path: Path, hint: bool) -> None:
    """Cleanups remove commits in any order, so the one after the known version may be the first."""
    table, known = chain(tmp_path, 3)
    transaction, written = begin(table), files(table, 3, 5)
    by_another(tmp_path, 5)
    cleaned(tmp_path, known + 1)
    if not hint:
        (tmp_path / "_delta_log" / "_last_checkpoint").unlink()
    else:
        assert begin(table).read_version == known + 5
    assert commit(transaction, written, 4) == known + 6
    assert held(tmp_path) == [0, 1, 2, 3, 4]
    assert begin(opened(tmp_path)).version(MARK) == 4


@pytest.mark.parametrize("rest", [0, 4])
def test_a_commit_that_a_cleanup_overtakes_in_the_last_moment_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rest: int) -> None:
    """`rest`: commits above it that the cleanup has not removed yet."""
    table, known = chain(tmp_path, 3)
    link, raced = os.link, list[int]()

    def late(*given: Any) -> None:
        if not raced:
            raced.append(1)
            by_another(tmp_path, 5)
            cleaned(tmp_path, *range(known + 1, known + 6 - rest))
        link(*given)

    monkeypatch.setattr(os, "link", late)
    assert append(table, 3, 5) == known + 6
    assert held(tmp_path) == [0, 1, 2, 3, 4]
    assert begin(opened(tmp_path)).version(MARK) == 4


@pytest.mark.parametrize("moment", ["decided", "linked"])
@pytest.mark.parametrize("count", [1, 4])
def test_a_table_that_is_replaced_while_a_batch_is_decided_gets_no_commit_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str, count: int
) -> None:
    """`count`: commits of the other table, fewer than ours or as many."""
    path, other = tmp_path / "t", tmp_path / "other"
    table, _ = chain(path, 4)
    chain(other, count)
    transaction, written = begin(table), files(table, 4, 6)
    original = os.link if moment == "linked" else commit_files._is_base
    raced: list[int] = []

    def late(*given: Any) -> Any:
        if not raced:
            raced.append(1)
            kept = tmp_path / "kept"
            (path / "_delta_log").rename(kept)
            shutil.copytree(other / "_delta_log", path / "_delta_log")
            for each in kept.glob(".*.tmp"):
                shutil.copy2(each, path / "_delta_log")
        return original(*given)

    monkeypatch.setattr(*((os, "link") if moment == "linked" else (commit_files, "_is_base")), late)
    with pytest.raises(Overtaken):
        commit(transaction, written, 5)
    assert raced
    assert DeltaTable(str(path)).version() == count - 1
    assert DeltaTable(str(path)).transaction_version(MARK) == count - 1


def test_remains_of_killed_creators_are_removed_after_a_day(tmp_path: Path) -> None:
    table, _ = chain(tmp_path, 2)
    log = tmp_path / "_delta_log"
    old, new = log / f".{7:020d}.a.tmp", log / f".{7:020d}.b.tmp"
    for each in (old, new):
        each.write_text("{")
    os.utime(old, (1, 1))
    table.write_checkpoint(begin(table).table_id)
    assert (old.exists(), new.exists()) == (False, True)


def test_versions_are_read_once_each_and_never_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Identifiers that are asked for late, after another commit, need one more opening of the table and not one each."""
    table, _ = chain(tmp_path, 3)
    transaction = begin(table)
    by_another(tmp_path, 2)
    asked: list[int | None] = []
    load = LoadedTable._load

    def counted(self: LoadedTable, version: int | None) -> Any:
        asked.append(version)
        return load(self, version)

    monkeypatch.setattr(LoadedTable, "_load", counted)
    assert [transaction.version(f"waltz:k:{number}") for number in range(8)] == [None] * 8
    assert transaction.files().bytes > 0
    assert len(asked) <= 1
    later = begin(table)
    assert (later.version("other"), transaction.version("other")) == (1, None)
    assert len(asked) <= 2


def test_a_refresh_that_fails_loads_the_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, _ = chain(tmp_path, 2)
    by_another(tmp_path, 1)

    def fails(_: DeltaTable) -> None:
        raise OSError("timed out")

    monkeypatch.setattr(DeltaTable, "update_incremental", fails)
    assert begin(table).version("other") == 0


@pytest.mark.parametrize(
    ("hint", "names", "version", "expected"),
    [
        (None, [], 3, False),
        (None, [f"{5:020d}.json"], 3, True),
        (None, [f"{5:020d}.checkpoint.parquet"], 3, True),
        (None, [f"{3:020d}.json", f"{2:020d}.checkpoint.parquet", f".{9:020d}.a.tmp", f"{9:020d}", "_last_checkpoint.tmp"], 3, False),
        ('{"version": 4}', [], 3, True),
        ('{"version": 3}', [], 3, False),
        ('{"version": 1}', [f"{4:020d}.json"], 3, True),
        ('{"version": 1}', [f"{3:020d}.json"], 3, False),
        ('{"ver', [f"{5:020d}.json"], 3, True),
    ],
)
def test_whether_a_log_goes_on_above_a_version(tmp_path: Path, hint: str | None, names: list[str], version: int, expected: bool) -> None:
    for name in names:
        (tmp_path / name).touch()
    if hint is not None:
        (tmp_path / "_last_checkpoint").write_text(hint)
    assert commit_files._goes_on(tmp_path, version) is expected
