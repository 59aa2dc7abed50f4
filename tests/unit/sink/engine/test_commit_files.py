"""A commit in a directory of this machine holds what `deltalake` would commit, is created once, and is seen whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.unit.sink.engine.arrow_tables import opened
from verification.lake.s3_server import S3Server
from waltz_delta.engine.arrow_table import OpenedTable
from waltz_delta.engine.commit_files import ENGINE, create_commit
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
