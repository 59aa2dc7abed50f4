"""Measuring a disk: on a made-up one whose speed is known, and on the real one without believing its figures."""

from __future__ import annotations

import errno
import time
from pathlib import Path

import pytest

from waltz_log.filesystem import FileSystemDisk
from waltz_log.journal.measure import BLOCK_BYTES, MEASURED_FILE, BlockTiming, Bounds, measure, suggest
from waltz_log.journal.settings import GroupCommitSettings
from waltz_log.testing.disk import Operation, SimulatedDisk


class TimedDisk(SimulatedDisk):
    """Each sync lasts `sync_s` of a clock of its own."""

    def __init__(self, sync_s: float) -> None:
        super().__init__()
        self.time = 0.0
        self._sync_s = sync_s
        self.before = self._spend

    def _spend(self, operation: Operation) -> None:
        if operation.kind == "sync":
            self.time += self._sync_s

    def now(self) -> float:
        return self.time


def test_a_slow_disk_is_left_alone_half_of_the_time() -> None:
    disk = TimedDisk(0.004)
    timings = measure(disk, now=disk.now, budget_s=1.0)
    assert [each.block_bytes for each in timings] == list(BLOCK_BYTES)
    assert [each.median_s for each in timings] == pytest.approx([0.004] * len(BLOCK_BYTES))
    assert all(each.syncs_per_s == pytest.approx(250) for each in timings)
    assert suggest(timings) == Bounds(0.008, BLOCK_BYTES[-1])


def test_measuring_stays_within_its_time() -> None:
    disk = TimedDisk(0.01)
    measure(disk, now=disk.now, budget_s=3.0)
    assert 2.9 <= disk.time <= 3.2
    # So slow that the fewest rounds do not fit: they are made all the same.
    disk = TimedDisk(1.0)
    timings = measure(disk, now=disk.now, budget_s=0.5)
    assert [each.rounds for each in timings] == [5] * len(BLOCK_BYTES)


def test_the_size_is_the_largest_that_costs_no_more_than_two_small_syncs() -> None:
    timings = tuple(BlockTiming(size, 100, 0.001 + size * 1e-8, 0.01) for size in BLOCK_BYTES)
    assert suggest(timings) == Bounds(0.002, 64 << 10)
    assert suggest(timings[:1]) == Bounds(0.002, 512)


@pytest.mark.parametrize(("median_s", "linger_s"), [(1e-6, 0), (0.00049, 0), (0.0012345, 0.0025), (5.0, 0.02)])
def test_waiting_stays_within_reason(median_s: float, linger_s: float) -> None:
    found = suggest((BlockTiming(512, 9, median_s, median_s),))
    assert found.linger_s == pytest.approx(linger_s)
    # What is suggested can be set.
    assert GroupCommitSettings(linger_s=found.linger_s, group_bytes=found.group_bytes).linger_s == found.linger_s


def test_each_size_is_reported_when_it_is_known() -> None:
    disk = TimedDisk(0.01)
    reported: list[BlockTiming] = []
    assert measure(disk, now=disk.now, budget_s=0.6, progress=reported.append) == tuple(reported)


def test_nothing_is_left_behind_even_where_the_disk_fails() -> None:
    disk = TimedDisk(0.01)
    measure(disk, now=disk.now, budget_s=0.1)
    assert disk.list("") == []
    full = SimulatedDisk(total=1 << 20)
    with pytest.raises(OSError) as caught:
        measure(full, now=iter(range(100)).__next__)
    assert caught.value.errno == errno.ENOSPC
    assert full.list("") == []
    # What an interrupted measurement left is replaced.
    disk.open(MEASURED_FILE, "create").write(0, b"left")
    measure(disk, now=disk.now, budget_s=0.1)
    assert disk.list("") == []


def test_a_real_disk_is_measured_too(tmp_path: Path) -> None:
    timings = measure(FileSystemDisk(tmp_path), now=time.perf_counter, budget_s=0.1)
    assert len(timings) == len(BLOCK_BYTES)
    assert all(0 < each.median_s <= each.slow_s for each in timings)
    assert list(tmp_path.iterdir()) == []
