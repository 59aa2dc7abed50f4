"""Identifiers that follow from commits are those that `deltalake` reads from the log, for commits of every writer."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction

from verification.lake.s3_server import S3Server
from waltz_delta.base.checkpoints import CHECKPOINTS
from waltz_delta.base.commit_info import commit_info
from waltz_delta.engine.allowed import TableShape
from waltz_delta.engine.arrow_table import ArrowTable
from waltz_delta.engine.arrow_transaction import ArrowTransaction
from waltz_delta.engine.identifiers import ChangesRules, Identifiers, actions_of
from waltz_delta.engine.log_actions import AddFile
from waltz_delta.engine.written_files import WrittenFiles
from waltz_delta.errors import StoreUnavailable

SHAPE = TableShape({"type": "struct", "fields": [{"name": "a", "type": "long", "nullable": True, "metadata": {}}]}, (), {})
MARKS = [f"waltz:k:{partition}" for partition in range(4)]


def append(table: ArrowTable, number: int, versions: dict[str, int]) -> None:
    transaction = ArrowTransaction(table)
    for name in versions:
        transaction.version(name)
    added = (AddFile(f"part-{number}.parquet", 1000, {}, 1_700_000_000_000, json.dumps({"numRecords": 1})),)
    transaction.commit(WrittenFiles(added, SHAPE), versions, query="test", batch=number, metadata="{}")


def by_another(path: str, versions: dict[str, int], *, dated: bool = False) -> None:
    now_ms = int(time.time() * 1000) if dated else None
    handle = DeltaTable(path)
    handle.create_write_transaction(
        [],
        mode="append",
        schema=handle.schema(),
        commit_properties=CommitProperties(app_transactions=[Transaction(name, version, now_ms) for name, version in versions.items()]),
        post_commithook_properties=PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False),
    )


@pytest.mark.parametrize("seed", range(6))
def test_after_commits_of_every_writer_the_identifiers_are_those_of_the_log(tmp_path: Path, seed: int) -> None:
    rng, path = random.Random(seed), str(tmp_path)
    table = ArrowTable(path, path, {}, nullcontext)
    append(table, 0, {MARKS[0]: 0})
    for number in range(1, 40):
        versions = dict.fromkeys(rng.sample(MARKS, rng.randint(1, 3)), number)
        what = rng.choice(["own", "own", "another", "dated", "two", "checkpoint", "nothing"])
        if what == "own":
            append(table, number, versions)
        elif what == "checkpoint":
            DeltaTable(path).create_checkpoint()
        elif what != "nothing":
            by_another(path, versions, dated=what == "dated")
            if what == "two":
                by_another(path, {rng.choice(MARKS): number + 1000})
        if rng.random() < 0.6:
            transaction = ArrowTransaction(table)
            log = DeltaTable(path)
            assert {name: transaction.version(name) for name in MARKS} == {name: log.transaction_version(name) for name in MARKS}, (number, what)


def requests_of_a_batch(marks: list[str]) -> int:
    asked: Counter[str] = Counter()
    with S3Server() as server:
        table = ArrowTable("s3://lake/t", "s3://lake/t", server.storage, nullcontext)
        for number in range(30):
            append(table, number, dict.fromkeys(marks, number))
        CHECKPOINTS.settle(60)
        append(table, 30, dict.fromkeys(marks, 30))
        server.fault = lambda method, key: asked.update([method])
        append(table, 31, dict.fromkeys(marks, 31))
        CHECKPOINTS.settle(60)
    return asked.total()


def test_the_requests_of_a_batch_do_not_grow_with_the_partitions() -> None:
    assert requests_of_a_batch([f"waltz:k:{partition}" for partition in range(32)]) < 2 * requests_of_a_batch(MARKS[:1])


class Log:
    def __init__(self, **values: int) -> None:
        self.values, self.asked = values, 0

    def read(self, app_id: str) -> int | None:
        self.asked += 1
        return self.values.get(app_id)


FILE = {"path": "a.parquet", "partitionValues": {}, "size": 1, "modificationTime": 1, "dataChange": True}


def commit(*entries: dict[str, Any]) -> bytes:
    return b"\n".join(json.dumps(entry).encode() for entry in entries)


def test_each_is_asked_for_once_and_follows_commits() -> None:
    found, log = Identifiers(), Log(a=1)
    assert [found.of(name, log.read) for name in ("a", "b", "a", "b")] == [1, None, 1, None]
    assert log.asked == 2
    named = {"add": {**FILE, "path": '"txn"', "stats": '{"txn": 1}'}}
    later = found
    for made in (commit(named, {"txn": {"appId": "b", "version": 7}}), commit({"txn": {"appId": "c", "version": 9}}, {"commitInfo": {}})):
        later = later.after(actions_of(made))
    assert [later.of(name, log.read) for name in ("a", "b")] == [1, 7]
    assert [found.of(name, log.read) for name in ("a", "b")] == [1, None], "those of the version before stay"
    assert log.asked == 2


def test_one_with_a_date_is_asked_for_again() -> None:
    found, log = Identifiers(), Log(a=1)
    found.of("a", log.read)
    log.values["a"] = 3
    assert found.after(actions_of(commit({"txn": {"appId": "a", "version": 5, "lastUpdated": 1}}))).of("a", log.read) == 3


STRANGE = {
    "torn in an identifier": b'{"txn": {"appId": "a", "ver',
    "torn in a file": commit({"txn": {"appId": "a", "version": 2}}) + b'\n{"add":{"path":"a.par',
    "a list": b"[1]",
    "a text": b'"txn"',
    "an identifier that is a text": b'{"txn": "a"}',
    "an identifier without a name": b'{"txn": {"version": 1}}',
    "an identifier without a version": b'{"txn": {"appId": "a"}}',
    "a version that is a text": b'{"txn": {"appId": "a", "version": "1"}}',
    "a version that is a truth value": commit({"txn": {"appId": "a", "version": True}}),
    "a version beyond 64 bits": commit({"txn": {"appId": "a", "version": 2**63}}),
    "a file without its size": commit({"add": {name: value for name, value in FILE.items() if name != "size"}}),
    "a removed file without a name": commit({"remove": {"dataChange": True}}),
    "a byte order mark": b"\xef\xbb\xbf" + commit({"txn": {"appId": "a", "version": 2}}),
    "no text": '{"commitInfo": {}}'.encode("utf-16"),
}


@pytest.mark.parametrize("name", STRANGE)
def test_a_strange_commit_is_not_followed(name: str) -> None:
    with pytest.raises(ValueError):
        Identifiers({"a": 1}).after(actions_of(STRANGE[name]))


def test_nested_garbage_in_a_commit_opens_the_table_again(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    table = ArrowTable(path, path, {}, nullcontext)
    append(table, 0, {MARKS[0]: 0})
    (tmp_path / "t" / "_delta_log" / f"{1:020d}.json").write_text('{"add":' + "[" * 99_999)
    with pytest.raises(StoreUnavailable):
        table.open()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (commit({"commitInfo": {"operation": "WRITE"}}, {"add": FILE}), {"operation": "WRITE"}),
        (commit({"add": FILE}, {"commitInfo": {"operation": "RESTORE"}}), {"operation": "RESTORE"}),
        (b"\n\r\n" + commit({"commitInfo": {"operation": "RESTORE"}}), {"operation": "RESTORE"}),
        (commit({"add": {**FILE, "stats": '{"commitInfo": 1}'}}), {}),
        (commit({"commitInfo": None}), {}),
        (b"", {}),
    ],
)
def test_what_a_commit_says_of_itself_is_found_on_any_line(text: bytes, found: dict[str, str]) -> None:
    assert commit_info(text) == found


@pytest.mark.parametrize("text", [b'{"commitInfo": {"op', b'{"commitInfo": []}', b'["commitInfo"]', b"damaged", b'\n{"add": {}}\n{"commitInfo":'])
def test_what_a_commit_says_of_itself_must_be_json(text: bytes) -> None:
    with pytest.raises(ValueError):
        commit_info(text)


@pytest.mark.parametrize("text", ['{"metaData": {}}', '{"protocol": {"minReaderVersion": 1}}', '{"me\\u0074aData": {}}', ' { "protocol" : {} } '])
def test_a_commit_that_changes_columns_properties_or_the_protocol_is_not_followed(text: str) -> None:
    with pytest.raises(ChangesRules):
        Identifiers().after(actions_of(commit({"commitInfo": {}}) + b"\n" + text.encode()))


def test_letters_of_every_kind_are_followed() -> None:
    made = (
        commit({"add": {**FILE, "path": "\u2028"}}, {"txn": {"appId": "ü\u2028", "version": 5}}).replace(b"\\u2028", "\u2028".encode()) + b"\r\n\r\n"
    )
    escaped = b'{"t\\u0078n": {"appId": "b", "version": 6}, "add": null}'
    found = Identifiers({"ü\u2028": 1, "b": 1}).after(actions_of(made + escaped))
    assert [found.of(name, lambda _: None) for name in ("ü\u2028", "b")] == [5, 6]
