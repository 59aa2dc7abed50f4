"""A file is removed only by a path that `deltalake` writes as the log has it: otherwise its rows would stay beside those that replace them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.unit.sink.engine.arrow_tables import opened
from waltz_delta.engine.arrow_merge import ArrowMerge
from waltz_delta.engine.arrow_transaction import ArrowTransaction
from waltz_delta.engine.folds import DELETES
from waltz_delta.engine.log_actions import Change, RemoveFile, is_removable
from waltz_delta.engine.newest import Newest
from waltz_delta.engine.stored_rows import NotRead

LETTERS = [*map(chr, range(32, 127)), "ü", "\U0001f600"]


def actions(path: Path, version: int, kind: str) -> list[Any]:
    lines = (path / "_delta_log" / f"{version:020d}.json").read_text().splitlines()
    return [found for line in lines if (found := json.loads(line).get(kind)) is not None]


def test_deltalake_writes_the_path_of_a_removed_file_as_the_log_has_it(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path), pa.table({"n": [1]}))
    table = DeltaTable(str(tmp_path))
    paths = [f"x{letter}y" for letter in LETTERS if is_removable(f"x{letter}y")]
    paths += [f"x%{ord(letter):02X}y" for letter in LETTERS[:95] if is_removable(f"x%{ord(letter):02X}y")]
    assert len(paths) == 95, "each ASCII letter as it is, or escaped"
    entries = Change(removed=[RemoveFile(path, 1, {}) for path in paths]).entries()
    table.create_write_transaction(entries, mode="append", schema=table.schema(), partition_by=[])
    assert [each["path"] for each in actions(tmp_path, 1, "remove")] == paths


def test_a_path_that_deltalake_would_escape_otherwise_is_not_removed() -> None:
    assert [path for path in ("p=ü/f", "p=a b/f", "p=%zz/f", "p=%2f/f", "p=a%2Fb/f") if is_removable(path)] == []
    with pytest.raises(AssertionError):
        Change(removed=[RemoveFile("p=ü/f", 1, {})]).entries()
    with pytest.raises(AssertionError):
        list(Change(removed=[RemoveFile("p=ü/f", 1, {})]).actions())


@pytest.mark.parametrize("value", ["a b", "50%", "ü", "\U0001f600", "a/b", "a:b", "plain", '"', "%2F", "{x}"])
def test_a_row_of_a_partition_of_any_name_is_replaced_and_not_repeated(tmp_path: Path, value: str) -> None:
    schema = pa.schema([("partition", pa.int32()), ("transaction_id", pa.int64()), ("k", pa.string()), ("p", pa.string())])
    rows = pa.Table.from_pylist([{"partition": 0, "transaction_id": n, "k": str(n), "p": value} for n in range(2)], schema=schema)
    write_deltalake(str(tmp_path), rows, partition_by=["p"])
    newer = [{"partition": 0, "transaction_id": 7, "k": "1", "p": value, DELETES: False}]
    source = pa.Table.from_pylist(newer, schema=schema.append(pa.field(DELETES, pa.bool_())))
    merge = ArrowMerge(source, Newest("t", ["k"], "transaction_id", schema.names))
    ArrowTransaction(opened(tmp_path)).merge(merge, {"m": 1}, query="q", batch=1, metadata="{}")
    found = DeltaTable(str(tmp_path)).to_pyarrow_table().to_pylist()
    assert sorted((row["k"], row["transaction_id"], row["p"]) for row in found) == [("0", 0, value), ("1", 7, value)]


def test_a_file_whose_path_another_writer_escaped_otherwise_is_left_to_spark(tmp_path: Path) -> None:
    schema = pa.schema([("partition", pa.int32()), ("transaction_id", pa.int64()), ("k", pa.string())])
    write_deltalake(str(tmp_path), pa.Table.from_pylist([{"partition": 0, "transaction_id": 0, "k": "a"}], schema=schema))
    (add,) = actions(tmp_path, 0, "add")
    (tmp_path / add["path"]).rename(tmp_path / f"ü{add['path']}")
    log = tmp_path / "_delta_log" / f"{0:020d}.json"
    log.write_text(log.read_text().replace(add["path"], f"ü{add['path']}"))
    source = pa.Table.from_pylist(
        [{"partition": 0, "transaction_id": 1, "k": "a", DELETES: False}], schema=schema.append(pa.field(DELETES, pa.bool_()))
    )
    merge = ArrowMerge(source, Newest("t", ["k"], "transaction_id", schema.names))
    with pytest.raises(NotRead, match="escapes otherwise"):
        ArrowTransaction(opened(tmp_path)).merge(merge, {"m": 1}, query="q", batch=1, metadata="{}")
