"""Real faults under a real storage node: processes killed while they write, and disks that get full at every write of a roll."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from verification.crashes.storage_kills import KillFound, Noted, compare_with
from verification.crashes.storage_model import KEY, FixedClock
from waltz_log.filesystem import FileSystemDisk
from waltz_log.storage import StorageNode

PYTHON = sys.executable


def run(*command: str, timeout_s: float = 250) -> str:
    """What the command prints. Its own words are the failure's."""
    ended = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def kills(directory: Path, count: int, seed: int) -> dict[str, int]:
    reported = run(PYTHON, "-m", "verification.crashes.storage_kills", str(directory), "--kills", str(count), "--seed", str(seed))
    return {name: int(value) for name, _, value in (each.partition("=") for each in reported.split())}


def test_acknowledged_records_are_there_after_every_kill(tmp_path: Path) -> None:
    figures = kills(tmp_path / "storage", 100, 1)
    assert figures["kills"] == 100
    assert figures["acknowledged"] > 100
    assert figures["unacknowledged_found"] > 0, "no kill hit an append between its write and its acknowledgment"


def test_a_writer_that_is_killed_before_it_opens_a_session_leaves_an_empty_log(tmp_path: Path) -> None:
    StorageNode.create(FileSystemDisk(tmp_path / "storage"), FixedClock(), KEY, 1)
    assert asyncio.run(compare_with(tmp_path / "storage", Noted())) == (-1, 1)
    with pytest.raises(KillFound):
        asyncio.run(compare_with(tmp_path / "storage", Noted(session=1)))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3])
def test_acknowledged_records_are_there_after_many_kills(tmp_path: Path, seed: int) -> None:
    figures = kills(tmp_path / "storage", 250, seed)
    assert figures["kills"] == 250
    assert figures["unacknowledged_found"] > 10
    assert figures["segments_max"] > 3


def met(reported: str) -> dict[str, list[str]]:
    found = {}
    for line in reported.splitlines():
        kind, _, rest = line.partition(": ")
        found[kind] = rest.partition(": ")[2].split(", ")
    return found


def test_a_disk_that_gets_full_at_any_write_of_a_roll_loses_nothing_and_is_written_again_with_space(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = (PYTHON, "-m", "verification.crashes.storage_full", str(tmp_path / "full"))
    # A mount namespace of its own: what is mounted there is seen by no other process and gone with the process.
    allowed = subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", str(tmp_path)], capture_output=True, text=True)
    if allowed.returncode == 0:
        found = met(run("unshare", "-m", *command))
        assert set(found["pages"]) >= {"write idx.new", "write tix.new", "write seg.new", "write seg", "write tix", "write idx"}
        assert set(found["inodes"]) >= {"create idx.new", "create tix.new", "create seg.new"}
        assert not (tmp_path / "full" / "storage").exists(), "the mount leaked"
        return
    with capsys.disabled():
        print(f"\nNO FILE SYSTEM COULD BE FILLED: mounting is not allowed here ({allowed.stderr.strip()}); a limit on file sizes stands in for it")
    assert set(met(run(*command, "--limit"))["limit"]) >= {"write idx.new", "write seg"}


def test_a_limit_on_the_size_of_files_loses_nothing_and_is_written_beyond_when_it_is_gone(tmp_path: Path) -> None:
    found = met(run(PYTHON, "-m", "verification.crashes.storage_full", str(tmp_path / "full"), "--limit"))
    assert set(found["limit"]) >= {"write idx.new", "write seg"}
