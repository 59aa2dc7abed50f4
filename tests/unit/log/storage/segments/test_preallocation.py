"""Preallocated space: it is distinguished from records, from torn writes and from corruption, given back, and never read."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from waltz_log.core.formats.block import Block
from waltz_log.core.formats.records import encode_record
from waltz_log.core.formats.segment_format import FILE_HEADER_BYTES
from waltz_log.errors import CorruptData
from waltz_log.storage.segments.segment_log import SegmentLog
from waltz_log.testing.disk import Operation, SimulatedDisk

KEY = UUID(int=7)
SEG = "3/0000000000000000000.seg"
IDX = "3/0000000000000000000.idx"


class FixedClock:
    def now_ms(self) -> int:
        return 1_600_000_000_000


def block(first: int, data: Sequence[bytes]) -> Block:
    records = [encode_record(5, 1, 3, first + n, 7, body, first + n) for n, body in enumerate(data)]
    return Block(first, struct.pack(f">{len(records)}i", *map(len, records)), b"".join(records), 1000 + first)


def open_log(disk: SimulatedDisk, *, step: int = 1000, segment_bytes: int = 1 << 20, known_good: int = -1) -> SegmentLog:
    return SegmentLog.open(disk, FixedClock(), KEY, 3, segment_bytes, known_good, preallocate_bytes=step)


def read_all(log: SegmentLog) -> bytes:
    found, position = b"", log.first_id
    while position <= log.tail.last_id:
        reader = log.reader(position)
        while blocks := log.read(reader, position, log.tail.last_id, 300):
            found += b"".join(got.records for got in blocks)
            position = blocks[-1].last_transaction_id + 1
    return found


def test_space_is_preallocated_in_steps_and_released_at_closing() -> None:
    disk = SimulatedDisk()
    log = open_log(disk)
    seen: list[Operation] = []
    disk.before = seen.append
    sizes = []
    for n in range(60):
        log.append([block(n, [b"x" * 10])])
        sizes.append(len(disk.content(SEG)))
    assert set(sizes) == {1000, 2000, 3000, 4000}
    assert [operation.kind for operation in seen if operation.path == SEG].count("allocate") == 4
    assert read_all(log) == b"".join(block(n, [b"x" * 10]).records for n in range(60))
    log.close()
    assert len(disk.content(SEG)) == FILE_HEADER_BYTES + 60 * 50


def test_a_closed_segment_has_its_real_size_and_none_is_above_its_limit() -> None:
    disk = SimulatedDisk()
    log = open_log(disk, step=3000, segment_bytes=4096)
    blocks = [block(n, [b"y" * 560]) for n in range(14)]
    for each in blocks:
        log.append([each])
        assert all(len(disk.content(f"3/{name}")) <= 4096 for name in disk.list("3"))
    assert [len(disk.content(f"3/{first:019d}.seg")) for first, _ in log.closed()] == [FILE_HEADER_BYTES + 6 * 600] * 2
    assert read_all(log) == b"".join(each.records for each in blocks)
    assert open_log(disk.crash(), segment_bytes=4096).tail.last_id == 13


def test_unwritten_space_is_no_damage_and_is_appended_to() -> None:
    for zeros in (1, 7, 40, 999, 70_000):
        disk = SimulatedDisk()
        open_log(disk, step=0).append([block(0, [b"abc", b"", b"defg"])])
        disk.replace(SEG, disk.content(SEG) + bytes(zeros))
        with capture_logs() as logs:
            again = open_log(disk, step=0, known_good=2)
        assert not [entry for entry in logs if entry["log_level"] == "warning"]
        assert again.tail.last_id == 2
        again.append([block(3, [b"next"])])
        assert read_all(again).endswith(block(3, [b"next"]).records)
        again.close()
        assert len(disk.content(SEG)) == again.tail.end


def test_a_write_torn_at_any_byte_within_preallocated_space_is_dropped() -> None:
    whole = block(3, [b"last record", b"and one more"])
    for kept in range(len(whole.records)):
        disk = SimulatedDisk()
        log = open_log(disk)
        log.append([block(0, [b"abc"] * 3)])
        end, content = log.tail.end, disk.content(SEG)
        disk.replace(SEG, content[:end] + whole.records[:kept] + content[end + kept :])
        again = open_log(disk.crash())
        assert again.tail.last_id == (3 if kept >= 51 else 2)
        following = block(again.tail.last_id + 1, [b"next"])
        again.append([following])
        assert read_all(again).endswith(following.records)


def test_records_after_the_hole_of_a_torn_write_do_not_come_back() -> None:
    disk = SimulatedDisk()
    log = open_log(disk)
    log.append([block(0, [b"abc"])])
    end, content = log.tail.end, disk.content(SEG)
    torn = block(1, [b"first", b"second"]).records
    disk.replace(SEG, content[:end] + bytes(45) + torn[45:] + content[end + len(torn) :])
    with capture_logs() as logs:
        again = open_log(disk.crash())
    assert again.tail.last_id == 0
    assert [entry["event"] for entry in logs if entry["log_level"] == "warning"] == ["dropping a torn tail"]
    again.append([block(1, [b"other"])])
    assert again.tail.last_id == 1
    assert open_log(disk.crash()).tail.last_id <= 1


def test_acknowledged_records_that_turned_to_zeros_or_were_corrupted_are_corruption_not_space() -> None:
    disk = SimulatedDisk()
    log = open_log(disk)
    log.append([block(0, [b"abc", b"", b"defg"])])
    content, end = disk.content(SEG), log.tail.end
    starts = [FILE_HEADER_BYTES, FILE_HEADER_BYTES + 43, FILE_HEADER_BYTES + 83]
    damaged = [content[:start] + bytes(len(content) - start) for start in starts]
    damaged += [content[:n] + bytes([content[n] ^ 16]) + content[n + 1 :] for n in range(FILE_HEADER_BYTES, end)]
    for bad in damaged:
        disk.replace(SEG, bad)
        with pytest.raises(CorruptData) as caught:
            open_log(disk)
        assert caught.value.where == SEG
        assert disk.content(SEG) == bad
    disk.replace(SEG, damaged[2])
    disk.remove(IDX)
    with pytest.raises(CorruptData) as caught:
        open_log(disk, known_good=2)
    assert (caught.value.transaction_id, caught.value.offset) == (2, starts[2])


def test_a_reader_of_a_closed_segment_does_not_run_into_what_is_behind_its_records() -> None:
    disk = SimulatedDisk()
    log = open_log(disk, step=0, segment_bytes=4096)
    blocks = [block(n, [b"y" * 560]) for n in range(9)]
    for each in blocks:
        log.append([each])
    log.close()
    disk.replace(SEG, disk.content(SEG) + bytes(400))
    assert read_all(open_log(disk, step=0, segment_bytes=4096)) == b"".join(each.records for each in blocks)
    disk.remove(IDX)
    assert read_all(open_log(disk, step=0, segment_bytes=4096)) == b"".join(each.records for each in blocks)


def test_truncation_releases_preallocated_space_and_appends_allocate_it_again() -> None:
    disk = SimulatedDisk()
    log = open_log(disk)
    for n in range(10):
        log.append([block(n, [b"x" * 60])])
    log.truncate(4)
    assert len(disk.content(SEG)) == FILE_HEADER_BYTES + 5 * 100
    log.append([block(5, [b"z"])])
    assert len(disk.content(SEG)) == 1000
    assert open_log(disk.crash()).tail.last_id == 5
