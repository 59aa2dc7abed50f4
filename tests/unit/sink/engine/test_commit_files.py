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
from deltalake.exceptions import DeltaError

from tests.unit.sink.engine.arrow_tables import MARK, append, begin, commit, files, held, opened
from verification.lake.s3_server import S3Server
from waltz_delta.engine import commit_files, log_end
from waltz_delta.engine.arrow_table import ArrowTable, LoadedTable, OpenedTable
from waltz_delta.engine.arrow_transaction import Overtaken
from waltz_delta.engine.commit_files import ENGINE, NotNext, create_commit, no_hooks
from waltz_delta.engine.compaction import compact
from waltz_delta.engine.log_actions import AddFile, Change, RemoveFile
from waltz_delta.engine.vacuum import vacuum
from waltz_delta.errors import NotADeltaTable, StoreUnavailable, UnsafeTable

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
        except NotNext:
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


@pytest.fixture
def paused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that did not see the log for longer than cleanups need."""
    monkeypatch.setattr(log_end, "FRESH_S", 0.0)


@pytest.mark.usefixtures("paused")
@pytest.mark.parametrize("gone", [1, 3])
@pytest.mark.parametrize("hint", ["newest", "none", "older", "garbage"])
def test_a_commit_is_not_made_behind_a_checkpoint_of_a_log_that_was_cleaned_up(tmp_path: Path, hint: str, gone: int) -> None:
    """Cleanups remove commits in any order, so those after the known version may be the first. `hint`: what it names."""
    table, known = chain(tmp_path, 3)
    transaction, written = begin(table), files(table, 3, 5)
    by_another(tmp_path, 5)
    cleaned(tmp_path, *range(known + 1, known + 1 + gone))
    if hint == "none":
        (tmp_path / "_delta_log" / "_last_checkpoint").unlink()
    elif hint != "newest":
        (tmp_path / "_delta_log" / "_last_checkpoint").write_text(f'{{"version":{known},"size":3}}' if hint == "older" else "{")
    with pytest.raises(Overtaken):  # one of the commits that are gone may have been a RESTORE
        commit(transaction, written, 4)
    assert begin(table).read_version == known + 5
    assert append(table, 3, 5) == known + 6
    assert held(tmp_path) == [0, 1, 2, 3, 4]
    assert begin(opened(tmp_path)).version(MARK) == 4


@pytest.mark.usefixtures("paused")
@pytest.mark.parametrize("name", [f"{9:020d}.json#1", f"{4:020d}.json#1", f"{9:020d}.json.bak", f"{9:020d}.checkpoint.parquet#1"])
def test_what_killed_writers_left_blocks_no_commit(tmp_path: Path, name: str) -> None:
    table, _ = chain(tmp_path, 3)
    (tmp_path / "_delta_log" / name).write_text("{")
    assert append(table, 3, 4) == 3
    assert append(opened(tmp_path), 4, 5) == 4
    assert held(tmp_path) == [0, 1, 2, 3, 4]


@pytest.mark.usefixtures("paused")
@pytest.mark.parametrize("versions", [{}, {MARK: 9}])
def test_a_change_behind_a_checkpoint_does_not_count_whether_or_not_it_has_identifiers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, versions: dict[str, int]
) -> None:
    table, known = chain(tmp_path, 3)
    transaction, link, raced = begin(table), os.link, list[int]()

    def late(*given: Any) -> None:
        if not raced:
            raced.append(1)
            by_another(tmp_path, 5)
            cleaned(tmp_path, known + 1)
        link(*given)

    monkeypatch.setattr(os, "link", late)
    added = files(table, 3, 5).added
    assert transaction._change(lambda _: Change(added), versions, query="q", batch=1, metadata="{}") == known + 6
    assert held(tmp_path) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("moment", ["decided", "linked"])
def test_a_change_that_was_decided_from_a_version_that_is_gone_is_decided_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    """The log is put back while a merge decides or commits, and another writer makes the version again."""
    table, known = chain(tmp_path, 4)
    decided: list[list[str]] = []
    link = os.link

    def put_back() -> None:
        (tmp_path / "_delta_log" / f"{known:020d}.json").unlink()
        other = opened(tmp_path)
        commit(begin(other), files(other, 500, 503), known)

    def late(*given: Any) -> None:
        monkeypatch.setattr(os, "link", link)
        put_back()
        link(*given)

    def all_again(opened_: OpenedTable) -> Change:
        found = opened_.living_files().to_pylist()
        decided.append([each["path"] for each in found])
        added = files(table, 1000, 1000 + len(found)).added
        if len(decided) == 1:
            if moment == "decided":
                put_back()
            else:
                monkeypatch.setattr(os, "link", late)
        return Change(added, [RemoveFile(each["path"], each["size_bytes"], {}) for each in found])

    def change(batch: int) -> int:
        return begin(table)._change(all_again, {MARK: 9}, query="q", batch=batch, metadata="{}")

    if moment == "decided":
        with pytest.raises(Overtaken):
            change(1)
        assert held(tmp_path) == [0, 1, 2, 500, 501, 502]
        change(2)
    else:
        change(1)
    assert len(decided) == 2
    assert all(each >= 1000 for each in held(tmp_path)), "the new version was merged"


def test_a_table_that_is_known_by_its_checkpoint_alone_and_replaced_gets_no_commit(tmp_path: Path) -> None:
    path, other = tmp_path / "t", tmp_path / "other"
    chain(other, 3)
    table, known = chain(path, 7)
    cleaned(path, known)
    table = opened(path)
    transaction = begin(table)
    assert (transaction.read_version, newest(str(path)).commit) == (known, None)

    def replaced(_: OpenedTable) -> Change:
        shutil.rmtree(path / "_delta_log")
        shutil.copytree(other / "_delta_log", path / "_delta_log")
        return Change()

    with pytest.raises(Overtaken):
        transaction._change(replaced, {MARK: 9}, query="q", batch=1, metadata="{}")
    assert (DeltaTable(str(path)).version(), held(other)) == (2, [0, 1, 2])


def test_a_table_that_is_known_by_its_checkpoint_alone_gets_the_next_commit(tmp_path: Path) -> None:
    _, known = chain(tmp_path, 3)
    cleaned(tmp_path, known)
    table = opened(tmp_path)
    assert [append(table, 3, 4), append(table, 4, 5)] == [known + 1, known + 2]
    assert held(tmp_path) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("in_place", [False, True])
def test_the_newest_commit_of_another_table_is_not_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_place: bool) -> None:
    """The table is replaced, just after the link, by one whose newest commit has the number of ours. `in_place`: its files are written over ours."""
    path, other = tmp_path / "t", tmp_path / "other"
    table, known = chain(path, 4)
    chain(other, known + 2)
    transaction, written, link = begin(table), files(table, 4, 6), os.link

    def replaced(*given: Any) -> None:
        link(*given)
        monkeypatch.setattr(os, "link", link)
        if not in_place:
            (path / "_delta_log").rename(tmp_path / "kept")
        shutil.copytree(other / "_delta_log", path / "_delta_log", dirs_exist_ok=True)

    monkeypatch.setattr(os, "link", replaced)
    with pytest.raises(Overtaken):
        commit(transaction, written, 5)
    assert DeltaTable(str(path)).version() == known + 1
    assert {each.name for each in (path / "_delta_log").iterdir()} == {each.name for each in (other / "_delta_log").iterdir()}


def test_a_commit_whose_base_was_cleaned_up_behind_its_checkpoint_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, known = chain(tmp_path, 4)
    transaction, written, link = begin(table), files(table, 4, 6), os.link

    def overtaken(*given: Any) -> None:
        link(*given)
        monkeypatch.setattr(os, "link", link)
        cleaned(tmp_path, known)

    monkeypatch.setattr(os, "link", overtaken)
    assert commit(transaction, written, 5) == known + 1
    assert (held(tmp_path), DeltaTable(str(tmp_path)).transaction_version(MARK)) == ([0, 1, 2, 3, 4, 5], 5)


def test_a_follow_of_two_logs_opens_the_table_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, other = tmp_path / "t", tmp_path / "other"
    table, known = chain(path, 3)
    chain(other, 6)
    read = ArrowTable.commit_text

    def replaced(self: ArrowTable, version: int) -> bytes | None:
        if version == known + 1 and self is table:
            monkeypatch.setattr(ArrowTable, "commit_text", read)
            shutil.rmtree(path / "_delta_log")
            shutil.copytree(other / "_delta_log", path / "_delta_log")
        return read(self, version)

    monkeypatch.setattr(ArrowTable, "commit_text", replaced)
    found = table.open()
    assert found is not None
    assert found.table_id == newest(str(other)).table_id


def test_a_table_in_a_store_that_is_replaced_while_a_merge_decides_gets_no_commit() -> None:
    """By one of as many commits: the store compares the number alone."""
    with S3Server() as server:
        table = opened("s3://lake/t", server.storage)
        for number in range(3):
            append(table, number, number + 1)
        transaction = begin(table)

        def replaced(_: OpenedTable) -> Change:
            server.objects.clear()
            for number in range(3):
                append(opened("s3://lake/t", server.storage), number, number + 1)
            return Change()

        with pytest.raises(Overtaken):
            transaction._change(replaced, {MARK: 9}, query="q", batch=1, metadata="{}")
        there = newest("s3://lake/t", server.storage)
        assert (there.version, there.identifier(MARK)) == (2, 2)


@pytest.mark.parametrize("moment", ["before the link", "at the link"])
def test_a_feature_that_comes_beside_a_commit_leaves_the_batch_to_another_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    table, known = chain(tmp_path, 3)
    transaction, written, link = begin(table), files(table, 3, 5), os.link

    def unknown() -> None:
        protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["unheardOf"], "writerFeatures": ["unheardOf"]}
        (tmp_path / "_delta_log" / f"{known + 1:020d}.json").write_text(json.dumps({"protocol": protocol}))

    def late(*given: Any) -> None:
        unknown()
        link(*given)

    if moment == "at the link":
        monkeypatch.setattr(os, "link", late)
    else:
        unknown()
    with pytest.raises(Overtaken):
        commit(transaction, written, 4)
    assert transaction.lost_to_another(OSError("any")), "the engine is chosen again"
    for work in (lambda: compact(table, 1), lambda: vacuum(table, 168, [], dry_run=True)):  # one sentence also where nothing chooses an engine
        with pytest.raises(UnsafeTable, match="deltalake does not open the table"):
            work()


@pytest.mark.usefixtures("paused")
def test_a_log_that_cannot_be_listed_is_an_error_of_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, known = chain(tmp_path, 2)

    def fails(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "scandir", fails)
    for ask in (table.open, lambda: table.has_checkpoint_since(known)):
        with pytest.raises(StoreUnavailable, match="Permission denied"):
            ask()


def test_identifiers_of_a_log_that_was_cleaned_up_meanwhile_are_an_error_of_the_store(tmp_path: Path) -> None:
    table, known = chain(tmp_path, 5)
    transaction = begin(table)
    by_another(tmp_path, 3)
    cleaned(tmp_path, *range(known + 1))
    with pytest.raises(StoreUnavailable):
        transaction.version("never asked for")


def test_a_table_is_opened_again_if_its_log_is_cleaned_up_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chain(tmp_path, 3)
    load, failures = LoadedTable._load, [DeltaError("Object at location 0.json not found: No such file"), OSError("not found")]

    def fails(self: LoadedTable, version: int | None) -> Any:
        if failures:
            raise failures.pop()
        return load(self, version)

    monkeypatch.setattr(LoadedTable, "_load", fails)
    assert newest(str(tmp_path)).version == 2


def test_a_lost_race_reads_the_commits_that_came_first_and_not_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, known = chain(tmp_path, 3)
    transaction, written, link, races = begin(table), files(table, 3, 5), os.link, list[int]()

    def late(*given: Any) -> None:
        if len(races) < 3:
            races.append(1)
            by_another(tmp_path, 1)
        link(*given)

    monkeypatch.setattr(os, "link", late)
    loads: list[int | None] = []
    load = LoadedTable._load

    def counted(self: LoadedTable, version: int | None) -> Any:
        loads.append(version)
        return load(self, version)

    monkeypatch.setattr(LoadedTable, "_load", counted)
    assert commit(transaction, written, 4) == known + 4
    assert loads == []


def test_a_link_that_succeeded_and_was_repeated_is_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, known = chain(tmp_path, 3)
    link = os.link

    def twice(*given: Any) -> None:
        link(*given)
        raise FileExistsError(errno.EEXIST, "File exists")

    monkeypatch.setattr(os, "link", twice)
    assert append(table, 3, 5) == known + 1
    assert held(tmp_path) == [0, 1, 2, 3, 4]


def test_a_table_whose_creator_was_killed_is_created(tmp_path: Path) -> None:
    log = tmp_path / "_delta_log"
    log.mkdir()
    (log / f"{0:020d}.json#1").write_text("{")
    table = opened(tmp_path)
    assert not table.is_table()
    assert append(table, 0, 1) == 0
    (log / f"{0:020d}.json").unlink()
    for name in (f"{1:020d}.checkpoint.parquet", f"{8:020d}.json#1"):
        (log / name).touch()
        with pytest.raises(NotADeltaTable):
            opened(tmp_path).is_table()
        (log / name).unlink()


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
    if not rest:
        with pytest.raises(Overtaken):
            append(table, 3, 5)
    assert append(table, 3, 5) == known + 6
    assert held(tmp_path) == [0, 1, 2, 3, 4]
    assert begin(opened(tmp_path)).version(MARK) == 4


def test_a_log_that_keeps_commits_briefly_lets_its_writers_finish(tmp_path: Path) -> None:
    """Commits of another writer are cleaned up during each transaction. Retries would meet the same."""
    write_deltalake(str(tmp_path), pa.table({"id": pa.array([], pa.int64())}), configuration={"delta.logRetentionDuration": "interval 0 seconds"})
    table, known = chain(tmp_path, 2)
    transaction, written = begin(table), files(table, 2, 4)
    by_another(tmp_path, 3)
    cleaned(tmp_path, *range(known + 1, known + 3))
    assert commit(transaction, written, 3) == known + 4
    assert held(tmp_path) == [0, 1, 2, 3]


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
    old, new, theirs = log / f".{7:020d}.a.tmp", log / f".{7:020d}.b.tmp", log / f"{7:020d}.json#1"
    other, directory = log / ".notes.tmp", log / f".{8:020d}.c.tmp"
    directory.mkdir()
    for each in (old, new, theirs, other):
        each.write_text("{")
    for each in (old, theirs, other, directory):
        os.utime(each, (1, 1))
    table.write_checkpoint(begin(table).table_id)
    assert [each.exists() for each in (old, theirs, new, other, directory)] == [False, False, True, True, True]


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
