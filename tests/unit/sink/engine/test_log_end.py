"""The end of a local log: what its files say, when it is listed, and that no commit lands behind a checkpoint."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from waltz_delta.base.damaged_checkpoint import CHECKPOINT
from waltz_delta.base.damaged_checkpoint import COMMIT as COMMITS
from waltz_delta.engine import log_end
from waltz_delta.engine.log_end import FRESH_S, Sighting, is_end, newest_listed

COMMIT = "{:020d}.json"
PLAIN = "{:020d}.checkpoint.parquet"
OLD = Sighting(time.monotonic() - FRESH_S, time.time() - FRESH_S)
REMAINS = [
    f"{9:020d}.json#1",
    f"{9:020d}.json.bak",
    f"{9:020d}.json.tmp",
    f"{9:020d}.checkpoint.parquet#1",
    f"{9:020d}.0a-1b.json",
    f".{9:020d}.a.tmp",
]


@pytest.fixture
def listings(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Each listing of a log."""
    found: list[Path] = []

    def counted(log: Path, *names: Any) -> int:
        found.append(log)
        return newest_listed(log, *names)

    monkeypatch.setattr(log_end, "newest_listed", counted)
    return found


@pytest.mark.parametrize(
    ("names", "end"),
    [
        ([], True),
        ([COMMIT.format(3), PLAIN.format(2)], True),
        ([COMMIT.format(4)], False),
        ([COMMIT.format(5)], False),
        ([PLAIN.format(5)], False),
        ([f"{5:020d}.checkpoint.{part:010d}.{2:010d}.parquet" for part in (1, 2)], False),
        ([f"{5:020d}.checkpoint.{2:010d}.{2:010d}.parquet", f"{5:020d}.checkpoint.{1:010d}.{3:010d}.parquet"], True),
        ([f"{5:020d}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json"], False),
        ([*REMAINS, f"{9:020d}", "_last_checkpoint.tmp", f"{4:020d}.{9:020d}.compacted.json", "_staged_commits"], True),
    ],
)
@pytest.mark.parametrize("hint", [None, '{"version": 3}', '{"version": 1}', '{"ver', '{"version": "50"}', '{"version": 1e999}', "[" * 9999])
def test_a_log_that_was_not_seen_for_long_is_listed(tmp_path: Path, names: list[str], end: bool, hint: str | None) -> None:
    """Whatever the hint says: it can be older than the newest checkpoint, or garbage."""
    for name in names:
        (tmp_path / name).touch()
    if hint is not None:
        (tmp_path / "_last_checkpoint").write_text(hint)
    assert is_end(tmp_path, 3, OLD, {}) is end


def test_a_newer_checkpoint_that_the_hint_names_counts_at_once(tmp_path: Path, listings: list[Path]) -> None:
    (tmp_path / "_last_checkpoint").write_text('{"version": 4}')
    assert (is_end(tmp_path, 3, Sighting.now(), {}), is_end(tmp_path, 4, Sighting.now(), {}), listings) == (False, True, [])


@pytest.mark.parametrize(
    ("properties", "listed"),
    [
        ({}, 0),
        ({"delta.logRetentionDuration": "interval 30 days"}, 0),
        ({"delta.logRetentionDuration": "interval 1 hour"}, 0),
        ({"delta.logRetentionDuration": "interval 59 minutes"}, 1),
        ({"delta.logRetentionDuration": "interval 0 seconds"}, 1),
        ({"delta.logRetentionDuration": "interval 900 milliseconds"}, 1),
        ({"DELTA.LOGRETENTIONDURATION": "interval 1 second"}, 1),
        ({"delta.logRetentionDuration": "soon"}, 1),
        ({"delta.logRetentionDuration": "interval 30 days", "delta.logretentionduration": "interval 0 seconds"}, 1),
    ],
)
def test_a_log_that_was_just_seen_is_listed_only_if_it_keeps_commits_briefly(
    tmp_path: Path, listings: list[Path], properties: dict[str, str], listed: int
) -> None:
    assert is_end(tmp_path, 3, Sighting.now(), properties)
    assert len(listings) == listed


@pytest.mark.parametrize(("monotonic_s", "wall_s", "fresh"), [(1, 1, True), (FRESH_S, 1, False), (1, FRESH_S, False), (1, -FRESH_S - 2, False)])
def test_a_sighting_is_old_by_either_clock(monotonic_s: float, wall_s: float, fresh: bool) -> None:
    """A machine that slept, and a clock that was set, in both directions."""
    assert Sighting(time.monotonic() - monotonic_s, time.time() - wall_s).is_fresh is fresh


def test_a_log_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        is_end(tmp_path / "none", 3, OLD, {})


def test_the_newest_version_of_one_kind_of_file(tmp_path: Path) -> None:
    for name in (COMMIT.format(7), PLAIN.format(5), *REMAINS):
        (tmp_path / name).touch()
    assert [newest_listed(tmp_path), newest_listed(tmp_path, CHECKPOINT), newest_listed(tmp_path, COMMITS)] == [7, 5, 7]
    os.remove(tmp_path / COMMIT.format(7))
    assert newest_listed(tmp_path) == 5
