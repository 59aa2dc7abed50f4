"""What is long on disk leaves the system's page cache; what was just written stays in it; and nothing of that can be seen but time and memory.

A system may use pages itself at any time, so what must be in memory is counted with room to spare, and what must not be without.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
from pathlib import Path
from uuid import UUID

import pytest

from waltz_log.core.formats.block import Block
from waltz_log.core.formats.records import encode_record
from waltz_log.filesystem import FileSystemDisk
from waltz_log.storage.segments.segment import UNCACHED_BYTES
from waltz_log.storage.segments.segment_log import SegmentLog

KEY = UUID(int=7)
SEG = "3/0000000000000000000.seg"
MIB = 1 << 20


class FixedClock:
    def now_ms(self) -> int:
        return 1_600_000_000_000


def block(first: int, size: int = MIB) -> Block:
    record = encode_record(5, 1, 3, first, 7, bytes([first % 251]) * (size - 40), first)
    return Block(first, struct.pack(">i", len(record)), record, 1000 + first)


def open_log(root: Path, cached_bytes: int | None, segment_bytes: int = 1 << 30) -> SegmentLog:
    return SegmentLog.open(FileSystemDisk(root), FixedClock(), KEY, 3, segment_bytes, -1, cached_bytes=cached_bytes)


def resident(path: Path) -> list[bool]:
    """Of each page of the file, whether it is in memory (mincore)."""
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        pages = -(-len(mapped) // mmap.PAGESIZE)
        found = (ctypes.c_ubyte * pages)()
        start = (ctypes.c_ubyte * len(mapped)).from_buffer(mapped)
        failed = ctypes.CDLL(None, use_errno=True).mincore(ctypes.c_void_p(ctypes.addressof(start)), ctypes.c_size_t(len(mapped)), found)
        del start
        assert failed == 0
        return [bool(each & 1) for each in found]


def resident_bytes(path: Path) -> int:
    return sum(resident(path)) * mmap.PAGESIZE


def read_all(log: SegmentLog) -> bytes:
    found, position = b"", log.first_id
    while position <= log.tail.last_id:
        reader = log.reader(position)
        while blocks := log.read(reader, position, log.tail.last_id, 4 * MIB):
            found += b"".join(got.records for got in blocks)
            position = blocks[-1].last_transaction_id + 1
    return found


@pytest.mark.parametrize("sync", [True, False])
def test_the_end_stays_in_memory_and_what_is_before_it_goes(tmp_path: Path, sync: bool) -> None:
    log, as_the_system_likes = open_log(tmp_path / "bounded", 4 * MIB), open_log(tmp_path / "whole", None)
    for number in range(24):
        for each in (log, as_the_system_likes):
            each.append([block(number)], sync=sync)
            if not sync and number % 3 == 2:
                each.sync()
    assert resident_bytes(tmp_path / "whole" / SEG) >= 16 * MIB, "else this shows nothing"
    pages = resident(tmp_path / "bounded" / SEG)
    assert sum(pages) * mmap.PAGESIZE <= 4 * MIB + UNCACHED_BYTES + MIB
    assert sum(pages[-4 * MIB // mmap.PAGESIZE :]) * mmap.PAGESIZE >= 3 * MIB, "what was just written"
    assert read_all(log) == b"".join(block(number).records for number in range(24))


def test_nothing_goes_before_it_is_on_disk(tmp_path: Path) -> None:
    log = open_log(tmp_path, 0)
    for number in range(12):
        log.append([block(number)], sync=False)
    assert resident_bytes(tmp_path / SEG) >= 8 * MIB
    log.sync()
    assert resident_bytes(tmp_path / SEG) <= UNCACHED_BYTES + MIB


def test_blocks_that_are_read_again_can_stay(tmp_path: Path) -> None:
    log = open_log(tmp_path, 0)
    for number in range(12):
        log.append([block(number)])
    read_all(log)
    log.append([block(12)])
    log.append([block(13)])
    assert resident_bytes(tmp_path / SEG) >= 6 * MIB, "readers' pages are the system's business"


def test_after_a_cut_and_after_another_opening_it_goes_on(tmp_path: Path) -> None:
    log = open_log(tmp_path, 2 * MIB, segment_bytes=40 * MIB)
    for number in range(30):
        log.append([block(number)])
    log.truncate(9)
    for number in range(10, 30):
        log.append([block(number)])
    assert resident_bytes(tmp_path / SEG) <= 2 * MIB + UNCACHED_BYTES + MIB
    log.close()
    log = open_log(tmp_path, 2 * MIB, segment_bytes=40 * MIB)
    read_all(log)
    for number in range(30, 60):
        log.append([block(number)])
    assert log.segments == 2
    assert read_all(log) == b"".join(block(number).records for number in range(60))
