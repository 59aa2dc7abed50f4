"""What the Arrow engine writes in a directory of this machine is on the medium when a call returns: a commit of zero length is opened silently."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake.exceptions import DeltaError
from pyspark.sql.types import StringType

from tests.unit.sink.engine.arrow_tables import MARK, METADATA, append, begin, creating, opened
from verification.lake import merge_table
from waltz_delta.base.missing_column import Missing
from waltz_delta.engine.arrow_columns import ArrowColumns
from waltz_delta.engine.arrow_table import OpenedTable

Synced = list[tuple[int, int]]


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> Synced:
    """Each file and directory with its size at that moment, in the order in which they were synced."""
    found: Synced = []
    sync = os.fsync

    def watched(descriptor: int) -> None:
        about = os.fstat(descriptor)
        found.append((about.st_ino, about.st_size))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    return found


def place(synced: Synced, path: Path) -> int:
    """Where a file with its present content, or a directory, was last synced; -1 for never."""
    about = path.stat()
    return max((at for at, (inode, size) in enumerate(synced) if inode == about.st_ino and (path.is_dir() or size == about.st_size)), default=-1)


def appended(path: Path) -> None:
    append(opened(path), 2, 4)


def marked(path: Path) -> None:
    begin(opened(path)).mark({MARK: 9}, query="waltz", batch=-1, metadata=METADATA)


def added(path: Path) -> None:
    ArrowColumns(opened(path)).add([Missing(("more",), StringType())])


def merged(path: Path) -> None:
    merge_table.merge(begin(opened(path)), merge_table.changes(0, 3), 2)


WRITTEN: dict[str, tuple[Callable[[Path], object], Callable[[Path], object]]] = {
    "rows": (lambda path: append(opened(path), 0, 2), appended),
    "marks": (lambda path: append(opened(path), 0, 2), marked),
    "a column": (lambda path: append(opened(path), 0, 2), added),
    "a merge": (lambda path: merge_table.create(str(path), {}), merged),
}


def check(synced: Synced, path: Path, before: set[Path]) -> None:
    """Of what is new: the files before the commit that names them, and each name in its directory after the file."""
    new = {each for each in path.rglob("*") if each.is_file()} - before
    (commit,) = (each for each in new if each.suffix == ".json")
    places = {each.name: place(synced, each) for each in new}
    assert -1 not in places.values(), places
    assert max(places.values()) == places[commit.name], "a commit on the medium names no file that is not"
    assert all(place(synced, each.parent) > places[each.name] for each in new)


@pytest.mark.parametrize("name", WRITTEN)
def test_each_kind_of_commit_is_synced_after_the_files_that_it_names(tmp_path: Path, synced: Synced, name: str) -> None:
    path = tmp_path / "t"
    create, write = WRITTEN[name]
    create(path)
    before = {*path.rglob("*")}
    write(path)
    check(synced, path, before)


def test_a_merge_whose_answer_was_lost_is_synced_too(tmp_path: Path, synced: Synced, monkeypatch: pytest.MonkeyPatch) -> None:
    def unanswered(_: OpenedTable, create: Callable[[], None]) -> None:
        create()
        raise DeltaError("no answer")

    merge_table.create(str(tmp_path / "t"), {})
    before = {*(tmp_path / "t").rglob("*")}
    with creating(monkeypatch, unanswered):
        merged(tmp_path / "t")
    check(synced, tmp_path / "t", before)


def test_the_first_commit_is_synced_with_the_directories_that_were_made_for_it(tmp_path: Path, synced: Synced) -> None:
    path = tmp_path / "lake" / "ports" / "t"
    append(opened(path), 0, 2)
    check(synced, path, set())
    assert [place(synced, each) >= 0 for each in (tmp_path, tmp_path / "lake", tmp_path / "lake" / "ports", path)] == [True] * 4


def test_a_checkpoint_is_synced_before_the_commits_that_it_stands_for_are_deleted(
    tmp_path: Path, synced: Synced, monkeypatch: pytest.MonkeyPatch
) -> None:
    from deltalake import DeltaTable

    table = opened(tmp_path)
    append(table, 0, 2)
    version, log = append(table, 2, 4), tmp_path / "_delta_log"
    found: list[int] = []

    def cleanup(_: DeltaTable) -> None:
        found.extend(place(synced, each) for each in (log / f"{version:020d}.checkpoint.parquet", log / "_last_checkpoint", log))

    monkeypatch.setattr(DeltaTable, "cleanup_metadata", cleanup)
    table.write_checkpoint(begin(table).table_id)
    assert -1 not in found
    assert sorted(found)[-1] == found[-1] != found[0], "their names last"
