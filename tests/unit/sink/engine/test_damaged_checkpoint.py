"""A checkpoint that cannot be read: one sentence that names it and what to do, which helps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.unit.sink.engine.arrow_tables import append, held, opened
from waltz_delta import NotADeltaTable, high_water_marks
from waltz_delta.base.damaged_checkpoint import remedy
from waltz_delta.console.tables import NO_TABLE, read_state
from waltz_delta.engine.checkpoint_files import HINT
from waltz_delta.errors import StoreUnavailable

NAME = f"{5:020d}.checkpoint.parquet"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The log of a table of seven commits, with a checkpoint of the sixth."""
    table = opened(tmp_path / "t")
    for number in range(6):
        append(table, number, number + 1)
    DeltaTable(str(tmp_path / "t")).create_checkpoint()
    append(table, 6, 7)
    return tmp_path / "t" / "_delta_log"


def said(log: Path) -> str:
    """Why the table is not opened."""
    with pytest.raises(NotADeltaTable) as refused:
        opened(log.parent).open()
    return refused.value.reason


@pytest.mark.parametrize("kept", [0, 100, 5000])
def test_a_broken_checkpoint_is_named_and_deleting_it_with_the_hint_helps(log: Path, kept: int) -> None:
    checkpoint = log / NAME
    checkpoint.write_bytes(checkpoint.read_bytes()[:kept])
    expected = f"its checkpoint {NAME} cannot be read; delete that file and {HINT}, since the commits before it are all there"
    assert said(log) == expected
    with pytest.raises(NotADeltaTable, match="delete that file"):
        high_water_marks(str(log.parent), "key")
    problem = read_state(str(log.parent), "key").problem
    assert problem is not None
    assert expected in problem
    for name in (NAME, HINT):
        (log / name).unlink()
    assert append(opened(log.parent), 7, 8) == 7
    assert held(log.parent) == list(range(8))


def test_a_broken_checkpoint_whose_commits_were_cleaned_up_must_be_restored(log: Path) -> None:
    checkpoint = log / NAME
    content = checkpoint.read_bytes()
    checkpoint.write_bytes(content[:5000])
    for version in range(6):
        (log / f"{version:020d}.json").unlink()
    assert said(log) == f"its checkpoint {NAME} cannot be read, and commits before it were cleaned up; restore that file from a copy of the table"
    for name in (NAME, HINT):
        (log / name).unlink()
    assert said(log).startswith("its log lacks commits")
    checkpoint.write_bytes(content)
    assert held(log.parent) == list(range(7))


def test_a_hint_without_its_checkpoint_is_named_and_deleting_it_helps(log: Path) -> None:
    (log / NAME).unlink()
    assert said(log) == f"its {HINT} names the checkpoint of version 5, which is not there; restore that checkpoint, or delete {HINT}"
    (log / HINT).unlink()
    assert append(opened(log.parent), 7, 8) == 7


@pytest.mark.parametrize("hint", ["", "{", "[]", '{"size":1}'])
def test_a_hint_that_is_none_is_ignored(log: Path, hint: str) -> None:
    (log / HINT).write_text(hint)
    assert append(opened(log.parent), 7, 8) == 7
    assert held(log.parent) == list(range(8))


def test_another_fault_of_a_table_with_a_good_checkpoint_is_not_blamed_on_it(log: Path) -> None:
    (log / f"{6:020d}.json").write_text("no JSON\n")
    with pytest.raises(StoreUnavailable):
        opened(log.parent).open()
    assert json.loads((log / HINT).read_text())["version"] == 5


def test_commits_after_an_older_checkpoint_are_enough() -> None:
    assert "delete that file" in remedy(f"{9:020d}.checkpoint.parquet", range(5, 12), [4, 9])
    assert "restore that file" in remedy(f"{9:020d}.checkpoint.parquet", range(6, 12), [4, 9])
    assert "restore that file" in remedy(f"{9:020d}.checkpoint.parquet", range(5, 12), [9])
    assert read_state("/nowhere", "key").problem == NO_TABLE
