"""Files of a partition at their edges: order of their numbers, exact fit, short tails, clocks that step, a reader at the end, many partitions.

The cases are those that early implementations of the layout got wrong (lexical order, a reader that never sees the segment after a roll).
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from verification.crashes.storage_model import KEY, FixedClock, append, block_of, read_all, records_of
from waltz_log.core.formats.block import Block
from waltz_log.core.formats.segment_format import DATA, FILE_HEADER_BYTES, file_name, first_id_of
from waltz_log.errors import CorruptData, OutOfRange
from waltz_log.filesystem import FileSystemDisk, ThreadOffload
from waltz_log.storage import StorageNode, StorageSettings
from waltz_log.storage.replica.range_reads import RangeReads
from waltz_log.storage.segments import opening, segment_log
from waltz_log.storage.segments.segment_log import SegmentLog
from waltz_log.testing.disk import SimulatedDisk
from waltz_log.testing.offload import run_in_place

SEGMENT_BYTES = 4096
CAPACITY = SEGMENT_BYTES - FILE_HEADER_BYTES
SEG = f"0/{file_name(0, DATA)}"


class Clock:
    now = 1_600_000_000_000

    def now_ms(self) -> int:
        return self.now


def open_log(disk: SimulatedDisk, *, known_good: int = -1, step: int = 0, clock: Clock | None = None) -> SegmentLog:
    return SegmentLog.open(disk, clock or Clock(), KEY, 0, SEGMENT_BYTES, known_good, preallocate_bytes=step)


def one(first: int, size: int, time_ms: int = 1000) -> Block:
    return block_of(0, first, [size], salt=1, time_ms=time_ms)


async def read(log: SegmentLog, first: int = 0) -> list[bytes]:
    found: list[bytes] = []
    async for run in RangeReads(log, run_in_place).runs(first, 1 << 60, 1 << 20):
        for block in run:
            found += records_of(block)
    return found


# ---- the order of numbers -------------------------------------------------------------------------------------------------------------------------


class Unsorted(SimulatedDisk):
    """Lists names as a file system may: in any order."""

    def list(self, path: str) -> list[str]:
        return sorted(super().list(path), key=lambda name: name[::-1])


async def _segments_of_rising_length(disk: SimulatedDisk) -> tuple[list[bytes], list[int]]:
    log = open_log(disk)
    records = []
    for number in range(120):
        records += records_of(one(number, 3000))
        log.append([one(number, 3000)])
    log.close()
    again = open_log(disk, known_good=119)
    assert await read(again) == records
    return records, [first for first, _ in again.closed()]


async def test_segments_are_ordered_by_their_numbers() -> None:
    _, firsts = await _segments_of_rising_length(Unsorted())
    assert firsts == list(range(119)), "9 comes before 10, and 99 before 100"
    names = [file_name(first, DATA) for first in (9, 10, 99, 100)]
    assert names == sorted(names)
    assert [first_id_of(name, DATA) for name in names] == [9, 10, 99, 100]


async def test_lexical_order_of_segments_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def lexical(disk: SimulatedDisk, directory: str) -> list[int]:
        return sorted(numeric(disk, directory), key=str)

    numeric = opening.remove_leftovers
    monkeypatch.setattr(segment_log, "remove_leftovers", lexical)
    with pytest.raises((AssertionError, CorruptData, OutOfRange)):
        await _segments_of_rising_length(Unsorted())


@pytest.mark.parametrize("name", ["10.seg", "-1.seg", "00000000000000000010.seg", "000000000000000000a.seg", "0000000000000000010.seg.bak", ".seg"])
def test_other_file_names_are_no_segments(name: str) -> None:
    assert first_id_of(name, DATA) is None


# ---- exact fit ------------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [0, 1000, SEGMENT_BYTES])
async def test_a_record_that_fits_exactly_is_written_and_one_byte_more_goes_to_the_next_file(step: int) -> None:
    disk = SimulatedDisk()
    log = open_log(disk, step=step)
    log.append([one(0, CAPACITY - 40)])
    assert (log.segments, log.tail.end) == (1, SEGMENT_BYTES)
    half = CAPACITY // 2
    log.append([one(1, half - 40)])
    log.append([one(2, CAPACITY - half - 40)])
    assert (log.segments, log.tail.end) == (2, SEGMENT_BYTES)
    log.append([one(3, half - 40)])
    log.append([one(4, CAPACITY - half - 40 + 1)])
    assert log.closed() == [(0, 0), (1, 2), (3, 3)]
    assert await read(open_log(disk.crash(), known_good=4, step=step)) == [
        *records_of(one(0, CAPACITY - 40)),
        *records_of(one(1, half - 40)),
        *records_of(one(2, CAPACITY - half - 40)),
        *records_of(one(3, half - 40)),
        *records_of(one(4, CAPACITY - half - 40 + 1)),
    ]


# ---- what is left behind the last record ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("left", [1, 23, 24, 25, 39, 40, 41, 2 * 24, 4096])
async def test_a_file_of_full_size_is_recovered_to_its_last_record_whatever_length_of_zeros_follows(left: int) -> None:
    disk = SimulatedDisk()
    log = open_log(disk)
    records = records_of(one(0, 100)) + records_of(one(1, 100))
    log.append([one(0, 100)])
    log.append([one(1, 100)])
    log.close()
    disk.replace(SEG, disk.content(SEG) + bytes(left))
    with capture_logs() as logs:
        again = open_log(disk, known_good=1)
    assert not [entry for entry in logs if entry["log_level"] == "warning"]
    assert (again.tail.last_id, again.tail.end) == (1, FILE_HEADER_BYTES + 2 * 140)
    assert await read(again) == records


@pytest.mark.parametrize("left", [9, 23, 24, 25, 39])
async def test_the_beginning_of_a_header_behind_the_last_record_is_cut_away(left: int) -> None:
    disk = SimulatedDisk()
    log = open_log(disk)
    log.append([one(0, 100)])
    log.close()
    disk.replace(SEG, disk.content(SEG) + records_of(one(1, 100))[0][:left])
    again = open_log(disk, known_good=0)
    assert len(disk.content(SEG)) == again.tail.end == FILE_HEADER_BYTES + 140
    again.append([one(1, 7)])
    assert await read(again) == [*records_of(one(0, 100)), *records_of(one(1, 7))]


@pytest.mark.parametrize("zeros", [0, 500])
async def test_a_bad_record_before_acknowledged_ones_is_reported_and_nothing_is_touched(zeros: int) -> None:
    disk = SimulatedDisk()
    log = open_log(disk)
    for number in range(3):
        log.append([one(number, 100)])
    log.close()
    damaged = bytearray(disk.content(SEG)) + bytes(zeros)
    damaged[FILE_HEADER_BYTES + 140 + 60] ^= 1
    disk.replace(SEG, bytes(damaged))
    with pytest.raises(CorruptData) as caught:
        open_log(disk, known_good=2)
    assert caught.value.transaction_id == 1
    assert disk.content(SEG) == bytes(damaged)


# ---- a reader at the end --------------------------------------------------------------------------------------------------------------------------


async def _followed(log: SegmentLog, *, sync: bool) -> list[bytes]:
    """What a reader gets who asks again after each append, from where it is."""
    found: list[bytes] = []
    for number in range(12):
        log.append([one(number, 1500)], sync=sync)
        if not sync:
            log.sync()
        found += await read(log, len(found))
    return found


@pytest.mark.parametrize("sync", [True, False])
async def test_a_reader_at_the_end_sees_the_segment_that_follows(sync: bool) -> None:
    log = open_log(SimulatedDisk())
    assert await _followed(log, sync=sync) == [record for number in range(12) for record in records_of(one(number, 1500))]
    assert log.segments == 6


async def test_everything_is_readable_after_a_roll_that_no_sync_came_before() -> None:
    disk = SimulatedDisk()
    log = open_log(disk)
    expected = [record for number in range(7) for record in records_of(one(number, 1500))]
    for number in range(7):
        log.append([one(number, 1500)], sync=False)
    assert await read(log) == expected[:6], "what was rolled over is on the medium, what is in the last segment is not"
    log.sync()
    assert await read(log) == expected
    assert await read(open_log(disk.crash(), known_good=6)) == expected


async def test_a_new_segment_that_is_invisible_to_a_reader_at_the_end_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def roll(log: SegmentLog) -> None:
        before = log._firsts
        rolled(log)
        log._firsts = (*before[:-1], before[-1]) if len(before) < 3 else log._firsts  # the second roll is not reported

    rolled = SegmentLog._roll
    monkeypatch.setattr(SegmentLog, "_roll", roll)
    with pytest.raises((AssertionError, CorruptData, OutOfRange)):
        found = await _followed(open_log(SimulatedDisk()), sync=True)
        assert found == [record for number in range(12) for record in records_of(one(number, 1500))]


# ---- clocks ---------------------------------------------------------------------------------------------------------------------------------------


async def test_a_clock_that_steps_changes_times_and_nothing_else() -> None:
    """Segments are dated by the node's clock, blocks by their owner's. Neither decides what is read, opened or kept here."""
    clock, disk = Clock(), SimulatedDisk()
    log = open_log(disk, clock=clock)
    records = []
    for number, step_ms in enumerate((0, -86_400_000, 86_400_000, 10 * 86_400_000, -1, 0, 5, 5)):
        clock.now += step_ms
        block = one(number, 3000, time_ms=5000 + number)
        records += records_of(block)
        log.append([block])
    log.close()
    again = open_log(disk, clock=clock, known_good=7)
    assert await read(again) == records
    assert [again.position_at(5000 + number) for number in range(8)] == list(range(8))


# ---- many partitions ------------------------------------------------------------------------------------------------------------------------------


async def _cold_start(directory: Path, partitions: int) -> None:
    settings = StorageSettings(name="many", directory=directory, coordinator="test", open_files_max=64, scrub_bytes_per_s=0)
    disk = FileSystemDisk(directory)
    StorageNode.create(disk, FixedClock(), KEY, partitions)
    offload = ThreadOffload(4)
    node = StorageNode(settings, disk, FixedClock(), offload)
    await node.open(KEY)
    expected = {}
    for partition in range(0, partitions, 7):
        block = block_of(partition, 0, [partition % 50, 3], salt=1)
        await append(await node.partition(partition), 1, [block])
        expected[partition] = records_of(block)
    await node.close()
    for _ in range(2):  # as after a crash: the second start finds what the first left
        node = StorageNode(settings, disk, FixedClock(), offload)
        await node.open(KEY)
        reported = {each.partition: each.last_transaction_id for each in node.statistics().partitions}
        assert reported == dict.fromkeys(expected, 1)
        for partition, records in expected.items():
            assert await read_all(await node.partition(partition), 1, 0, 1) == records
        assert node.statistics().open_files <= 64 + 8
        await node.close()
    offload.close()


async def test_a_node_with_many_partitions_finds_each_again(tmp_path: Path) -> None:
    await _cold_start(tmp_path / "node", 150)


@pytest.mark.slow
async def test_a_node_with_thousands_of_partitions_finds_each_again(tmp_path: Path) -> None:
    async with asyncio.timeout(300):
        await _cold_start(tmp_path / "node", 20_000)
