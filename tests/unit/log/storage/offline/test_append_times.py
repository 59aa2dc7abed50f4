"""Append times that a wrong clock set too late are corrected in place, and nothing else is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.log.storage.offline.test_backup import records, well
from verification.crashes.storage_model import KEY, FixedClock, block_of
from waltz_log.cli.storage import storage_copies
from waltz_log.core.formats.control_format import SessionMark
from waltz_log.core.formats.segment_format import TIME_ENTRY_BYTES
from waltz_log.errors import InvalidSetting
from waltz_log.filesystem import FileSystemDisk
from waltz_log.storage.control.control import ControlFiles
from waltz_log.storage.offline import append_times
from waltz_log.storage.offline.append_times import correct_append_times
from waltz_log.storage.segments.segment_log import SegmentLog
from waltz_log.testing.disk import SimulatedDisk

NOW = 1_700_000_000_000
YEAR = 365 * 24 * 3600 * 1000
BLOCKS = 60


def _made(disk: SimulatedDisk | FileSystemDisk) -> None:
    """Two partitions of some segments; from block 20 on, partition 0 is a year ahead."""
    ControlFiles.create(disk, FixedClock(), KEY, 2)
    control = ControlFiles.open(disk)
    control.count_start()
    for partition in (0, 1):
        control.set_mark(partition, SessionMark(3, 50, 49))
    control.close()
    for partition in (0, 1):
        log = SegmentLog.open(disk, FixedClock(), KEY, partition, 4096, -1)
        for number in range(BLOCKS):
            ahead = YEAR if partition == 0 and number >= 20 else 0
            log.append([block_of(partition, number * 5, [90] * 5, salt=1, time_ms=NOW + number + ahead)])
        log.close()


def _times(disk: SimulatedDisk | FileSystemDisk, partition: int = 0) -> list[int]:
    log = SegmentLog.open(disk, FixedClock(), KEY, partition, 4096, -1)
    found, first = list[int](), 0
    while first < BLOCKS * 5:
        for block in log.read(log.reader(first), first, BLOCKS * 5 - 1, 1 << 20):
            found.append(block.append_time_ms)
            first = block.last_transaction_id + 1
    log.close()
    return found


def _position(disk: SimulatedDisk, time_ms: int) -> int:
    log = SegmentLog.open(disk, FixedClock(), KEY, 0, 4096, -1)
    try:
        return log.position_at(time_ms)
    finally:
        log.close()


@pytest.mark.parametrize("slice_entries", [1, 2, 4096])
def test_late_times_become_the_latest_one_and_the_rest_stays(monkeypatch: pytest.MonkeyPatch, slice_entries: int) -> None:
    monkeypatch.setattr(append_times, "SLICE_BYTES", slice_entries * TIME_ENTRY_BYTES)
    disk = SimulatedDisk()
    _made(disk)
    before, others = records(disk), _times(disk, 1)
    assert max(_times(disk)) > NOW + YEAR
    latest = NOW + 1_000
    assert correct_append_times(disk, latest) == {0: BLOCKS - 20}
    found = _times(disk)
    assert found[:20] == [NOW + number for number in range(20)]
    assert set(found[20:]) == {latest}
    assert records(disk) == before
    assert _times(disk, 1) == others
    assert well(disk)
    assert _position(disk, NOW + 30) == 100, "the first that was dated later than that"
    assert correct_append_times(disk, latest) == {}


def test_only_the_named_partitions_are_corrected() -> None:
    disk = SimulatedDisk()
    _made(disk)
    assert correct_append_times(disk, NOW, {1}) == {1: BLOCKS - 1}
    assert max(_times(disk)) > NOW + YEAR


def test_a_running_nodes_directory_is_refused_as_it_is(tmp_path: Path) -> None:
    disk = FileSystemDisk(tmp_path)
    _made(disk)
    disk.lock()
    with pytest.raises(InvalidSetting, match="in use by another process"):
        correct_append_times(FileSystemDisk(tmp_path), NOW)
    disk.unlock()
    assert max(_times(disk)) > NOW + YEAR


def test_a_backup_that_shares_files_with_the_directory_keeps_its_times(tmp_path: Path) -> None:
    disk = FileSystemDisk(tmp_path / "node")
    _made(disk)
    linked = tmp_path / "backup.tix"
    name = next(each for each in sorted((tmp_path / "node" / "0").iterdir(), reverse=True) if each.suffix == ".tix")
    linked.hardlink_to(name)
    before = linked.read_bytes()
    correct_append_times(disk, NOW)
    assert linked.read_bytes() == before
    assert name.read_bytes() != before


def test_the_command_says_what_it_corrected_and_when_there_is_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    disk = FileSystemDisk(tmp_path)
    _made(disk)
    assert storage_copies.correct_times(tmp_path, str(NOW + 1_000), None, "table") == 0
    assert capsys.readouterr().out == f"partition 0: corrected the time of {BLOCKS - 20} blocks\n"
    assert storage_copies.correct_times(tmp_path, str(NOW + 1_000), None, "table") == 0
    assert capsys.readouterr().out.startswith("nothing to do: no append time in ")
    with pytest.raises(InvalidSetting, match="must be a time"):
        storage_copies.correct_times(tmp_path, "soon", None, "table")
    with pytest.raises(InvalidSetting, match="is not a storage directory"):
        storage_copies.correct_times(tmp_path / "none", "1h", None, "table")
